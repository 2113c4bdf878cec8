"""Maps as people have them: logits, other scales, channels last, archives, names with ends. Against brute force."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from densecal.data.pairs import find_pairs
from densecal.errors import InputError
from densecal.io.map_files import read_map
from densecal.io.map_options import MapOptions
from tests.adversarial.common import assert_one_line, densecal

K, BINS = 3, 10
ROUNDING = 5.1e-11
"""Files of scores keep 10 digits."""


def ece(p: np.ndarray, y: np.ndarray) -> float:
    """Brute force: top confidence against correctness in equal-width bins, pixel by pixel."""
    if p.ndim == 2:
        confidence, correct = np.maximum(p, 1 - p), (p > 0.5) == y
    else:
        confidence, correct = p.max(axis=0), p.argmax(axis=0) == y
    sums = np.zeros((BINS, 2))
    for c, hit in zip(confidence.ravel().tolist(), correct.ravel().tolist(), strict=True):
        sums[min(int(c * BINS), BINS - 1)] += (c, hit)
    return float(np.abs(sums[:, 0] - sums[:, 1]).sum() / confidence.size)


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z.astype(np.float64) - z.max(axis=0).astype(np.float64))
    return e / e.sum(axis=0)


def bilinear(z: np.ndarray, height: int, width: int) -> np.ndarray:
    """Brute force over target pixels: centres of pixels are at i + 0.5, the border is repeated."""
    out = np.empty((*z.shape[:-2], height, width))
    rows, columns = z.shape[-2:]
    for i in range(height):
        for j in range(width):
            y = max((i + 0.5) * rows / height - 0.5, 0.0)
            x = max((j + 0.5) * columns / width - 0.5, 0.0)
            top, left = int(y), int(x)
            bottom, right = min(top + 1, rows - 1), min(left + 1, columns - 1)
            v, u = y - top, x - left
            upper = (1 - u) * z[..., top, left] + u * z[..., top, right]
            lower = (1 - u) * z[..., bottom, left] + u * z[..., bottom, right]
            out[..., i, j] = (1 - v) * upper + v * lower
    return out


@pytest.fixture
def truth(tmp_path) -> dict[str, np.ndarray]:
    """Write three masks of K classes into `labels` and as foreground into `masks`; return the labels."""
    rng = np.random.default_rng(0)
    labels = {stem: rng.integers(0, K, (12, 16)).astype(np.uint8) for stem in "abc"}
    for folder, scale in (("labels", 1), ("masks", 255)):
        (tmp_path / folder).mkdir()
        for stem, y in labels.items():
            pixels = y if scale == 1 else (y == 1) * np.uint8(255)
            Image.fromarray(pixels).save(tmp_path / folder / f"{stem}.png")
    (tmp_path / "maps").mkdir()
    return labels


def logits_of(y: np.ndarray, seed: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, shape).astype(np.float32)


def measured(folder: Path, masks: str, *options: str) -> dict[str, float]:
    code, _, errors = densecal(folder, "evaluate", "maps", masks, "--json", "scores.json", "--workers", "1", *options)
    assert code == 0, errors
    return json.loads((folder / "scores.json").read_text()) | {"errors": errors}


def pooled(maps: list[np.ndarray], labels: list[np.ndarray]) -> float:
    return ece(np.concatenate(maps, axis=-1), np.concatenate(labels, axis=-1))


@pytest.mark.parametrize("size", [(12, 16), (6, 5)])
def test_logits_are_scored_as_their_softmax_and_resized_before_it(tmp_path, truth, size):
    maps = []
    for seed, (stem, y) in enumerate(truth.items()):
        z = logits_of(y, seed, (K, *size))
        np.save(tmp_path / "maps" / f"{stem}.npy", z)
        maps.append(softmax(bilinear(z.astype(np.float64), 12, 16)))
    scores = measured(tmp_path, "labels", "--classes", str(K), "--logits")
    assert scores["calibration"]["ece_ew"] == pytest.approx(pooled(maps, list(truth.values())), abs=ROUNDING)
    said = "their logits were resized to the mask bilinearly, before the softmax" in scores["errors"]
    assert said == (size != (12, 16))


@pytest.mark.parametrize("size", [(12, 16), (24, 20)])
def test_logits_of_foreground_are_scored_as_their_sigmoid(tmp_path, truth, size):
    maps = []
    for seed, (stem, y) in enumerate(truth.items()):
        z = logits_of(y, seed, size)
        np.save(tmp_path / "maps" / f"{stem}.npy", z)
        maps.append(1 / (1 + np.exp(-bilinear(z.astype(np.float64), 12, 16))))
    scores = measured(tmp_path, "masks", "--logits")
    expected = pooled(maps, [y == 1 for y in truth.values()])
    assert scores["calibration"]["ece_ew"] == pytest.approx(expected, abs=ROUNDING)


def test_extreme_logits_give_probabilities(tmp_path):
    np.save(tmp_path / "a.npy", np.array([[-800.0, 0.0, 800.0, -30.0]]))
    p = read_map(tmp_path / "a.npy", options=MapOptions(logits=True))
    assert p[0].tolist() == pytest.approx([0.0, 0.5, 1.0, 9.357622968839299e-14], rel=1e-12)
    np.save(tmp_path / "a.npy", np.array([[[-800.0]], [[800.0]]]))
    assert read_map(tmp_path / "a.npy", 2, options=MapOptions(logits=True)).ravel().tolist() == [0.0, 1.0]


@pytest.mark.parametrize("kind", ["uint8 image", "float array", "int array"])
def test_percentages_are_scored_as_probabilities(tmp_path, truth, kind):
    maps = []
    for seed, stem in enumerate(truth):
        percent = np.random.default_rng(seed).integers(0, 101, (12, 16))
        if kind == "uint8 image":
            Image.fromarray(percent.astype(np.uint8)).save(tmp_path / "maps" / f"{stem}.png")
        else:
            np.save(tmp_path / "maps" / f"{stem}.npy", percent.astype(np.float32 if "float" in kind else np.int64))
        maps.append(percent / 100)
    scores = measured(tmp_path, "masks", "--max-value", "100")
    expected = pooled(maps, [y == 1 for y in truth.values()])
    assert scores["calibration"]["ece_ew"] == pytest.approx(expected, abs=ROUNDING)


@pytest.mark.parametrize("top", [1, 100])
def test_levels_of_another_scale_are_recognised(tmp_path, truth, top):
    for seed, stem in enumerate(truth):
        levels = np.random.default_rng(seed).integers(0, top + 1, (12, 16)).astype(np.uint8)
        Image.fromarray(levels).save(tmp_path / "maps" / f"{stem}.png")
    result = densecal(tmp_path, "evaluate", "maps", "masks")
    assert_one_line(result, f"no level above {top} in any 8-bit map", f"--max-value {top}", "--max-value 255", "argmax")
    assert measured(tmp_path, "masks", "--max-value", "255")["images"] == 3


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([-4.0, 3.5], ["--logits"]),
        ([0.0, 3.5], ["--max-value 100", "--logits"]),
        ([0.0, 99.5], ["--max-value 100", "--logits"]),
        ([0.0, 200.5], ["--max-value 255"]),
        ([0.0, 4.0], ["argmax", "--max-value 100"]),
        (np.array([0, 4]), ["int64", "argmax", "--max-value 100"]),
    ],
)
def test_what_cannot_be_probabilities_is_refused_with_the_option(tmp_path, values, words):
    np.save(tmp_path / "a.npy", np.tile(values, (3, 2)))
    with pytest.raises(InputError) as error:
        read_map(tmp_path / "a.npy")
    for word in words:
        assert word in str(error.value)


def test_values_outside_the_scale_given_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.array([[0.0, 101.0]]))
    with pytest.raises(InputError, match=r"values from 0 to 101; expected values from 0 to 100 \(--max-value\)"):
        read_map(tmp_path / "a.npy", options=MapOptions(max_value=100))


def test_probabilities_are_not_taken_for_logits(tmp_path):
    p = softmax(np.random.default_rng(0).normal(0, 1, (3, 4, 5)))
    np.save(tmp_path / "a.npy", p)
    with pytest.raises(InputError, match="probabilities, which sum to 1"):
        read_map(tmp_path / "a.npy", 3, options=MapOptions(logits=True))


def test_scale_and_logits_exclude_each_other(tmp_path, truth):
    assert_one_line(densecal(tmp_path, "evaluate", "maps", "masks", "--logits", "--max-value", "1"), "--max-value")
    assert_one_line(densecal(tmp_path, "evaluate", "maps", "masks", "--max-value", "0"), "a number above 0")


def test_channels_last_and_a_key_of_an_archive(tmp_path, truth):
    maps = []
    for seed, (stem, y) in enumerate(truth.items()):
        p = softmax(logits_of(y, seed, (K, *y.shape)))
        np.savez(tmp_path / "maps" / f"{stem}.npz", scores=p.transpose(1, 2, 0), features=np.zeros(3))
        maps.append(p)
    options = ("--classes", str(K))
    result = densecal(tmp_path, "evaluate", "maps", "labels", *options)
    assert_one_line(result, "2 arrays (scores, features)", "--key")
    result = densecal(tmp_path, "evaluate", "maps", "labels", *options, "--key", "softmax")
    assert_one_line(result, "2 arrays (scores, features)", "an array named softmax")
    result = densecal(tmp_path, "evaluate", "maps", "labels", *options, "--key", "scores")
    assert_one_line(result, "(12, 16, 3)", "--channels-last")
    scores = measured(tmp_path, "labels", *options, "--key", "scores", "--channels-last")
    assert scores["calibration"]["ece_ew"] == pytest.approx(pooled(maps, list(truth.values())), abs=ROUNDING)


def test_ends_of_names_are_stripped_from_maps_and_masks(tmp_path, truth):
    maps = []
    for seed, stem in enumerate(truth):
        p = np.random.default_rng(seed).random((12, 16))
        np.save(tmp_path / "maps" / f"{stem}_pred.npy", p)
        (tmp_path / "masks" / f"{stem}.png").rename(tmp_path / "masks" / f"{stem}_gt.png")
        maps.append(p)
    assert_one_line(densecal(tmp_path, "evaluate", "maps", "masks"), "no mask of that name")
    scores = measured(tmp_path, "masks", "--strip-suffix", "_pred", "--strip-suffix", "_gt")
    expected = pooled(maps, [y == 1 for y in truth.values()])
    assert scores["calibration"]["ece_ew"] == pytest.approx(expected, abs=ROUNDING)
    np.save(tmp_path / "maps" / "a.npy", maps[0])
    result = densecal(tmp_path, "evaluate", "maps", "masks", "--strip-suffix", "_pred", "--strip-suffix", "_gt")
    assert_one_line(result, "the same stem as a.npy")


def test_calibrators_and_risk_control_read_the_same_maps(tmp_path, truth):
    """Logits in `maps` and their sigmoids in `sigmoids` give the same calibrator, maps and threshold."""
    (tmp_path / "sigmoids").mkdir()
    for seed, (stem, y) in enumerate(truth.items()):
        z = logits_of(y, seed, y.shape).astype(np.float64) + 2.0 * (y == 1)
        np.save(tmp_path / "maps" / f"{stem}_z.npy", z)
        np.save(tmp_path / "sigmoids" / f"{stem}.npy", 1 / (1 + np.exp(-z)))
    outcomes = []
    for folder, options in (("maps", ["--logits", "--strip-suffix", "_z"]), ("sigmoids", [])):
        cal, risk = f"{folder}-cal.json", f"{folder}-risk.json"
        for command in (
            ["calibrate", "fit", "temperature", folder, "masks", "--out", cal],
            ["calibrate", "apply", cal, folder, "--out", f"{folder}-out"],
            ["risk-control", folder, "masks", "--alpha", "0.3", "--json", risk],
        ):
            code, _, errors = densecal(tmp_path, *command, *options)
            assert code == 0, errors
        written = [np.load(tmp_path / f"{folder}-out" / f"{stem}.npy") for stem in truth]
        temperature = json.loads((tmp_path / cal).read_text())["temperature"]
        outcomes.append((temperature, json.loads((tmp_path / risk).read_text())["threshold"], np.stack(written)))
    (t, threshold, maps), (other_t, other_threshold, other_maps) = outcomes
    assert t == pytest.approx(other_t, rel=1e-9)
    assert threshold == other_threshold
    assert np.allclose(maps, other_maps, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("maps", "masks", "hint"),
    [
        ("a{}_prob", "a{}", ", or --strip-suffix _prob"),
        ("a{}", "a{}.gt", ", or --strip-suffix .gt"),
        ("a{}_pred", "a{}_proof", ", or --strip-suffix _pred --strip-suffix _proof"),
        ("a{}_prob", "b{}_mask", ""),
        ("{}x", "1{}", ""),
    ],
)
def test_names_that_differ_in_their_ends_alone_name_the_option(tmp_path, maps, masks, hint):
    for folder, name in (("maps", maps), ("masks", masks)):
        (tmp_path / folder).mkdir()
        for case in (1, 2, 3):
            Image.fromarray(np.full((4, 4), 255, np.uint8)).save(tmp_path / folder / f"{name.format(case)}.png")
    with pytest.raises(InputError) as error:
        find_pairs(tmp_path / "maps", tmp_path / "masks")
    assert str(error.value).endswith(f"expected a mask of the same name in {tmp_path / 'masks'}{hint}")
    if hint:
        options = tuple(hint.split()[3::2])
        assert len(find_pairs(tmp_path / "maps", tmp_path / "masks", strip=options)[0]) == 3


def test_a_batch_of_one_image_names_the_option(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((1, 5, 16, 24)))
    with pytest.raises(InputError, match=r"shape \(1, 5, 16, 24\); expected shape \(H, W\), or --classes 5$"):
        read_map(tmp_path / "a.npy")
