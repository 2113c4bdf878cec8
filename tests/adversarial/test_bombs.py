"""Kilobytes that ask for gigabytes: every file is read in bounded memory, or refused in one line."""

import json
import os
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from densecal.errors import InputError
from densecal.io import archives
from densecal.io.archives import Archive
from densecal.io.documents import parse_json, parse_yaml
from densecal.io.map_files import read_map
from densecal.io.torch_files import read_torch_file
from tests.adversarial import bombs
from tests.adversarial.bombs import GIGABYTE, stored, zeros, zip_of

DEFLATED, BZIP2, LZMA = zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA


def assert_bounded(reader: str, folder: Path, files: dict[str, tuple[bytes, str]]) -> None:
    """Check that reading every file takes little memory and gives the error, or "read"."""
    for name, (content, _) in files.items():
        (folder / name).write_bytes(content)
    results = bombs.read_in_child(reader, [folder / name for name in files])
    for name, (_, expected) in files.items():
        outcome, peak = results[name]
        assert expected in outcome, name
        assert peak < bombs.LIMIT_BYTES, f"{name}: {peak >> 20} MB, {outcome}"


def test_arrays(tmp_path):
    header = bombs.npy((1024, 1024))
    shape = bombs.npy((16384, 16384))
    assert_bounded(
        "map", tmp_path,
        {
            # a header that is true, and data without end
            "bzip2.npz": (zip_of({"p.npy": (zeros(BZIP2), BZIP2, 4 << 20, 0)}), "1,100 bytes from each"),
            "bzip2-small.npz": (zip_of({"p.npy": (zeros(BZIP2), BZIP2, 1 << 20, 0)}), "unreadable"),
            "lzma.npz": (zip_of({"p.npy": (zeros(LZMA), LZMA, 1 << 20, 0)}), "unreadable"),
            "deflate.npz": (zip_of({"p.npy": (zeros(DEFLATED), DEFLATED, 1 << 20, 0)}), "unreadable"),
            "declared.npz": (zip_of({"p.npy": (zeros(DEFLATED), DEFLATED, 2 * GIGABYTE, 0)}), "2,147,483,648 bytes"),
            "shape.npz": (zip_of({"p.npy": stored(shape)}), "268,435,456 values; expected at most"),
            "short.npz": (zip_of({"p.npy": stored(header)}), "a file cut short at 0 bytes"),
            "shape.npy": (shape, "268,435,456 values; expected at most"),
            "nested.npz": (bombs.nested(zip_of({"p.npy": stored(shape)})), "0 arrays"),
            "wide.npz": (zip_of({f"{i}.npy": stored(header) for i in range(20_000)}), "20000 arrays"),
        },
    )  # fmt: skip


def test_data_sets(tmp_path):
    whole = stored(bombs.png())
    large = bombs.png(16_384, pixels=bombs.inflating())
    cases = {
        "bzip2": ((zeros(BZIP2), BZIP2, 1 << 27, 0), "1,100 bytes from each"),
        "bzip2 of a small size": ((zeros(BZIP2), BZIP2, 1 << 20, 0), "more than 1,048,576 bytes; expected"),
        "lzma": ((zeros(LZMA), LZMA, 1 << 20, 0), "more than 1,048,576 bytes; expected"),
        "deflate past its size": ((zeros(DEFLATED), DEFLATED, 1 << 20, 0), "more than 1,048,576 bytes; expected"),
        "declared": ((zeros(DEFLATED), DEFLATED, GIGABYTE, 0), "1,073,741,824 bytes; expected at most 268,435,456"),
        "pixels": (stored(large), "pixels; expected at most 67,108,864"),
        "profile": (stored(bombs.png(8, bombs.chunk(b"iCCP", b"icc\0\0" + bombs.inflating()))), "too large"),
        "a zip inside": (stored(bombs.nested(zip_of({"a.png": whole}))), "not an image"),
        "whole": (whole, "read"),
    }
    files = {
        f"{name.replace(' ', '-')}.zip": (zip_of({"images/a.png": member, "masks/a.png": whole}), expected)
        for name, (member, expected) in cases.items()
    }
    assert_bounded("set", tmp_path, files)


def test_images(tmp_path):
    zipped = bombs.inflating()
    assert_bounded(
        "photograph", tmp_path,
        {
            "text.png": (bombs.png(8, bombs.chunk(b"zTXt", b"Comment\0\0" + zipped)), "too large"),
            "utf8.png": (bombs.png(8, bombs.chunk(b"iTXt", b"Comment\0\1\0\0\0" + zipped)), "too large"),
            "profile.png": (bombs.png(8, bombs.chunk(b"iCCP", b"icc\0\0" + zipped)), "too large"),
            "pixels.png": (bombs.png(8, pixels=zipped), "read"),
            "side.png": (bombs.png(16_384, pixels=zipped), "pixels; expected at most 67,108,864"),
            "tile.tif": (bombs.tiled_tiff(32_752, zipped), "tiles of 32752 x 32752 pixels; expected at most"),
            "animation.gif.png": (bombs.animated("gif", 1000), "10 frames"),
            "animation.png": (bombs.animated("png", 1000), "10 frames"),
            "animation.webp": (bombs.animated("webp", 1000), " frames"),
        },
    )  # fmt: skip


