"""Nothing is lost by accident: no command overwrites a file it reads, or a foreign file without --force."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
import zarr
from PIL import Image

from densecal import demo, posthoc
from densecal.data import open_source, pack
from densecal.errors import InputError
from densecal.io.outputs import check_outputs
from densecal.io.run_files import run_files
from densecal.training.loop import train
from tests.adversarial.common import assert_one_line, densecal, write_set
from tests.onnx_files import conv_onnx
from tests.training.common import SMALL, small_config

OUT = "OUT"
"""Stands for the output in the commands below."""
FILES = {
    "evaluate --json": (["evaluate", "maps", "masks", "--json", OUT], "out.json", "maps/0.png"),
    "evaluate --csv": (["evaluate", "maps", "masks", "--csv", OUT], "out.csv", "masks/0.png"),
    "evaluate --latex": (["evaluate", "maps", "masks", "--latex", OUT], "out.tex", "maps/0.png"),
    "evaluate --partial": (["evaluate", "maps", "masks", "--partial", OUT], "out.sketch", "maps/0.png"),
    "evaluate --groups": (["evaluate", "maps", "masks", "--groups", "g.csv", "--json", OUT], "out.json", "g.csv"),
    "evaluate --class-names": (
        ["evaluate", "maps", "masks", "--classes", "2", "--class-names", "two.txt", "--csv", OUT], "out.csv", "two.txt",
    ),
    "merge": (["merge", "part.sketch", "--json", OUT], "out.json", "part.sketch"),
    "raters": (["raters", "maps", "masks", "others", "--json", OUT], "out.json", "others/0.png"),
    "evaluate --ood": (["evaluate", "maps", "masks", "--ood", "others", "--json", OUT], "out.json", "others/0.png"),
    "calibrate fit": (["calibrate", "fit", "temperature", "maps", "masks", "--out", OUT], "out.json", "masks/0.png"),
    "calibrate select": (["calibrate", "select", "maps", "masks", "--out", OUT], "out.json", "masks/0.png"),
    "calibrate select --json": (
        ["calibrate", "select", "maps", "masks", "--groups", "g.csv", "--out", "c.json", "--json", OUT], "out.json",
        "g.csv",
    ),
    "calibrate prior": (["calibrate", "prior", "maps", "masks", "others", "--out", OUT], "out.json", "others/0.png"),
    "risk-control --groups": (
        ["risk-control", "maps", "masks", "--groups", "g.csv", "--json", OUT], "out.json", "g.csv"
    ),
    "risk-control": (["risk-control", "maps", "masks", "--alpha", "0.5", "--json", OUT], "out.json", "maps/0.png"),
    "report": (["report", "scores.json", "--out", OUT], "out.html", "scores.json"),
    "report of a run": (["report", "run", "--out", OUT], "out.html", "run/log.jsonl"),
    "report with pictures": (
        ["report", "scores.json", "--predictions", "maps", "--masks", "masks", "--images", "photos", "--out", OUT],
        "out.html", "photos/0.png",
    ),
    "data check": (["data", "check", "photos", "masks", "--json", OUT], "out.json", "photos/0.png"),
    "data check --against": (["data", "check", "maps", "--against", "photos", "--json", OUT], "o.json", "photos/0.png"),
    "export": (["export", "run", "--out", OUT], "out.onnx", "run/checkpoints/last/model.safetensors"),
    "export --calibrator": (["export", "run", "--calibrator", "cal.json", "--out", OUT], "out.onnx", "cal.json"),
    "shift --json": (["shift", "run", "photos", "masks", "--json", OUT], "out.json", "photos/0.png"),
    "benchmark": (["benchmark", "matrix.yaml", "--out", "bench"], "bench/table.md", "photos/0.png"),
    "the matrix": (["benchmark", "matrix.yaml", "--out", "bench"], "bench/results.json", "matrix.yaml"),
}  # fmt: skip
"""Commands that write a file, its name, and a file that the command reads."""
FOLDERS = {
    "predict": (["predict", "run", "photos", "--out", OUT], "0.png", "photos"),
    "predict --uncertainty": (["predict", "run", "photos", "--uncertainty", "--out", OUT], "entropy/0.png", "photos"),
    "predict --format npy": (["predict", "run", "photos", "--format", "npy", "--out", OUT], "0.npy", "photos"),
    "calibrate apply": (["calibrate", "apply", "cal.json", "maps", "--out", OUT], "0.png", "maps"),
    "calibrate apply to floats": (["calibrate", "apply", "cal.json", "floats", "--out", OUT], "0.npy", "floats"),
    "evaluate --figures": (["evaluate", "maps", "masks", "--figures", OUT], "reliability.png", "maps"),
    "shift --figures": (["shift", "run", "photos", "masks", "--figures", OUT], "shift.png", "photos"),
}
"""Commands that write a folder, a file there, and a folder that the command reads."""


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    """Write one of everything that a command reads."""
    folder = write_set(tmp_path_factory.mktemp("material"))
    train(small_config("optim.epochs=1", "method.name=bce", "engine.loggers=[]"), folder / "run")
    shutil.copytree(folder / "maps", folder / "others")
    (folder / "floats").mkdir()
    for path in sorted((folder / "maps").iterdir()):
        np.save(folder / "floats" / path.stem, np.asarray(Image.open(path), np.float32) / 255)
    assert densecal(folder, "evaluate", "maps", "masks", "--metrics", "fast", "--json", "scores.json")[0] == 0
    assert densecal(folder, "evaluate", "maps", "masks", "--metrics", "fast", "--partial", "part.sketch")[0] == 0
    (folder / "g.csv").write_text("".join(f"{i},{i % 2}\n" for i in range(4)))
    (folder / "two.txt").write_text("one\ntwo\n")
    photos = {"name": "photos", "images": "photos", "masks": "masks"}
    matrix = {"recipe": "demo", "overrides": SMALL[:6], "methods": ["bce"], "datasets": [photos]}
    (folder / "matrix.yaml").write_text(yaml.safe_dump(matrix))
    return folder


@pytest.fixture
def workplace(material, tmp_path):
    """Return a copy of the material that may be changed."""
    return Path(shutil.copytree(material, tmp_path / "workplace"))


def write_cityscapes(maps: Path, masks: Path) -> None:
    """Write two maps of 19 classes, and masks as Cityscapes publishes them."""
    rng = np.random.default_rng(0)
    for folder in (maps, masks):
        folder.mkdir(parents=True)
    for name in ("ulm_000000_000019", "ulm_000001_000019"):
        np.save(maps / f"{name}_leftImg8bit.npy", rng.dirichlet([1] * 19, (8, 8)).transpose(2, 0, 1))
        labels = rng.integers(0, 34, (8, 8)).astype(np.uint8)
        Image.fromarray(labels).save(masks / f"{name}_gtFine_labelIds.png")


def write_nnunet(folder: Path) -> None:
    """Write maps and labels of nnU-Net, and the description of both."""
    rng = np.random.default_rng(0)
    for name in ("maps", "labels"):
        (folder / name).mkdir()
    for case in ("a", "b"):
        np.savez(folder / "maps" / f"{case}.npz", probabilities=rng.dirichlet([1] * 3, (2, 4, 4)).transpose(3, 0, 1, 2))
        np.save(folder / "labels" / f"{case}.npy", rng.integers(0, 3, (2, 4, 4)).astype(np.uint8))
    (folder / "dataset.json").write_text(json.dumps({"labels": {"background": 0, "one": 1, "two": 2}}))


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def put(path: Path, kind: str, target: Path) -> None:
    """Make another name for a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "link":
        path.symlink_to(target)
    elif kind == "link to a link":
        path.with_name("between").symlink_to(target)
        path.symlink_to("between")
    else:
        os.link(target, path)


