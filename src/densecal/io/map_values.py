"""The meaning of the numbers of a map: probabilities, levels of a given scale, or logits. Nothing is guessed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.errors import InputError
from densecal.io import SUM_TOLERANCE
from densecal.io.map_options import MapOptions
from densecal.io.row_chunks import row_chunks

_SLACK = 1e-6
"""How far float maps may lie outside [0, 1]: float32 interpolation leaves 1.0000001."""
_USUAL_SCALES = (100, 255, 65535)
_SCALES = {256: (1, 100), 65536: (1, 100, 255, 1000, 10_000)}
"""Highest levels that reveal a scale other than the whole range of 8 or 16 bits."""

Array = NDArray[Any]


def check_values(array: Array, name: str, options: MapOptions, several: bool) -> Array:
    """Return the values of a map: finite float64 logits, or levels and floats that are probabilities.

    Args:
        array: (space), or (K, space) for K classes.
        name: Name of the file in error messages.
        options: What the values mean.
        several: Whether there are K classes.
    """
    if options.logits:
        return _check_logits(array, name, several)
    if options.normalise and several:
        array = _normalise(array, name)
    elif options.max_value is not None:
        array = _scale(array, name, options.max_value, several)
    return _check_probabilities(array, name, several)


def to_probabilities(logits: Array, several: bool) -> NDArray[np.float64]:
    """Return the sigmoid of logits (space), or the softmax of logits (K, space) over classes, in float64."""
    z = logits.astype(np.float64)
    if not several:
        return np.asarray(np.exp(-np.logaddexp(0.0, -z)))
    z -= z.max(axis=0)
    np.exp(z, out=z)
    z /= z.sum(axis=0)
    return z


def check_scale(highest: dict[int, int], where: str | Path, options: MapOptions) -> None:
    """Refuse 8- and 16-bit maps, of a set with foreground, whose highest level is that of another scale.

    Args:
        highest: The highest level in all maps, by the number of levels of their type.
        where: Name of the maps in error messages.
        options: What the values mean.
    """
    if options.max_value is not None:
        return
    for levels, top in highest.items():
        if top in _SCALES.get(levels, ()):
            bits = "8-bit" if levels == 256 else "16-bit"
            expected = (
                f"levels up to {levels - 1}; --max-value {top} if {top} means probability 1, --max-value {levels - 1} "
                "if the levels are right; class labels (argmax) hold no probabilities"
            )
            raise InputError(where, f"no level above {top} in any {bits} map", expected)


def _check_logits(array: Array, name: str, several: bool) -> Array:
    if not np.issubdtype(array.dtype, np.floating):
        raise InputError(name, f"values of type {array.dtype}", "logits, which are floats")
    if not np.isfinite(array).all():
        raise InputError(name, "NaN or infinite values", "finite logits")
    z = array.astype(np.float64)
    if several and z.min() >= 0.0 and _miss_of_one(z) <= 1e-3:
        raise InputError(name, "probabilities, which sum to 1 in every pixel", "logits, or no --logits")
    return z


def _scale(array: Array, name: str, max_value: float, several: bool) -> Array:
    """Return values of 0 to ``max_value`` as float64 of 0 to 1; the whole range of 8 or 16 bits stays as it is."""
    native = array.dtype.newbyteorder("=")
    whole_range = {np.dtype(np.uint8): 255, np.dtype(np.uint16): 65535}.get(native)
    if not several and whole_range == max_value:
        return array
    low, high = _finite_range(array, name)
    if low < -_SLACK * max_value or high > (1.0 + _SLACK) * max_value:
        raise InputError(name, f"values from {low:.9g} to {high:.9g}", f"values from 0 to {max_value:g} (--max-value)")
    return array.astype(np.float64) / max_value


def _normalise(array: Array, name: str) -> Array:
    """Divide scores of 0 or more by their sum over classes; where all are 0, all classes are equally likely."""
    low, _ = _finite_range(array, name)
    if low < 0.0:
        raise InputError(name, f"scores down to {low:.9g}", "scores of 0 or more; --logits for logits")
    scores = array.astype(np.float64)
    total = scores.sum(axis=0)
    empty = total == 0.0
    scores[:, empty], total[empty] = 1.0, len(scores)
    return np.asarray(scores / total)


def _check_probabilities(array: Array, name: str, several: bool) -> Array:
    native = array.dtype.newbyteorder("=")
    if native in (np.uint8, np.uint16) and not several:
        return array.astype(native, copy=False)
    low, high = _finite_range(array, name)
    if not np.issubdtype(array.dtype, np.floating):
        actual = f"values of type {array.dtype} from {low:.9g} to {high:.9g}"
        raise InputError(name, actual, f"floats in [0, 1], or uint8 or uint16 levels; {_hint(array, low, high)}")
    if low < -_SLACK or high > 1.0 + _SLACK:
        raise InputError(
            name, f"values from {low:.9g} to {high:.9g}", f"probabilities in [0, 1]; {_hint(array, low, high)}"
        )
    if low < 0.0 or high > 1.0:
        array = array.clip(0.0, 1.0)
    if several and (worst := _miss_of_one(array)) > SUM_TOLERANCE:
        expected = "softmax probabilities; --logits for logits, --normalise for scores, --multilabel for sigmoids"
        raise InputError(name, f"class probabilities that miss a sum of 1 by {worst:.3g}", expected)
    # float16 would overflow in the callers' sums and products
    kind = np.dtype(np.float32) if native.itemsize < 4 else native if native.itemsize <= 8 else np.dtype(np.float64)
    return array.astype(kind, copy=False)


def _finite_range(array: Array, name: str) -> tuple[float, float]:
    low, high = float(array.min()), float(array.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise InputError(name, "NaN or infinite values", "probabilities in [0, 1]")
    return low, high


def _hint(array: Array, low: float, high: float) -> str:
    """Name the options for values that cannot be probabilities."""
    if low < 0.0:
        return "--logits for logits"
    scale = next((scale for scale in _USUAL_SCALES if high <= scale), None)
    hints = [f"--max-value {scale} for values from 0 to {scale}"] if scale else []
    hints += ["--logits for logits"] if np.issubdtype(array.dtype, np.floating) else []
    hints += ["class labels (argmax) hold no probabilities"] if np.array_equal(array, np.rint(array)) else []
    return "; ".join(hints)


def _miss_of_one(array: Array) -> float:
    """Return the largest distance of the sum over classes from 1."""
    sums = (array[:, rows].sum(axis=0, dtype=np.float64) for rows in row_chunks(array.shape[1:]))
    return max(float(np.abs(chunk - 1.0).max()) for chunk in sums)
