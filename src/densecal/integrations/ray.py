"""Calibration as an aggregation of Ray Data, for pipelines of your own."""

from __future__ import annotations

from typing import Any

import numpy as np

from densecal.errors import InputError
from densecal.metrics.calibration import CalibrationMeter
from densecal.metrics.calibration_result import CalibrationResult
from densecal.metrics.sketch import Sketch
from densecal.runtime.extras import require

require("densecal.integrations.ray", "ray.data", install="'densecal[ray]'")
from ray.data.aggregate import AggregateFnV2  # noqa: E402
from ray.data.block import BlockAccessor  # noqa: E402


class CalibrationAggregate(AggregateFnV2[bytes, dict[str, Any]]):
    """Calibration figures of a Ray Data set with a column of probabilities and one of masks, one row per image.

    `dataset.aggregate(CalibrationAggregate())["calibration"]` is the dictionary of `CalibrationResult.as_dict`. The
    state between blocks is that of `Sketch.to_bytes`: it merges exactly, so the blocks and their order change nothing.

    Args:
        probabilities: Column of maps: (H, W) of the foreground, or (K, H, W).
        masks: Column of masks (H, W).
        name: Name of the result.
        **options: Options of `CalibrationMeter`: bins, num_classes, multilabel, ignore_index, boundary.
    """

    def __init__(
        self, probabilities: str = "probabilities", masks: str = "masks", name: str = "calibration", **options: Any
    ) -> None:
        self._columns = [probabilities, masks]
        self._options = options
        empty = CalibrationMeter(**options).sketch.to_bytes()
        super().__init__(name, lambda: empty, on=None, ignore_nulls=False)

    def aggregate_block(self, block: Any) -> bytes:
        """Return the counts of a block."""
        accessor = BlockAccessor.for_block(block)
        missing = [name for name in self._columns if name not in accessor.column_names()]
        if missing:
            expected = f"{' and '.join(self._columns)}; with groupby, Ray passes the key alone: use map_groups there"
            raise InputError("CalibrationAggregate", f"no column {missing[0]!r}", expected)
        columns = accessor.to_numpy(self._columns)
        meter = CalibrationMeter(**self._options)
        for p, mask in zip(*(columns[name] for name in self._columns), strict=True):
            meter.update(np.asarray(p)[None], np.asarray(mask)[None])
        return meter.sketch.to_bytes()

    def combine(self, current_accumulator: bytes, new: bytes) -> bytes:
        """Return the counts of two sets of blocks."""
        sketch = Sketch.from_bytes(current_accumulator)
        sketch.merge(Sketch.from_bytes(new))
        return sketch.to_bytes()

    def finalize(self, accumulator: bytes) -> dict[str, Any]:
        """Return the figures."""
        return CalibrationResult.from_sketch(Sketch.from_bytes(accumulator)).as_dict()