def run_refused(folder: Path, arguments: list[str], *words: str) -> None:
    """Run a command that is refused in one line and changes nothing."""
    before = contents(folder)
    assert_one_line(densecal(folder, *arguments), *words)
    assert contents(folder) == before


@contextlib.contextmanager
def other_name(path: Path, kind: str, target: Path) -> Iterator[None]:
    """Let a file have another name for a while."""
    made = not path.parent.exists()
    put(path, kind, target)
    yield
    path.unlink()
    path.with_name("between").unlink(missing_ok=True)
    if made:
        shutil.rmtree(path.parent)


@pytest.mark.parametrize("name", FILES)
def test_no_command_writes_over_a_file_that_it_reads(material, name):
    arguments, out, read = FILES[name]
    command = [out if argument == OUT else argument for argument in arguments]
    for kind in ("link", "hard link"):
        with other_name(material / out, kind, material / read):
            for force in ([], ["--force"]):
                refusal = f"densecal: {out}: a file that this command reads; expected another name"
                run_refused(material, [*command, *force], refusal)


@pytest.mark.parametrize(
    "name", ["evaluate --csv", "evaluate --groups", "evaluate --latex", "raters", "report", "report with pictures"]
)
def test_an_output_cannot_have_the_name_of_an_input(material, name):
    arguments, _, read = FILES[name]
    for path in (read, f"maps/../{read}", str(material / read)):
        command = [path if argument == OUT else argument for argument in arguments]
        run_refused(material, [*command, "--force"], "a file that this command reads; expected another name")


