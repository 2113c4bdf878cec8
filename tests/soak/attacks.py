"""Deliberate attacks for the fuzzer: bombs, special files and names, each in place of a whole file."""

import contextlib
import io
import json
import os
import random
import socket
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from densecal.io.documents import read_json, read_yaml
from densecal.io.images import read_image
from densecal.io.map_files import read_map
from densecal.models.weights import read_weights
from tests.adversarial import bombs
from tests.running import run
from tests.soak.readers import Reader, read_all, write_files

BOMB_BYTES = 4 << 30
METHODS = (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)
NAMES = (
    "[red]x", "[bold", "=1+1", "-x", "@x", "a b", "a\tb", "é", "\u202eabc", "\u200b", "x" * 240, "'; rm -rf x", "a%00b",
    "$(x)", "<script>", "a,b", 'a"b', "CON", "a\\b", ".hidden", "~", "*", "\U0001f4a3", "\ufeff", "{x}",
    "caf\udce9", "\udcff\udcfe", "\x1b[31m", "\x1b]0;x\x07", "\r", "+1",
)  # fmt: skip
SPECIAL = ("named pipe", "device", "endless device", "loop", "socket", "folder", "dangling link")


def attack_readers(others: list[Reader]) -> list[Reader]:
    """Readers whose damage is done on purpose; any file of the others may become a special one."""
    return [*_bombs(), _special(list(others)), _names()]


# ------------------------------------------------------------------ bombs


def _member(rng: random.Random, content: bytes) -> tuple[bytes, int, int, int]:
    """Return a member that is whole, or inflates beyond all bounds, with any declared size."""
    declared = rng.choice((0, 1, 1000, 1 << 20, 1 << 25, 1 << 28, 1 << 31, 0xFFFFFFFE))
    kind = rng.randrange(4)
    if kind == 0:
        return content, rng.choice((0, 8, 12, 14, 99)), declared, 0
    method = rng.choice(METHODS)
    head = bytearray(bombs.zeros(method, BOMB_BYTES))
    if kind == 1:
        head[rng.randrange(len(head))] ^= 1 << rng.randrange(8)
    return bytes(head), method, declared, rng.choice((0, 0xC2A8FA9D))


def _bombs() -> list[Reader]:
    whole = bombs.png()
    array = bombs.npy((8, 8), bytes(256))
    state = io.BytesIO()
    torch.save({"w": torch.zeros(3)}, state)

    def npz(data: bytes, rng: random.Random) -> bytes:
        return bombs.zip_of({"p.npy": _member(rng, array)})

    def data_set(data: bytes, rng: random.Random) -> bytes:
        if rng.random() < 0.1:
            return bombs.many_members(rng.choice((10, 70_000)))
        member = bombs.stored(_picture(rng)) if rng.random() < 0.5 else _member(rng, whole)
        return bombs.zip_of({"images/a.png": member, "masks/a.png": bombs.stored(whole)})

    def torch_file(data: bytes, rng: random.Random) -> bytes:
        if rng.random() < 0.5:
            kinds = (bytearray, torch.FloatTensor, torch.Tensor, set, torch.storage.UntypedStorage, complex)
            return bombs.calling(rng.choice(kinds), rng.choice((1 << 32, 1 << 40, -1)))
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = {name: bombs.stored(archive.read(name)) for name in archive.namelist()}
        name = rng.choice(list(members))
        members[name] = _member(rng, members[name][0])
        return bombs.zip_of(members)

    def document(data: bytes, rng: random.Random) -> bytes:
        if data[:1] == b"[":
            return b"[" + rng.choice((b"[],", b"{},", b'"",')) * rng.choice((10, 10_000_000)) + b"0]"
        alias = rng.choice(("{{<<: [{}]}}", "[{}]", "{{k: [{}]}}"))
        lines = [f"a{i}: &a{i} " + alias.format(", ".join([f"*a{i - 1}"] * rng.randrange(2, 30))) for i in range(1, 14)]
        return "\n".join(["a0: &a0 {k: 1}", *lines]).encode()

    def read_document(folder: Path) -> None:
        path = next(folder.iterdir())
        (read_yaml if path.suffix == ".yaml" else read_json)(path, "a document")

    sets = {"set.zip": bombs.zip_of({"images/a.png": bombs.stored(whole), "masks/a.png": bombs.stored(whole)})}
    return [
        Reader("bomb, npz", [{"a.npz": bombs.zip_of({"p.npy": bombs.stored(array)})}],
               lambda folder: read_map(folder / "a.npz"), npz),
        Reader("bomb, data set", [sets], lambda folder: read_all(folder / "set.zip"), data_set),
        Reader("bomb, image", [{"a.png": whole}], lambda folder: read_image(folder / "a.png", "a"),
               lambda data, rng: _picture(rng)),
        Reader("bomb, torch file", [{"w.pth": state.getvalue()}], lambda folder: read_weights(folder / "w.pth"),
               torch_file),
        Reader("bomb, document", [{"a.yaml": b"a: &a {b: 1}\nc: *a\n"}, {"a.json": b"[[1, 2], {}]"}], read_document,
               document),
    ]  # fmt: skip


