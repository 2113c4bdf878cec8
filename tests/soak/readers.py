"""The fuzzer's readers: whole examples of every kind of file that densecal opens, and the functions that open them."""

import functools
import hashlib
import io
import json
import os
import pickle
import random
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import yaml
from PIL import Image
from safetensors.torch import save as to_safetensors

from densecal import posthoc
from densecal.benchmark.matrix import load_matrix
from densecal.benchmark.plan import VERSION as RESULT_VERSION
from densecal.benchmark.plan import Plan, is_finished, read_result
from densecal.benchmark.summary import summarise
from densecal.data import open_source, pack
from densecal.data.blocks import BlockChecksums
from densecal.data.packed import _digest as manifest_digest
from densecal.data.packed import open_packed
from densecal.data.pairs import find_pairs
from densecal.errors import InputError
from densecal.evaluation.folders import compute, score_folder
from densecal.evaluation.partial import Partial, merge_partials, pack_partial
from densecal.evaluation.worker import Settings
from densecal.io.atomic import write_json
from densecal.io.containers import _digest as container_digest
from densecal.io.images import read_image
from densecal.io.map_files import read_map
from densecal.io.masks import read_foreground, read_mask
from densecal.io.pairs import read_foreground_pair
from densecal.models import build
from densecal.models.weights import read_weights
from densecal.prediction.predictor import load_predictor
from densecal.report.inputs import read_inputs
from densecal.training import checkpoint
from densecal.training.config import dump_config, load_config
from densecal.training.loop import train_epoch
from densecal.training.restoring import check_epoch, restore
from densecal.training.run import assemble, create_fabric
from densecal.training.run_folder import save_checkpoint
from densecal.training.samples import open_data
from tests.posthoc.test_storage import KINDS, fitted_calibrator
from tests.soak import mutations
from tests.soak.volumes import read_volume, whole_volumes, wrong_header, wrong_metadata
from tests.training.common import small_config

Mutation = Callable[[bytes, random.Random], bytes]
Files = dict[str, bytes]


@dataclass(frozen=True)
class Reader:
    """A kind of file.

    Attributes:
        name: Its name in the counts.
        files: Whole files by name, one set of which is drawn.
        read: Opens and reads what is in a folder.
        wrong: Damage specific to the format, besides the damage that any file may have.
        targets: The files that are damaged; by default all.
        seal: Makes hashes agree with damaged content, as a stranger would.
        write: Writes a whole case itself, for damage that is not in the content of files.
    """

    name: str
    files: list[Files]
    read: Callable[[Path], object]
    wrong: Mutation = mutations.damage
    targets: tuple[str, ...] = ()
    seal: Callable[[Path], None] | None = None
    write: Callable[[Path, random.Random], None] | None = None


def write_case(reader: Reader, folder: Path, rng: random.Random) -> None:
    """Write the files of a case, one of them damaged."""
    if reader.write is not None:
        reader.write(folder, rng)
        return
    files = dict(rng.choice(reader.files))
    target = rng.choice([name for name in files if not reader.targets or name in reader.targets])
    damage = reader.wrong if rng.random() < 0.5 else mutations.damage
    if rng.random() < 0.03:
        files[target] = pickle.dumps(Touch())
    else:
        files[target] = damage(files[target], rng)
    write_files(files, folder)
    if reader.seal is not None and rng.random() < 0.7:
        reader.seal(folder)


def write_files(files: Files, folder: Path) -> None:
    """Write files by name."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


class Touch:
    """A stranger's payload in a pickle: unpickling it leaves a file."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch OWNED",)


def readers(scratch: Path) -> list[Reader]:
    """Return all kinds of files, each with whole examples that can be read."""
    return [
        *_images(), *_arrays(), *_volumes(scratch), _zip(), _list(), _pairs(), _packed(scratch), _config(), _matrix(),
        *_calibrators(scratch), *_checkpoints(scratch), _weights(), _evaluation(), _part(), _run_folder(),
        _results(scratch),
    ]  # fmt: skip


# ------------------------------------------------------------------ images and maps


def _encoded(array: np.ndarray, kind: str, **options: object) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, kind, **options)
    return stream.getvalue()


