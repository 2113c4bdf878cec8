"""Folders of nnU-Net: archives, labels and dataset.json, against brute force in float64."""

from __future__ import annotations

import json
from pathlib import Path

import nibabel
import numpy as np
import pytest
from PIL import Image

import densecal
from densecal.evaluation.worker import Settings
from densecal.io.map_options import MapOptions
from tests.adversarial.common import assert_one_line
from tests.adversarial.common import densecal as command

CASES = 20
CLASSES = {"background": 0, "liver": 1, "tumour": 2}
REGIONS = {"background": 0, "whole": [1, 2, 3], "core": [2, 3], "enhancing": 3}
SHAPE = (4, 9, 11)
AFFINE = np.diag([-0.8, -0.9, 2.5, 1.0])


def write_dataset_json(folder: Path, labels: dict[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = {"channel_names": {"0": "CT"}, "labels": labels, "numTraining": CASES, "file_ending": ".nii.gz"}
    (folder / "dataset.json").write_text(json.dumps(content))


def write_labels(path: Path, labels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".png":
        Image.fromarray(labels[0]).save(path)
    else:
        nibabel.save(nibabel.Nifti1Image(labels.transpose(2, 1, 0), AFFINE), path)  # (X, Y, Z)


def write_case(
    root: Path, name: str, p: np.ndarray, truth: np.ndarray, key: str = "probabilities", **more: str
) -> None:
    """Write a case as `nnUNetv2_predict --save_probabilities` does: labels, archive and pickle side by side."""
    ending = more.get("ending", ".nii.gz")
    write_labels(root / "nnunet-out" / f"{name}{ending}", p.argmax(axis=0).astype(np.uint8))
    np.savez_compressed(root / "nnunet-out" / f"{name}.npz", **{key: p})
    (root / "nnunet-out" / f"{name}.pkl").write_bytes(b"must never be opened")
    write_labels(root / "labelsTr" / f"{name}{ending}", truth)


def softmax_set(root: Path, labels: dict[str, int], shape: tuple[int, ...] = SHAPE, **more: str) -> tuple:
    """Write 20 cases of three classes; returns maps (N, K, pixels) and labels (N, pixels)."""
    rng = np.random.default_rng(0)
    maps, truths = [], []
    for i in range(CASES):
        z = rng.normal(0, 2, (3, *shape))
        p = (np.exp(z) / np.exp(z).sum(axis=0)).astype(np.float32)
        truth = np.where(rng.random(shape) < 0.6, z.argmax(axis=0), rng.integers(0, max(labels.values()) + 1, shape))
        write_case(root, f"case_{i:03}", p, truth.astype(np.uint8), **more)
        maps.append(p.reshape(3, -1))
        truths.append(truth.reshape(-1))
    write_dataset_json(root / "nnunet-out", labels)
    return np.stack(maps), np.stack(truths)


def evaluate(root: Path, *options: str) -> tuple[dict, str]:
    """Return what the command writes, with ten digits, and what it says."""
    words = ("evaluate", "nnunet-out", "labelsTr", "--json", "s.json", "--workers", "1", "--metrics", "fast", *options)
    code, _, errors = command(root, *words)
    assert code == 0, errors
    return json.loads((root / "s.json").read_text()), errors


def ece(confidence: np.ndarray, correct: np.ndarray, bins: int = 10) -> float:
    """Return the equal-width calibration error, bin by bin, in float64."""
    index = np.minimum((confidence * bins).astype(int), bins - 1)
    total = 0.0
    for b in range(bins):
        inside = index == b
        if inside.any():
            total += abs(confidence[inside].mean(dtype=np.float64) - correct[inside].mean()) * inside.mean()
    return total


def dice(a: np.ndarray, b: np.ndarray) -> float:
    return 2 * (a & b).sum() / (a.sum() + b.sum())


@pytest.mark.parametrize("labels", [CLASSES, CLASSES | {"ignore": 3}])
def test_twenty_volumes_give_the_figures_of_brute_force(tmp_path, labels):
    p, y = softmax_set(tmp_path, labels)
    record, errors = evaluate(tmp_path)
    valid = y != 3
    p, y = p.astype(np.float64).transpose(0, 2, 1)[valid], y[valid]
    confidence, chosen = p.max(axis=1), p.argmax(axis=1)
    assert record["images"] == CASES
    assert record["pixels"] == len(y)
    assert abs(record["segmentation"]["dice"] - np.mean([dice(chosen == k, y == k) for k in range(3)])) < 1e-9
    exact = densecal.evaluate(tmp_path / "nnunet-out", tmp_path / "labelsTr", settings=Settings(full=False)).record
    assert abs(exact.calibration["ece_ew"] - ece(confidence, chosen == y)) < 1e-12
    assert record["calibration"]["ece_ew"] == pytest.approx(exact.calibration["ece_ew"], abs=1e-10)
    assert record["settings"]["class_names"] == ["background", "liver", "tumour"]
    void = ", label 3 is void" if "ignore" in labels else ""
    assert f"note: nnunet-out: nnU-Net: 20 cases, 3 classes (background, liver, tumour){void}" in errors


@pytest.mark.parametrize(("shape", "ending"), [((1, 9, 11), ".png"), (SHAPE, ".nii.gz")])
@pytest.mark.parametrize("ignore", [False, True])
def test_regions_are_scored_one_by_one_as_sigmoids(tmp_path, shape, ending, ignore):
    rng = np.random.default_rng(1)
    labels = REGIONS | ({"ignore": 4} if ignore else {})
    p = 1 / (1 + np.exp(-rng.normal(0, 2, (CASES, 3, *shape))))
    y = rng.integers(0, 5 if ignore else 4, (CASES, *shape)).astype(np.uint8)
    for i in range(CASES):
        write_case(tmp_path, f"case_{i:03}", p[i].astype(np.float32), y[i], ending=ending)
    write_dataset_json(tmp_path / "nnunet-out", labels)
    records, errors = evaluate(tmp_path)
    assert "20 cases, 3 regions (whole, core, enhancing)" in errors
    valid = y != 4
    for index, name in enumerate(("whole", "core", "enhancing")):
        record = records["evaluations"][index]
        region = np.isin(y, REGIONS[name])[valid]
        q = p[:, index].astype(np.float32).astype(np.float64)[valid]
        assert record["dataset"] == f"labelsTr: {name}"
        assert record["pixels"] == valid.sum()
        settings = Settings(full=False, maps=MapOptions(region=name))
        exact = densecal.evaluate(tmp_path / "nnunet-out", tmp_path / "labelsTr", settings=settings).record
        assert abs(exact.calibration["ece_ew"] - ece(np.maximum(q, 1 - q), (q > 0.5) == region)) < 1e-12
        assert record["calibration"]["ece_ew"] == pytest.approx(exact.calibration["ece_ew"], abs=1e-10)
        assert abs(record["segmentation"]["dice"] - dice(q > 0.5, region)) < 1e-9
    chosen, _ = evaluate(tmp_path, "--region", "core")
    assert chosen["calibration"] == records["evaluations"][1]["calibration"]


def test_archives_of_version_one_are_read(tmp_path):
    p, y = softmax_set(tmp_path, CLASSES, key="softmax")
    (tmp_path / "nnunet-out" / "dataset.json").unlink()
    content = {"labels": {"0": "background", "1": "liver", "2": "tumour"}, "modality": {"0": "CT"}}
    (tmp_path / "dataset.json").write_text(json.dumps(content))  # above labelsTr, as in nnU-Net's raw data
    record, _ = evaluate(tmp_path)
    p, y = p.astype(np.float64).transpose(0, 2, 1).reshape(-1, 3), y.reshape(-1)
    assert abs(record["calibration"]["ece_ew"] - ece(p.max(axis=1), p.argmax(axis=1) == y)) < 1e-10


def test_a_cube_needs_no_word_about_its_axes(tmp_path):
    """nnU-Net's arrays are (Z, Y, X), whatever the lengths."""
    p, y = softmax_set(tmp_path, CLASSES, shape=(5, 5, 5))
    record, _ = evaluate(tmp_path)
    p, y = p.astype(np.float64).transpose(0, 2, 1).reshape(-1, 3), y.reshape(-1)
    assert abs(record["calibration"]["ece_ew"] - ece(p.max(axis=1), p.argmax(axis=1) == y)) < 1e-10


def test_cases_that_a_fold_held_out_need_not_be_all_that_have_labels(tmp_path):
    softmax_set(tmp_path, CLASSES)
    (tmp_path / "nnunet-out" / "case_000.npz").unlink()
    assert_one_line(refused(tmp_path), "case_000.nii.gz", "no prediction map of that name")
    fold = tmp_path / "model" / "fold_0" / "validation"
    fold.parent.mkdir(parents=True)
    (tmp_path / "nnunet-out").rename(fold)
    (fold / "dataset.json").rename(tmp_path / "model" / "dataset.json")
    code, _, errors = command(tmp_path, "evaluate", "model/fold_0/validation", "labelsTr", "--metrics", "fast")
    assert code == 0, errors
    assert "19 cases, 3 classes" in errors


# ------------------------------------------------------------------ refused


def refused(root: Path, *options: str) -> tuple[int, str, str]:
    """Return the result of the command, without the line that says what was found."""
    code, out, errors = command(root, "evaluate", "nnunet-out", "labelsTr", "--workers", "1", *options)
    return code, out, "".join(line for line in errors.splitlines(keepends=True) if not line.startswith("note:"))


def test_probabilities_without_dataset_json_are_refused(tmp_path):
    softmax_set(tmp_path, CLASSES)
    (tmp_path / "nnunet-out" / "dataset.json").unlink()
    expected = "--format plain with --key probabilities --classes K"
    assert_one_line(refused(tmp_path), "probabilities without dataset.json", expected)


def test_labels_without_probabilities_are_refused(tmp_path):
    softmax_set(tmp_path, CLASSES)
    (tmp_path / "nnunet-out" / "predict_from_raw_data_args.json").write_text("{}")
    for path in (tmp_path / "nnunet-out").glob("*.npz"):
        path.unlink()
    assert_one_line(refused(tmp_path), "no probabilities of nnU-Net", "--save_probabilities")


def test_two_descriptions_that_differ_are_refused(tmp_path):
    softmax_set(tmp_path, CLASSES)
    write_dataset_json(tmp_path, {"background": 0, "kidney": 1, "tumour": 2})
    assert_one_line(refused(tmp_path), "other labels", "dataset.json, because both describe the maps")


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ({"background": 0, "liver": 2}, "labels from 0 on, without gaps"),
        ({"background": 0, "liver": "one"}, "a label from 0 to 255, or a list of them"),
        ({"background": 0, "liver": 1, "ignore": [2, 3]}, "one label"),
        ([], "names of classes with their labels"),
    ],
)
def test_a_description_that_makes_no_sense_is_refused(tmp_path, labels, words):
    softmax_set(tmp_path, CLASSES)
    write_dataset_json(tmp_path / "nnunet-out", labels)
    assert_one_line(refused(tmp_path), "dataset.json: labels", words)


def test_a_label_that_the_description_does_not_have_is_refused(tmp_path):
    softmax_set(tmp_path, CLASSES)
    write_labels(tmp_path / "labelsTr" / "case_004.nii.gz", np.full(SHAPE, 7, np.uint8))
    assert_one_line(refused(tmp_path), "case_004.nii.gz", "label 7", "labels 0 to 2")
    write_dataset_json(tmp_path / "nnunet-out", REGIONS)
    assert_one_line(refused(tmp_path, "--region", "core"), "label 7; expected 0 to 3, the labels of", "--format plain")


def test_another_number_of_classes_than_the_description_has_is_refused(tmp_path):
    softmax_set(tmp_path, CLASSES)
    assert_one_line(refused(tmp_path, "--classes", "4"), "--classes: 4; expected 3, as nnU-Net has")


def test_volumes_that_were_turned_before_the_prediction_are_refused(tmp_path):
    softmax_set(tmp_path, CLASSES)
    (tmp_path / "nnunet-out" / "plans.json").write_text('{"image_reader_writer": "NibabelIOWithReorient"}')
    assert_one_line(refused(tmp_path), "plans.json: image_reader_writer", "SimpleITKIO or NibabelIO")


def test_an_unknown_region_is_refused(tmp_path):
    softmax_set(tmp_path, CLASSES)
    assert_one_line(refused(tmp_path, "--region", "core"), "--region: core; expected maps of several regions")
    write_dataset_json(tmp_path / "nnunet-out", REGIONS)
    assert_one_line(refused(tmp_path, "--region", "edge"), "--region: edge; expected one of whole, core, enhancing")


def test_an_unknown_or_wrong_format_is_refused(tmp_path):
    softmax_set(tmp_path, CLASSES)
    assert_one_line(refused(tmp_path, "--format", "nnunnet"), "--format: 'nnunnet'; expected auto, plain, nnunet")
    assert_one_line(refused(tmp_path, "--format", "plain"), "the same stem as case_000.nii.gz")
