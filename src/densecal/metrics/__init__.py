"""Measuring: calibration and segmentation figures from one mergeable pass over the pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from densecal.metrics.bootstrap import intervals, paired_intervals
    from densecal.metrics.calibration import CalibrationMeter, calibration_errors
    from densecal.metrics.calibration_result import CalibrationResult
    from densecal.metrics.confusion import ConfusionMeter
    from densecal.metrics.curves import ReliabilityCurve
    from densecal.metrics.segmentation import SegmentationMeter, SegmentationResult

_MODULE_OF = {
    "CalibrationMeter": "calibration",
    "CalibrationResult": "calibration_result",
    "ConfusionMeter": "confusion",
    "ReliabilityCurve": "curves",
    "SegmentationMeter": "segmentation",
    "SegmentationResult": "segmentation",
    "calibration_errors": "calibration",
    "intervals": "bootstrap",
    "paired_intervals": "bootstrap",
}

__all__ = [
    "CalibrationMeter",
    "CalibrationResult",
    "ConfusionMeter",
    "ReliabilityCurve",
    "SegmentationMeter",
    "SegmentationResult",
    "calibration_errors",
    "intervals",
    "paired_intervals",
]


def __getattr__(name: str) -> Any:
    """Import on first use, because a command or a worker process needs few of them."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
