"""How often the intervals contain the truth: simulated images, a known population, 2,000 data sets per line.

`python benchmarks/coverage.py` prints the coverage of every interval and the false positives of paired comparisons, by
the method of densecal and by the percentile bootstrap it replaced (in brackets). It exits with 1 where coverage plus
two standard errors is below 92 %, or a rate of false positives minus two standard errors is above 8 %.

An image has a difficulty, a calibration of its own and a size, all random. Difficulty moves pixels to bins of low
confidence and makes errors more frequent; the pixels of a bin share the image's calibration and a noise of the bin. The
gaps of the population are chosen, so its figures are known: by quadrature, and for the mean of the images' ECEs from
200,000 images.

`--poisson` and `--folds` do the same for intervals of Poisson tables, and for those of smECE, TACE and the
decomposition, which come from folds; there the population's figures are those of its probabilities by quadrature.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from densecal.evaluation.folds import FOLDS
from densecal.evaluation.repair import BINS, level_bins
from densecal.metrics.bootstrap import REPLICATES, figures, intervals, paired_intervals, with_image_ece
from densecal.metrics.class_tables import thresholded_adaptive_error
from densecal.metrics.curves import Atoms
from densecal.metrics.decomposition import decompose
from densecal.metrics.fold_intervals import fold_intervals
from densecal.metrics.levels import MAX_LEVEL
from densecal.metrics.poisson import PoissonTable
from densecal.metrics.smooth import smooth_error

Floats = NDArray[np.float64]

DRAWS, SIZES = 2000, (20, 60, 300)
POISSON_SIZES = (300, 3000)
LOWEST_COVERAGE, MOST_FALSE_POSITIVES = 0.92, 0.08
MASS = {5: np.array([-1.5, -1.2, -0.8, -0.2, 1.6]), 10: np.linspace(-2.2, 1.6, 10)}
"""Logits of the share of pixels, by number of bins: foreground maps have five, softmax maps up to ten."""
ACCURACY = {5: np.array([0.55, 0.65, 0.75, 0.85, 0.97]), 10: np.array([*np.linspace(0.12, 0.8, 8), 0.88, 0.97])}


@dataclass(frozen=True)
class World:
    """A population of images and a model.

    Attributes:
        gaps: Confidence - accuracy of every bin in the population.
        image: Spread of the calibration between images.
        bin: Spread of it between the bins of an image.
        difficulty: Loss of accuracy (logit) per unit of difficulty.
        pixels: Spread (log) of the number of pixels.
    """

    gaps: tuple[float, ...]
    image: float = 0.4
    bin: float = 0.3
    difficulty: float = 0.3
    pixels: float = 0.5

    @cached_property
    def population(self) -> tuple[Floats, Floats]:
        """Return mass and accuracy of every bin."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(60)
        weights = weights / weights.sum()
        mass = self.mass(nodes)
        noise = np.hypot(self.image, self.bin) * nodes[:, None, None]
        accuracy = np.einsum("i,ijk->jk", weights, expit(self._mean(nodes) + noise))
        total = weights @ mass
        return total, weights @ (mass * accuracy) / total

    @property
    def confidence(self) -> Floats:
        """Confidence of every bin."""
        return self.population[1] + np.array(self.gaps)

    @cached_property
    def truth(self) -> dict[str, float]:
        """The figures of the population."""
        mass, accuracy = self.population
        images = with_image_ece(self.rows(np.random.default_rng(1), self.latent(np.random.default_rng(2), 200_000)))
        row = np.concatenate([self._sums(mass, mass * accuracy), [images[:, -2].mean(), 1.0]])
        return {name: float(value) for name, value in figures(row).items()}

    def latent(self, rng: np.random.Generator, *shape: int) -> Floats:
        """Draw difficulty, calibration and size of images."""
        return rng.standard_normal((3, *shape))

    def rows(self, rng: np.random.Generator, latent: Floats) -> Floats:
        """Draw per-image rows of the model on images."""
        difficulty, calibration, size = latent
        pixels = 4000 * np.exp(self.pixels * size - self.pixels**2 / 2)
        count = np.rint(pixels[..., None] * self.mass(difficulty))
        noise = self.image * calibration[..., None] + self.bin * rng.standard_normal(count.shape)
        correct = rng.binomial(count.astype(np.int64), expit(self._mean(difficulty) + noise))
        return self._sums(count, correct.astype(np.float64))

    def mass(self, difficulty: Floats) -> Floats:
        """Return the share of pixels in every bin."""
        bins = len(self.gaps)
        share = np.exp(MASS[bins] + difficulty[..., None] * np.linspace(0.6, -0.6, bins))
        return np.asarray(share / share.sum(axis=-1, keepdims=True))

    def _mean(self, difficulty: Floats) -> Floats:
        return np.asarray(logit(ACCURACY[len(self.gaps)]) - self.difficulty * difficulty[..., None])

    def _sums(self, count: Floats, correct: Floats) -> Floats:
        """Return rows (..., 5 + bins) of pixels and correct pixels by bin, all with the confidence of the bin."""
        c = self.confidence
        wrong = count - correct
        brier = correct @ (1 - c) ** 2 + wrong @ c**2
        nll = -(correct @ np.log(c) + wrong @ np.log1p(-c))
        scalars = np.stack([count.sum(axis=-1), correct.sum(axis=-1), count @ c, brier, nll], axis=-1)
        return np.concatenate([scalars, count * c - correct], axis=-1)