def test_a_sparse_file_is_not_read_into_memory(tmp_path):
    Image.new("RGB", (16, 16)).save(tmp_path / "a.webp", lossless=True)
    with (tmp_path / "a.webp").open("r+b") as stream:
        stream.seek(4)
        stream.write(struct.pack("<I", 2**31))
    os.truncate(tmp_path / "a.webp", 2 * GIGABYTE)
    outcome, peak = bombs.read_in_child("photograph", [tmp_path / "a.webp"])["a.webp"]
    assert "more than 1,073,741,824 bytes; expected the size of an image file" in outcome
    assert peak < bombs.LIMIT_BYTES


def test_files_of_torch_save(tmp_path):
    torch.save({"w": torch.zeros(4)}, tmp_path / "legacy.pth", _use_new_zipfile_serialization=False)
    legacy = (tmp_path / "legacy.pth").read_bytes()
    torch.save({"w": torch.zeros(4)}, tmp_path / "whole.pth")
    whole = (tmp_path / "whole.pth").read_bytes()
    with zipfile.ZipFile(tmp_path / "whole.pth") as archive:
        description = archive.read("whole/data.pkl")
    count = b"K\x04"  # the 4 of the storage, in the pickle
    million = b"J" + struct.pack("<i", 1 << 28)
    storage = b"K\x04Ntq"  # the same in the older format, followed by None
    assert description.count(count) >= 1
    assert legacy.count(storage) == 1
    zero = (zeros(DEFLATED), DEFLATED, GIGABYTE, 0)
    assert_bounded(
        "torch file", tmp_path,
        {
            "whole.pth": (whole, "read"),
            "legacy.pth": (legacy, "read"),
            "bytearray.pth": (bombs.calling(bytearray, GIGABYTE), "bytearray; expected"),
            "tensor.pth": (bombs.calling(torch.FloatTensor, GIGABYTE), "a pickle that calls torch.FloatTensor"),
            "storage.pth": (bombs.torch_zip(description, **{"a/data/0": zero}), "members of 1,073,"),
            "claims.pth": (bombs.torch_zip(description.replace(count, million), **{"a/data/0": stored(bytes(16))}),
                           "16 bytes; expected 1,073,741,824 bytes of numbers"),
            "legacy-claims.pth": (legacy.replace(storage, million + storage[2:]), "1,073,741,824 bytes in a file of"),
            "description.pth": (zip_of({"a/data.pkl": (zeros(DEFLATED), DEFLATED, GIGABYTE, 0)}), "members of 1,073,"),
            "wide.pth": (bombs.torch_zip(b"\x80\x02" + b"]" * (1 << 21) + b"."), "containers of more than 1,048,576"),
            "protocol.pth": (b"\x80\x02" + b"X\xff\xff\xff\x7fabc", "unreadable"),
        },
    )  # fmt: skip


@pytest.mark.parametrize("suffix", ["pt", "pt2"])
def test_networks_of_pytorch(tmp_path, suffix):
    code = zeros(DEFLATED), DEFLATED, GIGABYTE, 0
    assert_bounded(
        "network", tmp_path,
        {
            f"deflate.{suffix}": (zip_of({"a/constants.pkl": code}), "no more than"),
            f"declared.{suffix}": (zip_of({"a/data/0": (b"x", zipfile.ZIP_STORED, 2**31, 0)}), "no more than"),
            f"names.{suffix}": (bombs.many_members(1 << 20), "list of members"),
        },
    )  # fmt: skip


def test_documents(tmp_path):
    levels = [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}" for i in range(1, 9)]
    merged = "\n".join(["a0: &a0 {k: 1}", *levels])
    lists = "\n".join(["b0: &b0 [x]", *(f"b{i}: &b{i} [{', '.join([f'*b{i - 1}'] * 10)}]" for i in range(1, 9))])
    wide = "[" + "[]," * 9_000_000 + "[]]"
    assert_bounded(
        "document", tmp_path,
        {
            "merges.yaml": (merged.encode(), "more than 50,000 values"),
            "references.yaml": (lists.encode(), "more than 50,000 values"),
            "deep.yaml": (b"[" * 100_000, "nested too deeply"),
            "deep.json": (b"[" * 1_000_000, "nested too deeply"),
            "wide.json": (wide.encode(), "more than 8,388,608 values"),
        },
    )  # fmt: skip