def _examples() -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    colour = rng.integers(0, 256, (30, 40, 3), dtype=np.uint8)
    grey = np.where(rng.random((30, 40)) < 0.3, 255, 0).astype(np.uint8)
    deep = rng.integers(0, 65536, (30, 40), dtype=np.uint16)
    palette = io.BytesIO()
    Image.fromarray(grey // 100).convert("P").save(palette, "png")
    one_bit = io.BytesIO()
    Image.fromarray(grey).convert("1").save(one_bit, "png")
    return {
        "a.png": _encoded(colour, "png"), "b.jpg": _encoded(colour, "jpeg"), "c.webp": _encoded(colour, "webp"),
        "d.bmp": _encoded(colour, "bmp"), "e.tif": _encoded(colour, "tiff"), "f.png": _encoded(grey, "png"),
        "g.png": _encoded(deep, "png"), "h.png": palette.getvalue(), "i.png": one_bit.getvalue(),
        "j.tif": _encoded(rng.random((30, 40)).astype(np.float32), "tiff"), "k.jpg": _encoded(grey, "jpeg"),
        "l.tif": _encoded(colour, "tiff", compression="tiff_lzw"),
        "m.tif": _encoded(deep, "tiff", compression="tiff_adobe_deflate"),
        "n.webp": _encoded(colour, "webp", lossless=True), "o.bmp": _encoded(grey, "bmp"),
        "p.jpg": _encoded(colour, "jpeg", progressive=True), "q.png": _encoded(np.dstack([colour, grey]), "png"),
    }  # fmt: skip


def _only(folder: Path) -> Path:
    entries = sorted(folder.iterdir())
    return next((path for path in entries if path.is_file()), entries[0])


def _images() -> list[Reader]:
    files = [{name: content} for name, content in _examples().items()]

    def as_mask(folder: Path) -> None:
        path = _only(folder)
        read_mask(path, str(path), 21 if path.stem > "h" else None)

    pngs = [entry for entry in files if next(iter(entry)).endswith(".png")]
    return [
        Reader("image", files, lambda folder: read_image(_only(folder), str(_only(folder)))),
        Reader("mask", files, as_mask),
        Reader("foreground mask", files, lambda folder: read_foreground(_only(folder), "a")),
        Reader("map", files, lambda folder: read_map(_only(folder))),
        Reader("PNG header", pngs, lambda folder: read_map(_only(folder)), mutations.wrong_png),
        Reader("PNG header, image", pngs, lambda folder: read_image(_only(folder), "a"), mutations.wrong_png),
    ]


def _npy(array: np.ndarray, fortran: bool = False) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.asfortranarray(array) if fortran else array)
    return stream.getvalue()


def _zipped(members: Files, compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


def _arrays() -> list[Reader]:
    rng = np.random.default_rng(0)
    p = rng.random((30, 40))
    softmax = rng.dirichlet((1, 1, 1), (30, 40)).transpose(2, 0, 1)
    one = [_npy(p), _npy(p.astype(np.float32)), _npy((p * 255).astype(np.uint8)), _npy(p, fortran=True)]

    def wrong_member(data: bytes, rng: random.Random) -> bytes:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        name = rng.choice(list(members))
        members[name] = rng.choice((mutations.wrong_npy, mutations.damage))(members[name], rng)
        return _zipped(
            members, rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2))
        )

    zips = [{"a.npz": _zipped({"p.npy": one[0]}, kind)} for kind in (0, 8, 12, 14)]
    return [
        Reader("npy", [{"a.npy": x} for x in one], lambda folder: read_map(folder / "a.npy"), mutations.wrong_npy),
        Reader(
            "npy, 3 classes", [{"a.npy": _npy(softmax)}], lambda folder: read_map(folder / "a.npy", 3),
            mutations.wrong_npy,
        ),
        Reader("npz", zips, lambda folder: read_map(folder / "a.npz"), wrong_member),
    ]  # fmt: skip


def _volumes(scratch: Path) -> list[Reader]:
    kinds = whole_volumes(scratch / "volumes")
    wrong = {"zarr": wrong_metadata, **dict.fromkeys(("nrrd", "nhdr", "mha", "mhd"), wrong_header)}
    return [Reader(kind, files, read_volume, wrong.get(kind, mutations.damage)) for kind, files in kinds.items()]


# ------------------------------------------------------------------ data sets


def read_all(source_path: Path) -> None:
    """Read every image and mask of a data set."""
    source = open_source(source_path)
    for name in source.names:
        source.image(name)
        if source.has_masks:
            source.mask(name)
        source.fingerprint(name)