@pytest.mark.parametrize("name", FOLDERS)
def test_no_folder_that_is_read_is_written_into(material, name):
    arguments, _, read = FOLDERS[name]
    with other_name(material / "link", "link", material / read):
        for folder in (f"./{read}/", "link", str(material / read)):
            command = [folder if argument == OUT else argument for argument in arguments]
            run_refused(material, [*command, "--force"], "a folder that this command reads; expected another folder")


@pytest.mark.parametrize("name", FOLDERS)
def test_no_input_is_written_over_through_another_folder(material, name):
    arguments, file, read = FOLDERS[name]
    command = ["out" if argument == OUT else argument for argument in arguments]
    for kind in ("link to a link", "hard link"):
        with other_name(material / "out" / file, kind, next((material / read).iterdir())):
            run_refused(material, [*command, "--force"], f"densecal: out/{file}: a file that this command reads")
    shutil.rmtree(material / "out", ignore_errors=True)


def test_a_list_file_protects_the_images_it_names(workplace):
    (workplace / "list.txt").write_text("".join(f"photos/{i}.png\n" for i in range(4)))
    command = ["predict", "run", "list.txt", "--out", "photos", "--force"]
    run_refused(workplace, command, "photos/0.png: a file that this command reads")


# ------------------------------------------------------------------ files of something else

FAST = [
    "evaluate --json",
    "evaluate --partial",
    "merge",
    "evaluate --csv",
    "evaluate --latex",
    "calibrate fit",
    "calibrate prior",
    "raters",
    "risk-control",
    "data check",
    "report",
]
"""Commands whose work takes less than a second."""


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_something_else_is_refused(material, tmp_path, name):
    arguments, out, _ = FILES[name]
    (tmp_path / "mine").write_bytes(b"densecal evaluate was here, and these are my notes")
    command = [out if argument == OUT else argument for argument in arguments]
    with other_name(material / out, "hard link", tmp_path / "mine"):
        refusal = (f"densecal: {out}: a file that densecal ", " did not write; expected ", "--force")
        run_refused(material, command, *refusal)


@pytest.mark.parametrize("name", FAST)
def test_force_replaces_it_and_an_output_is_replaced_without_force(workplace, name):
    arguments, out, _ = FILES[name]
    (workplace / out).write_bytes(b"my notes")
    command = [out if argument == OUT else argument for argument in arguments]
    command += ["--metrics", "fast"] if command[0] == "evaluate" else []
    code, _, errors = densecal(workplace, *command, "--force")
    assert code in (0, 1), errors  # data check finds something
    first = (workplace / out).read_bytes()
    assert first != b"my notes"
    assert densecal(workplace, *command)[0] == code
    assert (workplace / out).read_bytes() == first


@pytest.mark.slow
@pytest.mark.parametrize("name", ["export", "shift --json", "report of a run", "benchmark"])
def test_slow_commands_replace_their_own_output_too(workplace, name):
    arguments, out, _ = FILES[name]
    command = [out if argument == OUT else argument for argument in arguments]
    for _ in range(2):
        code, _, errors = densecal(workplace, *command)
        assert code == 0, errors
    assert (workplace / out).exists()


@pytest.mark.parametrize(
    "name",
    [
        "predict",
        "calibrate apply",
        "calibrate apply to floats",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("predict --uncertainty", "predict --format npy", "evaluate --figures")
        ),
    ],
)
def test_a_folder_of_outputs_is_replaced_but_not_a_foreign_file(workplace, name):
    arguments, file, _ = FOLDERS[name]
    command = ["out" if argument == OUT else argument for argument in arguments]
    assert densecal(workplace, *command)[0] == 0
    first = contents(workplace / "out")
    code, _, errors = densecal(workplace, *command)
    assert code == 0, errors
    assert contents(workplace / "out") == first
    shutil.copy(workplace / "photos" / "1.png", workplace / "out" / file)
    run_refused(workplace, command, f"densecal: out/{file}: a file that densecal ", "--force")
    assert densecal(workplace, *command, "--force")[0] == 0
    assert contents(workplace / "out") == first


