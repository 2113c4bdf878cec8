"""Calibration under shift: a model on corrupted copies of a data set, by kind and severity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import torch

from densecal.data.shift import KINDS, SEVERITIES, shifted
from densecal.evaluation.model import Calibrator, ImageSet, Logits, evaluate_model
from densecal.evaluation.record import Record
from densecal.runtime.progress import Progress, silent

Shifts = dict[str, dict[int, Record]]
"""Records by kind and severity; severity 0 is the unchanged data set."""


def shift_evaluations(
    logits: Logits,
    data: ImageSet,
    calibrators: Mapping[str, Calibrator | None] | None = None,
    *,
    kinds: Sequence[str] = KINDS,
    severities: Sequence[int] = SEVERITIES,
    device: torch.device | str = "cpu",
    bins: int = 10,
    batch: int = 64,
    seed: int = 0,
    progress: Progress = silent,
) -> dict[str, Shifts]:
    """Score a model on a data set, unchanged and under every kind and severity of shift.

    Images are corrupted after they are resized for the network. Masks stay as they are.

    Args:
        logits: The model.
        data: The data set.
        calibrators: As for ``evaluate_model``: by name, with ``None`` for the uncalibrated model.
        kinds: Some of ``densecal.data.shift.KINDS``.
        severities: Some of 1 to 5.
        device: Device of the model.
        bins: Bins of the calibration errors.
        batch: Number of images at a time.
        seed: Seed of the noise.
        progress: Called with the number of copies of the data set scored.

    Returns:
        Records by calibrator, kind and severity; all kinds share the record of severity 0.
    """
    total, done = 1 + len(kinds) * len(severities), 0

    def records(images: ImageSet) -> dict[str, Record]:
        nonlocal done
        evaluations = evaluate_model(logits, images, calibrators, device=device, bins=bins, batch=batch)
        done += 1
        progress("Shifting", done, total)
        return {name: evaluation.record for name, evaluation in evaluations.items()}

    results: dict[str, Shifts] = {name: {kind: {0: record} for kind in kinds} for name, record in records(data).items()}
    for kind in kinds:
        for severity in severities:
            for name, record in records(shifted_set(data, kind, severity, seed)).items():
                results[name][kind][severity] = record
    return results


def shifted_set(data: ImageSet, kind: str, severity: int, seed: int = 0) -> ImageSet:
    """Return a copy of a data set with corrupted images."""
    with ThreadPoolExecutor() as pool:
        n = len(data)
        images = pool.map(shifted, data.images, [kind] * n, [severity] * n, [seed] * n, data.names)
        return replace(data, images=np.stack(list(images)))
