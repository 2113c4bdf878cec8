"""Generated scenes whose labels are drawn from known probabilities, so that calibration can be checked exactly."""

from __future__ import annotations

import functools
import os
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter
from scipy.special import expit, log_ndtr

from densecal.errors import InputError
from densecal.io.images import save_png
from densecal.io.outputs import software
from densecal.runtime.progress import Progress, silent, track

Field = NDArray[np.float64]

_SHARED_SHIFT = 0.5  # share of an outline's error that is constant along it
_SURE, _DOUBTFUL = 1.0, (0.2, 0.8)  # how likely an object is to be labelled; less likely ones look fainter


@dataclass(frozen=True)
class Scenes:
    """Images, one drawn mask each, and the probability the mask was drawn from.

    Attributes:
        images: uint8 (N, size, size, 3).
        masks: uint8 (N, size, size), 0 or 255: one annotator's answer.
        probability: float32 (N, size, size), the probability that an annotator labels the pixel foreground,
            given the scene: the outlines and looks of all its objects. It is an average over annotators
            (their outlines and their decisions about doubtful objects) and does not depend on the mask drawn.
            Pixels of one mask depend on each other; each by itself has this probability. It is
            conditional on the scene, not on the noisy pixels that a model sees.
    """

    images: NDArray[np.uint8]
    masks: NDArray[np.uint8]
    probability: NDArray[np.float32]


def generate(
    count: int,
    size: int = 96,
    seed: int = 0,
    softness: float = 1.5,
    doubtful: float = 0.5,
    noise: float = 0.06,
    progress: Progress = silent,
) -> Scenes:
    """Generate scenes; scene i depends on (size, seed, i) and the parameters, not on ``count``.

    A scene has one or two sure objects and sometimes a doubtful one, on a textured background under uneven
    light. An annotator's outline of object k holds the pixels whose signed distance d_k(x) exceeds e_k(x), a
    smooth random field that is logistic with scale ``softness`` at every pixel. The annotator labels the
    object as foreground with probability q_k: 1 for sure objects, 0.2 to 0.8 for doubtful ones, whose colour
    and texture stand out from the background in proportion to q_k. Objects are independent, hence

        probability(x) = 1 - prod_k (1 - q_k * sigmoid(d_k(x) / softness)).

    No model can be right everywhere. The best one predicts this probability as far as the pixels reveal it; one that
    memorises the masks becomes over-confident.

    Args:
        count: Number of scenes.
        size: Side in pixels, at least 16.
        seed: Non-negative.
        softness: Scale of the annotators' outline errors, in pixels; 0 gives outlines without error.
        doubtful: Probability that a scene has a doubtful object.
        noise: Standard deviation of the pixel noise, as a fraction of the full range.
        progress: Called with the number of scenes generated.

    Returns:
        The scenes.
    """
    if count < 1 or size < 16 or seed < 0:
        raise ValueError(f"count={count}, size={size}, seed={seed}; expected >= 1, >= 16 and >= 0")
    if not (softness >= 0 and 0 <= doubtful <= 1 and noise >= 0):
        raise ValueError(f"softness={softness}, doubtful={doubtful}, noise={noise}; expected >= 0, 0 to 1 and >= 0")
    images = np.empty((count, size, size, 3), np.uint8)
    masks = np.empty((count, size, size), np.uint8)
    probability = np.empty((count, size, size), np.float32)
    for i in track(range(count), "Generating", progress):
        rng = np.random.default_rng([seed, i])
        chances = [_SURE] * int(rng.integers(1, 3))
        if rng.random() < doubtful:
            chances.append(float(rng.uniform(*_DOUBTFUL)))
        distances = [_distance(size, rng) for _ in chances]
        images[i] = _render(distances, chances, noise, rng)
        masks[i] = np.where(_draw_label(distances, chances, softness, rng), 255, 0)
        probability[i] = _probability(distances, chances, softness)
    return Scenes(images, masks, probability)


def write(scenes: Scenes, folder: str | Path, progress: Progress = silent) -> None:
    """Write ``images/NNNNN.png`` and ``masks/NNNNN.png`` into a new or empty folder, all or nothing.

    Args:
        scenes: What ``generate`` returned.
        folder: The folder to write to.
        progress: Called with the number of files written.

    Raises:
        InputError: The folder is not empty, or cannot be written.
    """
    folder = Path(os.path.realpath(folder))  # keep a link to an empty folder
    if os.path.exists(folder) and (not folder.is_dir() or os.listdir(folder)):
        raise InputError(folder, "a file or a folder that is not empty", "a new or empty folder")
    build = folder.parent / f".{folder.name[:40]}.writing-{uuid.uuid4().hex}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        for kind, arrays in (("images", scenes.images), ("masks", scenes.masks)):
            (build / kind).mkdir(parents=True)
            for i, array in enumerate(track(arrays, f"Writing {kind}", progress)):
                save_png(build / kind / f"{i:05d}.png", array, software("data scenes"))
        os.rename(build, folder)
    except OSError as error:
        space = f"a new folder, with {scenes.images.nbytes + scenes.masks.nbytes:,} bytes free"
        raise InputError(folder, f"cannot be written ({error.strerror})", space) from None
    finally:
        shutil.rmtree(build, ignore_errors=True)


