"""The protocol of a calibrator: logits in, calibrated probabilities out, fitted on a histogram or on batches."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from densecal.errors import InputError
from densecal.metrics.arrays import Array, as_array, beside, cast, cast_like, is_tensor, namespace, sigmoid, softmax
from densecal.posthoc.logit_histogram import LogitHistogram
from densecal.posthoc.newton import NoMinimumError

if TYPE_CHECKING:
    from torch import nn

VERSION = 1
"""Version of the file format."""
MAX_CLASSES = 4096
MAX_NUMBERS = 1 << 20
"""The longest list of numbers that a file may hold."""
_LARGEST = 1e30
"""The largest number that a file may hold: a larger one times a logit could be infinite in float32."""
_CHUNK = 1 << 22


class Batch(NamedTuple):
    """One batch of the data that a calibrator is fitted on, in NumPy arrays or tensors.

    Attributes:
        logits: (B, 1, H, W) or (B, K, H, W).
        masks: (B, 1, H, W) zeros and ones, or (B, H, W) class indices; void pixels have the value ``ignore_index``.
        images: (B, 3, H, W) in [0, 1], for calibrators that need them.
    """

    logits: Array
    masks: Array
    images: Array | None = None


Batches = Callable[[], Iterable[Batch]]
"""Starts a new pass over the data at every call."""


class Calibrator(ABC):
    """A map from logits to probabilities, fitted on held-out data with the model frozen.

    A new calibrator implements `_fit` and `probabilities`, names in `tables` the parameters that its file holds, and
    sets their initial values with `set_table`. `probabilities` is written once for NumPy arrays and tensors, with
    `metrics.arrays` and functions that have the same name in both libraries, and reads parameters with `table`.

    Args:
        num_classes: 1 for one sigmoid logit, K for K softmax logits.

    Attributes:
        method: Name in the registry.
        binary: Whether it can calibrate one sigmoid logit.
        multiclass: Whether it can calibrate K softmax logits.
        needs_images: Whether it needs the images beside the logits.
        needs_target: Whether a fit changes nothing before it has seen unlabelled data of a target.
        tables: Parameters, NumPy arrays of float64, which are written as JSON.
    """

    method: ClassVar[str]
    binary: ClassVar[bool] = True
    multiclass: ClassVar[bool] = False
    needs_images: ClassVar[bool] = False
    needs_target: ClassVar[bool] = False
    tables: ClassVar[tuple[str, ...]] = ()

    def __init__(self, num_classes: int = 1) -> None:
        if not (1 if self.binary else 2) <= num_classes <= (MAX_CLASSES if self.multiclass else 1):
            allowed = "1" if not self.multiclass else f"{1 if self.binary else 2} to {MAX_CLASSES}"
            raise InputError(f"{self.method}: number of classes", str(num_classes), allowed)
        self.num_classes = num_classes

    # ------------------------------------------------------------------ use

    def __call__(self, logits: Any, images: Any = None) -> Any:
        """Return calibrated probabilities.

        Args:
            logits: (B, 1, H, W) or (B, K, H, W), a NumPy array, a tensor or an array of another library.
            images: (B, 3, H, W) in [0, 1]; required if `needs_images`.

        Returns:
            Foreground or class probabilities of the shape of the logits: float64 for float64 logits, else float32. A
            tensor where the logits are for a tensor, else a NumPy array.
        """
        logits = logits if is_tensor(logits) else as_array(logits)
        if logits.ndim != 4 or logits.shape[1] != self.num_classes:
            raise ValueError(
                f"{self.method}: logits of shape {tuple(logits.shape)}; expected (B, {self.num_classes}, H, W)"
            )
        if self.needs_images and images is None:
            raise ValueError(f"{self.method}: called without images; expected images (B, 3, H, W) beside the logits")
        double = logits.dtype == namespace(logits).float64
        with np.errstate(all="ignore"):  # infinite logits are allowed
            return self.probabilities(logits if double else cast(logits, "float32"), images)

    @abstractmethod
    def probabilities(self, z: Array, images: Array | None) -> Array:
        """Compute what a call returns, for float32 or float64 logits of the right shape."""

    def squash(self, z: Array) -> Array:
        """Return the sigmoid of one logit or the softmax of K."""
        return sigmoid(z) if self.num_classes == 1 else softmax(z)

    def table(self, name: str, z: Array) -> Array:
        """Return a parameter with the type of the logits, on their device."""
        return cast_like(getattr(self, name), z)

    def to(self, device: Any) -> Self:
        """Return the calibrator. Networks move to the device, the others compute where the logits are."""
        return self

    def as_module(self) -> nn.Module:
        """Return a PyTorch module that computes the same and can be exported with a network."""
        from densecal.posthoc.torch_module import CalibratorModule

        return CalibratorModule(self)

    # ------------------------------------------------------------------ fitting

    @property
    def from_histogram(self) -> bool:
        """Whether a fit needs no more than a filled `LogitHistogram`."""
        return self.num_classes == 1 and not self.needs_images

    def fit(self, data: LogitHistogram | Batches, ignore_index: int | None = None) -> Self:
        """Fit on held-out data; a fit that fails changes nothing.

        Args:
            data: A callable that starts a pass over `Batch` tuples. Calibrators of one logit that need no images also
                take a filled `LogitHistogram`.
            ignore_index: Value of void pixels in the masks of batches; by default 255 for K classes and none for one
                logit.

        Returns:
            The calibrator itself.

        Raises:
            InputError: The data does not determine the parameters.
        """
        if not isinstance(data, LogitHistogram) and not callable(data):
            raise TypeError(f"{self.method}: found {type(data).__name__}; expected a callable that yields batches")
        if self.from_histogram and not isinstance(data, LogitHistogram):
            histogram = LogitHistogram()
            for batch in data():
                histogram.update(batch[0], batch[1], ignore_index)
            data = histogram
        elif not self.from_histogram and isinstance(data, LogitHistogram):
            raise TypeError(f"{self.method} of {self.num_classes} classes: found a histogram; expected batches")
        if isinstance(data, LogitHistogram):
            data.require_both_classes(self.method)
        try:
            self._fit(data, 255 if ignore_index is None and self.num_classes > 1 else ignore_index)
        except NoMinimumError:
            raise InputError(self.method, "no minimum of the NLL was reached", "logits of a moderate scale") from None
        return self

    @abstractmethod
    def _fit(self, data: Any, ignore_index: int | None) -> None:
        """Compute all parameters before setting any."""

    # ------------------------------------------------------------------ files

    def check(self) -> None:  # noqa: B027 (most parameters may be any numbers)
        """Raise ValueError if the parameters make no sense, as they may when read from a file."""

    def extra_state(self) -> dict[str, Any]:
        """Return the tensors that are too large for JSON: none but the weights of networks."""
        return {}

    def load_extra_state(self, tensors: dict[str, Any]) -> None:
        """Replace the tensors that `extra_state` returns."""
        if tensors:
            raise ValueError(f"{self.method}: tensors {', '.join(tensors)}; expected parameters in JSON alone")

    def to_json(self) -> dict[str, Any]:
        """Return the content of the calibrator's JSON file, without `extra_state`."""
        header = {"densecal": "calibrator", "version": VERSION, "method": self.method, "classes": self.num_classes}
        return header | {name: getattr(self, name).tolist() for name in self.tables}

    @classmethod
    def from_json(cls, data: dict[str, Any], where: str = "calibrator") -> Self:
        """Build a calibrator from the result of `to_json`, or from untrusted data.

        Args:
            data: Decoded JSON.
            where: The file that errors name.
        """
        if data.get("method") != cls.method:
            raise InputError(where, f"method {str(data.get('method'))[:100]!r}", repr(cls.method))
        classes = data.get("classes")
        if not isinstance(classes, int) or isinstance(classes, bool) or not 1 <= classes <= MAX_CLASSES:
            raise InputError(where, f"classes {str(classes)[:100]}", f"a whole number from 1 to {MAX_CLASSES}")
        try:
            calibrator = cls(num_classes=classes) if cls.multiclass else cls()
            if calibrator.num_classes != classes:
                raise ValueError(f"{classes} classes; expected {calibrator.num_classes}")
            for name in cls.tables:
                calibrator.set_table(name, _numbers(data.get(name), name, getattr(calibrator, name).ndim))
            calibrator.check()
        except InputError as error:
            raise InputError(where, f"{error.where} {error.found}", error.expected) from None
        except ValueError as error:
            raise InputError(where, *_split_message(str(error))) from None
        return calibrator

    def set_table(self, name: str, value: Any) -> None:
        """Replace a parameter by numbers in float64."""
        setattr(self, name, np.array(value, dtype=np.float64))


