"""Folds of images: which pixels they count, and which intervals a record has from them."""

import numpy as np
import pytest
from PIL import Image
from scipy.special import expit, softmax

from densecal.evaluation.folders import evaluate, score_folder
from densecal.evaluation.folds import FOLDS, ClassCounter, FoldSums
from densecal.evaluation.partial import merge_partials, write_partial
from densecal.evaluation.repair import BINS, LIMIT
from densecal.evaluation.worker import Settings
from densecal.io.groups import Groups
from densecal.metrics.levels import MAX_LEVEL

NAMES = {
    "smece", "smece_exact", "smece_foreground", "smece_foreground_exact", "tace",
    "brier_calibration", "brier_refinement", "nll_calibration", "nll_refinement",
}  # fmt: skip


def write_images(folder, classes=1, count=40, size=16):
    rng = np.random.default_rng(3)
    maps, masks = folder / "maps", folder / "masks"
    maps.mkdir()
    masks.mkdir()
    for i in range(count):
        if classes == 1:
            z = rng.normal(-1, 2, (size, size)) + rng.normal(0, 0.7)
            mask = (rng.random(z.shape) < expit(0.6 * z)) * 255
            Image.fromarray(np.rint(expit(z) * 255).astype(np.uint8)).save(maps / f"{i}.png")
        else:
            z = rng.normal(0, 2, (classes, size, size))
            mask = (softmax(0.6 * z, axis=0).cumsum(axis=0) < rng.random((size, size))).sum(axis=0)
            mask[:2] = 255
            np.save(maps / f"{i}.npy", softmax(z, axis=0).astype(np.float32))
        Image.fromarray(mask.astype(np.uint8)).save(masks / f"{i}.png")
    return maps, masks


@pytest.mark.parametrize("levels", [256, 65536])
def test_a_map_is_counted_by_outcome_and_logit_with_the_sum_of_its_levels(levels):
    counts = np.zeros((2, levels), np.int64)
    counts[0, 0], counts[1, levels // 2], counts[0, levels // 2], counts[1, levels - 1] = 5, 2, 1, 7
    sums = FoldSums()
    sums.add_map("a", counts)
    (table,) = sums.counts.values()
    assert table[0, :2].sum(axis=1).tolist() == [6, 9]
    middle = int(BINS // 2 + BINS / (2 * LIMIT) * 0.001)
    assert table[0, :, middle].tolist() == [1, 2, 3 * (levels // 2) * (MAX_LEVEL // (levels - 1))]
    assert table[0, 2].sum() == (3 * (levels // 2) + 7 * (levels - 1)) * (MAX_LEVEL // (levels - 1))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_classes_are_counted_with_the_winning_one_last(dtype):
    counter = ClassCounter(3)
    p = np.array([[0.7, 0.2, 0.1], [0.2, 0.5, 0.3], [0.1, 0.3, 0.6]], dtype)
    counter.add(p, p.argmax(axis=0), np.array([0, 2, 255]), 255)
    counts = counter.counts
    assert counts[:, :2].sum(axis=2).tolist() == [[1, 1], [2, 0], [1, 1], [1, 1]]
    means = counts[:, 2].sum(axis=1) / MAX_LEVEL / 2
    np.testing.assert_allclose(
        means, [0.45, 0.35, 0.2, 0.6], atol=4e-5 if dtype != np.float16 else 3e-4
    )  # steps of 1 / 16383


def test_memory_does_not_grow_with_images():
    sums, counts = FoldSums(), np.zeros((2, 256), np.int64)
    counts[0, 3] = 1
    for i in range(2000):
        sums.add_map(str(i), counts)
    assert len(sums.counts) == FOLDS
    assert sums.images.sum() == 2000
    assert sums.images.min() > 30


@pytest.mark.parametrize("classes", [1, 4])
def test_a_record_has_intervals_of_figures_that_are_no_sums_over_images(tmp_path, classes):
    maps, masks = write_images(tmp_path, classes)
    calibration = evaluate(maps, masks, settings=Settings(classes=classes if classes > 1 else None)).record.calibration
    foreground = {"smece_foreground", "smece_foreground_exact"} if classes > 1 else set()
    assert calibration.ci.keys() >= NAMES - foreground
    for name in NAMES - foreground:
        low, high = calibration.ci[name]
        assert 0 <= low <= calibration[name] <= high
        assert 0.01 < (high - low) / calibration[name] < 1.0


@pytest.mark.parametrize("classes", [1, 4])
def test_images_of_one_group_are_in_one_fold(tmp_path, classes):
    maps, masks = write_images(tmp_path, classes)
    settings = Settings(classes=classes if classes > 1 else None)
    alone = evaluate(maps, masks, settings=settings).record.calibration.ci
    total = score_folder(maps, masks, settings=settings, groups=Groups("[0-9]$")).total
    assert len(total.folds.counts) <= 10
    assert total.folds.images.sum() == 40
    grouped = evaluate(maps, masks, settings=settings, groups=Groups("[0-9]$")).record.calibration.ci
    assert grouped.keys() == alone.keys()
    assert grouped["smece"] != alone["smece"]


@pytest.mark.parametrize("classes", [1, 4])
def test_parts_merge_into_the_intervals_of_the_whole(tmp_path, classes):
    maps, masks = write_images(tmp_path, classes)
    settings, files = Settings(classes=classes if classes > 1 else None), []
    for number in (0, 1):
        part = tmp_path / str(number)
        for kind, folder in (("maps", maps), ("masks", masks)):
            (part / kind).mkdir(parents=True)
            for path in sorted(folder.iterdir())[number::2]:
                (part / kind / path.name).symlink_to(path)
        files.append(part / "part.sketch")
        named = {"name": "maps", "dataset": "masks"}
        write_partial(files[-1], score_folder(part / "maps", part / "masks", settings=settings, **named))
    merged = merge_partials(files).total.record("maps", "masks")
    assert merged.calibration.ci == evaluate(maps, masks, settings=settings).record.calibration.ci
