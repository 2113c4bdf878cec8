"""Precision and recall of copies and similar images on made pairs: photographs, videos, frames of an endoscope."""

import io
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps
from scipy.ndimage import gaussian_filter

from densecal.data.duplicates import Look, Pair, look_at, near_copies, same_pixels
from densecal.data.scenes import generate

from . import samples


def photograph(seed: int, height: int = 120, width: int = 160) -> np.ndarray:
    """Smooth shapes under fine noise: like a photograph, and unlike any other seed's."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC), dtype=np.int16)
    noise = np.random.default_rng(seed + 1000).integers(-12, 13, smooth.shape)
    return np.clip(smooth + noise, 0, 255).astype(np.uint8)


def texture(seed: int, height: int = 150, width: int = 200) -> np.ndarray:
    """Random shapes of all sizes, float (H, W, 3) about 0: what a scene is painted with."""
    rng = np.random.default_rng(seed)
    layers = [size * gaussian_filter(rng.normal(size=(height, width, 3)), (size, size, 0)) for size in (2, 5, 12)]
    return sum(layers) / np.std(sum(layers))


def frame(seed: int, time: int = 0) -> np.ndarray:
    """Paint a frame of a video: the camera pans by 3 % of the width per frame, and an object crosses the view."""
    background = texture(seed, 150, 260)[:, 6 * time : 6 * time + 200]
    y, x = np.mgrid[:150, :200]
    in_object = np.hypot(y - 75, x - 60 - 12 * time) < 30
    light = np.exp(-(np.hypot((y - 75) / 150, (x - 100) / 200) ** 2))
    scene = np.where(in_object[..., None], texture(seed + 500), background)
    noise = np.random.default_rng((seed, time)).normal(0, 3, scene.shape)
    return np.clip((120 + 25 * scene) * light[..., None] + noise, 0, 255).astype(np.uint8)


def endoscope(image: np.ndarray) -> np.ndarray:
    """Put an image behind a round black frame with a caption in the corner, as an endoscope shows it."""
    y, x = np.mgrid[: image.shape[0], : image.shape[1]]
    outside = np.hypot(y - image.shape[0] / 2, x - image.shape[1] / 2) > 72
    framed = np.where(outside[..., None], 3, image).astype(np.uint8)
    framed[5:11, 5:30:3] = 230
    return np.asarray(jpeg(Image.fromarray(framed), 80))


def jpeg(image: Image.Image, quality: int) -> Image.Image:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=quality)
    return Image.open(stream).convert("RGB")


def cut(image: Image.Image, left: float, top: float, right: float, bottom: float) -> Image.Image:
    """Cut shares of the sides off."""
    width, height = image.size
    return image.crop(
        (round(left * width), round(top * height), round((1 - right) * width), round((1 - bottom) * height))
    )


COPIES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "encoding": lambda image: jpeg(image, 40),
    "half the size": lambda image: image.resize((image.width // 2, image.height // 2), Image.Resampling.BICUBIC),
    "larger": lambda image: image.resize((image.width * 2, image.height * 3 // 2), Image.Resampling.BILINEAR),
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.2),
    "less contrast": lambda image: ImageEnhance.Contrast(image).enhance(0.7),
    "grey": lambda image: image.convert("L").convert("RGB"),
    "crop": lambda image: cut(image, 0.03, 0.03, 0.03, 0.03),
    "crop of one side": lambda image: cut(image, 0.07, 0, 0, 0),
    "letterbox": lambda image: ImageOps.expand(image, (0, image.height // 8), "black"),
    "frame": lambda image: ImageOps.expand(image, 15, "black"),
}


def looks_of(images: Iterable[np.ndarray | Image.Image]) -> list[Look]:
    return [look_at(np.asarray(image)) for image in images]


def precision_and_recall(pairs: list[Pair], wanted: set[tuple[int, int]]) -> tuple[float, float]:
    reported = {(pair.first, pair.second) for pair in pairs}
    return len(reported & wanted) / max(1, len(reported)), len(reported & wanted) / len(wanted)


@pytest.fixture(scope="module")
def frames() -> list[np.ndarray]:
    return [frame(seed) for seed in range(16)]


@pytest.mark.parametrize("bordered", [False, True], ids=["photographs", "endoscope"])
@pytest.mark.parametrize("copy", COPIES)
def test_near_identical_copies_are_found_and_nothing_else(copy: str, bordered: bool, frames: list[np.ndarray]):
    originals = [endoscope(image) for image in frames] if bordered else frames
    copies = [COPIES[copy](Image.fromarray(image)) for image in originals[:8]]
    pairs = near_copies(looks_of(originals), looks_of(copies))
    precision, recall = precision_and_recall([pair for pair in pairs if pair.near], {(i, i) for i in range(8)})
    assert (precision, recall) == (1, 1)
    assert not [pair for pair in pairs if not pair.near]


def test_unrelated_frames_with_the_same_border_are_not_alike(frames: list[np.ndarray]):
    assert near_copies(looks_of(endoscope(image) for image in frames)) == []
    assert near_copies(looks_of(ImageOps.expand(Image.fromarray(image), 30, "black") for image in frames)) == []


@pytest.mark.parametrize("bordered", [False, True], ids=["photographs", "endoscope"])
def test_neighbours_in_a_video_are_similar_and_not_near_identical(bordered: bool):
    first, second = ([frame(seed, time) for seed in range(8)] for time in (0, 1))
    if bordered:
        first, second = ([endoscope(image) for image in images] for images in (first, second))
    pairs = near_copies(looks_of(first), looks_of(second))
    assert not any(pair.near for pair in pairs)
    precision, recall = precision_and_recall(pairs, {(i, i) for i in range(8)})
    assert precision == 1
    assert recall >= 0.8


def test_images_of_equal_pixels_are_groups_and_not_near_copies():
    looks = [look_at(image) for image in (photograph(1), photograph(2), photograph(1), photograph(1))]
    assert same_pixels(looks) == [[0, 2, 3]]
    assert near_copies(looks) == []
    transposed = np.ascontiguousarray(photograph(1).transpose(1, 0, 2))
    assert look_at(transposed).digest != looks[0].digest


def test_images_of_one_colour_are_alike_only_when_equal():
    flat = [look_at(np.full((20, 30, 3), value, np.uint8)) for value in (0, 0, 200)]
    assert same_pixels(flat) == [[0, 1]]
    assert near_copies(flat) == []
    assert near_copies([]) == []


def test_unlike_scenes_and_noise_are_not_copies(tmp_path: Path):
    scenes = generate(60, 64, seed=0).images
    looks = [look_at(np.asarray(image)) for image in (*scenes, *(samples.image(i) for i in range(60)))]
    assert near_copies(looks) == []