def test_maps_of_one_command_are_not_replaced_by_another(workplace):
    for format in ("png16", "npy"):
        assert densecal(workplace, "predict", "run", "photos", "--format", format, "--out", format)[0] == 0
        command = ["calibrate", "apply", "cal.json", "maps", "--out", format]
        run_refused(workplace, command, "a file that densecal calibrate apply did not write")


def test_an_empty_file_holds_nothing_to_lose(workplace):
    (workplace / "out.json").touch()
    assert densecal(workplace, "evaluate", "maps", "masks", "--metrics", "fast", "--json", "out.json")[0] == 0


def test_an_output_inside_a_folder_that_is_read_may_be_replaced(workplace):
    command = ["evaluate", "maps", "masks", "--metrics", "fast", "--json", "maps/scores.json"]
    for _ in range(2):
        code, _, errors = densecal(workplace, *command)
        assert code == 0, errors


def test_two_outputs_have_two_names(workplace):
    command = ["evaluate", "maps", "masks", "--json", "out", "--csv", "./out"]
    run_refused(workplace, command, "out: the name of two outputs")
    command = ["calibrate", "select", "maps", "masks", "--out", "c.json", "--json", "maps/../c.json"]
    run_refused(workplace, command, "c.json: the name of two outputs")


def test_what_a_layout_reads_is_protected_and_the_evaluation_replaced(tmp_path):
    cities = tmp_path / "gtFine" / "val" / "ulm"
    write_cityscapes(tmp_path / "maps", cities)
    command = ["evaluate", "maps", "gtFine/val", "--metrics", "fast", "--json", "out.json"]
    for _ in range(2):
        code, _, errors = densecal(tmp_path, *command)
        assert code == 0, errors
    os.link(next(cities.iterdir()), tmp_path / "mask.json")
    command = [*command[:-1], "mask.json", "--force"]
    run_refused(tmp_path, command, "mask.json: a file that this command reads")


@pytest.mark.parametrize(
    "command",
    [
        ["evaluate", "maps", "labels", "--json", OUT],
        ["raters", "maps", "labels", "labels", "--json", OUT],
        ["risk-control", "maps", "labels", "--json", OUT],
        ["calibrate", "fit", "vector", "maps", "labels", "--out", OUT],
    ],
)
def test_the_description_of_a_data_set_is_protected(tmp_path, command):
    write_nnunet(tmp_path)
    command = ["dataset.json" if argument == OUT else argument for argument in command]
    before = contents(tmp_path)
    code, _, errors = densecal(tmp_path, *command, "--force")
    assert (code, contents(tmp_path)) == (2, before)
    assert errors.endswith("dataset.json: a file that this command reads; expected another name for the output\n")


def write_detached(folder: Path, values: np.ndarray) -> Path:
    """Write a volume whose values lie beside its header."""
    (folder / "a.raw").write_bytes(np.asarray(values, "<f4").tobytes())
    lengths = " ".join(map(str, values.shape[::-1]))
    lines = {"NDims": "3", "DimSize": lengths, "ElementType": "MET_FLOAT", "ElementDataFile": "a.raw"}
    (folder / "a.mhd").write_text("".join(f"{key} = {value}\n" for key, value in lines.items()))
    return folder / "a.raw"


def write_nhdr(folder: Path, values: np.ndarray) -> Path:
    (folder / "b.bin").write_bytes(np.asarray(values, "<f4").tobytes())
    lengths = " ".join(map(str, values.shape[::-1]))
    lines = ["NRRD0004", "type: float", "dimension: 3", f"sizes: {lengths}", "encoding: raw", "data file: b.bin"]
    (folder / "a.nhdr").write_text("\n".join(lines) + "\n")
    return folder / "b.bin"


def write_zarr(folder: Path, values: np.ndarray) -> Path:
    array = zarr.create_array(str(folder / "a.zarr"), shape=values.shape, dtype="f4")
    array[:] = values
    return folder / "a.zarr" / "zarr.json"


