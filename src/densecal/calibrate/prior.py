"""Prior shift on folders: the frequencies of classes from labelled maps, those of a target from maps without masks."""

from __future__ import annotations

import numpy as np

from densecal.calibrate.folders import MapData, map_logits
from densecal.data.pairs import Plan
from densecal.errors import InputError
from densecal.io.map_files import read_map
from densecal.posthoc import LogitHistogram
from densecal.posthoc.pixel_sample import PixelSample
from densecal.posthoc.prior_shift import PriorShift
from densecal.runtime.progress import Progress, silent, track


def fit_prior(source: MapData, target: Plan, progress: Progress = silent) -> PriorShift:
    """Return a calibrator for the target.

    Args:
        source: Calibrated maps and masks.
        target: Calibrated maps.
        progress: Told how many maps are read.
    """
    K = source.classes
    if (target.classes or 1) != K:
        found = f"maps of {target.classes or 1} classes"
        raise InputError(target.pairs[0].prediction.parent, found, f"{K}, as the source has")
    calibrator = PriorShift(K).fit(source.histogram(progress) if K == 1 else source.batches, source.ignore_index)
    histogram, sample = LogitHistogram(), PixelSample(max(K, 2))
    for pair in track(target.pairs, "Reading the target", progress):
        z = map_logits(read_map(pair.files, K, options=target.options))
        z = z.reshape(1, K, -1, 1)
        if K == 1:
            histogram.update(z, np.zeros_like(z))
        else:
            sample.update(z, np.zeros_like(z[:, 0], np.int64))
    return calibrator.adapt(histogram if K == 1 else sample)