def alternate_gaps(bins: int, ece: float, sign: int = 1) -> tuple[float, ...]:
    """Return gaps of alternating sign with the given ECE."""
    return scale_gaps(sign * np.where(np.arange(bins) % 2, 1.2, -1.0), ece)


def scale_gaps(gaps: Floats, ece: float, **spreads: float) -> tuple[float, ...]:
    """Multiply gaps until they have the given ECE."""
    mass = World(tuple(gaps), **spreads).population[0]
    return tuple(gaps * ece / float(mass @ np.abs(gaps)))


MODELS = {
    "over-confident": World((0.06, 0.06, 0.06, 0.06, 0.02)),
    "mild": World((0.02, 0.02, -0.01, 0.02, 0.02)),
    "near calibration": World(alternate_gaps(5, 0.0056)),
    "near, 10 bins": World(alternate_gaps(10, 0.0056)),
}
_QUIET = {"image": 0.1, "bin": 0.1, "difficulty": 0.05}
PAIRS = {
    "near: varied, steady": (World(alternate_gaps(5, 0.005)), World(alternate_gaps(5, 0.005, -1), **_QUIET)),
    "near: signs mixed, equal": (World(alternate_gaps(5, 0.005)), World(scale_gaps(np.ones(5), 0.005))),
    "over- and under-confident": (World(scale_gaps(np.ones(5), 0.02)), World(scale_gaps(np.linspace(-4, -1, 5), 0.02))),
    "both over-confident": (
        World(scale_gaps(np.array([1.0, 1, 1, 1, 0.3]), 0.03)),
        World(scale_gaps(np.array([1.0, 2, 3, 2, 0.2]), 0.03), bin=0.5),
    ),
}
"""Two models with the same ECE on the same images."""


