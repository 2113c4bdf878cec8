"""Arrays of any library: NumPy counts what lies in memory, PyTorch what lies on an accelerator.

NumPy and PyTorch spell most of what counting needs alike (``where``, ``floor``, ``reshape``, ``sum(0)``, ...): code
that serves both calls `namespace` and keeps to that. What they spell differently is here. PyTorch is not imported
unless the caller has imported it.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Array: TypeAlias = Any
"""A NumPy array, or a tensor on an accelerator."""

_CPU = 1
"""The number of main memory among the devices of DLPack."""


def as_array(values: Any) -> Array:
    """Return values as a NumPy array, or as a tensor where they lie on an accelerator; copy nothing if possible.

    Args:
        values: A NumPy array, a tensor, an array of another library (JAX, CuPy, TensorFlow, Dask), numbers or lists.

    Raises:
        TypeError: They are not numbers, or lie on an accelerator and PyTorch is not installed.
    """
    if is_tensor(values):
        return _of_tensor(values.detach())
    if not isinstance(values, np.ndarray) and hasattr(values, "__dlpack__") and hasattr(values, "__dlpack_device__"):
        if int(values.__dlpack_device__()[0]) != _CPU:
            return _on_accelerator(values)
        # not for a type that NumPy lacks, such as bfloat16
        with contextlib.suppress(BufferError, RuntimeError, TypeError, ValueError):
            values = np.from_dlpack(values)
    array = np.asarray(values)
    if array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"values of type {array.dtype}; expected an array of numbers")
    return array


def is_tensor(values: Any) -> bool:
    """Return whether values are a PyTorch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(values, torch.Tensor)


def _of_tensor(tensor: Tensor) -> Array:
    if tensor.device.type != "cpu":
        return tensor
    if tensor.is_floating_point() and tensor.element_size() < 4:
        tensor = tensor.float()  # NumPy lacks bfloat16, and is slow with float16
    return tensor.numpy(force=True)


def _on_accelerator(values: Any) -> Tensor:
    try:
        import torch
    except ModuleNotFoundError:
        raise TypeError(
            f"{type(values).__name__} on an accelerator, which PyTorch counts; expected densecal[torch], "
            "or an array in main memory"
        ) from None
    return torch.from_dlpack(values)  # type: ignore[attr-defined]


def on_host(array: Array) -> bool:
    """Return whether an array lies in main memory: reading its values does not make the host wait for a device."""
    return isinstance(array, np.ndarray)


def to_host(array: Array) -> NDArray[Any]:
    """Return an array as NumPy's."""
    return array if isinstance(array, np.ndarray) else array.cpu().numpy()


def beside(array: Array, other: Array) -> Array:
    """Return an array on the device of another one."""
    if on_host(other):
        return to_host(array)
    import torch

    return (torch.from_numpy(array) if on_host(array) else array).to(other.device)


def namespace(array: Array) -> Any:
    """Return the module whose functions count this array."""
    return np if isinstance(array, np.ndarray) else sys.modules["torch"]


def is_float(array: Array) -> bool:
    """Return whether an array holds floats."""
    return array.dtype.kind == "f" if isinstance(array, np.ndarray) else bool(array.is_floating_point())


def is_bool(array: Array) -> bool:
    """Return whether an array holds booleans."""
    return str(array.dtype) in ("bool", "torch.bool")


def cast(array: Array, dtype: str) -> Array:
    """Return an array in a type called ``int64`` or the like; the same array if that is its type."""
    xp = namespace(array)
    return array.astype(dtype, copy=False) if xp is np else array.to(getattr(xp, dtype))


def cast_like(array: Array, other: Array) -> Array:
    """Return an array with the type and on the device of another one."""
    return cast(beside(array, other), str(other.dtype).removeprefix("torch."))


def position(values: Array, edges: Array, right: bool) -> Array:
    """Return between which rising edges values lie: below the first is 0, and NaN is above the last.

    Args:
        values: Of any shape.
        edges: Of the same type.
        right: A value that equals an edge lies above it.
    """
    if on_host(values):
        return np.searchsorted(edges, values, side="right" if right else "left")
    return namespace(values).bucketize(values, edges, right=right)


def zeros(shape: tuple[int, ...], dtype: str, like: Array) -> Array:
    """Return zeros on the device of another array."""
    return np.zeros(shape, dtype) if on_host(like) else namespace(like).zeros(
        shape, dtype=getattr(namespace(like), dtype), device=like.device
    )  # fmt: skip


def arange(stop: int, like: Array) -> Array:
    """Return 0 to stop - 1 on the device of another array."""
    return np.arange(stop) if on_host(like) else namespace(like).arange(stop, device=like.device)


def take(values: Array, index: Array) -> Array:
    """Return the values (B, P) of (B, C, P) at the channels (B, P), or (B,) of (B, C) at (B,)."""
    if on_host(values):
        return np.take_along_axis(values, index[:, None], 1)[:, 0]
    return values.gather(1, index[:, None])[:, 0]


def largest(values: Array, count: int) -> Array:
    """Return the largest values (B, count, P) of (B, C, P) over the channels, in falling order."""
    if on_host(values):
        return np.sort(values, axis=1)[:, : -count - 1 : -1]
    return values.topk(count, dim=1).values


def bincount(index: Array, weights: Array | None, size: int) -> Array:
    """Return an int64 histogram. Integer weights below 2**27 add up exactly in float64 for a chunk of pixels."""
    return cast(namespace(index).bincount(index, weights, size), "int64")


def sigmoid(values: Array) -> Array:
    """Return the sigmoid of floats."""
    if not on_host(values):
        return values.sigmoid()
    small = np.exp(-np.abs(values))
    return np.where(values >= 0, values.dtype.type(1.0), small) / (1.0 + small)


def log_sigmoid(values: Array) -> Array:
    """Return the logarithm of the sigmoid of floats."""
    if on_host(values):
        return np.minimum(values, 0.0) - np.log1p(np.exp(-np.abs(values)))
    from torch.nn.functional import logsigmoid

    return logsigmoid(values)


def softmax(values: Array) -> Array:
    """Return the softmax of floats (B, C, ...) over the channels; NaN where it does not exist."""
    if not on_host(values):
        return values.softmax(1)
    with np.errstate(invalid="ignore"):  # void pixels may hold anything
        powers = np.exp(values - values.max(1, keepdims=True))
        return powers / powers.sum(1, keepdims=True)


def log_softmax(values: Array) -> Array:
    """Return the logarithm of the softmax of floats (B, C, ...) over the channels."""
    if not on_host(values):
        return values.log_softmax(1)
    values = values - values.max(1, keepdims=True)
    return values - np.log(np.exp(values).sum(1, keepdims=True))
