"""How volumes are prepared for a network, how they are cut, and what its output means: the keys of a YAML file.

v = clip(volume)                        at two values, or at two percentiles of each volume
x = (v - mean) / std                    or, with normalise, by the range or the mean and deviation of each volume
p = activation(output)                  none, sigmoid or softmax
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.errors import InputError
from densecal.io import MAX_VOXELS
from densecal.io.documents import read_yaml
from densecal.prediction.preprocess import (
    ACTIVATIONS,
    MAX_SIDE,
    check_choice,
    check_keys,
    check_output,
    describe,
    is_number,
)
from densecal.prediction.tiles import Tiling

NORMALISATIONS = ("none", "range", "zscore")
AXES = ("zyx", "xyz")

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class VolumeInput:
    """How a volume becomes the input of a network, and its output becomes probabilities.

    Attributes:
        tile: Sides of a tile in voxels, in the order of the network's axes; None for those of the network.
        overlap: Voxels that tiles share along every axis; None for a quarter of a tile.
        axes: Order of the axes that the network takes: ``zyx`` (SimpleITK, nnU-Net) or ``xyz`` (nibabel, MONAI). Arrays
            without a geometry go in as they are.
        clip: The lowest and the highest value.
        percentiles: The same as percentiles of the volume.
        normalise: ``range`` maps the range of ``clip`` or ``percentiles``, or that of the volume, to 0 to 1; ``zscore``
            subtracts the mean of the volume and divides by its standard deviation; ``none`` takes ``mean`` and ``std``.
        mean: Subtracted.
        std: Divides.
        output: Index or name of the output with the maps.
        activation: What turns that output into probabilities; none where it holds probabilities already.
    """

    tile: tuple[int, int, int] | None = None
    overlap: tuple[int, int, int] | None = None
    axes: str = "zyx"
    clip: tuple[float, float] | None = None
    percentiles: tuple[float, float] | None = None
    normalise: str = "none"
    mean: float = 0.0
    std: float = 1.0
    output: int | str = 0
    activation: str = "none"

    def values(self, volume: Floats) -> Floats:
        """Return the input for a volume (channels, space), channel by channel."""
        return np.stack([self._channel(channel.astype(np.float64)) for channel in volume])

    def tilings(self, sides: tuple[int, int, int] | None = None) -> tuple[Tiling, Tiling, Tiling]:
        """Return how the axes are cut.

        Args:
            sides: Those of the network, where it takes only one size.

        Raises:
            InputError: The sides are not known, or differ from those of the network.
        """
        tile = self.tile or sides
        if tile is None:
            raise InputError("--tile", "none", "the side in voxels that the network was trained on, such as 96")
        if sides is not None and tile != sides:
            raise InputError("--tile", _sides_text(tile), f"{_sides_text(sides)}, which the network takes")
        if math.prod(tile) > MAX_VOXELS:
            raise InputError("--tile", _sides_text(tile), f"at most {MAX_VOXELS:,} voxels")
        a, b, c = (Tiling.of_volume(*pair) for pair in zip(tile, self.overlap or (None,) * 3, strict=True))
        return a, b, c

    def _channel(self, values: NDArray[np.float64]) -> Floats:
        bounds = self.clip
        if self.percentiles is not None:
            low, high = np.percentile(values, self.percentiles)
            bounds = float(low), float(high)
        if bounds is not None:
            values = values.clip(*bounds)
        mean, std = self.mean, self.std
        if self.normalise == "range":
            low, high = bounds or (float(values.min()), float(values.max()))
            mean, std = low, (high - low) or 1.0
        elif self.normalise == "zscore":
            mean, std = float(values.mean()), float(values.std()) or 1.0
        return ((values - mean) / std).astype(np.float32)


def read_volume_input(option: str | None, tile: int | None = None, overlap: int | None = None) -> VolumeInput:
    """Return the content of a YAML file, with the sides of the command line.

    Raises:
        InputError: There is no such file, or a key has a wrong value.
    """
    settings = VolumeInput()
    if option is not None:
        path = Path(option)
        if path.suffix.lower() not in (".yaml", ".yml"):
            raise InputError("--preprocess", option, "a YAML file, for a network of volumes")
        settings = parse_volume_input(read_yaml(path, "a YAML file that says how volumes are prepared"), option)
    if tile is not None:
        settings = replace(settings, tile=(tile,) * 3, overlap=None)
    return settings if overlap is None else replace(settings, overlap=(overlap,) * 3)


def parse_volume_input(content: Any, where: str) -> VolumeInput:
    """Return the preprocessing of volumes from the content of a YAML file.

    Raises:
        InputError: A key is unknown or has a wrong value.
    """
    checks: dict[str, Callable[[Any, str], Any]] = {
        "tile": partial(_sides, 1),
        "overlap": partial(_sides, 0),
        "axes": partial(check_choice, AXES),
        "clip": partial(_bounds, None),
        "percentiles": partial(_bounds, (0.0, 100.0)),
        "normalise": partial(check_choice, NORMALISATIONS),
        "mean": partial(_number, None),
        "std": partial(_number, 0.0),
        "output": check_output,
        "activation": partial(check_choice, ACTIVATIONS),
    }
    settings = check_keys(content, where, checks)
    for key, other in (("clip", "percentiles"), ("normalise", "mean"), ("normalise", "std")):
        if key in settings and other in settings:
            raise InputError(f"{where}: {key}", f"{other} as well", "one of them")
    return VolumeInput(**settings)


def _sides(least: int, value: Any, where: str) -> tuple[int, int, int]:
    sides = value if isinstance(value, list) else [value] * 3
    if len(sides) != 3 or not all(type(side) is int and least <= side <= MAX_SIDE for side in sides):
        raise InputError(where, describe(value), f"a whole number of voxels from {least}, or a list of three")
    return sides[0], sides[1], sides[2]


def _bounds(limits: tuple[float, float] | None, value: Any, where: str) -> tuple[float, float]:
    expected = "two numbers, the lower one first" + (f", from {limits[0]:g} to {limits[1]:g}" if limits else "")
    if not isinstance(value, list) or len(value) != 2 or not all(map(is_number, value)) or not value[0] < value[1]:
        raise InputError(where, describe(value), expected)
    if limits is not None and not limits[0] <= value[0] < value[1] <= limits[1]:
        raise InputError(where, describe(value), expected)
    return float(value[0]), float(value[1])


def _number(above: float | None, value: Any, where: str) -> float:
    if not is_number(value) or (above is not None and not value > above):
        raise InputError(where, describe(value), "a number" if above is None else f"a number above {above:g}")
    return float(value)


def _sides_text(sides: tuple[int, ...]) -> str:
    return " x ".join(map(str, sides))
