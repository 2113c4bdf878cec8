"""How images are prepared for a network that somebody else trained, and what its output means: a YAML file or a preset.

x = (image / scale - mean) / std        image: RGB or BGR bytes, resized to size; scale "max" is the image's largest
p = activation(output)                  none, sigmoid or softmax
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from densecal.errors import InputError
from densecal.io.documents import read_yaml

Array = NDArray[Any]

RESAMPLING = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
ORDERS = ("rgb", "bgr")
ACTIVATIONS = ("none", "sigmoid", "softmax")
TOLERANCE = 1e-3
"""How far an output may exceed [0, 1] through rounding and still count as probabilities."""
MAX_SIDE = 1 << 14


@dataclass(frozen=True)
class Preprocess:
    """How an image becomes the input of a network, and its output becomes probabilities.

    Attributes:
        size: Height and width of the input; None for that of the network, which must then be fixed.
        scale: Divides the bytes of an image: a number, or "max" for the largest byte of each image.
        mean: Subtracted per channel, after scale.
        std: Divides per channel, after mean.
        order: Order of the channels, ``rgb`` or ``bgr``.
        resample: How images are resized: bilinear, bicubic or lanczos.
        output: Index or name of the output with the maps.
        activation: What turns that output into probabilities; none where it holds probabilities already.
    """

    size: tuple[int, int] | None = None
    scale: float | Literal["max"] = 255.0
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    order: str = "rgb"
    resample: str = "bilinear"
    output: int | str = 0
    activation: str = "none"

    def input(self, image: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.float32]:
        """Return the input (h, w, 3) for an image (H, W, 3) of bytes."""
        height, width = size
        resized = Image.fromarray(image).resize((width, height), RESAMPLING[self.resample])
        x = np.asarray(resized, np.float64)[:, :, :: 1 if self.order == "rgb" else -1]
        scale = max(float(x.max()), 1.0) if self.scale == "max" else self.scale
        return ((x / scale - self.mean) / self.std).astype(np.float32)


PRESETS = {
    "u2net": Preprocess(
        size=(320, 320), scale="max", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), resample="lanczos"
    ),
    "isnet": Preprocess(size=(1024, 1024), scale=256.0, mean=(0.5, 0.5, 0.5)),
}
"""Networks that many people use. U2-Net and U2-Netp: `u2net`; ISNet, trained on DIS: `isnet`."""


def activate(z: NDArray[np.float32], activation: str, where: str | Path, output: str) -> NDArray[np.float32]:
    """Turn the output (B, K, space) of a network into probabilities.

    Args:
        z: The output.
        activation: One of ``ACTIVATIONS``.
        where: Name of the network in errors.
        output: Name of the output in errors.

    Raises:
        InputError: It has values that are not finite, or no probabilities without an activation.
    """
    if not np.isfinite(z).all():
        raise InputError(where, f"NaN or infinite values in {output}", "finite values")
    if activation == "sigmoid":
        e = np.exp(-np.abs(z))
        return np.asarray(np.where(z >= 0, 1 / (1 + e), e / (1 + e)))
    if activation == "softmax":
        e = np.exp(z - z.max(axis=1, keepdims=True))
        return np.asarray(e / e.sum(axis=1, keepdims=True))
    low, high = float(z.min()), float(z.max())
    if low < -TOLERANCE or high > 1 + TOLERANCE:
        expected = "probabilities, or activation: sigmoid or softmax in --preprocess"
        raise InputError(where, f"values from {low:.3g} to {high:.3g} in {output}", expected)
    return z.clip(0, 1)


def read_preprocess(option: str) -> Preprocess:
    """Return a preset by its name, or the content of a YAML file.

    Raises:
        InputError: There is no such preset or file, or a key has a wrong value.
    """
    if option in PRESETS:
        return PRESETS[option]
    path = Path(option)
    if path.suffix.lower() not in (".yaml", ".yml"):
        raise InputError("--preprocess", option, f"one of {', '.join(PRESETS)}, or the name of a YAML file")
    return parse_preprocess(read_yaml(path, "a YAML file that says how images are prepared"), option)


def parse_preprocess(content: Any, where: str) -> Preprocess:
    """Return a preprocessing from the content of a YAML file.

    Raises:
        InputError: A key is unknown or has a wrong value.
    """
    checks: dict[str, Callable[[Any, str], Any]] = {
        "size": _size,
        "scale": _scale,
        "mean": _channels,
        "std": _std,
        "order": partial(check_choice, ORDERS),
        "resample": partial(check_choice, tuple(RESAMPLING)),
        "output": check_output,
        "activation": partial(check_choice, ACTIVATIONS),
    }
    return Preprocess(**check_keys(content, where, checks))


def check_keys(content: Any, where: str, checks: Mapping[str, Callable[[Any, str], Any]]) -> dict[str, Any]:
    """Return the content of a YAML file, with every value replaced by what the check of its key returns.

    Raises:
        InputError: The content is no mapping, a key is unknown or has a wrong value.
    """
    names = ", ".join(checks)
    if not isinstance(content, dict):
        raise InputError(where, f"{type(content).__name__}", f"keys among {names}")
    for key in content:
        if key not in checks:
            raise InputError(f"{where}: {str(key)[:50]}", "unknown key", f"one of {names}")
    return {key: checks[key](value, f"{where}: {key}") for key, value in content.items()}


def check_choice(allowed: tuple[str, ...], value: Any, where: str) -> str:
    """Return a value if it is an allowed word."""
    if not isinstance(value, str) or value not in allowed:
        raise InputError(where, describe(value), f"one of {', '.join(allowed)}")
    return value


def _size(value: Any, where: str) -> tuple[int, int]:
    sides = value if isinstance(value, list) else [value, value]
    if len(sides) != 2 or not all(type(side) is int and 0 < side <= MAX_SIDE for side in sides):
        raise InputError(where, describe(value), f"a side in pixels up to {MAX_SIDE:,}, or [height, width]")
    return sides[0], sides[1]


def _scale(value: Any, where: str) -> float | str:
    if value == "max":
        return "max"
    if not is_number(value) or not value > 0:
        raise InputError(where, describe(value), "a number above 0, such as 255, or max")
    return float(value)


def _channels(value: Any, where: str) -> tuple[float, ...]:
    numbers = value if isinstance(value, list) else [value] * 3
    if len(numbers) != 3 or not all(map(is_number, numbers)):
        raise InputError(where, describe(value), "a number, or a list of three: red, green, blue (or as in order)")
    return tuple(map(float, numbers))


def _std(value: Any, where: str) -> tuple[float, ...]:
    numbers = _channels(value, where)
    if not min(numbers) > 0:
        raise InputError(where, describe(value), "numbers above 0")
    return numbers


def check_output(value: Any, where: str) -> int | str:
    """Return the index or the name of an output."""
    if type(value) not in (int, str) or (isinstance(value, int) and value < 0):
        raise InputError(where, describe(value), "the index of an output from 0, or its name")
    return value  # type: ignore[no-any-return]


def is_number(value: Any) -> bool:
    """Return whether a value is a plain number of usual size."""
    return type(value) in (int, float) and bool(np.isfinite(value)) and abs(value) < 1e9


def describe(value: Any) -> str:
    """Return the text of a value for an error."""
    return repr(value)[:60]
