"""Surface scores of volumes against those of MONAI, which computes in float32."""

import importlib.util

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter

from densecal.metrics.volumes import surface_scores

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("monai") is None, reason="pip install 'densecal[oracles]'"),
    pytest.mark.filterwarnings("ignore"),  # MONAI calls its own functions with an argument that it has deprecated
]


@pytest.mark.parametrize("tolerance", [0.8, 2.0])
@pytest.mark.parametrize("spacing", [(1.0, 1.0, 1.0), (2.5, 0.8, 0.9), (0.7, 1.3)])
@pytest.mark.parametrize("seed", range(4))
def test_hd95_and_surface_dice_are_those_of_monai(seed, spacing, tolerance):
    from monai.metrics import compute_hausdorff_distance, compute_surface_dice

    rng = np.random.default_rng(seed)
    shape = (14, 18, 22)[: len(spacing)]
    field = gaussian_filter(rng.normal(size=shape), 2)
    noisy = field + 0.5 * gaussian_filter(rng.normal(size=shape), 2)
    predicted, truth = noisy > 0.05, field > 0.05  # both reach the faces of the volume
    assert 0 < (predicted & truth).sum() < min(predicted.sum(), truth.sum())
    both = [torch.tensor(mask)[None, None].float() for mask in (predicted, truth)]
    options = {"include_background": True, "spacing": list(spacing)}
    far = compute_hausdorff_distance(*both, percentile=95, **options).item()
    close = compute_surface_dice(*both, [tolerance], **options).item()
    assert surface_scores(predicted, truth, spacing, tolerance) == pytest.approx((far, close), rel=2e-6)
