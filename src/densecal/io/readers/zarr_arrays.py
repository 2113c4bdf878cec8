"""Zarr arrays and OME-Zarr images, which are folders, as lazy arrays."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.errors import InputError
from densecal.io.geometry import Geometry
from densecal.io.readers.protocol import Window
from densecal.io.readers.stored import check_numbers, check_size, choose_array, missing_extra, readable
from densecal.io.urls import is_remote, url

_EXPECTED = "a complete Zarr array"
_MILLIMETRES = {
    "nanometer": 1e-6, "micrometer": 1e-3, "millimeter": 1.0, "centimeter": 10.0, "meter": 1000.0,
}  # fmt: skip


class _ZarrArray:
    """An array of a Zarr folder, without axes of time, of which there is one."""

    def __init__(self, array: Any, axes: list[dict[str, Any]], geometry: Geometry | None) -> None:
        self._array = array
        self.geometry = geometry
        self.dtype: np.dtype[Any] = np.dtype(array.dtype)
        kinds = [axis.get("type", "space") for axis in axes] or ["space"] * array.ndim
        self._times = tuple(position for position, kind in enumerate(kinds) if kind == "time")
        kept = [(kind, length) for kind, length in zip(kinds, array.shape, strict=True) if kind != "time"]
        self.shape = tuple(length for _, length in kept)
        self.channels = next((position for position, (kind, _) in enumerate(kept) if kind == "channel"), None)

    def read(self, window: Window = ()) -> NDArray[Any]:
        """Read values from the files."""
        parts: list[slice | int] = [*window, *(slice(None) for _ in self.shape[len(window) :])]
        for position in self._times:
            parts.insert(position, 0)
        return np.asarray(self._array[tuple(parts)])

    def read_void(self, window: Window = ()) -> None:
        """Return nothing: such files do not mark values as missing."""


@contextmanager
def open_zarr(path: Path, key: str | None, max_values: int) -> Iterator[_ZarrArray]:
    """Open a Zarr array: the folder itself, the full resolution of an OME-Zarr image, or an array in a group."""
    name = str(path)
    try:
        import zarr
    except ModuleNotFoundError:
        raise missing_extra(name, "zarr", "zarr") from None
    with readable(name, _EXPECTED):
        opened: Any = zarr.open(url(path) if is_remote(path) else name, mode="r")
        axes: list[dict[str, Any]] = []
        geometry = None
        if isinstance(opened, zarr.Group):
            scales: Any = opened.attrs.asdict()
            scales = scales.get("ome", scales).get("multiscales")
            if scales and key is None:
                image = scales[0]["datasets"][0]
                axes = [axis if isinstance(axis, dict) else {"name": axis} for axis in scales[0].get("axes", [])]
                geometry = _geometry(axes, image.get("coordinateTransformations", []))
                opened = opened[image["path"]]
            else:
                opened = opened[choose_array(_names(opened), name, key, "a group")]
        check_numbers(np.dtype(opened.dtype), name)
        check_size(opened.shape, name, max_values)
        check_size((math.prod(opened.chunks),), name, max(max_values, 1 << 22))
        array = _ZarrArray(opened, axes, geometry)
        if math.prod(opened.shape) != math.prod(array.shape):
            raise InputError(name, "several points in time", "one")
        yield array


def _names(group: Any, prefix: str = "") -> list[str]:
    """Return the names of the arrays in a group, and in the groups in it."""
    names = [f"{prefix}{name}" for name in group.array_keys()]
    for name, inner in group.groups():
        names += _names(inner, f"{prefix}{name}/")
    return sorted(names)


def _geometry(axes: list[dict[str, Any]], transformations: list[dict[str, Any]]) -> Geometry | None:
    space = [position for position, axis in enumerate(axes) if axis.get("type") == "space"]
    scale = next((entry["scale"] for entry in transformations if entry.get("type") == "scale"), None)
    if not space or scale is None:
        return None
    shift = next((entry["translation"] for entry in transformations if entry.get("type") == "translation"), None)
    units = [_MILLIMETRES.get(axes[position].get("unit", ""), 1.0) for position in space]
    steps = np.diag([float(scale[position]) * unit for position, unit in zip(space, units, strict=True)])
    origin = [0.0 if shift is None else float(shift[p]) * unit for p, unit in zip(space, units, strict=True)]
    return Geometry(steps, np.array(origin), "OME-Zarr")
