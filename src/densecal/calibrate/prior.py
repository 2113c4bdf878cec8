"""Prior shift on folders: the frequencies of classes from labelled maps, those of a target from maps without masks."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from densecal.calibrate.folders import MapData, map_logits
from densecal.data.pairs import find_maps
from densecal.io.map_files import read_map
from densecal.posthoc import LogitHistogram
from densecal.posthoc.pixel_sample import PixelSample
from densecal.posthoc.prior_shift import PriorShift
from densecal.runtime.progress import Progress, silent, track


def fit_prior(source: MapData, target: Path, progress: Progress = silent) -> tuple[PriorShift, int]:
    """Return a calibrator for the target, and how many maps of it were read.

    Args:
        source: Calibrated maps and masks.
        target: Folder of calibrated maps.
        progress: Told how many maps are read.
    """
    K = source.classes
    calibrator = PriorShift(K).fit(source.histogram(progress) if K == 1 else source.batches, source.ignore_index)
    histogram, sample = LogitHistogram(), PixelSample(max(K, 2))
    pairs = find_maps(target, source.maps.strip_suffix)
    for pair in track(pairs, "Reading the target", progress):
        z = map_logits(read_map(pair.prediction, K, options=source.maps))
        z = z.reshape(1, K, -1, 1)
        if K == 1:
            histogram.update(z, np.zeros_like(z))
        else:
            sample.update(z, np.zeros_like(z[:, 0], np.int64))
    return calibrator.adapt(histogram if K == 1 else sample), len(pairs)