@dataclass(frozen=True)
class MapWorld:
    """A population of foreground maps of 16 bits, for the figures that need folds.

    Attributes:
        slope: Logit of the probability over the logit of the truth: 1 is calibrated, more is over-confident.
        image: Spread of the calibration between images.
        bin: Spread of it between the probabilities of an image.
        difficulty: How much an image's difficulty moves pixels to the middle.
    """

    slope: float
    image: float = 0.4
    bin: float = 0.3
    difficulty: float = 0.2

    @cached_property
    def population(self) -> tuple[Floats, Floats, Floats]:
        """16-bit level, share of the pixels and truth of every probability."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(60)
        weights = weights / weights.sum()
        truth = weights @ expit(self._means + np.hypot(self.image, self.bin) * nodes[:, None])
        return np.rint(MAX_LEVEL * expit(self.slope * logit(truth))), weights @ self._mass(nodes), truth

    @property
    def _means(self) -> Floats:
        return np.linspace(-7.0, 7.0, 57)

    def _mass(self, difficulty: Floats) -> Floats:
        base = np.where(self._means < 0, 0.35, 0.25) * np.abs(self._means) - 0.02 * self._means**2
        share = np.exp(base - self.difficulty * difficulty[..., None] * np.abs(self._means))
        return np.asarray(share / share.sum(axis=-1, keepdims=True))

    @cached_property
    def truth(self) -> dict[str, float]:
        """The figures of the population."""
        _, mass, truth = self.population
        pixels = np.rint(1e12 * mass)
        return self.figures(pixels, np.rint(pixels * truth))

    def figures(self, pixels: Floats, hits: Floats) -> dict[str, float]:
        """Return the figures of pixels and foreground pixels by probability."""
        seen = pixels > 0
        p = self.population[0][seen] / MAX_LEVEL
        foreground = Atoms.from_counts(p, pixels[seen].astype(np.int64), hits[seen].astype(np.int64))
        background, up = foreground.mirror(), p > 0.5
        right = np.where(up, foreground.hits, foreground.count - foreground.hits)
        top = Atoms.from_counts(np.where(up, p, 1 - p), foreground.count, right)
        n, k = foreground.total, foreground.hits
        brier = ((foreground.count - k) @ p**2 + k @ (1 - p) ** 2) / n
        nll = -((foreground.count - k) @ np.log1p(-p) + k @ np.log(p)) / n
        return {
            "smece": smooth_error(top)[0],
            "smece_exact": smooth_error(top, exact=True)[0],
            "smece_foreground": smooth_error(foreground)[0],
            "smece_foreground_exact": smooth_error(foreground, exact=True)[0],
            "tace": thresholded_adaptive_error([background, foreground], 10),
            **decompose(float(brier), float(nll), [foreground]),
        }

    def draw(self, rng: np.random.Generator, images: int) -> tuple[Floats, Floats]:
        """Draw pixels and foreground pixels of images by probability, (images, probabilities)."""
        difficulty, calibration, size = rng.standard_normal((3, images))
        count = np.rint(4000 * np.exp(0.5 * size - 0.125)[:, None] * self._mass(difficulty))
        noise = self.image * calibration[:, None] + self.bin * rng.standard_normal(count.shape)
        return count, rng.binomial(count.astype(np.int64), expit(self._means + noise)).astype(np.float64)

    def fold_counts(self, count: Floats, hits: Floats, fold: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the counts of images in folds as an evaluation has them."""
        table = np.zeros((FOLDS, 1, 3, BINS), np.int64)
        index = level_bins(self.population[0], MAX_LEVEL + 1)
        for row, amount in enumerate((count - hits, hits, count * self.population[0])):
            np.add.at(table[:, 0, row], (fold[:, None], index[None]), amount.astype(np.int64))
        return table


MAP_MODELS = {"over-confident": MapWorld(1.4), "mild": MapWorld(1.1), "calibrated": MapWorld(1.0)}


def fold_coverage(world: MapWorld, images: int, draws: int) -> dict[str, tuple[float, float]]:
    """Return coverage and mean width of the intervals from folds."""
    rng, found = np.random.default_rng(images), []
    for _ in range(draws):
        count, hits = world.draw(rng, images)
        figures_ = world.figures(count.sum(axis=0), hits.sum(axis=0))
        found.append(fold_intervals(world.fold_counts(count, hits, rng.integers(0, FOLDS, images)), figures_, 10))
    return {name: _covers(np.array([ends[name] for ends in found]), truth) for name, truth in world.truth.items()}