@pytest.mark.parametrize(("write", "suffix"), [(write_detached, "mha"), (write_nhdr, "nrrd"), (write_zarr, "npy")])
@pytest.mark.parametrize("command", ["evaluate", "raters", "apply", "predict"])
def test_every_file_of_a_volume_is_protected(tmp_path, write, suffix, command):
    for name in ("maps", "masks", "out"):
        (tmp_path / name).mkdir()
    values = np.random.default_rng(0).random((4, 5, 6))
    part = write(tmp_path / "maps", values)
    np.save(tmp_path / "masks" / "a.npy", (values > 0.5).astype(np.uint8))
    posthoc.save(posthoc.create("temperature"), tmp_path / "cal.json")
    conv_onnx(tmp_path / "net.onnx")
    (tmp_path / "out" / f"a.{suffix}").symlink_to(part)
    arguments = {
        "evaluate": ["evaluate", "maps", "masks", "--json", part],
        "raters": ["raters", "maps", "masks", "masks", "--json", part],
        "apply": ["calibrate", "apply", "cal.json", "maps", "--out", "out"],
        "predict": ["predict", "net.onnx", "maps", "--tile", "4", "--out", "out"],
    }[command]
    before = contents(tmp_path)
    assert_one_line(densecal(tmp_path, *arguments, "--force"), ": a file that this command reads; expected another")
    assert contents(tmp_path) == before


def test_a_flat_volume_becomes_a_picture_that_replaces_nothing(tmp_path):
    (tmp_path / "maps").mkdir()
    header = "NDims = 2\nDimSize = 3 2\nElementType = MET_UCHAR\nElementDataFile = LOCAL\n"
    (tmp_path / "maps" / "a.mha").write_bytes(header.encode() + bytes(6))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.png").write_text("mine")
    posthoc.save(posthoc.create("temperature"), tmp_path / "cal.json")
    command = ["calibrate", "apply", "cal.json", "maps", "--out", "out"]
    run_refused(tmp_path, command, "out/a.png: a file that densecal calibrate apply did not write")


@pytest.mark.parametrize("read", ["steps.yaml", "net.onnx", "net.onnx.data"])
def test_the_network_and_how_volumes_are_prepared_are_protected(tmp_path, read):
    for name in ("scans", "out"):
        (tmp_path / name).mkdir()
    np.save(tmp_path / "scans" / "a.npy", np.zeros((4, 4, 4), np.float32))
    conv_onnx(tmp_path / "net.onnx")
    (tmp_path / "net.onnx.data").write_text("weights")
    (tmp_path / "steps.yaml").write_text("tile: 4\nactivation: softmax\n")
    (tmp_path / "out" / "a.npy").symlink_to(tmp_path / read)
    command = ["predict", "net.onnx", "scans", "--preprocess", "steps.yaml", "--out", "out", "--force"]
    run_refused(tmp_path, command, "out/a.npy: a file that this command reads")


def test_weights_of_a_calibrator_are_checked_too(workplace):
    (workplace / "c.safetensors").write_text("mine")
    command = ["calibrate", "fit", "local-temperature", "maps", "masks", "--images", "photos", "--out", "c.json"]
    run_refused(workplace, command, "c.safetensors: a file that densecal calibrate fit did not write")


def test_a_url_and_its_file_are_the_same_output(workplace):
    url = (workplace / "maps" / "0.png").as_uri()
    command = ["evaluate", "maps", "masks", "--csv", url, "--force"]
    run_refused(workplace, command, "a file that this command reads")
    memory = ["evaluate", "maps", "masks", "--metrics", "fast", "--csv", "memory://out/scores.csv"]
    for _ in range(2):
        assert densecal(workplace, *memory)[0] == 0


# ------------------------------------------------------------------ whole folders


def test_training_starts_only_in_a_folder_without_such_files(workplace):
    config = small_config("optim.epochs=1", "method.name=bce", "engine.loggers=[]")
    (workplace / "new").mkdir()
    (workplace / "new" / "log.jsonl").write_text("mine")
    for resume in (False, True):
        with pytest.raises(InputError, match=r"log\.jsonl: exists without a config\.yaml"):
            train(config, workplace / "new", resume)
    assert (workplace / "new" / "log.jsonl").read_text() == "mine"