def pixel_chunks(batches: Batches, num_classes: int, ignore_index: int | None) -> Iterator[tuple[Array, Array]]:
    """Yield the valid pixels of one pass in chunks: float64 logits (N, K) and int64 labels (N,).

    Those of batches in memory are NumPy arrays, those of batches on an accelerator stay there.
    """
    size = max(1, _CHUNK // num_classes)
    for batch in batches():
        logits = as_array(batch[0])
        masks = beside(as_array(batch[1]), logits)
        if logits.ndim != 4 or logits.shape[1] != num_classes or masks.shape != logits[:, 0].shape:
            raise ValueError(
                f"logits of shape {tuple(logits.shape)} and masks of shape {tuple(masks.shape)}; expected "
                f"(B, {num_classes}, H, W) and (B, H, W)"
            )
        flat = logits.reshape(*logits.shape[:2], -1)
        for image, mask in zip(flat, masks.reshape(len(masks), -1), strict=True):
            for first in range(0, len(mask), size):
                z, y = cast(image[:, first : first + size].T, "float64"), cast(mask[first : first + size], "int64")
                if ignore_index is not None:
                    valid = y != ignore_index
                    z, y = z[valid], y[valid]
                if len(y) and not 0 <= int(y.min()) <= int(y.max()) < num_classes:
                    labels = f"labels from {int(y.min())} to {int(y.max())}"
                    raise InputError("masks", labels, f"0 to {num_classes - 1}, or {ignore_index} for void")
                yield z, y


def _numbers(value: Any, name: str, ndim: int) -> float | list[float]:
    """Return a finite number, or a list of them, from untrusted JSON."""
    if ndim == 0:
        return _number(value, name)
    if not isinstance(value, list):
        raise ValueError(f"{name} of type {type(value).__name__}; expected a list of numbers")
    if not 0 < len(value) <= MAX_NUMBERS:
        raise ValueError(f"{name} of {len(value):,} numbers; expected 1 to {MAX_NUMBERS:,}")
    return [_number(entry, name) for entry in value]


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} {str(value)[:50]!r}; expected a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not abs(number) <= _LARGEST:
        raise ValueError(f"{name} {str(value)[:50]}; expected a finite number of at most {_LARGEST:g}")
    return number


def _split_message(text: str) -> tuple[str, str]:
    """Split "found; expected" into the arguments of InputError."""
    problem, _, expected = text.partition("; expected ")
    return problem, expected or "parameters of a calibrator"