def _zip() -> Reader:
    whole = _examples()
    members = {"images/a.png": whole["a.png"], "images/b.jpg": whole["b.jpg"],
               "masks/a.png": whole["f.png"], "masks/b.png": whole["f.png"]}  # fmt: skip
    escaping = {
        **members,
        "../images/c.png": whole["a.png"],
        "/images/d.png": whole["a.png"],
        "images/../../e.png": b"",
    }
    files = [{"set.zip": _zipped(content, kind)} for content in (members, escaping) for kind in (0, 8)]
    return Reader("zip", files, lambda folder: read_all(folder / "set.zip"))


def _list() -> Reader:
    whole = _examples()
    text = b"a.png\tf.png\nb.jpg i.png\n"
    files = {"list.txt": text, **{name: whole[name] for name in ("a.png", "f.png", "b.jpg", "i.png")}}
    return Reader("list file", [files], lambda folder: read_all(folder / "list.txt"))


def _pairs() -> Reader:
    whole = _examples()
    files = {"maps/a.png": whole["g.png"], "masks/a.png": whole["f.png"]}

    def read(folder: Path) -> None:
        for pair in find_pairs(folder / "maps", folder / "masks")[0]:
            read_foreground_pair(pair, 255)

    return Reader("map and mask", [files], read)


def _packed(scratch: Path) -> Reader:
    whole = _examples()
    for part, name in (("images", "a.png"), ("masks", "f.png")):
        (scratch / "set" / part).mkdir(parents=True)
        (scratch / "set" / part / "a.png").write_bytes(whole[name])
    source = open_source(scratch / "set")
    pack(source, source.names, 16, scratch / "packed", workers=1)
    files = _content(scratch / "packed")

    def read(folder: Path) -> None:
        packed = open_packed(folder, verify=True)
        packed.batch(range(len(packed)))

    def seal(folder: Path) -> None:
        try:
            manifest = json.loads((folder / "manifest.json").read_text())
            manifest["sha256"] = {name: _digest(folder / name) for name in ("images.u8", "masks.u8")}
            manifest["blocks"] = {name: _checksums(folder / name) for name in ("images.u8", "masks.u8")}
            manifest["digest"] = manifest_digest(manifest)
        except (ValueError, TypeError, RecursionError, AttributeError):
            return
        (folder / "manifest.json").write_text(json.dumps(manifest))

    return Reader("packed cache", [files], read, _wrong_by_content, (), seal)


def _checksums(path: Path) -> str:
    checksums = BlockChecksums()
    checksums.update(path.read_bytes())
    return checksums.text()


def _content(folder: Path) -> Files:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# ------------------------------------------------------------------ settings


def _config() -> Reader:
    files = [
        {"a.yaml": dump_config(small_config(*more)).encode()}
        for more in (
            (),
            ("method.name=focal",),
            ("data.scenes=null", "data.images=x", "data.classes=3", "method.name=bce"),
        )
    ]
    return Reader(
        "recipe", files, lambda folder: load_config(str(folder / "a.yaml"), ["optim.lr=1e-3"]), mutations.wrong_yaml
    )


def _matrix_settings() -> dict[str, object]:
    return {
        "recipe": "demo", "overrides": ["data.size=32", "optim.epochs=1"], "seeds": [0, 1],
        "methods": ["bce", {"name": "si", "set": ["method.name=aslp-mc"], "grid": {"method.warmup": [1, 2]}}],
        "datasets": [{"name": "out", "scenes": {"count": 7}}, {"name": "x", "images": "x", "ood": True}],
        "calibrators": ["temperature"], "ensembles": ["bce"], "bins": [10, 15],
    }  # fmt: skip


def _matrix() -> Reader:
    files = {"m.yaml": yaml.safe_dump(_matrix_settings()).encode()}

    def read(folder: Path) -> None:
        Plan(load_matrix(folder / "m.yaml"), folder / "out")

    return Reader("benchmark matrix", [files], read, mutations.wrong_yaml)


# ------------------------------------------------------------------ calibrators and checkpoints


def _calibrators(scratch: Path) -> list[Reader]:
    networks, plain = [], []
    for name, classes in KINDS:
        folder = scratch / "calibrators" / f"{name}-{classes}"
        folder.mkdir(parents=True)
        posthoc.save(fitted_calibrator(name, classes), folder / "cal.json")
        files = _content(folder)
        (networks if len(files) > 1 else plain).append(files)

    def read(folder: Path) -> None:
        calibrator = posthoc.load(folder / "cal.json")
        logits = torch.linspace(-9, 9, 81 * calibrator.num_classes).reshape(1, calibrator.num_classes, 9, 9)
        with torch.no_grad():
            p = calibrator(logits, torch.zeros(1, 3, 9, 9))
        if not bool(p.isfinite().all()):
            raise AssertionError("a calibrator that was accepted gives probabilities that are not finite")

    def seal(folder: Path) -> None:
        try:
            data = json.loads((folder / "cal.json").read_text())
            data["sha256"] = _digest(folder / "cal.safetensors")
        except (ValueError, TypeError, RecursionError):
            return
        (folder / "cal.json").write_text(json.dumps(data))

    return [
        Reader("calibrator", plain, read, mutations.wrong_json),
        Reader("calibrator of weights", networks, read, _wrong_by_content, seal=seal),
    ]


