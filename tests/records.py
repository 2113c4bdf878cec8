"""Records made by hand, for tests of what is done with records."""

from __future__ import annotations

from typing import Any

from densecal.evaluation.record import (
    Calibration,
    ConfidenceHistogram,
    Entropy,
    Joint,
    Record,
    RecordSettings,
    Reliability,
)


def small_record(
    calibration: dict[str, float] | None = None,
    segmentation: dict[str, float] | None = None,
    entropy: float = 0.5,
    counts: tuple[tuple[int, ...], ...] = ((90, 85, 3), (95, 97, 2)),
    **others: Any,
) -> Record:
    """A record with these figures, and next to nothing else in it."""
    plain: dict[str, Any] = {
        "name": "method",
        "dataset": "set",
        "images": 5,
        "pixels": 100,
        "skipped": (),
        "warnings": (),
        "calibration": Calibration(calibration or {"ece_ew": 0.01, "oe_ew": 0.01}, {}),
        "segmentation": segmentation or {"f_max": 0.9},
        "reliability": Reliability(1, (100,), (0.9,), (0.9,), ConfidenceHistogram((100,), (90,)), ()),
        "joint": Joint(100, counts, 0.9, 0.9, 0.1),
        "settings": RecordSettings(10, None, None),
        "entropy": Entropy((100,), (entropy,), entropy),
    }
    return Record(**(plain | others))
