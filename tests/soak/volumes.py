"""Whole volumes, rasters and containers for the fuzzer, as the formats' own libraries write them."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import zarr

from densecal.io.map_files import read_map
from tests.io.test_volumes import WRITERS, K, softmax_map, write_raster
from tests.soak import mutations

Files = dict[str, bytes]
SINGLE = ("a.nii", "a.nii.gz", "b.nii", "a.nrrd", "a.nhdr", "a.mha", "b.mha", "a.mhd", "a.h5", "a.safetensors", "a.pt")


def whole_volumes(scratch: Path) -> dict[str, list[Files]]:
    """Return examples by kind: the files of a folder, with the one or the folder that is opened first."""
    kinds: dict[str, list[Files]] = {}
    for name in SINGLE:
        folder = scratch / name.replace(".", "-")
        folder.mkdir(parents=True)
        WRITERS[name](folder / name, softmax_map())
        kinds.setdefault(name.split(".", 1)[1], []).append(_content(folder))
    for number, options in enumerate(({}, {"zarr_format": 2}, {"shards": (K, 4, 4, 6)})):
        folder = scratch / f"zarr-{number}"
        zarr.create_array(str(folder / "a.zarr"), data=softmax_map(), chunks=(K, 2, 2, 3), **options)
        kinds.setdefault("zarr", []).append(_content(folder))
    for number, options in enumerate(({}, {"compress": "deflate"}, {"compress": "lzw"})):
        folder = scratch / f"geotiff-{number}"
        folder.mkdir()
        write_raster(folder / "a.tif", softmax_map()[:, 0], **options)
        kinds.setdefault("geotiff", []).append(_content(folder))
    return kinds


def read_volume(folder: Path) -> np.ndarray:
    """Read the map in a folder."""
    first = min(path for path in folder.iterdir() if path.suffix != ".raw")
    return read_map(first, K)


def wrong_metadata(data: bytes, rng: random.Random) -> bytes:
    """Damage the metadata of Zarr as JSON, and chunks as bytes."""
    return (mutations.wrong_json if data.startswith(b"{") else mutations.damage)(data, rng)


def wrong_header(data: bytes, rng: random.Random) -> bytes:
    """Damage a header of text: a number, a word or a line in the first kilobyte."""
    lines = data[:1024].split(b"\n")
    at = rng.randrange(len(lines))
    word = rng.choice((b"-1", b"0", b"9" * 400, b"1e999", b"nan", b"99999999", b"LOCAL", b"../x", b"", b"\xff"))
    key, _, _ = lines[at].partition(rng.choice((b":", b"=", b" ")))
    lines[at] = rng.choice((word, key + b" = " + word, key + b": " + word, lines[at] + b" " + word))
    return b"\n".join(lines) + data[1024:]


def _content(folder: Path) -> Files:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
