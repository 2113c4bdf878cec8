"""Positions of the pixels of a file in the world, and whether those of a map and its mask agree."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from densecal.errors import InputError

_TOLERANCE = 0.01
"""Largest distance between corresponding corners, in pixels. Rounding headers to six digits moves them by less."""


@dataclass(frozen=True, eq=False)
class Geometry:
    """The positions of pixels.

    Attributes:
        steps: World vector of one step along every axis of the array, (axes, dimensions of the world).
        origin: World coordinates of the first pixel.
        system: The coordinate reference system of a raster; empty for medical volumes, whose world is in millimetres,
            to the right, anterior and superior.
    """

    steps: NDArray[np.float64]
    origin: NDArray[np.float64]
    system: str = ""

    @property
    def spacing(self) -> tuple[float, ...]:
        """Distance between pixels along every axis."""
        return tuple(np.linalg.norm(self.steps, axis=1).tolist())


@dataclass(frozen=True)
class Frame:
    """The shape and geometry of a map or mask."""

    shape: tuple[int, ...]
    geometry: Geometry | None = None


def medical_geometry(affine: NDArray[np.float64]) -> Geometry:
    """Return the geometry of an array (Z, Y, X) from the affine (4, 4) that maps (x, y, z) to the world."""
    return Geometry(affine[:3, 2::-1].T.copy(), affine[:3, 3].copy())


def check_geometry(name: str, geometry: Geometry | None, mask: Geometry | None, shape: tuple[int, ...]) -> None:
    """Refuse a map whose pixels lie elsewhere than those of its mask.

    Args:
        name: Name of the map in error messages.
        geometry: Geometry of the map. With ``None``, where its format does not specify it, nothing is checked.
        mask: Geometry of the mask; likewise.
        shape: Shape of both.

    Raises:
        InputError: They differ in coordinate system, spacing, directions or origin.
    """
    if geometry is None or mask is None:
        return
    if geometry.system != mask.system:
        expected = f"{mask.system or 'none'}, as its mask has"
        raise InputError(name, f"the coordinate system {geometry.system or 'none'}", expected)
    if geometry.steps.shape != mask.steps.shape:
        raise InputError(name, f"{len(geometry.steps)} axes of space", f"{len(mask.steps)}, as its mask has")
    corners = np.array(list(itertools.product(*((0, length - 1) for length in shape))))
    apart = np.linalg.norm(
        corners @ (geometry.steps - mask.steps) + (geometry.origin - mask.origin), axis=1
    ).max() / min(mask.spacing)
    if apart <= _TOLERANCE:
        return
    parts: tuple[tuple[str, tuple[float, ...], tuple[float, ...]], ...] = (
        ("a spacing", geometry.spacing, mask.spacing),
        ("directions", _directions(geometry), _directions(mask)),
        ("an origin", tuple(geometry.origin.tolist()), tuple(mask.origin.tolist())),
    )
    differing = (part for part in parts if not np.allclose(part[1], part[2], rtol=1e-4, atol=1e-4 * min(mask.spacing)))
    quantity, actual, expected_values = next(differing, parts[0])
    raise InputError(name, f"{quantity} of {_numbers(actual)}", f"{_numbers(expected_values)}, as its mask has")


def _directions(geometry: Geometry) -> tuple[float, ...]:
    unit = geometry.steps / np.maximum(np.linalg.norm(geometry.steps, axis=1, keepdims=True), 1e-300)
    return tuple(unit.ravel().tolist())


def _numbers(values: tuple[float, ...]) -> str:
    return "(" + ", ".join(f"{value:.6g}" for value in values) + ")"