def _picture(rng: random.Random) -> bytes:
    """Return a picture with a chunk, pixels or a tile that inflate."""
    data = bombs.inflating()
    side = rng.choice((8, 8, 8192, 8193, 30_000))
    kinds: tuple[Callable[[], bytes], ...] = (
        lambda: bombs.png(8, bombs.chunk(b"zTXt", b"Comment\0\0" + data)),
        lambda: bombs.png(8, bombs.chunk(b"iTXt", b"Comment\0\1\0\0\0" + data)),
        lambda: bombs.png(8, bombs.chunk(b"iCCP", b"icc\0\0" + data)),
        lambda: bombs.png(side, pixels=data),
        lambda: bombs.tiled_tiff(rng.choice((16, 16_384, 32_752)), data, rng.choice((1, 10, 70_000))),
        lambda: bombs.animated(rng.choice(("gif", "png", "webp")), 100, 3),
    )
    return rng.choice(kinds)()


# ------------------------------------------------------------------ special files and names


def make_special(path: Path, kind: str) -> None:
    """Replace a file with something that is not a regular file."""
    path.unlink()
    if kind == "named pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as listener, contextlib.chdir(path.parent):
            listener.bind(path.name)
    else:
        targets = {"device": "/dev/null", "endless device": "/dev/zero", "loop": path.name}
        path.symlink_to(targets.get(kind, "nowhere"))


def _special(others: list[Reader]) -> Reader:
    """Return a reader that gets a special file in place of any kind of file."""

    def wrong(folder: Path, rng: random.Random) -> None:
        number = rng.randrange(len(others))
        reader = others[number]
        files = rng.choice(reader.files)
        write_files(files, folder)
        target = folder / rng.choice([name for name in files if not reader.targets or name in reader.targets])
        make_special(target, rng.choice(SPECIAL))
        (folder / "reader.number").write_text(str(number))

    def read(folder: Path) -> None:
        number = folder / "reader.number"
        chosen = others[int(number.read_text())] if number.exists() else others[0]
        number.unlink(missing_ok=True)
        chosen.read(folder)

    return Reader("special file", others[0].files, read, write=wrong)


def _names() -> Reader:
    """Return a reader of maps and masks whose names terminals, spreadsheets and pages could misread."""
    rng = np.random.default_rng(0)
    stream = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).save(stream, "png")
    files = {"maps/a.png": stream.getvalue(), "masks/a.png": stream.getvalue()}

    def rename(folder: Path, rng: random.Random) -> None:
        write_files(files, folder)
        name = "".join(rng.choice(NAMES) for _ in range(rng.choice((1, 1, 2, 3))))[:60] or "x"
        if rng.random() < 0.3:
            name = rng.choice(NAMES)
        for kind in ("maps", "masks"):
            (folder / kind / "a.png").rename(folder / kind / f"{name}.png")

    def read(folder: Path) -> None:
        out = folder / "out"
        code, _, errors = run("evaluate", folder / "maps", folder / "masks", "--json", out / "e.json", "--csv",
                              out / "e.csv", "--metrics", "fast")  # fmt: skip
        if code not in (0, 2) or "Traceback" in errors or "\x1b]" in errors:
            raise AssertionError(f"exit code {code}: {errors[-1000:]}")
        if code == 0:
            json.loads((out / "e.json").read_text())
            (out / "e.csv").read_text()

    return Reader("name", [files], read, write=rename)