def test_a_long_list_of_members_is_refused_before_it_is_read(tmp_path):
    content = bombs.many_members(700_000)
    assert len(content) > archives.MAX_DIRECTORY_BYTES
    assert_bounded("set", tmp_path, {"many.zip": (content, "a list of members of 35,000,000 bytes; expected at most")})


# ------------------------------------------------------------------ what honest files hold is still read


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, DEFLATED, BZIP2, LZMA])
@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 300_000])
def test_members_are_read_whole_whatever_their_compression(tmp_path, method, size):
    noise = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8).tobytes()
    for content in (noise, bytes(size)):
        with zipfile.ZipFile(tmp_path / "a.zip", "w", method) as archive:
            archive.writestr("x", content)
        with Archive(tmp_path / "a.zip") as archive:
            assert archive.open("x", "x", size).read_all() == content


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, DEFLATED])
def test_a_member_that_is_shorter_or_other_than_declared_is_refused(tmp_path, method):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", method) as archive:
        archive.writestr("x", b"abc" * 1000)
    with Archive(tmp_path / "a.zip") as archive:
        (info,) = archive.members
        info.CRC ^= 1
        with pytest.raises(InputError, match=r"wrong checksum"):
            archive.open(info, "x", 3000).read_all()
        info.CRC ^= 1
        info.file_size = 3001
        with pytest.raises(InputError, match=r"cut short at 3,000 bytes\); expected 3,001 bytes"):
            archive.open(info, "x", 3001).read_all()
        info.file_size = 2999
        with pytest.raises(InputError, match=r"more than 2,999 bytes; expected 2,999 bytes, as its zip file declares"):
            archive.open(info, "x", 3001).read_all()


def test_a_map_of_zeros_compresses_well_and_is_read(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", np.zeros((2048, 2048), np.float32))
    assert (tmp_path / "a.npz").stat().st_size < 20_000
    assert read_map(tmp_path / "a.npz").shape == (2048, 2048)


def _values(value: object) -> Iterator[object]:
    yield value
    for item in value.items() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        yield from _values(item)


@pytest.mark.parametrize("new_format", [True, False])
def test_files_of_torch_save_are_read_as_torch_reads_them(tmp_path, new_format):
    layer = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.rand(4, 3)).sum().backward()
    optimizer.step()
    numbers = torch.arange(24)
    value = {
        "state_dict": layer.state_dict(), "optimizer": optimizer.state_dict(),
        "parameter": torch.nn.Parameter(numbers / 7),
        "views": [numbers.reshape(4, 6).t(), numbers[3:9:2], numbers[5]], "empty": torch.empty(0, 3),
        "types": [numbers.to(kind) for kind in (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32,
                  torch.float16, torch.bfloat16, torch.float64, torch.complex64)],
        "plain": [None, True, -1, 2**40, -(2**70), 1.5, "ü", (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), {}, {1: "a"}],
    }  # fmt: skip
    torch.save(value, tmp_path / "a.pt", _use_new_zipfile_serialization=new_format)
    ours = list(_values(read_torch_file(tmp_path / "a.pt")))
    theirs = list(_values(torch.load(tmp_path / "a.pt", weights_only=True)))
    assert len(ours) == len(theirs) > 100
    for own, other in zip(ours, theirs, strict=True):
        if isinstance(other, torch.Tensor):
            assert (own.dtype, own.shape, own.stride()) == (other.dtype, other.shape, other.stride())
            assert torch.equal(own, other)
        elif not isinstance(other, dict | list | tuple):
            assert type(own) is type(other)
            assert own == other


def test_a_tensor_cannot_reach_beyond_its_numbers(tmp_path):
    torch.save([torch.zeros(4)], tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    size = b"K\x04\x85"  # the shape (4,)
    assert members["a/data.pkl"].count(size) == 1
    for other in (b"K\x05\x85", b"J\x00\x00\x00\x10\x85"):
        damaged = {**members, "a/data.pkl": members["a/data.pkl"].replace(size, other)}
        (tmp_path / "b.pt").write_bytes(zip_of({name: stored(content) for name, content in damaged.items()}))
        with pytest.raises(InputError, match=r"b\.pt: unreadable"):
            read_torch_file(tmp_path / "b.pt")


def test_documents_of_the_usual_kind_are_read():
    assert parse_yaml("a: &a {x: 1}\nb: {<<: *a, y: 2}\n", "a.yaml", "a recipe") == {
        "a": {"x": 1},
        "b": {"x": 1, "y": 2},
    }
    assert parse_yaml("", "a.yaml", "a recipe") is None
    assert parse_json(json.dumps([[1, "a,b"], {}]), "a.json", "JSON") == [[1, "a,b"], {}]