def print_folds(draws: int) -> list[str]:
    """Print the table of intervals from folds, and return the coverages that are too low."""
    names, failures = list(MAP_MODELS["mild"].truth), []
    print(f"Coverage in per cent of intervals from folds (mean width in per cent), {draws:,} data sets")
    print("| model | images |" + " | ".join(names) + " |\n|" + "---|" * (len(names) + 2))
    for model, world in MAP_MODELS.items():
        for size in SIZES:
            held = fold_coverage(world, size, draws)
            cells = [f"{100 * share:.1f} ({100 * width:.2f})" for share, width in held.values()]
            print(f"| {model} | {size} | {' | '.join(cells)} |", flush=True)
            low = {name: share for name, (share, _) in held.items() if share + error(share, draws) < LOWEST_COVERAGE}
            failures += [f"{model}, {size} images: {name} covers {100 * share:.1f} %" for name, share in low.items()]
    return failures


def percentiles(samples: dict[str, Floats]) -> dict[str, tuple[float, float]]:
    """Return the interval of the percentile bootstrap, which densecal 0.1 used."""
    return {name: tuple(np.percentile(values, [2.5, 97.5])) for name, values in samples.items()}


def resample_weights(units: int) -> Floats:
    """Return how often each image is in each resample."""
    rng = np.random.default_rng(0)
    return np.stack([np.bincount(rng.integers(0, units, units), minlength=units) for _ in range(REPLICATES)]) * 1.0


def data_sets(worlds: tuple[World, ...], size: int, draws: int) -> Iterator[tuple[Floats, ...]]:
    """Yield per-image rows of several models on the same images, one data set after the other."""
    rng = np.random.default_rng(size)
    for first in range(0, draws, 500):
        latent = worlds[0].latent(rng, min(500, draws - first), size)
        yield from zip(*(world.rows(rng, latent) for world in worlds), strict=True)


def coverage(world: World, size: int, draws: int) -> dict[str, tuple[float, float, float, float]]:
    """Return coverage and mean width of every interval, and the same of the percentile bootstrap."""
    weights = resample_weights(size)
    new, old = [], []
    for (rows,) in data_sets((world,), size, draws):
        new.append(intervals(rows))
        old.append(percentiles(figures(weights @ with_image_ece(rows))))
    return {
        name: (
            *_covers(np.array([i[name] for i in new]), truth),
            *_covers(np.array([i[name] for i in old]), truth),
        )
        for name, truth in world.truth.items()
    }


def _covers(ends: Floats, truth: float) -> tuple[float, float]:
    low, high = np.maximum(ends[:, 0], 0.0), ends[:, 1]
    # a truth of 0 is known only to the precision of a sum
    return float(np.mean((low <= truth + 1e-12) & (truth <= high + 1e-12))), float(np.mean(high - low))


def false_positives(worlds: tuple[World, World], size: int, draws: int) -> tuple[float, float]:
    """Return how often the interval of the difference of two equal ECEs leaves out 0: by densecal, by percentiles."""
    weights = resample_weights(size)
    new, old = 0, 0
    for a, b in data_sets(worlds, size, draws):
        low, high = paired_intervals(a, b)["ece_ew"]
        new += low > 0 or high < 0
        ece_a, ece_b = (figures(weights @ with_image_ece(rows))["ece_ew"] for rows in (a, b))
        low, high = percentiles({"ece_ew": ece_a - ece_b})["ece_ew"]
        old += low > 0 or high < 0
    return new / draws, old / draws


def poisson_coverage(world: World, size: int, draws: int) -> dict[str, tuple[float, float]]:
    """Return the coverage of the intervals of Poisson tables, and their mean width over that of all rows."""
    names = [f"image {i}" for i in range(size)]
    tables, rows_of = [], []
    for (rows,) in data_sets((world,), size, draws):
        table = PoissonTable(rows.shape[1] - 5)
        table.add(names, rows)
        tables.append(table.intervals())
        rows_of.append(intervals(rows))
    held = {}
    for name, truth in world.truth.items():
        share, width = _covers(np.array([i[name] for i in tables]), truth)
        usual = _covers(np.array([i[name] for i in rows_of]), truth)[1]
        held[name] = share, width / usual if usual > 1e-9 else 1.0
    return held


