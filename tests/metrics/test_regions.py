"""Calibration by region: figures of chosen pixels and images, recomputed from the pixels themselves."""

import math

import numpy as np
import pytest
from PIL import Image

from densecal.evaluation.folders import evaluate
from densecal.evaluation.worker import Settings
from densecal.metrics import CalibrationMeter, calibration_errors
from densecal.metrics.levels import boundary_zones
from densecal.metrics.regions import DIFFICULTIES, NO_OBJECT, SIZES, ZONES, object_size, regions

FIGURES = ("ece_ew", "oe_ew", "ue_ew", "brier", "nll", "accuracy", "mean_confidence")


def scene(rng, shape, radius):
    """Return a mask with two discs, and logits that are too steep near their boundary."""
    rows, columns = np.mgrid[: shape[0], : shape[1]]
    mask = np.zeros(shape, bool)
    for x in (0.25, 0.75):
        mask |= (rows - shape[0] // 2) ** 2 + (columns - int(x * shape[1])) ** 2 < radius**2
    z = np.where(mask, 2.0, -2.0) + rng.normal(0, 2, shape)
    return mask, 1 / (1 + np.exp(-2 * z))


def write(folder, maps, masks):
    for name in ("maps", "masks"):
        (folder / name).mkdir()
    for i, (values, mask) in enumerate(zip(maps, masks, strict=True)):
        np.save(folder / "maps" / f"{i:02}.npy", values)
        scale = 255 if mask.dtype == bool else 1
        Image.fromarray(mask.astype(np.uint8) * scale).save(folder / "masks" / f"{i:02}.png")
    return folder / "maps", folder / "masks"


@pytest.fixture(scope="module")
def scenes():
    rng = np.random.default_rng(0)
    made = [scene(rng, (48, 70), radius) for radius in (0, 3, 3, 4, 6, 7, 9, 10, 12, 13)]
    masks, p = (np.stack(column) for column in zip(*made, strict=True))
    return p, masks


def close(region, p, y, classes=1):
    r = calibration_errors(p, y, num_classes=classes)
    assert region.pixels == r.pixels
    for name in FIGURES:
        assert region.figures[name] == pytest.approx(getattr(r, name), abs=1e-10), (region.name, name)


@pytest.mark.parametrize("kind", ["float", "uint8", "uint16"])
def test_regions_of_foreground_maps(scenes, tmp_path, kind):
    p, masks = scenes
    given = p
    if kind != "float":
        top = np.iinfo(kind).max
        given = np.rint(p * top).astype(kind)
        p = given / top
    record = evaluate(*write(tmp_path, given, masks)).record
    found = {region.name: region for region in record.regions}
    assert set(found) == {*ZONES, *SIZES, *DIFFICULTIES, NO_OBJECT}
    zones = np.stack([boundary_zones(mask) for mask in masks])
    for zone, name in enumerate(ZONES):
        close(found[name], p[zones == zone], masks[zones == zone])
    sizes = np.array([object_size(mask) for mask in masks])
    assert math.isnan(sizes[0])
    close(found[NO_OBJECT], p[:1], masks[:1])
    for name, chosen in zip(SIZES, ([1, 2, 3], [4, 5, 6], [7, 8, 9]), strict=True):
        close(found[name], p[chosen], masks[chosen])
        assert (found[name].low, found[name].high) == (sizes[chosen].min(), sizes[chosen].max())
    order = np.argsort(np.maximum(p, 1 - p).mean(axis=(1, 2)))
    for name, chosen in zip(DIFFICULTIES, np.split(order, [4, 7]), strict=True):
        close(found[name], p[chosen], masks[chosen])
        assert found[name].images == len(chosen)


def test_regions_of_class_maps_with_void(tmp_path):
    rng = np.random.default_rng(1)
    labels = np.repeat(np.repeat(rng.integers(0, 3, (6, 5, 7)), 9, 1), 9, 2).astype(np.uint8)
    p = rng.dirichlet([0.4] * 3, labels.shape) * 0.7 + 0.3 * np.eye(3)[labels]
    labels[:, :4] = 255
    p = np.moveaxis(p, -1, 1)
    record = evaluate(*write(tmp_path, p, labels), settings=Settings(classes=3)).record
    found = {region.name: region for region in record.regions}
    valid = labels != 255
    zones = np.stack([boundary_zones(image, keep) for image, keep in zip(labels, valid, strict=True)])
    flat = np.moveaxis(p, 1, -1)
    for zone, name in enumerate(ZONES):
        chosen = valid & (zones == zone)
        if chosen.any():
            close(found[name], flat[chosen], labels[chosen], 3)
    sizes = [object_size(image, keep) for image, keep in zip(labels, valid, strict=True)]
    assert found["large_objects"].high == max(sizes)


def test_fast_metrics_know_no_objects_and_no_boundaries(scenes, tmp_path):
    p, masks = scenes
    record = evaluate(*write(tmp_path, p, masks), settings=Settings(full=False)).record
    assert {region.name for region in record.regions} == set(DIFFICULTIES)


def test_objects_are_connected_by_corners_and_cut_by_void_pixels():
    mask = np.zeros((6, 9), bool)
    mask[0, 0] = mask[1, 1] = True
    mask[4:, 2:7] = True
    assert object_size(mask) == (2 + 10) / 2
    valid = np.ones_like(mask)
    valid[:, 4] = False
    assert object_size(mask, valid) == (2 + 4 + 4) / 3
    labels = np.array([[0, 0, 1], [2, 2, 1], [0, 0, 0]])
    assert object_size(labels) == 9 / 4
    assert object_size(np.ones((3, 4, 5), bool)) == 60


def test_a_calibrated_model_is_calibrated_on_hard_images_too():
    """Images chosen by accuracy would look over-confident."""
    rng = np.random.default_rng(2)
    p = rng.random((300, 60)) ** rng.uniform(0.3, 3, (300, 1))
    effect = rng.normal(0, 1, (300, 1))
    y = (rng.random(p.shape) < np.clip(p + 0.2 * effect * np.minimum(p, 1 - p), 0, 1)).astype(int)
    meter = CalibrationMeter(boundary=False)
    meter.update(p.reshape(300, 6, 10), y.reshape(300, 6, 10))
    by_confidence = {r.name: r for r in regions(meter.sketch.image_rows(), None, None)}
    for name in DIFFICULTIES:
        gap = by_confidence[name].figures["oe_ew"] - by_confidence[name].figures["ue_ew"]
        assert abs(gap) < 0.02
    accuracy = ((p > 0.5) == y).mean(axis=1)
    worst = accuracy < np.quantile(accuracy, 1 / 3)
    assert calibration_errors(p[worst], y[worst]).oe_ew > 0.04


def test_intervals_resample_groups():
    rng = np.random.default_rng(3)
    p = rng.random((24, 5, 8))
    meter = CalibrationMeter(boundary=False)
    meter.update(p, (rng.random(p.shape) < p).astype(int))
    rows = np.repeat(meter.sketch.image_rows(), 4, axis=0)
    groups = [str(i // 4) for i in range(len(rows))]
    alone, grouped = (regions(rows, None, None, given)[0].ci["brier"] for given in (None, groups))
    assert grouped[1] - grouped[0] > 1.5 * (alone[1] - alone[0])
