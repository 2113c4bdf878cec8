"""Several raters against brute force: the mean vote, every rater, the CRPS of volumes, and their agreement."""

import json
from dataclasses import replace
from itertools import combinations

import nibabel
import nrrd
import numpy as np
import pytest
import tifffile
from PIL import Image
from scipy.integrate import quad
from scipy.stats import norm

from densecal.errors import InputError
from densecal.evaluation.raters import evaluate_raters
from densecal.evaluation.worker import Settings
from densecal.io.map_options import MapOptions
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
    assert "b/x.png: a mask of shape (4, 4); expected (8, 8), like the first rater's" in errors


def save_nrrd(path, masks):
    directions = np.vstack([[np.nan] * 3, np.diag(np.float32([0.8, 0.9, 2.5]))])  # as exact as NIfTI
    nrrd.write(str(path), masks.transpose(0, 3, 2, 1), {"kinds": ["vector", *["domain"] * 3], "space": "RAS",
               "space directions": directions, "space origin": [0, 0, 0]})  # fmt: skip


STACKS = {
    "nii.gz": lambda path, masks: nibabel.save(nibabel.Nifti1Image(masks.T, np.diag([0.8, 0.9, 2.5, 1])), path),
    "nrrd": save_nrrd,
    "npy": np.save,
    "last.npy": lambda path, masks: np.save(path, np.moveaxis(masks, 0, -1)),
}


@pytest.mark.parametrize("classes", [None, K])
@pytest.mark.parametrize("kind", STACKS)
def test_volumes_with_the_masks_of_all_raters_are_scored_as_folders(root, tmp_path, kind, classes):
    maps, masks = ("maps", "masks") if classes is None else ("softmax", "labels")
    folders = [root / f"{masks}-{rater}" for rater in range(R)]
    for case, labels in enumerate(np.stack([read(folder) for folder in folders], axis=1)):
        STACKS[kind](tmp_path / f"{case}.{kind.removeprefix('last.')}", labels)
    options = MapOptions(channels_last=kind == "last.npy")
    figures = evaluate_raters(root / maps, [tmp_path], Settings(classes=classes, maps=options))
    assert figures.raters == tuple(f"{tmp_path}, rater {rater} of {R}" for rater in (1, 2, 3))
    own = evaluate_raters(root / maps, folders, Settings(classes=classes))
    assert replace(figures, raters=()) == replace(own, raters=())


PICTURES = {
    "pages.tif": lambda path, masks: tifffile.imwrite(path, masks, photometric="minisblack"),
    "bands.tif": lambda path, masks: tifffile.imwrite(
        path, np.moveaxis(masks, 0, -1), photometric="minisblack", planarconfig="contig"
    ),
    "planes.tif": lambda path, masks: tifffile.imwrite(path, masks, photometric="minisblack", planarconfig="separate"),
    "npy": np.save,
}


@pytest.mark.parametrize("classes", [None, K])
@pytest.mark.parametrize("kind", PICTURES)
def test_pictures_with_the_masks_of_all_raters_are_scored_as_folders(tmp_path, kind, classes):
    rng = np.random.default_rng(0)
    folders = [tmp_path / name for name in ("maps", "all", *map(str, range(R)))]
    for folder in folders:
        folder.mkdir()
    for case in range(3):
        p = rng.random((12, 14) if classes is None else (K, 12, 14)) ** 2
        np.save(tmp_path / f"maps/{case}.npy", p if classes is None else p / p.sum(axis=0))
        masks = rng.integers(0, 2 if classes is None else K, (R, 12, 14)).astype(np.uint8)
        PICTURES[kind](tmp_path / f"all/{case}.{kind.rpartition('.')[2]}", masks)
        for rater, mask in enumerate(masks):
            Image.fromarray(mask).save(tmp_path / f"{rater}/{case}.png")
    own, stacked = (
        evaluate_raters(folders[0], raters, Settings(classes=classes)) for raters in (folders[2:], [folders[1]])
    )
    assert replace(stacked, raters=()) == replace(own, raters=())
    assert own.ece_raters[0] != own.ece_raters[1]


def test_files_of_which_it_is_not_clear_where_the_raters_are_refused(tmp_path):
    (tmp_path / "maps").mkdir()
    for case in "ab":
        np.save(tmp_path / f"maps/{case}.npy", np.full((12, 14), 0.7))

    def message(kind, *masks, classes=None, **options):
        folder = tmp_path / kind
        folder.mkdir()
        for case, mask in zip("ab", masks, strict=False):
            np.save(folder / f"{case}.npy", mask)
        with pytest.raises(InputError) as error:
            evaluate_raters(tmp_path / "maps", [folder], Settings(classes=classes, maps=MapOptions(**options)))
        return str(error.value)

    few, many, single = (np.ones(shape, bool) for shape in ((2, 12, 14), (3, 12, 14), (12, 14)))
    last = np.moveaxis(few, 0, -1)
    assert message("last", last, last).endswith(
        "a.npy: an array of shape (12, 14, 2); expected raters first, or --channels-last"
    )
    assert message("first", few, few, channels_last=True).endswith(
        "a.npy: an array of shape (2, 12, 14); expected raters last, or no --channels-last"
    )
    assert message("unlike", few, many).endswith("b.npy: masks of 3 raters; expected masks of 2, as in the first file")
    assert message("one", few, single).endswith("b.npy: masks of 1 raters; expected masks of 2, as in the first file")
    assert "a.npy: a mask of one rater; expected a folder of masks for each of two raters" in message(
        "alone", single, single
    )
    assert message("regions", few, few, classes=2, multilabel=True, region="0").endswith(
        "regions: one folder of masks beside --multilabel; expected a folder of masks for each rater"
    )
    (tmp_path / "png").mkdir()
    for case in "ab":
        Image.fromarray(np.uint8(single)).save(tmp_path / f"png/{case}.png")
    with pytest.raises(InputError, match=r"a\.png: a picture of one rater; expected a folder of masks for each"):
        evaluate_raters(tmp_path / "maps", [tmp_path / "png"], Settings())


def test_what_looks_wrong_is_said(tmp_path):
    for name in ("maps", "one", "two"):
        (tmp_path / name).mkdir()
    for case in range(2):
        Image.fromarray(np.uint8(np.linspace(0, 100, 256).reshape(16, 16))).save(tmp_path / f"maps/{case}.png")
        for name in ("one", "two"):
            Image.fromarray(np.uint8(np.tri(16) * 255)).save(tmp_path / f"{name}/{case}.png")
    folders = (tmp_path / "maps", tmp_path / "one", tmp_path / "two")
    code, _, err = run("raters", *folders)
    assert code == 2
    assert "no level above 100 in any 8-bit map" in err
    for case in range(2):
        Image.fromarray(np.uint8(np.linspace(0, 100, 64).reshape(8, 8))).save(tmp_path / f"maps/{case}.png")
    code, _, err = run("raters", *folders, "--max-value", 100)
    assert code == 0
    assert "warning: 2 maps differ in size from their mask: they were resized to the mask bilinearly" in err
    assert run("raters", *folders, "--max-value", 100, "--max-pixels", 100)[0] == 2
