"""Volumes from end to end: evaluate, calibrate and risk-control against brute force in float64."""

from __future__ import annotations

import csv
import json
from itertools import product
from pathlib import Path

import nibabel
import nrrd
import numpy as np
import pytest
from scipy import stats
from scipy.ndimage import gaussian_filter

from densecal.calibrate.guarantees import MaskedMaps, control_risk
from densecal.errors import InputError
from densecal.evaluation.folders import evaluate
from densecal.evaluation.record import Record
from densecal.evaluation.worker import Settings
from densecal.io.map_files import read_map
from densecal.io.readers.registry import find_reader
from densecal.metrics import CalibrationMeter
from densecal.metrics.cases import aurc_interval
from tests.io.test_volumes import write_metaimage, write_nifti, write_nifti2, write_nrrd
from tests.metrics.reference import equal_width
from tests.running import run

K = 3
SHAPE = (8, 9, 10)  # Z, Y, X
SPACING = (2.5, 0.8, 1.0)
AFFINE = np.diag([*SPACING[::-1], 1.0])
CASES = [f"case{i}" for i in range(4)]


def draw(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Smooth class probabilities (K, Z, Y, X) and labels that they are roughly right about."""
    rng = np.random.default_rng(seed)
    z = gaussian_filter(rng.normal(size=(K, *SHAPE)), (0, 2, 2, 2)) * 14
    y = (z + rng.normal(size=z.shape)).argmax(axis=0).astype(np.uint8)
    p = np.exp(z)
    return (p / p.sum(axis=0)).astype(np.float32), y


def save(path: Path, array: np.ndarray, affine: np.ndarray = AFFINE) -> None:
    path.parent.mkdir(exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(array.T, affine), path)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("volumes")
    for seed, case in enumerate(CASES):
        p, y = draw(seed)
        save(root / "softmax" / f"{case}.nii.gz", p)
        save(root / "labels" / f"{case}.nii.gz", y)
        save(root / "maps" / f"{case}.nii.gz", p[1])
        save(root / "masks" / f"{case}.nii.gz", (y == 1).astype(np.uint8))
    return root


def pooled(binary: bool) -> tuple[np.ndarray, np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
    """Confidence and correctness of all voxels, and the predictions and labels of every case."""
    cases = []
    for seed in range(len(CASES)):
        p, y = draw(seed)
        p = p.astype(np.float64)
        cases.append((p[1], (y == 1).astype(int)) if binary else (p, y.astype(int)))
    if binary:
        confidence = [np.maximum(p, 1 - p) for p, _ in cases]
        correct = [(p > 0.5) == y for p, y in cases]
    else:
        confidence = [p.max(axis=0) for p, _ in cases]
        correct = [p.argmax(axis=0) == y for p, y in cases]
    return np.ravel(confidence), np.ravel(correct).astype(float), cases


def near_other_class(labels: np.ndarray, distance: float) -> np.ndarray:
    """Tell which voxels have one of another class within a distance in mm, voxel by voxel."""
    positions = np.array(list(product(*map(range, labels.shape)))) * SPACING
    flat = labels.ravel()
    near = [
        (np.linalg.norm(positions[flat != flat[i]] - positions[i], axis=1) <= distance + 1e-9).any()
        for i in range(len(flat))
    ]
    return np.array(near)


@pytest.mark.parametrize("binary", [True, False])
def test_evaluate_measures_the_voxels_of_all_cases(root, binary):
    folders, settings = (("maps", "masks"), None) if binary else (("softmax", "labels"), Settings(classes=K))
    record = evaluate(root / folders[0], root / folders[1], settings=settings).record
    confidence, correct, _ = pooled(binary)
    assert record.pixels == len(CASES) * np.prod(SHAPE)
    assert record.images == len(CASES)
    assert record.calibration["ece_ew"] == pytest.approx(equal_width(confidence, correct, 10)["ece"], abs=1e-12)
    assert record.calibration["accuracy"] == pytest.approx(correct.mean(), abs=1e-12)
    size, cuts = np.prod(SHAPE), range(0, len(correct), np.prod(SHAPE))
    own = [equal_width(confidence[i : i + size], correct[i : i + size], 10)["ece"] for i in cuts]
    assert record.calibration["ece_image_mean"] == pytest.approx(np.mean(own), abs=1e-12)
    assert not record.warnings


def test_boundary_bands_of_volumes_are_in_millimetres(root):
    record = evaluate(root / "softmax", root / "labels", settings=Settings(classes=K)).record
    fast = evaluate(root / "softmax", root / "labels", settings=Settings(classes=K, full=False)).record
    confidence, correct, cases = pooled(False)
    # far apart in millimetres, the band of 5 mm leaves voxels out
    coarse = 10.0
    meter = CalibrationMeter(num_classes=K)
    for p, y in cases:
        meter.update(p[None], y[None], spacing=[coarse * s for s in SPACING])
    near = np.concatenate([near_other_class(y, 15.0 / coarse) for _, y in cases])
    assert 0 < near.sum() < near.size
    expected = equal_width(confidence[near], correct[near], 10)["ece"]
    assert meter.compute().ece_boundary_15 == pytest.approx(expected, abs=1e-12)
    near = np.concatenate([near_other_class(y, 5.0) for _, y in cases])
    expected = equal_width(confidence[near], correct[near], 10)["ece"]
    assert record.calibration["ece_boundary_5"] == pytest.approx(expected, abs=1e-12)
    assert np.isnan(fast.calibration["ece_boundary_5"])


def test_the_case_is_the_unit_of_intervals(root):
    evaluation = evaluate(root / "maps", root / "masks")
    meter = CalibrationMeter()
    for p, y in pooled(True)[2]:
        meter.update(p[None, None], y[None, None])
    assert evaluation.record.calibration.ci["ece_ew"] == pytest.approx(meter.compute().ci["ece_ew"], abs=1e-12)
    assert len(evaluation.rows) == len(CASES)


def test_a_meter_counts_volumes_with_a_channel_axis():
    p, y = draw(0)
    whole, flat = CalibrationMeter(), CalibrationMeter()
    whole.update(p[None, 1:2], y[None, None] == 1)
    flat.update(p[1].ravel(), (y == 1).ravel())
    assert whole.compute().ece_em == flat.compute().ece_em
    assert not np.isnan(whole.compute().ece_boundary_5)
    levels = CalibrationMeter()
    levels.update(np.rint(p[None, 1:2] * 255).astype(np.uint8), y[None] == 1, spacing=SPACING)
    assert levels.compute().pixels == p[1].size
    with pytest.raises(ValueError, match=r"expected the same shape \(B, 1, D, H, W\)"):
        CalibrationMeter().update(p[None], (y == 1)[None])
    with pytest.raises(ValueError, match="spacing along 3 axes; expected 2"):
        CalibrationMeter().update(p[0, 0], y[0] == 1, spacing=SPACING)


def test_volumes_without_a_spacing_are_named(root, tmp_path):
    for name in ("maps", "masks"):
        (tmp_path / name).mkdir()
    for seed, case in enumerate(CASES):
        p, y = draw(seed)
        np.save(tmp_path / "maps" / f"{case}.npy", p[1])
        np.save(tmp_path / "masks" / f"{case}.npy", y == 1)
    record = evaluate(tmp_path / "maps", tmp_path / "masks").record
    assert record.warnings == (
        "4 of 4 volumes do not specify the spacing of voxels: their distances are in voxels, not in mm",
    )
    same = evaluate(root / "maps", root / "masks").record
    assert record.calibration["ece_ew"] == same.calibration["ece_ew"]


def test_volumes_and_pictures_are_not_mixed(root, tmp_path):
    for name in ("maps", "masks"):
        (tmp_path / name).mkdir()
        for path in (root / name).iterdir():
            (tmp_path / name / path.name).symlink_to(path)
    np.save(tmp_path / "maps" / "flat.npy", draw(0)[0][1, 0])
    np.save(tmp_path / "masks" / "flat.npy", draw(0)[1][0] == 1)
    with pytest.raises(InputError, match="4 volumes among 5 files; expected only volumes, or only pictures"):
        evaluate(tmp_path / "maps", tmp_path / "masks")


@pytest.mark.parametrize("folders", [("maps", "masks"), ("softmax", "labels", "--classes", K)])
def test_parts_of_volumes_merge_into_the_whole(root, tmp_path, folders):
    maps, masks, *options = folders
    assert run("evaluate", root / maps, root / masks, *options, "--json", tmp_path / "all.json")[0] == 0
    parts = []
    for part in (CASES[:1], CASES[1:]):
        for name in (maps, masks):
            folder = tmp_path / part[0] / name
            folder.mkdir(parents=True)
            for case in part:
                (folder / f"{case}.nii.gz").symlink_to(root / name / f"{case}.nii.gz")
        parts.append(tmp_path / f"{part[0]}.sketch")
        paths = (tmp_path / part[0] / name for name in (maps, masks))
        assert run("evaluate", *paths, *options, "--dataset", "d", "--partial", parts[-1])[0] == 0
    assert run("merge", *parts, "--json", tmp_path / "merged.json")[0] == 0
    whole, merged = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("all", "merged"))
    for key in ("pixels", "segmentation", "segmentation_ci", "warnings", "cases"):
        assert whole[key] == merged[key]
    intervals = whole["calibration"].pop("ci"), merged["calibration"].pop("ci")
    assert whole["calibration"] == pytest.approx(merged["calibration"], abs=1e-12)
    assert intervals[0]["ece_ew"] == pytest.approx(intervals[1]["ece_ew"], abs=1e-12)


def test_a_temperature_is_fitted_on_voxels(root, tmp_path):
    arguments = ("calibrate", "fit", "temperature")
    assert run(*arguments, root / "softmax", root / "labels", "--classes", K, "--out", tmp_path / "c.json")[0] == 0
    fitted = json.loads((tmp_path / "c.json").read_text())["temperature"]
    z = np.concatenate([np.log(p).reshape(K, -1) for p, _ in pooled(False)[2]], axis=1)
    y = np.concatenate([labels.ravel() for _, labels in pooled(False)[2]])

    def nll(s: float) -> float:
        scaled = s * z - np.log(np.exp(s * z).sum(axis=0))
        return -scaled[y, np.arange(len(y))].mean()

    assert nll(1 / fitted) <= min(nll(1 / fitted * 1.001), nll(1 / fitted * 0.999))


def test_risk_is_controlled_per_case(root):
    control = control_risk(MaskedMaps(root / "maps", root / "masks"), 0.4)
    cases = pooled(True)[2]
    missed = [[(p[y == 1] < t).mean() for p, y in cases] for t in np.linspace(0, 1, 501)]
    # with n cases, the bound of a new case is (n * mean + 1) / (n + 1)
    allowed = (len(cases) * np.mean(missed, axis=1) + 1) / (len(cases) + 1) <= 0.4
    assert control.threshold == pytest.approx(np.linspace(0, 1, 501)[allowed].max(), abs=0.003)
    assert control.images == len(CASES)


WRITERS = {"nii": write_nifti, "nii.gz": write_nifti, "b.nii": write_nifti2, "nrrd": write_nrrd, "mha": write_metaimage}


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("kind", WRITERS)
def test_apply_keeps_format_and_geometry(tmp_path, kind, several):
    p, _ = draw(0)
    (tmp_path / "maps").mkdir()
    path = WRITERS[kind](tmp_path / "maps" / f"case.{kind}", p if several else p[1])
    calibrator = {"densecal": "calibrator", "version": 1, "method": "temperature", "temperature": 2.0}
    (tmp_path / "c.json").write_text(json.dumps(calibrator | {"classes": K if several else 1}))
    arguments = ("calibrate", "apply", tmp_path / "c.json", tmp_path / "maps", "--out", tmp_path / "out")
    assert run(*arguments)[0] == 0
    assert run(*arguments)[0] == 0, "it may replace its own files"
    written = tmp_path / "out" / path.name
    z = np.log(p.astype(np.float64) if several else p[1] / (1 - p[1].astype(np.float64)))
    expected = np.exp(z / 2) / np.exp(z / 2).sum(axis=0) if several else 1 / (1 + np.exp(-z / 2))
    with find_reader(path)(path, None, 10**6) as source, find_reader(written)(written, None, 10**6) as result:
        assert np.allclose(result.geometry.steps, source.geometry.steps, atol=1e-12)
        assert np.allclose(result.geometry.origin, source.geometry.origin, atol=1e-12)
        assert result.channels == source.channels
        assert result.shape == source.shape
    assert read_map(written, K if several else None) == pytest.approx(expected, abs=1e-6)
    if "nii" in kind:
        before, after = nibabel.load(path), nibabel.load(written)
        assert np.array_equal(before.affine, after.affine)
        assert before.shape == after.shape
        assert after.get_data_dtype() == np.float32
    elif kind == "nrrd":
        values, _ = nrrd.read(str(written), index_order="C")
        assert np.allclose(np.moveaxis(values, -1, 0) if several else values, expected, atol=1e-6)
    path.replace(written)
    assert run("calibrate", "apply", tmp_path / "c.json", tmp_path / "out", "--out", tmp_path / "out")[0] == 2
    stranger = (tmp_path / "maps" / path.name, written)
    stranger[0].write_bytes(written.read_bytes())
    code, _, err = run(*arguments)
    assert code == 2
    assert "a file that densecal calibrate apply did not write" in err


def surface_distances(predicted: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distances in mm from the surface voxels of either object to the nearest one of the other."""

    def surface(inside: np.ndarray) -> np.ndarray:
        padded = np.pad(inside, 1)
        inner = np.ones_like(inside)
        for axis, step in product(range(3), (-1, 1)):
            inner &= np.roll(padded, step, axis)[1:-1, 1:-1, 1:-1]
        return np.argwhere(inside & ~inner) * SPACING

    one, other = surface(predicted), surface(truth)
    apart = np.linalg.norm(one[:, None] - other[None], axis=2)
    return apart.min(axis=1), apart.min(axis=0)


def test_cases_are_scored_class_by_class(root, tmp_path):
    maps, masks = tmp_path / "softmax", tmp_path / "labels"
    cases = [(p.astype(np.float32), y.astype(np.uint8)) for p, y in pooled(False)[2]]
    cases[0][1][cases[0][1] == 2] = 0  # absent from the mask
    cases[1][0][:] = np.moveaxis(np.eye(K, dtype=np.float32)[cases[1][0][:2].argmax(axis=0)], -1, 0)
    cases[1][1][cases[1][1] == 2] = 1  # absent from both
    for case, (p, y) in zip(CASES, cases, strict=True):
        save(maps / f"{case}.nii", p)
        save(masks / f"{case}.nii", y)
    record = evaluate(maps, masks, settings=Settings(classes=K, tolerance=1.5)).record
    assert record.cases.unit == "ml"
    assert record.cases.tolerance == 1.5
    ml = np.prod(SPACING) / 1000
    risks = []
    for case, (p, y), scores in zip(CASES, cases, record.cases.table, strict=True):
        predicted = p.argmax(axis=0)
        dice = []
        for k in range(K):
            mine, truth = predicted == k, y == k
            size = mine.sum() + truth.sum()
            dice.append(2 * (mine & truth).sum() / size if size else np.nan)
            assert scores.volume[k] == pytest.approx(mine.sum() * ml, rel=1e-6)  # NIfTI keeps 24 bits
            assert scores.true_volume[k] == pytest.approx(truth.sum() * ml, rel=1e-6)
            if k and mine.any() and truth.any():
                forth, back = surface_distances(mine, truth)
                far = max(np.percentile(forth, 95), np.percentile(back, 95))
                close = ((forth <= 1.5).sum() + (back <= 1.5).sum()) / (len(forth) + len(back))
                assert scores.hd95[k] == pytest.approx(far, rel=1e-6)
                assert scores.nsd[k] == pytest.approx(close, abs=1e-12)
            elif k:
                assert np.isnan(scores.hd95[k])
                assert scores.nsd[k] == 0 if size else np.isnan(scores.nsd[k])
        assert scores.name == case
        assert scores.dice == pytest.approx(dice, abs=1e-12, nan_ok=True)
        risks.append(1 - np.nanmean(dice[1:]))
    assert record.cases.trust.risk == pytest.approx(np.mean(risks), abs=1e-12)
    for column, average in enumerate(("mean", "foreground", "interior", "patch")):
        confidence = np.array([scores.confidence[column] for scores in record.cases.table])
        ordered = np.array(risks)[np.argsort(-confidence, kind="stable")]
        expected = np.mean(np.cumsum(ordered) / np.arange(1, len(ordered) + 1))
        assert record.cases.trust.by[average].aurc == pytest.approx(expected, abs=1e-12)
        assert record.cases.trust.by[average].curve[-1] == pytest.approx(np.mean(risks), abs=1e-12)
        assert record.cases.trust.by[average].ci == pytest.approx(aurc_interval(confidence, np.array(risks)), abs=1e-12)
    last = record.cases.classes[2]
    assert (last.present, last.absent, last.invented, last.missed) == (3, 1, 1, 0)
    own = [s.dice[2] for s in record.cases.table if not np.isnan(s.dice[2])]
    assert last.means["dice"] == pytest.approx(np.mean(own), abs=1e-12)
    errors = [s.volume[2] - s.true_volume[2] for s in (record.cases.table[i] for i in (0, 2, 3))]
    half = stats.t.ppf(0.975, 2) * np.std(errors, ddof=1) / np.sqrt(3)
    assert last.means["volume_bias"] == pytest.approx(np.mean(errors), abs=1e-12)
    assert last.ci["volume_bias"] == pytest.approx((np.mean(errors) - half, np.mean(errors) + half), abs=1e-9)
    assert (
        Record.from_json(json.loads(json.dumps(record.to_json()).replace("NaN", "null")), "x").cases.classes[2] == last
    )


@pytest.mark.parametrize("pattern", ["case", "case[01]|case"])
def test_groups_are_the_units_of_the_interval_of_the_area(root, tmp_path, pattern):
    path = tmp_path / "a.json"
    folders = (root / "softmax", root / "labels")
    assert run("evaluate", *folders, "--classes", K, "--groups", pattern, "--json", path)[0] == 0
    cases = Record.from_json(json.loads(path.read_text()), "x").cases
    if pattern == "case":  # a single group
        assert cases.trust.by["mean"].ci is None
        return
    risk = 1 - np.array([np.nanmean(scores.dice[1:]) for scores in cases.table])
    groups = np.array(["case0", "case1", "case", "case"])
    for column, name in enumerate(cases.trust.by):
        confidence = np.array([scores.confidence[column] for scores in cases.table])
        assert cases.trust.by[name].ci == pytest.approx(aurc_interval(confidence, risk, groups), abs=1e-9)


def test_scores_of_cases_are_in_the_table_and_the_csv_file(root, tmp_path):
    code, out, _ = run(
        "evaluate", root / "softmax", root / "labels", "--classes", K, "--class-names", "air,liver,lesion", "--csv",
        tmp_path / "a.csv", "--tolerance", 2,
    )  # fmt: skip
    assert code == 0
    for name in ("dice_case_1", "hd95_case_2", "volume_bias_case_1", "aurc_case_patch"):
        assert name in out
    assert "surface Dice at 2 mm" in out
    assert "liver, mean over cases that show it: 4, 0 without" in out
    (row,) = csv.DictReader((tmp_path / "a.csv").open())
    assert float(row["dice_case_1_low"]) < float(row["dice_case_1"]) < float(row["dice_case_1_high"])
    low, area, high = (float(row[f"aurc_case_foreground{end}"]) for end in ("_low", "", "_high"))
    assert 0 <= low < area < high <= 1
    assert run("evaluate", root / "maps", root / "masks", "--tolerance", 0)[0] == 2
