"""Data to calibrate on, and calibrators applied to flat arrays."""

import numpy as np
import torch

from densecal.posthoc import Batch, Calibrator, LogitHistogram


def honest(count, temperature=1.0, seed=0, scale=2.5, shift=-1.0):
    """Return float32 logits that are too large by a factor `temperature`, and labels."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(count, generator=generator) * scale + shift
    y = torch.rand(count, generator=generator) < z.double().sigmoid()
    return z * temperature, y


def crooked(count, seed=0):
    """Return float64 logits whose calibration map is not a sigmoid, and labels."""
    rng = np.random.default_rng(seed)
    z = 3 * rng.normal(size=count) - 1
    return z, (rng.random(count) < 1 / (1 + np.exp(-(0.6 * z + np.sin(z))))).astype(int)


def histogram_of(z, y) -> LogitHistogram:
    histogram = LogitHistogram()
    histogram.update(torch.as_tensor(z, dtype=torch.float64), torch.as_tensor(y))
    return histogram


def probabilities(calibrator: Calibrator, z) -> np.ndarray:
    """Return the calibrated probabilities of flat logits, in float64."""
    return calibrator(torch.as_tensor(z, dtype=torch.float64).reshape(1, 1, 1, -1)).flatten().numpy()


def class_batches(classes=4, images=3, size=16, temperature=2.0, seed=0, void=False):
    """Return K-class logits that are too large by a factor `temperature`, and int64 labels (255 is void)."""
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for _ in range(images):
        z = torch.randn(2, classes, size, size, generator=generator, dtype=torch.float64) * 2
        labels = torch.multinomial(z.softmax(1).permute(0, 2, 3, 1).reshape(-1, classes), 1, generator=generator)
        masks = labels.view(2, size, size)
        if void:
            masks = torch.where(torch.rand(masks.shape, generator=generator) < 0.2, 255, masks)
        batches.append(Batch(z * temperature, masks))
    return batches
