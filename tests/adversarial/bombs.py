"""Files of kilobytes that ask for gigabytes, and a child process that measures what reading one takes."""

import bz2
import io
import json
import lzma
import pickle
import resource
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

GIGABYTE = 1 << 30
LIMIT_BYTES = 150 << 20
"""What reading a bomb may add to the peak memory of a process; the largest whole files take a third of it."""


# ------------------------------------------------------------------ measuring

_CHILD = """
import json, resource, sys
from pathlib import Path
from PIL import Image
from densecal.errors import InputError
from tests.adversarial import bombs
Image.init()
read = bombs.reader(sys.argv[1])
for name in sys.argv[2:]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        read(Path(name))
        outcome = "read"
    except InputError as error:
        outcome = str(error)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps([name, outcome, 1024 * peak]), flush=True)
"""


def read_in_child(reader: str, paths: list[Path]) -> dict[str, tuple[str, int]]:
    """Read files in another process.

    Returns:
        By name of file: the error, or "read", and how far memory rose above its peak so far, in bytes.
    """

    def limit() -> None:  # memory that explodes must not take the machine down
        resource.setrlimit(resource.RLIMIT_AS, (12 * GIGABYTE, 12 * GIGABYTE))

    done = subprocess.run(
        [sys.executable, "-c", _CHILD, reader, *map(str, paths)], capture_output=True, text=True, timeout=300,
        preexec_fn=limit, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {Path(name).name: (outcome, peak) for name, outcome, peak in lines}


def reader(name: str) -> Callable[[Path], object]:
    """Return a function that reads a file, with everything imported that it needs."""
    if name == "map":
        from densecal.io.map_files import read_map

        return read_map
    if name == "photograph":
        from densecal.io.images import read_image

        return lambda path: read_image(path, str(path))
    if name == "volume to copy":
        import nibabel  # noqa: F401

        from densecal.io.volume_files import write_volume

        return lambda path: write_volume(path.parent / "copy", np.zeros((1, 8, 8), np.float32), path, "predict")
    if name == "layout":
        from densecal.io.layouts.contents import with_meaning
        from densecal.io.map_options import AS_STORED

        return lambda path: with_meaning(path, AS_STORED, 3, "--normalise")
    if name == "network":
        from densecal.prediction.volume_networks import load_volume_network

        return load_volume_network
    if name == "torch file":
        import torch

        from densecal.io.torch_files import read_torch_file

        torch.zeros(1)
        return read_torch_file
    if name == "document":
        from densecal.io.documents import read_json, read_yaml

        read_yaml(Path("mkdocs.yml"), "YAML")
        return lambda path: (read_yaml if path.suffix == ".yaml" else read_json)(path, "a document")
    from densecal.data.sources import open_source

    def read_set(path: Path) -> None:
        source = open_source(path)
        for name in source.names:
            source.image(name)
            source.mask(name)

    return read_set


# ------------------------------------------------------------------ compressed zeros


@cache
def zeros(method: int, size: int = GIGABYTE) -> bytes:
    """Return about this many zeros (256 MB with LZMA), compressed like a zip member."""
    piece = bytes(1 << 24)
    if method == zipfile.ZIP_DEFLATED:
        deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
        # after a full flush the same bytes may follow again and again
        return (deflate.compress(piece) + deflate.flush(zlib.Z_FULL_FLUSH)) * (size >> 24) + deflate.flush()
    if method == zipfile.ZIP_BZIP2:
        return _bzip2_blocks(size)
    filters = {"id": lzma.FILTER_LZMA1, "dict_size": 1 << 16, "mode": lzma.MODE_FAST, "mf": lzma.MF_HC3, "depth": 1}
    slow = lzma.LZMACompressor(lzma.FORMAT_RAW, filters=[filters])
    head = b"\x09\x04\x05\x00\x5d\x00\x00\x01\x00"
    return head + b"".join(slow.compress(piece) for _ in range(16)) + slow.flush()


def _bzip2_blocks(size: int) -> bytes:
    """Return a bzip2 stream that repeats its first block of 46 MB; the wrong checksum comes only at its end."""
    magic, block_bytes = f"{0x314159265359:048b}", 46_620_000
    data = bz2.compress(bytes(2 * block_bytes))
    bits = f"{int.from_bytes(data, 'big'):0{8 * len(data)}b}"
    first = bits.index(magic)
    second = bits.index(magic, first + 1)
    repeated = bits[:first] + bits[first:second] * (size // block_bytes) + bits[second:]
    repeated += "0" * (-len(repeated) % 8)
    return int(repeated, 2).to_bytes(len(repeated) // 8, "big")


def zip_of(members: dict[str, tuple[bytes, int, int, int]]) -> bytes:
    """Return a zip file with any declared values: by name (raw bytes, method, declared size, CRC-32)."""
    body, directory = b"", b""
    for name, (raw, method, declared, crc) in members.items():
        fields = struct.pack("<HHHHHIIIHH", 20, 0, method, 0, 33, crc, len(raw), declared, len(name), 0)
        directory += b"PK\x01\x02\x14\x00" + fields + struct.pack("<HHHII", 0, 0, 0, 0, len(body)) + name.encode()
        body += b"PK\x03\x04" + fields + name.encode() + raw
    end = struct.pack("<HHHHIIH", 0, 0, len(members), len(members), len(directory), len(body), 0)
    return body + directory + b"PK\x05\x06" + end


def stored(content: bytes) -> tuple[bytes, int, int, int]:
    """Return a member whose declared values are true."""
    return content, zipfile.ZIP_STORED, len(content), zlib.crc32(content)


def nested(content: bytes) -> bytes:
    """Return a zip in a zip."""
    return zip_of({"inner.zip": stored(content)})


def many_members(count: int) -> bytes:
    """Return a zip file of nothing but names: a directory with 50 bytes per member."""
    entry = b"PK\x01\x02\x14\x00" + struct.pack("<HHHHHIIIHHHHHII", 20, 0, 0, 0, 33, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0)
    directory = b"".join(entry + b"%04x" % (i % 65536) for i in range(count))
    end = struct.pack("<HHHHIIH", 0, 0, count % 65535, count % 65535, len(directory), 0, 0)
    return directory + b"PK\x05\x06" + end


# ------------------------------------------------------------------ arrays and data sets


def npy(shape: tuple[int, ...], data: bytes = b"") -> bytes:
    """Return a .npy file of float32 with any data."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return stream.getvalue() + data


def png(side: int = 8, chunks: bytes = b"", pixels: bytes | None = None) -> bytes:
    """Return a grey PNG with more chunks than it needs."""
    raw = zlib.compress(bytes((side + 1) * side)) if pixels is None else pixels
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunks + chunk(b"IDAT", raw) + chunk(b"IEND", b"")


def chunk(kind: bytes, data: bytes) -> bytes:
    """Return a chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def inflating() -> bytes:
    """Return a gigabyte of zeros, compressed as in PNG and TIFF, without the checksum at the end."""
    return b"\x78\xda" + zeros(zipfile.ZIP_DEFLATED)


def tiled_tiff(tile: int, data: bytes, side: int = 10) -> bytes:
    """Return a small TIFF in one large tile, compressed with deflate."""
    entries = [(256, side), (257, side), (258, 8), (259, 8), (262, 1), (277, 1), (284, 1), (322, tile), (323, tile),
               (324, 8 + 2 + 12 * 10 + 12 + 4), (325, len(data))]  # fmt: skip
    directory = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", tag, 4, 1, x) for tag, x in entries)
    return b"II*\x00" + struct.pack("<I", 8) + directory + struct.pack("<I", 0) + data


def animated(kind: str, side: int, frames: int = 10) -> bytes:
    """Return an animation."""
    stream = io.BytesIO()
    pictures = [Image.new("L", (side, side), i) for i in range(frames)]
    pictures[0].save(stream, kind, save_all=True, append_images=pictures[1:])
    return stream.getvalue()


# ------------------------------------------------------------------ files of torch.save


class _Call:
    def __init__(self, function: object, *arguments: object) -> None:
        self._call = function, arguments

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self._call  # type: ignore[return-value]


def calling(function: object, *arguments: object) -> bytes:
    """Return a zip file of torch.save whose content is the result of a call."""
    return torch_zip(pickle.dumps({"w": _Call(function, *arguments)}, protocol=2))


def torch_zip(description: bytes, **members: tuple[bytes, int, int, int]) -> bytes:
    """Return a zip file of torch.save with a pickle and further members."""
    return zip_of(
        {"a/data.pkl": stored(description), "a/version": stored(b"3\n"), "a/byteorder": stored(b"little"), **members}
    )
