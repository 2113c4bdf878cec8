"""What a temperature would do, against the calibrator, brute force and other cuts of the images."""

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.special import expit, logit

from densecal.evaluation.folders import evaluate, score_folder
from densecal.evaluation.folds import FoldSums
from densecal.evaluation.partial import merge_partials, write_partial
from densecal.evaluation.repair import BINS, LIMIT, RepairSums, ece, fit_temperature, level_bins
from densecal.evaluation.worker import Settings
from densecal.metrics.calibration import calibration_errors
from densecal.posthoc.logit_histogram import LogitHistogram
from densecal.posthoc.temperature import Temperature

TRUE_TEMPERATURE = 2.5


@pytest.fixture(scope="module")
def pixels():
    """Logits that are too large by a factor of 2.5, and their labels."""
    rng = np.random.default_rng(0)
    honest = rng.normal(-1, 1.5, 200_000)
    return np.clip(honest * TRUE_TEMPERATURE, -11, 11), rng.random(honest.size) < expit(honest)


def counted(z, y):
    index = np.floor((z + LIMIT) * BINS / (2 * LIMIT)).astype(int)
    return np.stack([np.bincount(index[y == label], minlength=BINS) for label in (False, True)])


def test_the_temperature_is_that_of_the_calibrator(pixels):
    z, y = pixels
    histogram = LogitHistogram()
    histogram.update(torch.from_numpy(z), torch.from_numpy(y.astype(np.int64)))
    expected = float(Temperature().fit(histogram).temperature)
    assert fit_temperature(counted(z, y)) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_the_error_is_that_of_the_pixels(pixels, temperature):
    z, y = pixels
    expected = calibration_errors(expit(z / temperature), y, bins=10).ece_ew
    assert ece(counted(z, y), temperature, 10) == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize("sign", [1, -1])
def test_pixels_that_are_always_right_or_mostly_wrong_have_no_temperature(sign):
    y = np.arange(100) % 2 == 0
    assert fit_temperature(counted(sign * np.where(y, 3.0, -3.0), y)) is None


@pytest.mark.parametrize("levels", [256, 65536])
def test_levels_are_counted_by_the_logit_of_their_middle(levels):
    level = np.arange(1, levels - 1)
    z = logit(level / (levels - 1))
    left = -LIMIT + level_bins(level, levels) * 2 * LIMIT / BINS
    assert ((left - 1e-9 <= z) & (z < left + 2 * LIMIT / BINS + 1e-9)).all()
    assert level_bins(np.array([0, levels - 1]), levels).tolist() in ([101, 378], [0, BINS - 1])


def write_images(folder, dtype, count=60, size=20):
    rng = np.random.default_rng(1)
    (folder / "maps").mkdir()
    (folder / "masks").mkdir()
    y, x = np.mgrid[:size, :size]
    for i in range(count):
        distance = rng.uniform(2, 9) - np.hypot(x - 10, y - 10)
        honest = 0.4 * distance + rng.normal(0, 0.3, distance.shape)
        mask = rng.random(distance.shape) < expit(honest)
        p = expit(TRUE_TEMPERATURE * honest)
        name = f"{i:03}"
        Image.fromarray((mask * 255).astype(np.uint8)).save(folder / "masks" / f"{name}.png")
        if dtype == np.float32:
            np.save(folder / "maps" / f"{name}.npy", p.astype(np.float32))
        else:
            Image.fromarray(np.rint(p * np.iinfo(dtype).max).astype(dtype)).save(folder / "maps" / f"{name}.png")
    return folder / "maps", folder / "masks"


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_an_evaluation_says_what_a_temperature_does_on_the_other_half(tmp_path, dtype):
    maps, masks = write_images(tmp_path, dtype)
    record = evaluate(maps, masks).record
    repair = record.repair
    assert repair.temperature == pytest.approx(TRUE_TEMPERATURE, rel=0.15)
    assert repair.images == 60
    assert repair.ece_after < 0.35 * repair.ece_before
    assert repair.ece_before == pytest.approx(record.calibration["ece_ew"], abs=0.02)
    counts = np.array([record.logits.background, record.logits.foreground])
    assert counts.sum() == record.pixels
    assert ece(counts, 1.0, 10) == pytest.approx(record.calibration["ece_ew"], abs=2e-3)


def test_both_halves_are_judged_with_the_temperature_of_the_other():
    """Halves that need different temperatures, so that fitting and judging on the same one would look perfect."""
    rng, sums = np.random.default_rng(2), RepairSums()
    for half, factor in ((0, 1.5), (1, 4.0)):
        honest = rng.normal(-1, 1.5, 400_000)
        sums.counts[half] = counted(np.clip(honest * factor, -11.9, 11.9), rng.random(honest.size) < expit(honest))
    sums.images[:] = 50
    repair = sums.repair(10)
    assert 1.5 < repair.temperature < 4.0
    assert repair.ece_before == pytest.approx(ece(sums.counts.sum(axis=0), 1.0, 10))
    worst = max(ece(sums.counts[0], 4.0, 10), ece(sums.counts[1], 1.5, 10))
    assert 0.005 < repair.ece_after < worst


def test_groups_of_images_have_no_halves_and_few_images_no_fit(tmp_path):
    maps, masks = write_images(tmp_path, np.uint8, count=12)
    assert evaluate(maps, masks).record.repair is None


def test_parts_merge_into_the_same_repair(tmp_path):
    maps, masks = write_images(tmp_path, np.uint8)
    whole = evaluate(maps, masks).record
    files = []
    for number in (0, 1):
        part = tmp_path / str(number)
        for kind, folder in (("maps", maps), ("masks", masks)):
            (part / kind).mkdir(parents=True)
            for path in sorted(folder.iterdir())[number::2]:
                (part / kind / path.name).symlink_to(path)
        files.append(part / "part.sketch")
        sums = score_folder(part / "maps", part / "masks", name="maps", dataset="masks", settings=Settings())
        write_partial(files[-1], sums)
    merged = merge_partials(files)
    record = merged.total.record("maps", "masks")
    assert record.repair == whole.repair
    assert record.logits == whole.logits


def test_an_image_of_void_pixels_is_in_no_half():
    sums = FoldSums()
    sums.add_map("void", np.zeros((2, 256), np.int64))
    assert sums.halves().images.sum() == 0
    assert sums.halves().logit_counts() is None
