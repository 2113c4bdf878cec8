"""The metadata of a Zarr folder in formats 2 and 3: the arrays in it, and how their chunks are stored."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from densecal.errors import InputError
from densecal.io.documents import parse_json
from densecal.io.readers.zarr_chunks import Chain, Compressor
from densecal.io.regular import kind_of
from densecal.io.urls import entries, exists, is_remote, open_bytes

EXPECTED = "a complete Zarr array"
_MAX_METADATA = 1 << 22
_MAX_GROUPS = 1000
_MAX_CHUNKS = 1 << 20
"""Largest number of chunks. Each is a file to look for."""
_TYPES = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64)")
_TYPES_2 = re.compile(r"[<>|][biuf][1248]")
_CODECS_2 = ("zlib", "gzip", "bz2", "zstd", "blosc", "lz4")

Json = dict[str, Any]


@dataclass(frozen=True)
class Layout:
    """An array as its metadata describe it.

    Attributes:
        folder: Folder of its chunks.
        shape: Shape of the array.
        outer: Shape of the part that one file holds.
        chain: Encoding of chunks, several of which may share a file.
        prefix: Prefix of the names of all files.
        separator: Separator of the numbers in a name.
        fill: Value of chunks that have no file.
        index: Encoding of the positions of chunks in a shared file; ``None`` where each chunk has its own file.
        index_first: Whether these positions come first in the file.
    """

    folder: Path
    shape: tuple[int, ...]
    outer: tuple[int, ...]
    chain: Chain
    prefix: str
    separator: str
    fill: Any
    index: Chain | None = None
    index_first: bool = False

    def file(self, position: tuple[int, ...]) -> Path:
        """Return the file of a part."""
        words = [self.prefix] * bool(self.prefix) + [str(number) for number in position]
        return self.folder.joinpath(*(self.separator.join(words) or "0").split("/"))


def read_metadata(folder: Path) -> tuple[Json, Json]:
    """Return the metadata of an array or a group, and its attributes.

    Raises:
        InputError: The folder is neither an array nor a group.
    """
    if (about := _json(folder / "zarr.json")) is not None:
        return about, _object(about.get("attributes", {}), folder)
    about = _json(folder / ".zarray") or _json(folder / ".zgroup")
    if about is None:
        raise InputError(folder, "no zarr.json, .zarray or .zgroup", EXPECTED)
    return about, _json(folder / ".zattrs") or {}


def is_group(about: Json) -> bool:
    """Return whether metadata describe a group."""
    return "shape" not in about


def array_names(folder: Path) -> list[str]:
    """Return the names of the arrays in a group and in its subgroups."""
    names, pending, count = [], [(folder, "")], 0
    while pending:
        group, prefix = pending.pop()
        for path, is_folder in entries(group):
            if not is_folder or not any(exists(path / name) for name in ("zarr.json", ".zarray", ".zgroup")):
                continue
            count += 1
            if count > _MAX_GROUPS:
                raise InputError(folder, f"more than {_MAX_GROUPS:,} arrays and groups", EXPECTED)
            name = f"{prefix}{path.name}"
            if is_group(read_metadata(path)[0]):
                pending.append((path, f"{name}/"))
            else:
                names.append(name)
    return sorted(names)


def layout(folder: Path, about: Json) -> Layout:
    """Return the layout of an array.

    Raises:
        InputError: It is stored in a way that is not supported.
        LookupError, TypeError, ValueError: The metadata are damaged.
    """
    if _object(about, folder).get("zarr_format") == 2:
        return _layout_2(folder, about)
    if about.get("zarr_format") == 3:
        return _layout_3(folder, about)
    raise InputError(folder, f"Zarr format {about.get('zarr_format')!r}", "format 2 or 3")


def _layout_2(folder: Path, about: Json) -> Layout:
    dtype = about["dtype"]
    if not isinstance(dtype, str) or not _TYPES_2.fullmatch(dtype):
        raise InputError(folder, f"values of type {dtype}", "plain numbers")
    shape, chunks = _lengths(about["shape"]), _lengths(about["chunks"], 1)
    if about.get("filters"):
        raise InputError(folder, f"the filter {about['filters'][0].get('id')!r}", "an array without filters")
    axes = tuple(range(len(shape)))
    order = axes[::-1] if about["order"] == "F" else axes
    compressor = about.get("compressor")
    compressors = () if compressor is None else (_compressor(str(compressor["id"]), _CODECS_2, folder),)
    chain = Chain(chunks, np.dtype(dtype), order, compressors)
    fill = _fill(about.get("fill_value"), chain.dtype)
    return _check_layout(Layout(folder, shape, chunks, chain, "", about.get("dimension_separator", "."), fill))


def _layout_3(folder: Path, about: Json) -> Layout:
    dtype = about["data_type"]
    if not isinstance(dtype, str) or not _TYPES.fullmatch(dtype):
        raise InputError(folder, f"values of type {dtype}", "plain numbers")
    if about["chunk_grid"]["name"] != "regular" or about.get("storage_transformers"):
        raise InputError(folder, "chunks of different sizes, or transformed", "a regular grid of chunks")
    shape, outer = _lengths(about["shape"]), _lengths(about["chunk_grid"]["configuration"]["chunk_shape"], 1)
    keys = about["chunk_key_encoding"]
    default = keys["name"] == "default"
    separator = keys.get("configuration", {}).get("separator", "/" if default else ".")
    codecs = about["codecs"]
    fill = _fill(about["fill_value"], np.dtype(dtype))
    prefix = "c" if default else ""
    if codecs[0]["name"] != "sharding_indexed":
        chain = _chain(codecs, outer, np.dtype(dtype), folder)
        return _check_layout(Layout(folder, shape, outer, chain, prefix, separator, fill))
    if len(codecs) > 1:
        raise InputError(folder, f"the codec {codecs[1]['name']!r} around shards", "shards that are not compressed")
    shard = codecs[0]["configuration"]
    inner = _lengths(shard["chunk_shape"], 1)
    if len(inner) != len(outer) or any(whole % part for whole, part in zip(outer, inner, strict=True)):
        raise InputError(folder, f"chunks {inner} in shards {outer}", EXPECTED)
    counts = tuple(whole // part for whole, part in zip(outer, inner, strict=True))
    index = _chain(shard["index_codecs"], (*counts, 2), np.dtype(np.uint64), folder)
    if any(compressor.kind != "crc32c" for compressor in index.compressors):
        raise InputError(folder, "an index of shards that is compressed", "one that is not")
    chain = _chain(shard["codecs"], inner, np.dtype(dtype), folder)
    first = shard.get("index_location", "end") == "start"
    return _check_layout(Layout(folder, shape, outer, chain, prefix, separator, fill, index, first))


def _chain(codecs: list[Json], shape: tuple[int, ...], dtype: np.dtype[Any], folder: Path) -> Chain:
    """Return the encoding of chunks of a shape, given the codecs in the order of writing."""
    order = tuple(range(len(shape)))
    steps = iter(codecs)
    step = next(steps)
    while step["name"] == "transpose":
        turn = tuple(int(axis) for axis in step["configuration"]["order"])
        if sorted(turn) != list(range(len(shape))):
            raise InputError(folder, f"an order of axes {turn}", EXPECTED)
        order = tuple(order[axis] for axis in turn)
        step = next(steps)
    if step["name"] == "sharding_indexed":
        raise InputError(folder, "shards within shards", "one level of shards")
    if step["name"] != "bytes":
        raise InputError(folder, f"the codec {step['name']!r}", "plain numbers, compressed by gzip, zstd or blosc")
    big = step.get("configuration", {}).get("endian", "little") == "big"
    compressors = tuple(_compressor(str(step["name"]), ("gzip", "zstd", "blosc", "crc32c"), folder) for step in steps)
    return Chain(shape, dtype.newbyteorder(">" if big else "<"), order, compressors[::-1])


def _compressor(kind: str, known: tuple[str, ...], folder: Path) -> Compressor:
    if kind not in known:
        raise InputError(folder, f"the codec {kind!r}", "one of " + ", ".join(known))
    return Compressor(kind)


def _check_layout(layout: Layout) -> Layout:
    if not len(layout.shape) == len(layout.outer) == len(layout.chain.shape) or layout.separator not in (".", "/"):
        raise InputError(layout.folder, f"chunks {layout.outer} of an array of shape {layout.shape}", EXPECTED)
    chunks = math.prod(-(-length // part) for length, part in zip(layout.shape, layout.chain.shape, strict=True))
    if chunks > _MAX_CHUNKS:
        raise InputError(layout.folder, f"{chunks:,} chunks", f"at most {_MAX_CHUNKS:,}")
    return layout


def _lengths(value: Any, least: int = 0) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(length) is int and least <= length < 2**62 for length in value):
        raise ValueError(f"lengths {value}")
    return tuple(value)


def _fill(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return the value of chunks without a file. Text is a special float, or the bits of one in hexadecimal."""
    if isinstance(value, str) and value.startswith("0x"):
        bits = int(value, 16).to_bytes(dtype.itemsize, "little")
        return np.frombuffer(bits, dtype.newbyteorder("<"))[0]
    if isinstance(value, list | dict):
        raise ValueError(f"the fill value {value}")
    return dtype.type(0 if value is None else float(value) if isinstance(value, str) else value)


def _json(path: Path) -> Json | None:
    """Read a file of metadata; ``None`` if there is none."""
    if (not is_remote(path) and kind_of(path) is None and not path.exists()) or (is_remote(path) and not exists(path)):
        return None
    with open_bytes(path) as stream:
        text = stream.read(_MAX_METADATA + 1)
    if len(text) > _MAX_METADATA:
        raise InputError(path, f"more than {_MAX_METADATA:,} bytes", EXPECTED)
    return _object(parse_json(text.decode("utf-8"), path, EXPECTED), path)


def _object(value: Any, where: Path) -> Json:
    if not isinstance(value, dict):
        raise InputError(where, "no JSON object", EXPECTED)
    return value


def parts(shape: tuple[int, ...], ranges: list[range]) -> Iterator[tuple[int, ...]]:
    """Yield the positions of the chunks of a shape that hold some of the values of ranges."""
    along = (
        range(one.start // n, -(-one.stop // n)) if one else range(0) for one, n in zip(ranges, shape, strict=True)
    )
    return itertools.product(*along)
