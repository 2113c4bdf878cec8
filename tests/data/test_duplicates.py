"""Copies are found by their looks; the reference computes hash and distance in the simplest way."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance
from scipy.fft import dctn

from densecal.data.duplicates import MAX_BITS, MIN_CORRELATION, Look, look_at, near_copies, same_pixels
from densecal.data.scenes import generate

from . import samples


def photograph(seed: int, height: int = 120, width: int = 160) -> np.ndarray:
    """Smooth shapes under fine noise: like a photograph, and unlike any other seed's."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC), dtype=np.int16)
    noise = np.random.default_rng(seed + 1000).integers(-12, 13, smooth.shape)
    return np.clip(smooth + noise, 0, 255).astype(np.uint8)


def jpeg(image: Image.Image, quality: int) -> Image.Image:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=quality)
    return Image.open(stream).convert("RGB")


COPIES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "encoding": lambda image: jpeg(image, 40),
    "half the size": lambda image: image.resize((image.width // 2, image.height // 2), Image.Resampling.BICUBIC),
    "larger": lambda image: image.resize((image.width * 2, image.height * 3 // 2), Image.Resampling.BILINEAR),
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.2),
    "less contrast": lambda image: ImageEnhance.Contrast(image).enhance(0.7),
    "grey": lambda image: image.convert("L").convert("RGB"),
}


@pytest.mark.parametrize("copy", COPIES)
def test_copies_are_found_and_nothing_else(copy: str):
    originals = [photograph(i) for i in range(40)]
    copies = [np.asarray(COPIES[copy](Image.fromarray(image))) for image in originals[:20]]
    found = list(near_copies([look_at(image) for image in originals], [look_at(image) for image in copies]))
    assert [(i, j) for i, j, _ in found] == [(i, i) for i in range(20)]
    assert all(correlation > 0.95 for _, _, correlation in found)


def test_hash_and_distance_are_the_cosine_transforms():
    image = photograph(3)
    look = look_at(image)
    grey = Image.fromarray(image).convert("L").resize((32, 32), Image.Resampling.BOX)
    scale = np.sqrt(np.r_[1 / 32, [2 / 32] * 7])
    waves = (dctn(np.asarray(grey, float), norm="ortho")[:8, :8] / scale[:, None] / scale[None]).ravel()[1:]
    np.testing.assert_array_equal(look.bits, waves > np.median(waves))
    assert look.bits.shape == (63,)
    np.testing.assert_array_equal(look.thumbnail, np.asarray(grey))


def test_pairs_are_the_same_as_when_every_two_images_are_compared():
    rng = np.random.default_rng(0)
    base = rng.integers(0, 2, 63).astype(bool)
    thumbnail = rng.integers(0, 256, (32, 32)).astype(np.uint8)
    looks = []
    for i in range(60):
        bits = base.copy()
        bits[rng.choice(63, rng.integers(0, 25), replace=False)] ^= True
        noisy = np.clip(thumbnail + rng.normal(0, rng.uniform(5, 60), (32, 32)), 0, 255).astype(np.uint8)
        looks.append(Look(bytes([i]), bits, noisy))

    def alike(a: Look, b: Look) -> bool:
        correlation = np.corrcoef(a.thumbnail.ravel().astype(float), b.thumbnail.ravel().astype(float))[0, 1]
        return int((a.bits ^ b.bits).sum()) <= MAX_BITS and correlation >= MIN_CORRELATION

    expected = [(i, j) for i in range(60) for j in range(i + 1, 60) if alike(looks[i], looks[j])]
    assert 10 < len(expected) < 1000
    assert sorted((i, j) for i, j, _ in near_copies(looks)) == expected
    between = [(i, j) for i in range(30) for j in range(30) if alike(looks[i], looks[30 + j])]
    assert sorted((i, j) for i, j, _ in near_copies(looks[:30], looks[30:])) == between


def test_images_of_equal_pixels_are_groups_and_not_near_copies():
    looks = [look_at(image) for image in (photograph(1), photograph(2), photograph(1), photograph(1))]
    assert same_pixels(looks) == [[0, 2, 3]]
    assert list(near_copies(looks)) == []
    transposed = np.ascontiguousarray(photograph(1).transpose(1, 0, 2))
    assert look_at(transposed).digest != looks[0].digest


def test_images_of_one_colour_are_alike_only_when_equal():
    flat = [look_at(np.full((20, 30, 3), value, np.uint8)) for value in (0, 0, 200)]
    assert same_pixels(flat) == [[0, 1]]
    assert list(near_copies(flat)) == []
    assert list(near_copies([])) == []


def test_unlike_scenes_and_noise_are_not_copies(tmp_path: Path):
    scenes = generate(60, 64, seed=0).images
    looks = [look_at(np.asarray(image)) for image in (*scenes, *(samples.image(i) for i in range(60)))]
    assert list(near_copies(looks)) == []