def test_a_run_is_resumed_with_its_own_configuration_and_leaves_it_alone(workplace):
    own = workplace / "run" / "config.yaml"
    own.write_text("# my comment\n" + own.read_text())
    before = own.read_bytes()
    shutil.rmtree(workplace / "run" / "checkpoints")  # so that there is something to train
    assert densecal(workplace, "train", "run/config.yaml", "--out", "run", "--resume")[0] == 0
    assert own.read_bytes() == before
    command = ["train", "run/config.yaml", "engine.loggers=[tensorboard]", "--out", "run", "--resume"]
    run_refused(workplace, command, "run/config.yaml: the configuration of the run itself")


def test_every_file_of_a_run_is_known(workplace):
    written = {path for path in (workplace / "run").rglob("*") if path.is_file()}
    assert written <= set(run_files(workplace / "run"))


@pytest.mark.slow
def test_a_benchmark_leaves_the_matrix_in_its_folder_alone(workplace):
    (workplace / "bench").mkdir()
    shutil.copy(workplace / "matrix.yaml", workplace / "bench" / "matrix.yaml")
    before = (workplace / "bench" / "matrix.yaml").read_bytes()
    assert densecal(workplace, "benchmark", "bench/matrix.yaml", "--out", "bench")[0] == 0
    assert (workplace / "bench" / "matrix.yaml").read_bytes() == before


def test_another_matrix_in_the_folder_of_a_benchmark_is_not_replaced(workplace):
    (workplace / "bench").mkdir()
    (workplace / "bench" / "matrix.yaml").write_text("mine: 1")
    command = ["benchmark", "matrix.yaml", "--out", "bench"]
    run_refused(workplace, command, "bench/matrix.yaml: a file that densecal benchmark did not write")


def test_a_cache_does_not_replace_a_foreign_manifest(workplace):
    source = open_source(workplace / "photos", workplace / "masks")
    (workplace / "site").mkdir()
    (workplace / "site" / "manifest.json").write_text('{"name": "a web page"}')
    with pytest.raises(InputError, match=r"other files \(manifest\.json\)"):
        pack(source, source.names, 16, workplace / "site", workers=1)
    pack(source, source.names, 16, workplace / "cache", workers=1)
    (workplace / "cache" / "images.u8").unlink()
    assert pack(source, source.names, 16, workplace / "cache", workers=1).rebuilt  # damaged, but ours


@pytest.mark.parametrize("foreign", ["mine.txt", "bce/mine.txt", "maps/mine.png", "held-out/images/notes.md"])
def test_a_demonstration_removes_nothing_that_it_did_not_write(tmp_path, foreign):
    (tmp_path / demo.MARKER).write_text("")
    (tmp_path / foreign).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / foreign).write_text("mine")
    with pytest.raises(InputError, match="other files"):
        demo.run_demo(tmp_path)
    assert (tmp_path / foreign).read_text() == "mine"


@pytest.mark.parametrize("where", [".", "sub"])
def test_scenes_go_only_into_an_empty_folder(workplace, where):
    (workplace / "sub").mkdir()
    (workplace / "sub" / "mine").touch()
    run_refused(workplace, ["data", "scenes", where], "not empty; expected a new or empty folder")


# ------------------------------------------------------------------ how a file is recognised


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("json", b'{"name": "densecal evaluate", "densecal": "evaluate"}'),
        ("json", b'{"densecal": "shift"}'),
        ("tex", b"My notes\n% densecal evaluate; "),
        ("csv", b"name,dataset,size\n"),
        ("png", b"\x89PNG\r\n\x1a\n" + b"densecal evaluate" * 10),
        ("html", b"<!doctype html><p>densecal evaluate</p>"),
    ],
)  # fmt: skip
def test_a_file_that_only_mentions_the_command_is_not_its_own(tmp_path, kind, content):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(InputError, match="did not write"):
        check_outputs("evaluate", [(tmp_path / "file", kind)], [])


def test_arrays_are_read_by_numpy_and_the_json_keeps_its_keys(workplace):
    assert densecal(workplace, "predict", "run", "photos", "--format", "npy", "--out", "out")[0] == 0
    assert np.load(workplace / "out" / "0.npy").shape == (24, 32)
    assert np.load(workplace / "out" / "0.npy", mmap_mode="r").dtype == np.float32
    record = json.loads((workplace / "scores.json").read_text())
    assert {"name", "dataset", "images", "pixels", "calibration", "reliability"} <= record.keys()
