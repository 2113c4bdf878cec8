"""The calibration meter: probabilities and masks in, every calibration figure out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.metrics.arrays import Array, as_array, beside, is_float, namespace, on_host, to_host
from densecal.metrics.calibration_result import CalibrationResult
from densecal.metrics.inputs import binary_labels, integer_labels
from densecal.metrics.levels import ZONES, boundary_zones, level_rows
from densecal.metrics.locking import Shareable, locked
from densecal.metrics.segmentation import count_levels
from densecal.metrics.sketch import Sketch


class CalibrationMeter(Shareable):
    """Measure calibration over any number of batches; memory does not grow with the number of pixels.

    Threads may share a meter. An update that raises an error counts nothing. Figures are exact up to 10^18 pixels, and
    more are refused.

    Args:
        bins: Equal-width bins; also the number of equal-mass bins.
        num_classes: 1 for one foreground probability (the default), K for K channels.
        multilabel: The K channels are independent sigmoids, not a softmax.
        ignore_index: Mask value of void pixels; by default 255 for K classes, none for binary maps.
        boundary: Also measure the boundary bands. They are computed on the CPU: turn them off in a tight GPU loop.

    Examples:
        >>> meter = CalibrationMeter(bins=10)
        >>> meter.update(np.array([[0.9, 0.8], [0.2, 0.6]]), np.array([[1, 1], [0, 0]]))
        >>> result = meter.compute()
        >>> round(result.accuracy, 2), round(result.ece_ew, 3)
        (0.75, 0.275)
    """

    def __init__(
        self,
        bins: int = 10,
        num_classes: int = 1,
        multilabel: bool = False,
        ignore_index: int | None = None,
        boundary: bool = True,
    ) -> None:
        super().__init__()
        self.sketch = Sketch(bins, num_classes, multilabel, boundary)
        self.ignore_index = 255 if ignore_index is None and self.sketch.softmax else ignore_index

    def update(
        self,
        probabilities: Any = None,
        masks: Any = None,
        *,
        logits: Any = None,
        spacing: Sequence[float] | None = None,
    ) -> None:
        """Count a batch: NumPy arrays, tensors, or arrays of any library that has ``__dlpack__`` or ``__array__``.

        All give the same counts to the bit; logits agree to 1e-12.

        Args:
            probabilities: Binary: (B, 1, H, W), (B, H, W), (H, W) or (N,), floats in [0, 1] of any dtype, or uint8 or
                uint16 levels. K classes: (B, K, H, W), (K, H, W) or (N, K). Shapes without B hold one image.
                Volumes: (B, 1, D, H, W) and (B, K, D, H, W).
                They are counted where they are: on the CPU, or on a CUDA device.
            masks: Binary: the same shape (with or without the channel), 0 and 1. Softmax: (B, H, W), (H, W) or
                (N,) class indices, of volumes (B, D, H, W). Multi-label: as the probabilities.
            logits: Instead of ``probabilities``; their sigmoid or softmax is computed in float64.
            spacing: Distance of pixels along every axis, such as (2.5, 0.8, 0.8) in mm for volumes: boundary bands
                are measured in its unit. Without it they are measured in pixels.

        Raises:
            ValueError: Shapes, labels or values that do not fit. Class probabilities must sum to 1 within 0.02. Where
                the values are on a CUDA device, ``compute`` raises the error about bad labels or values.
        """
        if masks is None or (probabilities is None) == (logits is None):
            raise TypeError("update needs masks and one of probabilities or logits")
        scores = probabilities if logits is None else logits
        assert scores is not None
        array = as_array(scores)
        values, labels, shape = self._align(array, beside(as_array(masks), array))
        if spacing is not None and len(spacing) != len(shape):
            raise ValueError(f"spacing along {len(spacing)} axes; expected {len(shape)}, one for every axis of space")
        valid = None if self.ignore_index is None else self._valid(labels, self.ignore_index)
        wrong = self._wrong_labels(labels, valid)
        if not is_float(values):
            if logits is not None:
                raise TypeError(f"logits of type {values.dtype}; expected floats")
            self._update_levels(values, labels, valid, shape, spacing)
        else:
            zones = self._zones(labels, valid, shape, spacing) if self.sketch.boundary else None
            with self._lock:
                self.sketch.update(values, labels, valid, zones, logits is not None)
        if wrong is not None:
            with self._lock:
                self.sketch.add_invalid(wrong)

    def merge(self, other: CalibrationMeter) -> None:
        """Add what another meter has counted; the other stays as it is."""
        with other._lock:  # never both locks at once: two threads could wait for each other
            counted = other.sketch.copy()
        with self._lock:
            self.sketch.merge(counted)

    def all_reduce(self) -> None:
        """Merge the meters of all ``torch.distributed`` processes, so that all of them hold the same counts."""
        if "torch" not in sys.modules:
            return
        from torch import distributed as dist

        if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
            return
        states: list[dict[str, Any] | None] = [None] * dist.get_world_size()
        dist.all_gather_object(states, self.state_dict())
        total, part = self._empty(), self._empty()
        for state in states:
            assert state is not None
            part.load_state_dict(state)
            total.merge(part)
        with self._lock:
            self.sketch = total.sketch

    @locked
    def reset(self) -> None:
        """Forget everything."""
        self.sketch = self._empty().sketch

    @locked
    def state_dict(self) -> dict[str, Any]:
        """Return the state as NumPy arrays and plain numbers."""
        return self.sketch.state_dict()

    @locked
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state returned by ``state_dict``."""
        self.sketch.load_state_dict(state)

    @locked
    def compute(self) -> CalibrationResult:
        """Compute every figure of the pixels counted so far."""
        return CalibrationResult.from_sketch(self.sketch)

    def _empty(self) -> CalibrationMeter:
        s = self.sketch
        multilabel = s.num_classes > 1 and not s.softmax
        return CalibrationMeter(s.bins, s.num_classes, multilabel, self.ignore_index, s.boundary)

    def _align(self, values: Array, masks: Array) -> tuple[Array, Array, tuple[int, ...]]:
        """Return values (B, C, P), labels (B, P) for a softmax or else (B, C, P), and the shape of one image."""
        classes = self.sketch.num_classes
        shape, mask_shape = tuple(values.shape), tuple(masks.shape)
        if classes == 1:
            # only with its channel is a volume told from a batch of pictures
            most = 4 if values.ndim == 5 else 3
            if values.ndim in (4, 5) and values.shape[1] == 1:
                values = values[:, 0]
            if masks.ndim == most + 1 and masks.shape[1] == 1:
                masks = masks[:, 0]
            if values.shape != masks.shape or not 1 <= values.ndim <= most or 0 in values.shape:
                raise ValueError(
                    f"probabilities of shape {shape} and masks of shape {mask_shape}; "
                    "expected the same shape (B, 1, D, H, W), (B, 1, H, W), (B, H, W), (H, W) or (N,)"
                )
            size = values.shape[1:] if values.ndim >= 3 else values.shape
            batch = len(values) if values.ndim >= 3 else 1
            labels = binary_labels(masks, self.ignore_index)
            return values.reshape(batch, 1, -1), labels.reshape(batch, 1, -1), tuple(size)
        if values.ndim == 2:
            values = values.T
        if values.ndim in (2, 3):
            values, masks = (
                values[None],
                masks.T[None] if masks.ndim == 2 and values.ndim == 2 else masks[None],
            )
        expected = (len(values), *values.shape[2:]) if self.sketch.softmax else tuple(values.shape)
        if values.shape[1] != classes or tuple(masks.shape) != expected or 0 in values.shape:
            raise ValueError(
                f"probabilities of shape {shape} and masks of shape {mask_shape}; "
                f"expected (B, {classes}, H, W) and "
                + ("(B, H, W) class indices" if self.sketch.softmax else f"(B, {classes}, H, W) zeros and ones")
                + ", or volumes with (D, H, W)"
            )
        to_labels = integer_labels if self.sketch.softmax else binary_labels
        labels = to_labels(masks, self.ignore_index)
        batch = len(values)
        return (
            values.reshape(batch, classes, -1),
            labels.reshape(batch, -1) if self.sketch.softmax else labels.reshape(batch, classes, -1),
            tuple(values.shape[2:]),
        )

    def _valid(self, labels: Array, ignore_index: int) -> Array:
        valid = labels != ignore_index
        return valid if self.sketch.softmax else valid.all(1)

    def _wrong_labels(self, labels: Array, valid: Array | None) -> Array | None:
        """Raise ValueError for labels that are not a class, or return where they are if the host would have to wait."""
        top = (self.sketch.num_classes if self.sketch.softmax else 2) - 1
        if valid is not None:
            labels = namespace(labels).where(valid if self.sketch.softmax else valid[:, None], labels, 0)
        if not on_host(labels):  # reading values here would stall the device: `compute` raises instead
            return (labels < 0) | (labels > top)
        if int(labels.min()) < 0 or int(labels.max()) > top:
            raise ValueError(
                f"masks hold values from {int(labels.min())} to {int(labels.max())}; expected 0 to {top}"
                + ("" if self.ignore_index is None else f" or {self.ignore_index} for void")
            )
        return None

    def _zones(
        self, labels: Array, valid: Array | None, shape: tuple[int, ...], spacing: Sequence[float] | None
    ) -> Array | None:
        """Return the boundary zones (B, P), or None for flat inputs and multi-label maps, which have no boundary."""
        if len(shape) < 2 or (not self.sketch.softmax and self.sketch.num_classes > 1):
            return None
        maps = to_host(labels).reshape(-1, *shape)
        valid_maps = [None] * len(maps) if valid is None else to_host(valid).reshape(-1, *shape)
        zones = np.stack([boundary_zones(m, v, spacing) for m, v in zip(maps, valid_maps, strict=True)])
        return beside(zones.reshape(len(zones), -1), labels)

    def _update_levels(
        self,
        values: Array,
        labels: Array,
        valid: Array | None,
        shape: tuple[int, ...],
        spacing: Sequence[float] | None,
    ) -> None:
        levels = to_host(values)
        if levels.dtype not in (np.uint8, np.uint16) or self.sketch.num_classes > 1:
            raise TypeError(
                f"probabilities of type {values.dtype}; expected floats, or uint8 or uint16 levels of binary maps"
            )
        maps = levels[:, 0].reshape(len(values), *shape)
        masks = to_host(labels)[:, 0].reshape(len(labels), *shape) == 1
        bands = self.sketch.boundary and len(shape) >= 2
        valid_maps = [None] * len(maps) if valid is None else to_host(valid).reshape(len(maps), *shape)
        total: NDArray[np.int64] | None = None
        rows = []
        for level_map, mask, keep in zip(maps, masks, valid_maps, strict=True):
            zones = boundary_zones(mask, keep, spacing) if bands else None
            if keep is not None:
                level_map, mask, zones = level_map[keep], mask[keep], None if zones is None else zones[keep]
            counts = count_levels(level_map, mask, zones, 1 if zones is None else ZONES)
            total = counts if total is None else total + counts
            rows.append(level_rows(counts.sum(axis=0)[None], self.sketch.bins))
        assert total is not None  # images without pixels were refused
        with self._lock:
            self.sketch.add_levels(total)
            self.sketch.add_rows(np.concatenate(rows))


def calibration_errors(
    probabilities: Any,
    masks: Any,
    bins: int = 10,
    num_classes: int = 1,
    multilabel: bool = False,
    ignore_index: int | None = None,
) -> CalibrationResult:
    """Compute every calibration figure in one call; the arguments are those of ``CalibrationMeter``.

    Examples:
        >>> result = calibration_errors(np.array([0.9, 0.8, 0.2, 0.6]), np.array([1, 1, 0, 0]))
        >>> round(result.brier, 4)
        0.1125
    """
    meter = CalibrationMeter(bins, num_classes, multilabel, ignore_index)
    meter.update(probabilities, masks)
    return meter.compute()