def _probability(distances: list[Field], chances: list[float], softness: float) -> Field:
    missed = np.ones_like(distances[0])
    for d, q in zip(distances, chances, strict=True):
        missed *= 1.0 - q * (expit(d / softness) if softness > 0 else d > 0)
    return 1.0 - missed


def _draw_label(
    distances: list[Field], chances: list[float], softness: float, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Draw one annotator's mask."""
    label = np.zeros(distances[0].shape, bool)
    for d, q in zip(distances, chances, strict=True):
        labelled = rng.random() < q
        g = np.sqrt(_SHARED_SHIFT) * rng.standard_normal() + np.sqrt(1 - _SHARED_SHIFT) * _smooth(d.shape, 4.0, rng)
        # logit of the normal distribution function: turns a standard normal into a standard logistic value
        e = softness * (log_ndtr(g) - log_ndtr(-g))
        label |= labelled & (d > e)
    return label


def _smooth(shape: tuple[int, ...], sigma: float, rng: np.random.Generator) -> Field:
    """Draw a random field, standard normal at every pixel and correlated over about ``sigma`` pixels."""
    field: Field = gaussian_filter(rng.standard_normal(shape), sigma, mode="wrap") / _norm(shape, sigma)
    return field


@functools.cache
def _norm(shape: tuple[int, ...], sigma: float) -> float:
    """Return the standard deviation of smoothed white noise, the same at every pixel because the filter wraps."""
    impulse = np.zeros(shape)
    impulse[0, 0] = 1.0
    return float(np.sqrt((gaussian_filter(impulse, sigma, mode="wrap") ** 2).sum()))


def _distance(size: int, rng: np.random.Generator) -> Field:
    """Return the signed distance to the outline of a random shape, positive inside, in pixels.

    Lines of equal distance are scaled copies of the outline, which is exact for circles and along edges.
    """
    centre_x, centre_y = rng.uniform(0.2, 0.8, 2) * size
    y, x = np.mgrid[:size, :size] + 0.5
    x, y = x - centre_x, y - centre_y
    angle = np.arctan2(y, x) + rng.uniform(0, 2 * np.pi)
    outline = rng.uniform(0.12, 0.26) * size * (_ellipse, _polygon, _blob)[int(rng.integers(3))](angle, rng)
    distance: Field = outline.min() * (1.0 - np.hypot(x, y) / outline)
    return distance


def _ellipse(angle: Field, rng: np.random.Generator) -> Field:
    ratio = rng.uniform(0.5, 1.0)
    outline: Field = ratio / np.hypot(ratio * np.cos(angle), np.sin(angle))
    return outline


def _polygon(angle: Field, rng: np.random.Generator) -> Field:
    """Return the outline of a regular polygon of 3 to 6 corners."""
    half = np.pi / int(rng.integers(3, 7))
    outline: Field = np.cos(half) / np.cos(np.mod(angle, 2 * half) - half)
    return outline


def _blob(angle: Field, rng: np.random.Generator) -> Field:
    outline = np.ones_like(angle)
    for frequency in (2, 3, 4):
        outline += rng.uniform(0, 0.15) * np.cos(frequency * angle + rng.uniform(0, 2 * np.pi))
    return outline


def _render(distances: list[Field], chances: list[float], noise: float, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Paint background, doubtful and sure objects, light and noise."""
    shape = distances[0].shape
    ground = rng.uniform(0.3, 0.7, 3)
    contrast = _contrast(rng)
    canvas = ground + 0.05 * _smooth(shape, 3.0, rng)[:, :, None]
    stripes = _stripes(shape, rng)
    for d, q in sorted(zip(distances, chances, strict=True), key=lambda pair: pair[1]):
        cover = np.clip(d + 0.5, 0.0, 1.0)[:, :, None]
        looks = ground + q * (contrast + 0.08 * stripes[:, :, None])
        canvas = canvas * (1.0 - cover) + looks * cover
    slope = rng.uniform(-0.15, 0.15, 2)
    y, x = np.mgrid[: shape[0], : shape[1]] / shape[0] - 0.5
    canvas = canvas * (1.0 + slope[0] * x + slope[1] * y)[:, :, None]
    canvas = canvas + noise * rng.standard_normal(canvas.shape)
    image: NDArray[np.uint8] = np.round(np.clip(canvas, 0.0, 1.0) * 255.0).astype(np.uint8)
    return image


def _contrast(rng: np.random.Generator) -> Field:
    """Return the difference in colour between sure objects and background: a random direction of fixed length."""
    direction = rng.standard_normal(3)
    return 0.35 * direction / np.linalg.norm(direction)


def _stripes(shape: tuple[int, ...], rng: np.random.Generator) -> Field:
    turn, period, phase = rng.uniform(0, np.pi), rng.uniform(4, 8), rng.uniform(0, 2 * np.pi)
    y, x = np.mgrid[: shape[0], : shape[1]]
    stripes: Field = np.sin(2 * np.pi / period * (np.cos(turn) * x + np.sin(turn) * y) + phase)
    return stripes
