"""Several raters against brute force: the mean vote, every rater, the CRPS of volumes, and their agreement."""

import json
from itertools import combinations

import nibabel
import numpy as np
import pytest
from PIL import Image
from scipy.integrate import quad
from scipy.stats import norm

from densecal.errors import InputError
from densecal.evaluation.raters import evaluate_raters
from densecal.evaluation.worker import Settings
from densecal.metrics.raters import volume_crps
from tests.running import run

K, R, CASES, SHAPE = 3, 3, 4, (5, 6, 7)
ML = 0.8 * 0.9 * 2.5 / 1000


def save(path, array):
    path.parent.mkdir(exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(array.T, np.diag([0.8, 0.9, 2.5, 1])), path)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("raters")
    for case in range(CASES):
        rng = np.random.default_rng(case)
        z = rng.normal(0, 2, (K, *SHAPE))
        p = np.exp(z) / np.exp(z).sum(axis=0)
        save(root / "softmax" / f"{case}.nii", p.astype(np.float32))
        save(root / "maps" / f"{case}.nii", p[1].astype(np.float32))
        for rater in range(R):
            y = (z + rng.normal(0, 1.5, z.shape)).argmax(axis=0).astype(np.uint8)
            save(root / f"labels-{rater}" / f"{case}.nii", y)
            save(root / f"masks-{rater}" / f"{case}.nii", (y == 1).astype(np.uint8))
    return root


def read(folder):
    arrays = [np.asarray(nibabel.load(folder / f"{case}.nii").dataobj).T for case in range(CASES)]
    return np.stack(arrays)


def ece(confidence, right):
    cell = np.minimum((confidence * 10).astype(int), 9)
    return sum(abs((confidence - right)[cell == b].sum()) for b in range(10)) / confidence.size


@pytest.mark.parametrize("classes", [None, K])
def test_figures_are_those_of_brute_force(root, classes):
    maps, masks = ("maps", "masks") if classes is None else ("softmax", "labels")
    folders = [root / f"{masks}-{rater}" for rater in range(R)]
    figures = evaluate_raters(root / maps, folders, Settings(classes=classes))
    p, y = read(root / maps).astype(np.float64), np.stack([read(folder) for folder in folders])
    q = np.stack([1 - p, p], axis=1) if classes is None else p
    predicted, confidence = (p > 0.5).astype(int) if classes is None else q.argmax(axis=1), q.max(axis=1)
    votes = (y == predicted).mean(axis=0)
    assert figures.ece_mean_vote == pytest.approx(ece(confidence, votes), abs=1e-12)
    low, high = figures.ece_mean_vote_ci
    assert low <= figures.ece_mean_vote <= high
    own = [ece(confidence, (mask == predicted).astype(float)) for mask in y]
    assert figures.ece_raters == pytest.approx(own, abs=1e-12)
    assert (figures.unit, figures.images) == ("ml", CASES)
    assert [scores.label for scores in figures.classes] == list(range(1, len(q[0])))
    for scores in figures.classes:
        k = scores.label
        crps, dice, agreement = [], [], []
        for case in range(CASES):
            volumes = [(mask[case] == k).sum() * ML for mask in y]
            crps.append(volume_crps(q[case, k].sum() * ML, np.array(volumes)))
            mine = predicted[case] == k
            dice += [2 * (mine & (m[case] == k)).sum() / (mine.sum() + (m[case] == k).sum()) for m in y]
            pairs = combinations([m[case] == k for m in y], 2)
            agreement += [2 * (a & b).sum() / (a.sum() + b.sum()) for a, b in pairs]
        assert scores.crps == pytest.approx(np.mean(crps), rel=1e-6)  # NIfTI keeps 24 bits of the spacing
        assert scores.dice == pytest.approx(np.mean(dice), abs=1e-12)
        assert scores.agreement == pytest.approx(np.mean(agreement), abs=1e-12)


def test_classes_that_a_layout_knows_need_not_be_told(root, tmp_path):
    (tmp_path / "maps").mkdir()
    for case, probabilities in enumerate(read(root / "softmax")):
        np.savez(tmp_path / "maps" / f"{case}.npz", probabilities=probabilities)
    names = {"background": 0, "one": 1, "two": 2}
    (tmp_path / "maps" / "dataset.json").write_text(json.dumps({"labels": names}))
    folders = [root / f"labels-{rater}" for rater in range(R)]
    told = evaluate_raters(root / "softmax", folders, Settings(classes=K))
    assert evaluate_raters(tmp_path / "maps", folders, Settings()) == told
    other = tmp_path / "rater"
    other.mkdir()
    for path in folders[0].iterdir():
        (other / path.name).symlink_to(path)
    (tmp_path / "maps" / "dataset.json").rename(other / "dataset.json")
    turned = {"background": 0, "two": 1, "one": 2}
    (root / "dataset.json").write_text(json.dumps({"labels": turned}))
    with pytest.raises(InputError, match=r"labels-0: other classes; expected those of .*rater"):
        evaluate_raters(tmp_path / "maps", [other, folders[0]], Settings())
    (root / "dataset.json").unlink()


@pytest.mark.parametrize("predicted", [-3.0, 1.0, 2.1, 9.0])
def test_the_crps_is_its_integral(predicted):
    volumes = np.array([1.0, 2.5, 3.0])
    curve = norm(volumes.mean(), volumes.std())
    parts = [(-60, predicted, lambda v: curve.cdf(v) ** 2), (predicted, 60, lambda v: curve.sf(v) ** 2)]
    expected = sum(quad(f, low, high, limit=500, points=[2.0])[0] for low, high, f in parts)
    assert volume_crps(predicted, volumes) == pytest.approx(expected, abs=1e-7)
    assert volume_crps(predicted, np.array([2.0, 2.0])) == abs(predicted - 2.0)


def test_the_command_prints_and_writes(root, tmp_path):
    folders = [root / f"labels-{rater}" for rater in range(R)]
    code, out, _ = run("raters", root / "softmax", *folders, "--classes", K, "--json", tmp_path / "a.json")
    assert code == 0
    assert "ece_mean_vote" in out
    assert "agreement_2" in out
    content = json.loads((tmp_path / "a.json").read_text())
    assert content["densecal"] == "raters"
    assert len(content["ece_raters"]) == R
    assert run("raters", root / "softmax", *folders, "--classes", K, "--json", tmp_path / "a.json")[0] == 0
    with pytest.raises(InputError, match="one rater; expected a folder of masks for each of two raters or more"):
        evaluate_raters(root / "maps", [root / "masks-0"], Settings())


def test_masks_of_different_sizes_are_one_line(tmp_path):
    rng = np.random.default_rng(0)
    for folder, side in (("maps", 8), ("a", 8), ("b", 4)):
        (tmp_path / folder).mkdir()
        Image.fromarray(rng.integers(0, 2, (side, side), np.uint8) * np.uint8(255)).save(tmp_path / folder / "x.png")
    code, _, errors = run("raters", tmp_path / "maps", tmp_path / "a", tmp_path / "b", "--workers", 1)
    assert (code, errors.count("\n")) == (2, 1)
    assert "b/x.png: a mask of shape (4, 4); expected (8, 8), as the first rater's" in errors
