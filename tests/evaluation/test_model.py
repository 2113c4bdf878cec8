"""A model on a data set: the figures are those of its maps, whatever the sizes, batches and calibrators."""

import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from densecal.errors import InputError
from densecal.evaluation.folders import evaluate
from densecal.evaluation.model import (
    _flip_counts,
    evaluate_model,
    evaluate_model_by_bins,
    load_image_set,
    model_outputs,
)
from densecal.evaluation.worker import Settings
from densecal.io.groups import Groups
from densecal.metrics import CalibrationMeter, intervals

SHAPES = [(40, 56), (32, 32), (40, 56), (50, 30), (32, 32)]


def bright(images):
    """A model without weights: the brighter a pixel, the likelier it is foreground."""
    return 6 * images.mean(dim=1, keepdim=True) - 3


def three(images):
    return 4 * images


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    (tmp_path / "masks").mkdir()
    for i, (height, width) in enumerate(SHAPES):
        image = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(image).save(tmp_path / "images" / f"{i}.png")
        mask = (image.mean(axis=2) > 120).astype(np.uint8) * 255
        Image.fromarray(mask).save(tmp_path / "masks" / f"{i}.png")
    return tmp_path


@pytest.mark.parametrize("batch", [1, 2, 64])
def test_figures_are_the_same_as_for_maps_written_to_files(folder, tmp_path, batch):
    data = load_image_set("set", folder, size=32, workers=1)
    maps = tmp_path / "maps"
    maps.mkdir()
    for i, (name, mask) in enumerate(zip(data.names, data.masks, strict=True)):
        z = bright(torch.from_numpy(data.images[i : i + 1]).permute(0, 3, 1, 2) / 255)
        z = torch.nn.functional.interpolate(z, size=mask.shape, mode="bilinear")
        p = z[0, 0].double().sigmoid().numpy()
        np.save(maps / f"{name}.npy", p)
        (tmp_path / "bytes").mkdir(exist_ok=True)
        Image.fromarray(np.rint(p * 255).astype(np.uint8)).save(tmp_path / "bytes" / f"{name}.png")
    mine = evaluate_model(bright, data, batch=batch)["model"]
    files = evaluate(maps, folder / "masks", settings=Settings(full=False)).record
    assert mine.record.calibration.keys() == files.calibration.keys()
    for name, value in files.calibration.items():
        assert mine.record.calibration[name] == pytest.approx(value, abs=1e-9, nan_ok=True), name
    as_bytes = evaluate(tmp_path / "bytes", folder / "masks", settings=Settings(full=False)).record
    assert mine.record.segmentation == pytest.approx(as_bytes.segmentation, abs=1e-9, nan_ok=True)
    assert sorted(mine.stems) == sorted(data.names)
    assert mine.record.images == len(SHAPES)


def test_calibrators_are_scored_in_the_same_pass(folder):
    data = load_image_set("set", folder, size=32, workers=1)
    found = evaluate_model(bright, data, {"raw": None, "halved": lambda z, images: (z / 2).double().sigmoid()})
    alone = evaluate_model(lambda x: bright(x) / 2, data)["model"].record.calibration
    halved = found["halved"].record.calibration
    assert "flip_rate" not in found["raw"].record.calibration
    assert halved["flip_rate"] == 0
    assert halved.figures == pytest.approx({**alone.figures, "flip_rate": 0.0}, abs=1e-6, nan_ok=True)
    assert found["raw"].record.calibration["nll"] != pytest.approx(halved["nll"], abs=1e-3)


def test_several_numbers_of_bins_need_one_pass(folder):
    data = load_image_set("set", folder, size=32, workers=1)
    batches = []

    def counting_model(images):
        batches.append(len(images))
        return bright(images)

    calibrators = {"raw": None, "halved": lambda z, images: (z / 2).double().sigmoid()}
    together = evaluate_model_by_bins(counting_model, data, calibrators, (10, 100, 7), batch=2)
    assert batches == [2, 2, 1]
    for bins, found in zip((10, 100, 7), together, strict=True):
        alone = evaluate_model(bright, data, calibrators, bins=bins, batch=2)
        assert found.keys() == alone.keys()
        for name, evaluation in alone.items():
            assert repr(found[name].record) == repr(evaluation.record)  # NaN equals NaN in text
            assert found[name].stems == evaluation.stems
            assert np.array_equal(found[name].rows, evaluation.rows, equal_nan=True)
    assert [len(found["raw"].record.reliability.count) for found in together] == [10, 100, 7]


