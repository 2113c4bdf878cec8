"""Shifted images: noise, blur, JPEG, brightness and contrast at five severities.

| kind | what happens | severity 1 to 5 |
|---|---|---|
| noise | Gaussian noise is added to every pixel and channel | standard deviation 0.04 0.08 0.13 0.19 0.27 |
| blur | Gaussian blur, edges repeated | sigma 0.4 0.7 1.1 1.6 2.2 hundredths of the shorter side |
| jpeg | compression and decompression | quality 35 22 14 9 5 |
| brightness | a constant is added | 0.10 0.18 0.27 0.37 0.48 |
| contrast | distances from the image's mean colour shrink | to 0.60 0.42 0.28 0.18 0.10 of what they were |

Values are fractions of the full range 0 to 255; results are rounded and clipped to it. Only noise is random: its draw
depends on the seed and the image's name, and is the same at every severity, scaled.
"""

from __future__ import annotations

import io
import zlib

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import gaussian_filter

STRENGTHS: dict[str, tuple[float, ...]] = {
    "noise": (0.04, 0.08, 0.13, 0.19, 0.27),
    "blur": (0.004, 0.007, 0.011, 0.016, 0.022),
    "jpeg": (35, 22, 14, 9, 5),
    "brightness": (0.10, 0.18, 0.27, 0.37, 0.48),
    "contrast": (0.60, 0.42, 0.28, 0.18, 0.10),
}
KINDS = tuple(STRENGTHS)
SEVERITIES = (1, 2, 3, 4, 5)

Bytes = NDArray[np.uint8]


def shifted(image: Bytes, kind: str, severity: int, seed: int = 0, name: str = "") -> Bytes:
    """Corrupt an image.

    Args:
        image: uint8 (H, W, 3).
        kind: One of ``KINDS``.
        severity: 1 to 5.
        seed: Seed of the noise.
        name: Name of the image; equal names have equal noise.

    Returns:
        A new uint8 array of the same shape.
    """
    if kind not in STRENGTHS:
        raise ValueError(f"kind is {kind!r}; expected one of {', '.join(KINDS)}")
    if severity not in SEVERITIES:
        raise ValueError(f"severity is {severity!r}; expected 1 to {SEVERITIES[-1]}")
    strength = STRENGTHS[kind][severity - 1]
    if kind == "jpeg":
        return _compress(image, int(strength))
    x = image.astype(np.float32)
    if kind == "noise":
        rng = np.random.default_rng([seed, zlib.crc32(name.encode("utf-8", "surrogateescape"))])
        x += 255 * strength * rng.standard_normal(x.shape, dtype=np.float32)
    elif kind == "blur":
        sigma = strength * min(x.shape[:2])
        x = gaussian_filter(x, (sigma, sigma, 0), mode="nearest")
    elif kind == "brightness":
        x += 255 * strength
    else:
        mean = x.mean(axis=(0, 1), dtype=np.float64).astype(np.float32)
        x = mean + strength * (x - mean)
    return np.rint(x).clip(0, 255).astype(np.uint8)


def _compress(image: Bytes, quality: int) -> Bytes:
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "jpeg", quality=quality)
    return np.asarray(Image.open(stream)).copy()