def print_poisson(draws: int) -> list[str]:
    """Print the table of Poisson tables, and return the coverages that are too low."""
    names, failures = list(MODELS["mild"].truth), []
    print(f"Coverage in per cent of intervals of Poisson tables (width over that of all rows), {draws:,} data sets")
    print("| model | images |" + " | ".join(names) + " |\n|" + "---|" * (len(names) + 2))
    for model, world in MODELS.items():
        for size in POISSON_SIZES:
            held = poisson_coverage(world, size, draws)
            cells = [f"{100 * share:.1f} ({width:.2f})" for share, width in held.values()]
            print(f"| {model} | {size:,} | {' | '.join(cells)} |", flush=True)
            low = {name: share for name, (share, _) in held.items() if share + error(share, draws) < LOWEST_COVERAGE}
            failures += [f"{model}, {size} images: {name} covers {100 * share:.1f} %" for name, share in low.items()]
    return failures


def error(share: float, draws: int) -> float:
    """Return two standard errors of a share."""
    return 2 * float(np.sqrt(share * (1 - share) / draws))


def main() -> int:
    """Print the tables and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=DRAWS, help="Data sets per line.")
    parser.add_argument("--poisson", action="store_true", help="Intervals of Poisson tables, in place of the others.")
    parser.add_argument("--folds", action="store_true", help="Intervals from folds, in place of the others.")
    given = parser.parse_args()
    draws = given.draws
    if given.poisson or given.folds:
        failures = print_poisson(draws) if given.poisson else print_folds(draws)
        print(*(f"FAILED: {failure}" for failure in failures), sep="\n", file=sys.stderr)
        return 1 if failures else 0
    start, failures = time.perf_counter(), []

    print(f"Coverage of 95 % intervals in per cent (percentile bootstrap), {draws:,} data sets per line")
    names = list(MODELS["mild"].truth)
    print("| model | ECE | images |" + " | ".join(names) + " | width of ECE |\n|" + "---|" * (len(names) + 4))
    for model, world in MODELS.items():
        for size in SIZES:
            result = coverage(world, size, draws)
            cells = [f"{100 * new:.1f} ({100 * old:.1f})" for new, _, old, _ in result.values()]
            width = f"{result['ece_ew'][1]:.4f} ({result['ece_ew'][3]:.4f})"
            print(f"| {model} | {world.truth['ece_ew']:.4f} | {size} | {' | '.join(cells)} | {width} |", flush=True)
            low = {name: new for name, (new, *_) in result.items() if new + error(new, draws) < LOWEST_COVERAGE}
            failures += [f"{model}, {size} images: {name} covers {100 * new:.1f} %" for name, new in low.items()]
    print("\nPaired intervals that leave out 0 although both ECEs are equal, in per cent (percentile bootstrap)")
    print("| models | ECE |" + " | ".join(f"{size} images" for size in SIZES) + " |\n|" + "---|" * (len(SIZES) + 2))
    for models, worlds in PAIRS.items():
        rates = [false_positives(worlds, size, draws) for size in SIZES]
        cells = [f"{100 * new:.1f} ({100 * old:.1f})" for new, old in rates]
        print(f"| {models} | {worlds[0].truth['ece_ew']:.4f} | {' | '.join(cells)} |", flush=True)
        high = [new for new, _ in rates if new - error(new, draws) > MOST_FALSE_POSITIVES]
        failures += [f"{models}: {100 * new:.1f} % false positives" for new in high]
    print(f"\n{time.perf_counter() - start:.0f} s")
    for failure in failures:
        print(f"FAILED: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
