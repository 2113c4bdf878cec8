"""Prior shift on folders: class frequencies from maps with masks, and those of a target from maps without masks."""

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
    """Fit a calibrator that adapts maps to the class frequencies of a target.

    Args:
        source: Calibrated maps and masks of the source.
        target: Calibrated maps of the target.
        progress: Called with the number of maps read.
    """
    K = source.classes
    if (target.classes or 1) != K:
        folder, actual = target.pairs[0].prediction.parent, f"maps of {target.classes or 1} classes"
        raise InputError(folder, actual, f"{K}, as in the source")
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