def _wrong_by_content(data: bytes, rng: random.Random) -> bytes:
    """Damage JSON, or the JSON header of safetensors."""
    if data[:1] == b"{":
        return mutations.wrong_json(data, rng)
    length = int.from_bytes(data[:8], "little")
    if data[8:9] == b"{" and length < len(data):
        header = mutations.wrong_json(data[8 : 8 + length], rng)
        return len(header).to_bytes(8, "little") + header + data[8 + length :]
    return mutations.damage(data, rng)


def _seal_checkpoint(folder: Path) -> None:
    inner = folder / "checkpoints" / "last"
    try:
        found = json.loads((inner / checkpoint.META).read_text())
        names = (checkpoint.MODEL, checkpoint.METHOD, checkpoint.OPTIMIZER)
        found["sha256"] = {name: _digest(inner / name) for name in names}
    except (ValueError, TypeError, RecursionError):
        return
    (inner / checkpoint.META).write_text(json.dumps(found))


def _checkpoints(scratch: Path) -> list[Reader]:
    config = small_config()
    model = build(config.model.arch, config.model.encoder, None, 1, **config.model.options)
    meta = {"epoch": 2, "best": 0.1, "samples": "0" * 64, "config": config.model_dump(mode="json")}
    small = {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(3)}
    state = {"main": {"state": {0: {"step": torch.tensor(2.0)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}}
    for name, weights in (("run", small), ("model", model.state_dict())):
        checkpoint.save(scratch / name / "checkpoints" / "last", weights, {"values": torch.rand(4)}, state, meta)

    whole = _content(scratch / "model")
    meta_only = (f"checkpoints/last/{checkpoint.META}",)
    return [
        Reader(
            "checkpoint", [_content(scratch / "run")], lambda folder: checkpoint.load(folder / "checkpoints" / "last"),
            _wrong_by_content, seal=_seal_checkpoint,
        ),
        Reader(
            "newest checkpoint", [_content(scratch / "run")],
            lambda folder: checkpoint.load_newest(folder / "checkpoints"), _wrong_by_content, seal=_seal_checkpoint,
        ),
        Reader(
            "model of a run", [whole], lambda folder: load_predictor(folder, "cpu"), _wrong_by_content, meta_only,
            _seal_checkpoint,
        ),
        _resumed_run(scratch),
    ]  # fmt: skip


def _resumed_run(scratch: Path) -> Reader:
    """Return a reader of a run stopped inside an epoch, which restores its checkpoint and continues for one update."""
    config = small_config(
        "optim.ema=0.9", "data.scenes.train=4", "data.scenes.validation=2", "optim.batch=2", "engine.accelerator=cpu"
    )  # fmt: skip
    run = assemble(config, create_fabric(config), open_data(config.data))
    run.stop.set()
    train_epoch(run, 0)
    save_checkpoint(run, scratch / "stopped", 0, float("inf"), improved=False)

    def read(folder: Path) -> None:
        saved, problems = checkpoint.load_newest(folder / "checkpoints")
        if saved is None:
            raise InputError(folder, "; ".join(problems), "a checkpoint")
        check_epoch(saved, config.total_epochs)
        restore(run, saved)
        if run.position is not None:
            run.position.restore_random(torch.device("cpu"))
        for optimizer in run.optimizers.values():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = torch.rand_like(parameter)
            optimizer.step()
        assert run.average is not None
        run.average.follow(2)

    def wrong(data: bytes, rng: random.Random) -> bytes:
        return mutations.wrong_state(data, rng) if data[:2] == b"PK" else _wrong_by_content(data, rng)

    return Reader("resumed run", [_content(scratch / "stopped")], read, wrong, seal=_seal_checkpoint)


def _weights() -> Reader:
    state = {"a.weight": torch.rand(3, 4), "a.bias": torch.rand(3)}
    stream = io.BytesIO()
    torch.save({"state_dict": state}, stream)
    files = [{"w.pth": stream.getvalue()}, {"w.safetensors": to_safetensors(state)}]
    return Reader("weights", files, lambda folder: read_weights(_only(folder)), _wrong_by_content)


# ------------------------------------------------------------------ results


@functools.cache
def _scored(classes: int | None = None) -> Partial:
    """Return the sums of two small maps, of 3 classes or of foreground."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        for path in (Path(folder) / name for name in ("maps/a.png", "maps/b.png", "masks/a.png", "masks/b.png")):
            path.parent.mkdir(exist_ok=True)
            if classes and path.parent.name == "maps":
                np.save(path.with_suffix(".npy"), rng.dirichlet((1, 1, 1), (8, 8)).transpose(2, 0, 1))
            else:
                Image.fromarray(rng.integers(0, classes or 256, (8, 8), dtype=np.uint8)).save(path)
        settings = Settings(full=False, classes=classes)
        part = score_folder(Path(folder) / "maps", Path(folder) / "masks", settings=settings)
        assert part is not None
        return part


@functools.cache
def _record() -> dict[str, object]:
    """Return what an evaluation of two small maps writes."""
    return compute(_scored(), "maps", "masks").record.to_json()


def _part() -> Reader:
    def wrong(data: bytes, rng: random.Random) -> bytes:
        """Damage a member and correct the digest, as a stranger would."""
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = {name: archive.read(name) for name in archive.namelist() if name != "sha256"}
        name = rng.choice(list(members))
        flipped = bytearray(members[name])
        if name.startswith("densecal "):
            members[name] = mutations.wrong_json(members[name], rng)
        elif rng.random() < 0.7 and flipped:  # of the same size
            for _ in range(rng.randrange(1, 9)):
                flipped[rng.randrange(len(flipped))] = rng.randrange(256)
            members[name] = bytes(flipped)
        else:
            members[name] = mutations.damage(members[name], rng)
        hashes = {name: hashlib.sha256(content).hexdigest() for name, content in members.items()}
        return _zipped({**members, "sha256": container_digest(hashes).encode()})

    def read(folder: Path) -> None:
        compute(merge_partials([folder / "a.sketch"]), "parts", "parts").record.to_json()

    files = [{"a.sketch": pack_partial(_scored(classes))} for classes in (None, 3)]
    return Reader("part of an evaluation", files, read, wrong)


def _evaluation() -> Reader:
    one = json.dumps(_record()).encode()
    several = json.dumps({"evaluations": [_record(), {**_record(), "name": "c"}], "paired": []}).encode()
    return Reader(
        "evaluation", [{"e.json": one}, {"e.json": several}], lambda folder: read_inputs([folder / "e.json"]),
        mutations.wrong_json,
    )  # fmt: skip


def _run_folder() -> Reader:
    line = json.dumps({"epoch": 1, "loss": 0.5, "validation": {"ece_ew": 0.1}, "method": {}})
    files = {"r/config.yaml": dump_config(small_config()).encode(), "r/log.jsonl": f"{line}\n{line}\n".encode(),
             "r/alpha.csv": b"name,value\na,0.1\nb,0.2\n"}  # fmt: skip

    def wrong_line(data: bytes, rng: random.Random) -> bytes:
        return mutations.wrong_json(line.encode(), rng) + b"\n"

    return Reader("log of a run", [files], lambda folder: read_inputs([folder / "r"]), wrong_line)


def _results(scratch: Path) -> Reader:
    path = scratch / "matrix.yaml"
    path.write_text(yaml.safe_dump({"recipe": "demo", "methods": ["bce"]}))
    matrix = load_matrix(path)
    cell = Plan(matrix, scratch / "bench").untuned[0]
    record = {**_record(), "dataset": "validation", "calibrator": "none", "more_bins": {}}
    record["entropy"] = {"histogram": [0] * 100, "images": [0.1, 0.1], "mean": 0.1}
    result = {"version": RESULT_VERSION, "digest": cell.digest, "label": "bce", "seed": 0, "method": {"name": "bce"},
              "grid": {}, "seconds": 1.0, "warnings": [], "evaluations": [record]}  # fmt: skip
    write_json(cell.result, result)
    files = _content(scratch / "bench")

    def read(folder: Path) -> None:
        task = Plan(matrix, folder).untuned[0]
        read_result(task)
        is_finished(task)
        summarise(matrix, folder, "command")

    return Reader("benchmark result", [files], read, mutations.wrong_json)
