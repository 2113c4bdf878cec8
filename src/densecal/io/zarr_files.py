"""Zarr maps: an array in format 3, with the axes and the scale of the OME-Zarr image that it is made from."""

from __future__ import annotations

import base64
import gzip
import json
import struct
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.io.atomic import write_atomically, write_text
from densecal.io.outputs import software
from densecal.io.readers.zarr_metadata import is_group, read_metadata

_SIDES = {2: 512, 3: 64}
"""Shape of a chunk, by number of spatial axes."""

Json = dict[str, Any]


def write_zarr(
    folder: Path, values: NDArray[Any], void: NDArray[np.bool_] | None, space: int, source: Path, command: str
) -> None:
    """Write a map as a Zarr array, or as an OME-Zarr image of one resolution if its source is one.

    Args:
        folder: The folder that is the array or the image.
        values: Floats, (space) or (K, space).
        void: (space), the pixels without data.
        space: Number of spatial axes.
        source: The map whose axes and scale are kept.
        command: The command that writes it, by which it recognises its files.
    """
    about, attributes = read_metadata(source)
    mark: Json = {"densecal": software(command).removeprefix("densecal ")}
    scales = attributes.get("ome", attributes).get("multiscales") if is_group(about) else None
    no_data: Json = {}
    if void is not None:
        values = np.where(void, values.dtype.type(np.nan), values)
        # the bytes of NaN, because JSON has no NaN; xarray stores and expects it in this way
        no_data = {"_FillValue": base64.b64encode(struct.pack("<d", np.nan)).decode()}
    if not scales:
        _write_array(folder, values, space, mark | no_data)
        return
    _write_array(folder / "0", values, space, no_data)
    image = _image(scales[0], values.ndim > space, space)
    group = mark | {"ome": {"version": "0.5", "multiscales": [image]}}
    _write_json(folder, {"attributes": group, "zarr_format": 3, "node_type": "group"})


def _image(source: Json, several: bool, space: int) -> Json:
    """Return the OME-Zarr metadata of an image: those of the source without the time axis, classes first."""
    axes = [axis if isinstance(axis, dict) else {"name": axis} for axis in source.get("axes", [])]
    of_space = [position for position, axis in enumerate(axes) if axis.get("type", "space") == "space"][-space:]
    channel = next(({**axis} for axis in axes if axis.get("type") == "channel"), {"name": "c", "type": "channel"})
    kept = []
    for transform in source["datasets"][0].get("coordinateTransformations", []):
        kind = transform.get("type")
        if kind in ("scale", "translation"):
            first = [float(kind == "scale")] * several
            kept.append({"type": kind, kind: first + [transform[kind][position] for position in of_space]})
    dataset = {"path": "0", "coordinateTransformations": kept}
    return {"axes": [channel] * several + [axes[position] for position in of_space], "datasets": [dataset]}


def _write_array(folder: Path, values: NDArray[Any], space: int, attributes: Json) -> None:
    """Write the chunks, and the metadata once all chunks are written."""
    sides = tuple(min(_SIDES[space], length) for length in values.shape[-space:])
    chunk = (1,) * (values.ndim - space) + sides
    for position in np.ndindex(*(-(-length // side) for length, side in zip(values.shape, chunk, strict=True))):
        first = [number * side for number, side in zip(position, chunk, strict=True)]
        part = values[tuple(slice(at, at + side) for at, side in zip(first, chunk, strict=True))]
        missing = [(0, side - length) for side, length in zip(chunk, part.shape, strict=True)]
        content = gzip.compress(np.pad(part, missing).astype(part.dtype.newbyteorder("<")).tobytes(), 1, mtime=0)
        write_atomically(folder.joinpath("c", *map(str, position)), partial(_write_bytes, content))
    about = {
        "attributes": attributes, "zarr_format": 3, "node_type": "array", "shape": list(values.shape),
        "data_type": values.dtype.name, "fill_value": 0.0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [
            {"name": "bytes", "configuration": {"endian": "little"}}, {"name": "gzip", "configuration": {"level": 1}},
        ],
    }  # fmt: skip
    _write_json(folder, about)


def _write_bytes(content: bytes, stream: Any) -> None:
    stream.write(content)


def _write_json(folder: Path, about: Json) -> None:
    write_text(folder / "zarr.json", json.dumps(about, indent=1) + "\n")