def test_entropy_is_a_share_of_its_maximum(folder):
    data = load_image_set("set", folder, size=32, workers=1)
    record = evaluate_model(lambda x: torch.zeros_like(x[:, :1]), data)["model"].record
    assert list(record.entropy.images) == pytest.approx([1.0] * len(SHAPES))
    assert list(record.entropy.histogram) == [0] * 99 + [sum(h * w for h, w in SHAPES)]


def test_classes_and_void(folder):
    for i, (height, width) in enumerate(SHAPES):
        labels = np.random.default_rng(i).choice(np.array([0, 1, 2, 9], np.uint8), (height, width))
        Image.fromarray(labels).save(folder / "masks" / f"{i}.png")
    data = load_image_set("set", folder, size=32, classes=3, ignore_index=9, workers=1)
    record = evaluate_model(three, data)["model"].record
    meter = CalibrationMeter(num_classes=3, ignore_index=9, boundary=False)
    for _, _, z, y in model_outputs(three, data):
        meter.update(logits=z, masks=y)
    assert record.calibration["ece_ew"] == pytest.approx(meter.compute().ece_ew)
    assert 0 < record.segmentation["miou"] < 1
    assert record.pixels == sum(int((mask != 9).sum()) for mask in data.masks)


def test_images_without_foreground_need_no_masks(folder, tmp_path):
    with zipfile.ZipFile(tmp_path / "textures.zip", "w") as pack:
        for path in (folder / "images").iterdir():
            pack.write(path, f"images/{path.name}")
    data = load_image_set("textures", tmp_path / "textures.zip", size=32, without_foreground=True, workers=1)
    record = evaluate_model(bright, data)["model"].record
    right = sum(int((z <= 0).sum()) for _, _, z, _ in model_outputs(bright, data))
    assert record.calibration["accuracy"] == pytest.approx(right / record.pixels)
    with pytest.raises(InputError, match="without masks"):
        load_image_set("textures", tmp_path / "textures.zip", size=32, workers=1)


def test_intervals_resample_the_groups_of_a_set(folder):
    """Images come in the order of their sizes, and keep their groups."""
    groups = Groups("[0-4]")
    alone = evaluate_model(bright, load_image_set("set", folder, size=32, workers=1))["model"]
    data = load_image_set("set", folder, size=32, groups=groups, workers=1)
    same = evaluate_model(bright, data)["model"]
    assert (alone.record.groups, same.record.groups) == (None, 5)
    assert same.record.calibration.ci == alone.record.calibration.ci
    listed = folder / "groups.csv"
    listed.write_text("".join(f"{i},{i % 2}\n" for i in range(5)))
    grouped = evaluate_model(bright, replace(data, groups=Groups(str(listed))))["model"]
    assert grouped.record.groups == 2
    expected = intervals(alone.rows, [str(int(stem) % 2) for stem in alone.stems])
    assert grouped.record.calibration.ci == expected
    with pytest.raises(InputError, match="no group for '4'"):
        load_image_set("set", folder, size=32, groups=Groups("[0-3]"), workers=1)


@pytest.mark.parametrize("classes", [1, 3])
def test_flips_are_the_valid_decisions_that_a_calibrator_changes(classes):
    rng = torch.Generator().manual_seed(0)
    z, p = torch.randn(2, 4, classes, 5, 6, generator=rng)
    p = p.sigmoid() if classes == 1 else p.softmax(dim=1)
    y = torch.randint(0, 2, (4, 5, 6), generator=rng)
    y[:, 0] = 255  # the first row is void
    before, after = (z > 0, p > 0.5) if classes == 1 else (z.argmax(1, keepdim=True), p.argmax(1, keepdim=True))
    changed = (before != after)[:, 0, 1:].sum(dim=(1, 2))
    assert _flip_counts(z, p, y, 255).tolist() == [[4 * 6, int(n)] for n in changed]
    assert _flip_counts(z, p, y, None)[:, 0].tolist() == [30] * 4
