"""Bombs and special files in the formats of arrays: Zarr, HDF5 and NIfTI are read in bounded memory, or refused."""

import gzip
import json
import os
import struct
import zlib
from pathlib import Path

import h5py
import nibabel
import numcodecs
import numpy as np
import pytest
import zarr
from zarr import codecs

from densecal.errors import InputError
from densecal.io.map_files import read_map
from tests.adversarial import bombs

SIDE = 512
"""A chunk is a megabyte, so that gigabytes that are compressed eight times are not refused for their own length."""


def deflated(kind: int, start: bytes = b"") -> bytes:
    """Return some bytes followed by a gigabyte of zeros; the compressed zeros are one block, repeated."""
    stream = zlib.compressobj(9, zlib.DEFLATED, kind)
    head = stream.compress(start) + stream.flush(zlib.Z_FULL_FLUSH)
    return head + (stream.compress(bytes(1 << 20)) + stream.flush(zlib.Z_FULL_FLUSH)) * 1000


def write_hdf5(path: Path, chunk: bytes) -> None:
    with h5py.File(path, "w") as file:
        array = file.create_dataset("p", (SIDE, SIDE), "f4", chunks=(SIDE, SIDE), compression="gzip")
        array.id.write_direct_chunk((0, 0), chunk)


def write_zarr(path: Path, chunk: bytes | None, **options: object) -> Path:
    """Write an array whose only chunk has another content; return the file of the chunk."""
    array = zarr.create_array(str(path), shape=(SIDE, SIDE), chunks=(SIDE, SIDE), dtype="f4", **options)
    array[:] = np.random.default_rng(0).random((SIDE, SIDE), dtype=np.float32)
    (file,) = (one for one in path.rglob("*") if one.is_file() and one.name not in ("zarr.json", ".zarray", ".zattrs"))
    if chunk is not None:
        file.write_bytes(chunk)
    return file


def write_nifti(path: Path, offset: int = 352) -> None:
    """Write an extension of 2 GB before the values, which the header says to be elsewhere."""
    nibabel.save(nibabel.Nifti1Image(np.zeros((8, 8, 1), np.uint8), np.eye(4)), path)
    header = bytearray(gzip.decompress(path.read_bytes())[:352])
    header[348:352] = b"\1\0\0\0"
    header[108:112] = struct.pack("<f", offset)
    path.write_bytes(deflated(31, bytes(header) + struct.pack("<ii", 2**31 - 64, 6)))


def test_bombs(tmp_path):
    gzipped = deflated(31)
    write_hdf5(tmp_path / "a.h5", deflated(15))
    write_zarr(tmp_path / "gzip.zarr", gzipped, compressors=codecs.GzipCodec())
    write_zarr(tmp_path / "gzip2.zarr", gzipped, compressors=numcodecs.GZip(), zarr_format=2)
    bzipped = bombs.zeros(bombs.zipfile.ZIP_BZIP2)
    write_zarr(tmp_path / "bz2.zarr", bzipped, compressors=numcodecs.BZ2(), zarr_format=2)
    zipped = bytes(numcodecs.Zstd(1).encode(bytes(1 << 24)))
    write_zarr(tmp_path / "zstd.zarr", zipped, compressors=codecs.ZstdCodec())
    lying = bytearray(numcodecs.Blosc("lz4").encode(np.zeros(1 << 20, np.uint8)))
    lying[4:8] = struct.pack("<I", 2**31 - 1)
    write_zarr(tmp_path / "blosc.zarr", bytes(lying), compressors=codecs.BloscCodec())
    (shard := write_zarr(tmp_path / "shard.zarr", None, shards=(SIDE, 2 * SIDE))).write_bytes(
        shard.read_bytes()[:-36] + sealed(struct.pack("<4Q", 0, 2**40, 2**64 - 1, 2**64 - 1))
    )
    write_nifti(tmp_path / "a.nii.gz")
    expected = {
        "a.h5": "a chunk that is longer than declared",
        "gzip.zarr": "a chunk that does not end after 1,048,576 bytes",
        "gzip2.zarr": "a chunk that does not end after 1,048,576 bytes",
        "bz2.zarr": "a chunk that does not end after 1,048,576 bytes",
        "zstd.zarr": "a chunk of 16,777,216 bytes in place of at most 1,048,576",
        "blosc.zarr": "a chunk of 2,147,483,647 bytes in place of at most 1,048,576",
        "shard.zarr": "a chunk of 1,099,511,627,776 bytes",
        "a.nii.gz": "read",
    }
    results = bombs.read_in_child("map", [tmp_path / name for name in expected])
    for name, words in expected.items():
        outcome, peak = results[name]
        assert words in outcome, (name, outcome)
        assert peak < bombs.LIMIT_BYTES, f"{name}: {peak >> 20} MB, {outcome}"


def test_a_map_in_the_format_of_a_volume_copies_no_extension_of_its_header(tmp_path):
    write_nifti(tmp_path / "a.nii.gz", 1 << 20)
    outcome, peak = bombs.read_in_child("volume to copy", [tmp_path / "a.nii.gz"])["a.nii.gz"]
    assert outcome == "read"
    assert peak < bombs.LIMIT_BYTES, f"{peak >> 20} MB"
    assert nibabel.load(tmp_path / "copy.nii.gz").shape == (8, 8, 1)


def test_the_meaning_of_scores_is_inferred_without_reading_a_sparse_file_into_memory(tmp_path):
    path, size = tmp_path / "a.safetensors", 3 * 5000 * 5000 * 4
    entry = {"dtype": "F32", "shape": [3, 5000, 5000], "data_offsets": [0, size]}
    header = json.dumps({"logits": entry}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    os.truncate(path, 8 + len(header) + size)
    outcome, peak = bombs.read_in_child("layout", [path])[path.name]
    assert "scores without a negative value" in outcome
    assert peak < bombs.LIMIT_BYTES, f"{peak >> 20} MB"


def sealed(content: bytes) -> bytes:
    import google_crc32c

    return content + google_crc32c.value(content).to_bytes(4, "little")


@pytest.mark.parametrize("target", ["zarr.json", "chunk"])
def test_special_files_inside_a_zarr_folder_are_named(tmp_path, target):
    chunk = write_zarr(tmp_path / "a.zarr", None)
    file = chunk if target == "chunk" else tmp_path / "a.zarr" / target
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(InputError, match=f"{file.name}: a named pipe; expected a regular file"):
        read_map(tmp_path / "a.zarr")
    file.unlink()
    file.symlink_to("/dev/zero")
    with pytest.raises(InputError, match=f"{file.name}: a device; expected a regular file"):
        read_map(tmp_path / "a.zarr")


def test_endless_metadata_is_not_read(tmp_path):
    write_zarr(tmp_path / "a.zarr", None)
    os.truncate(tmp_path / "a.zarr" / "zarr.json", 2 * bombs.GIGABYTE)
    with pytest.raises(InputError, match=r"zarr.json: more than 4,194,304 bytes"):
        read_map(tmp_path / "a.zarr")


def test_values_of_hdf5_that_are_compressed_twice_are_refused(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((8, 8))
        properties.set_deflate(9)
        properties.set_deflate(9)
        space = h5py.h5s.create_simple((8, 8))
        h5py.h5d.create(file.id, b"p", h5py.h5t.NATIVE_FLOAT, space, properties)
    with pytest.raises(InputError, match="values compressed twice; expected values compressed by gzip or lzf"):
        read_map(tmp_path / "a.h5")
