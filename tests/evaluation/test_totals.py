"""What a record holds besides its figures: histogram, thresholds and joint density by brute force, and its warnings."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from densecal.evaluation.findings import Findings
from densecal.evaluation.folders import evaluate
from densecal.evaluation.totals import warnings_of
from densecal.evaluation.worker import Settings, score_pairs
from densecal.io.pairs import Pair

CELLS = 100


def maps_of(kind, count=7, size=(6, 9)):
    """Return maps, the probabilities of foreground and background that they hold, and masks.

    Some probabilities are multiples of 1/100, some images are sure and right throughout.
    """
    rng = np.random.default_rng(3)
    p = rng.random((count, *size)) ** 0.5
    p[:, :2] = rng.integers(0, 101, (count, 2, size[1])) / 100
    p[0, 0] = 0.5
    masks = rng.random(p.shape) < p
    p[3:5] = masks[3:5]
    if kind == "float":
        return p, p, 1 - p, masks
    top = np.iinfo(kind).max
    levels = np.rint(p * top).astype(kind)
    levels[1, :, :4] = np.rint(np.array([0.2, 0.4, 0.6, 0.8]) * top)
    return levels, levels / top, (top - levels) / top, masks  # 1 - 0.8 would fall short of 0.2


def write(folder: Path, maps, masks) -> tuple[Path, Path]:
    for name in ("maps", "masks"):
        (folder / name).mkdir()
    for i, (values, mask) in enumerate(zip(maps, masks, strict=True)):
        np.save(folder / "maps" / f"{i}.npy", values)
        Image.fromarray(mask.astype(np.uint8) * 255).save(folder / "masks" / f"{i}.png")
    return folder / "maps", folder / "masks"


def cell(value: float) -> int:
    return min(int(value * CELLS), CELLS - 1)


@pytest.fixture(params=["float", "uint8", "uint16"])
def record_and_data(request, tmp_path):
    """A record, and the probabilities of both classes and the masks that it was made from."""
    given, p, q, masks = maps_of(request.param)
    return evaluate(*write(tmp_path, given, masks)).record.to_json(), p, q, masks


def test_the_histogram_counts_pixels_and_correct_pixels_by_confidence(record_and_data):
    record, p, q, masks = record_and_data
    count, correct = [0] * CELLS, [0] * CELLS
    for foreground, background, label in zip(p.flat, q.flat, masks.flat, strict=True):
        bin_ = cell(max(foreground, background))
        count[bin_] += 1
        correct[bin_] += (foreground > 0.5) == label
    assert record["reliability"]["histogram"] == {"count": count, "correct": correct}


def test_the_reliability_curves_are_those_of_ten_bins(record_and_data):
    record, p, q, masks = record_and_data
    found = record["reliability"]
    assert found["bins"] == 10
    confidence, right = np.maximum(p, q), (p > 0.5) == masks
    for curve, value, outcome in (
        (found, confidence, right),
        (found["classes"][0], q, ~masks),
        (found["classes"][1], p, masks),
        (found["foreground"], p, masks),
    ):
        bins = np.minimum((value * 10).astype(int), 9)
        sizes = [int((bins == b).sum()) for b in range(10)]
        assert curve["count"] == sizes
        for name, amount in (("confidence", value), ("accuracy", outcome)):
            means = [amount[bins == b].mean() if n else 0.0 for b, n in enumerate(sizes)]
            assert curve[name] == pytest.approx(means, abs=1e-12)
    for curve in found["classes"]:
        gaps = np.abs(np.subtract(curve["confidence"], curve["accuracy"]))
        assert curve["ece"] == pytest.approx(gaps @ curve["count"] / p.size, abs=1e-12)


def test_thresholds_count_the_pixels_above_them(record_and_data):
    record, p, _, masks = record_and_data
    thresholds = [i / 100 for i in range(101)]
    assert record["thresholds"] == {
        "true_positives": [int(((p > t) & masks).sum()) for t in thresholds],
        "false_positives": [int(((p > t) & ~masks).sum()) for t in thresholds],
        "positives": int(masks.sum()),
        "negatives": int((~masks).sum()),
    }
    assert (p == 0.2).any()


def test_the_joint_density_counts_images(record_and_data):
    record, p, q, masks = record_and_data
    confidence = [float(np.maximum(*both).mean()) for both in zip(p, q, strict=True)]
    accuracy = [float(((one > 0.5) == mask).mean()) for one, mask in zip(p, masks, strict=True)]
    cells = {}
    for c, a in zip(confidence, accuracy, strict=True):
        cells[cell(c), cell(a)] = cells.get((cell(c), cell(a)), 0) + 1
    joint = record["joint"]
    assert joint["cells"] == CELLS
    assert {(x, y): n for x, y, n in joint["counts"]} == cells
    assert cells[CELLS - 1, CELLS - 1] == 2
    assert joint["mean_confidence"] == pytest.approx(sum(confidence) / len(p), abs=1e-12)
    assert joint["mean_accuracy"] == pytest.approx(sum(accuracy) / len(p), abs=1e-12)
    squares = [(c - a) ** 2 for c, a in zip(confidence, accuracy, strict=True)]
    assert joint["spread"] == pytest.approx((sum(squares) / len(p)) ** 0.5, abs=1e-12)
    assert joint["mean_confidence"] != pytest.approx(joint["mean_accuracy"], abs=1e-3)


def test_records_of_k_classes_have_a_histogram_and_a_joint_density_but_no_thresholds(tmp_path):
    rng = np.random.default_rng(0)
    p = rng.dirichlet([1, 1, 1, 1], (3, 6, 5))
    labels = rng.integers(0, 4, (3, 6, 5))
    for name in ("maps", "labels"):
        (tmp_path / name).mkdir()
    for i in range(3):
        np.save(tmp_path / "maps" / f"{i}.npy", np.moveaxis(p[i], -1, 0))
        Image.fromarray(labels[i].astype(np.uint8)).save(tmp_path / "labels" / f"{i}.png")
    record = evaluate(tmp_path / "maps", tmp_path / "labels", settings=Settings(classes=4)).record.to_json()
    confidence, right = p.max(axis=-1), p.argmax(axis=-1) == labels
    cells = np.minimum((confidence * CELLS).astype(int), CELLS - 1)
    expected = {
        "count": [int((cells == i).sum()) for i in range(CELLS)],
        "correct": [int(right[cells == i].sum()) for i in range(CELLS)],
    }
    assert record["reliability"]["histogram"] == expected
    points = zip(confidence.mean(axis=(1, 2)), right.mean(axis=(1, 2)), strict=True)
    assert sorted(map(tuple, record["joint"]["counts"])) == sorted((cell(c), cell(a), 1) for c, a in points)
    assert "thresholds" not in record
    assert "foreground" not in record["reliability"]
    assert len(record["reliability"]["classes"]) == 4


# ------------------------------------------------------------------ maps that look unlike probabilities


def findings_of(folder: Path, values, mask=None) -> Findings:
    """Return what is noted about one map."""
    np.save(folder / "map.npy", values)
    if mask is not None:
        Image.fromarray(mask.astype(np.uint8) * 255).save(folder / "mask.png")
    pair = Pair("map", folder / "map.npy", None if mask is None else folder / "mask.png")
    part = score_pairs([pair], Settings(full=False), fold=False)
    assert not part.bad
    return part.findings


@pytest.mark.parametrize("kind", ["float", "uint8", "uint16"])
@pytest.mark.parametrize(
    ("at_top", "bright", "at_bottom", "stretched"),
    [(9, 91, 1, True), (10, 90, 1, False), (1, 10, 1, True), (1, 9, 1, False), (9, 91, 0, False), (0, 100, 1, False)],
)
def test_a_map_looks_stretched_if_it_spans_the_range_and_a_tenth_of_its_foreground_is_not_at_the_top(
    tmp_path, kind, at_top, bright, at_bottom, stretched
):
    top = 1.0 if kind == "float" else np.iinfo(kind).max
    levels = [top] * at_top + [0.6 * top] * bright + [0.0] * at_bottom + [0.3 * top] * 20
    values = np.array(levels, dtype=np.float64 if kind == "float" else kind)[None]
    assert findings_of(tmp_path, values).stretched == stretched


@pytest.mark.parametrize(("low", "high", "stretched"), [(0.0, 1.0, True), (1e-5, 1.0, False), (0.0, 1 - 1e-5, False)])
def test_a_float_map_that_spans_nearly_the_range_is_not_stretched(tmp_path, low, high, stretched):
    values = np.concatenate([[low], np.linspace(0.3, 0.7, 40), [high]])[None]
    assert findings_of(tmp_path, values).stretched == stretched


@pytest.mark.parametrize("kind", ["float", "uint8", "uint16"])
def test_foreground_begins_above_one_half_where_a_map_looks_stretched(tmp_path, kind):
    """127 of 255 is background: then one pixel of ten at the top is a tenth, with 128 a little less."""
    for middle, stretched in ((127, False), (128, True)):
        values = np.array([[255, *[128] * 9, middle, 0, *range(1, 9)]], dtype=np.float64)
        scale = {"float": 1 / 255, "uint8": 1, "uint16": 257}[kind]
        values = (values * scale).astype(np.float64 if kind == "float" else kind)
        assert findings_of(tmp_path, values).stretched == stretched


@pytest.mark.parametrize("kind", ["float", "uint8", "uint16"])
@pytest.mark.parametrize(("levels", "few"), [(31, True), (32, False)])
@pytest.mark.parametrize("pixels", [100, 20_000])
def test_maps_of_fewer_than_32_levels_have_few_levels(tmp_path, kind, levels, few, pixels):
    values = 40 + np.arange(pixels) * levels // pixels
    scaled = values / 255 if kind == "float" else (values * (1 if kind == "uint8" else 257)).astype(kind)
    assert findings_of(tmp_path, scaled.reshape(10, -1)).few_levels == few


@pytest.mark.parametrize(("levels", "few"), [(31, True), (32, False), (40, False)])
def test_levels_of_a_float_map_count_also_between_the_sampled_pixels(tmp_path, levels, few):
    """Of 20,480 pixels one in five is sampled first; here all of the sampled pixels have one level."""
    values = np.full(20_480, 0.25)
    elsewhere = np.flatnonzero(np.arange(20_480) % 5)
    values[elsewhere[: levels - 1]] = np.linspace(0.3, 0.6, levels - 1)
    assert findings_of(tmp_path, values.reshape(128, 160)).few_levels == few


@pytest.mark.parametrize("kind", ["float", "uint8", "uint16"])
@pytest.mark.parametrize(("inside", "inverted"), [(99, True), (100, False), (101, False)])
def test_a_map_is_inverted_if_its_mean_is_lower_on_the_foreground(tmp_path, kind, inside, inverted):
    mask = np.zeros((4, 4), bool)
    mask[:, :1] = True
    values = np.where(mask, inside, 100)
    values = values / 255 if kind == "float" else (values * (1 if kind == "uint8" else 257)).astype(kind)
    found = findings_of(tmp_path, values, mask)
    assert (found.both_classes, found.inverted, found.foreground, found.maps) == (1, inverted, 1, 1)


@pytest.mark.parametrize("mask", [np.zeros((4, 4), bool), np.ones((4, 4), bool)])
def test_a_map_whose_mask_has_one_class_is_not_inverted(tmp_path, mask):
    found = findings_of(tmp_path, np.full((4, 4), 77, np.uint8), mask)
    assert (found.both_classes, found.inverted, found.foreground, found.maps) == (0, 0, int(mask.any()), 1)


@pytest.mark.parametrize(
    ("findings", "word"),
    [
        ({"maps": 10, "stretched": 9}, "min-max"),
        ({"maps": 10, "stretched": 8}, None),
        ({"maps": 2, "stretched": 2}, "min-max"),
        ({"maps": 1, "stretched": 1}, None),
        ({"maps": 100, "stretched": 90}, "min-max"),
        ({"maps": 100, "stretched": 89}, None),
        ({"maps": 9, "both_classes": 3, "inverted": 2}, None),
        ({"maps": 9, "both_classes": 3, "inverted": 3}, "inverted"),
        ({"maps": 300, "both_classes": 300, "inverted": 200}, None),
        ({"maps": 300, "both_classes": 300, "inverted": 201}, "inverted"),
        ({"maps": 4, "few_levels": 2}, None),
        ({"maps": 4, "few_levels": 3}, "grey levels"),
        ({"maps": 100, "grey_masks": 1}, "other than 0 and 255"),
        ({"maps": 100, "resized": 1}, "resized"),
        ({}, None),
    ],
)
def test_there_is_a_warning_for_what_many_maps_have_in_common(findings, word):
    warnings = warnings_of(Findings(**{"foreground": 1, **findings}), Settings())
    assert len(warnings) == (word is not None)
    assert all(word in warning for warning in warnings)


def test_there_is_a_warning_if_no_mask_has_foreground_and_void_has_a_value():
    assert warnings_of(Findings(maps=3), Settings()) == []
    assert warnings_of(Findings(maps=3, foreground=1), Settings(ignore_index=255)) == []
    assert warnings_of(Findings(maps=3), Settings(classes=4, ignore_index=255)) == []
    (warning,) = warnings_of(Findings(maps=3), Settings(ignore_index=255))
    assert "no mask holds foreground: is 255, given as void" in warning
