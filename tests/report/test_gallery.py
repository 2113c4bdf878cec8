"""The gallery: the right images are chosen, and shown as they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from densecal.errors import InputError
from densecal.evaluation.folders import evaluate
from densecal.evaluation.worker import Settings
from densecal.report.gallery import Folders, folder_examples, most_overconfident
from tests.io.test_nnunet import softmax_set
from tests.report.material import COUNT, write_maps


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return write_maps(tmp_path_factory.mktemp("maps"))


def brute_force(folders, method):
    """Compute confidence, accuracy and entropy of every image."""
    figures = {}
    for path in sorted((folders.predictions / method).iterdir()):
        p = np.asarray(Image.open(path)) / 255
        y = np.asarray(Image.open(folders.masks / path.name)) > 127
        q = np.stack([p, 1 - p])
        entropy = -(q * np.log2(np.where(q > 0, q, 1))).sum(0)
        figures[path.stem] = (q.max(0).mean(), ((p > 0.5) == y).mean(), entropy.mean())
    return figures


def test_the_most_overconfident_images_come_first(folders):
    record = evaluate(folders.predictions / "sure", folders.masks).record
    examples = folder_examples([record], folders, 7)
    expected = brute_force(folders, "sure")
    order = sorted(expected, key=lambda name: expected[name][1] - expected[name][0])[:7]
    assert [example.name for example in examples] == order
    for example in examples:
        figures = example.confidence, example.accuracy, example.entropy
        assert figures == pytest.approx(expected[example.name], abs=1e-9)
        assert list(example.pictures) == ["image", "mask", "prediction", "confidence", "entropy"]
        p = np.asarray(Image.open(folders.predictions / "sure" / f"{example.name}.png"))
        assert np.array_equal(example.pictures["prediction"].pixels, p)
        shown = example.pictures["confidence"].pixels / 255
        assert shown == pytest.approx(2 * np.abs(p / 255 - 0.5), abs=1 / 255)


def test_images_are_optional_and_methods_are_matched_by_name(folders):
    records = [evaluate(folders.predictions / name, folders.masks, dataset="d").record for name in ("shy", "sure")]
    examples = folder_examples(records, Folders(folders.predictions, folders.masks), 2)
    assert [example.method for example in examples] == ["shy", "shy", "sure", "sure"]
    assert all("image" not in example.pictures for example in examples)
    named = [replace(records[0], name="another"), replace(records[1], name="third")]
    with pytest.raises(InputError, match="maps of shy on"):
        folder_examples(named, folders, 2)
    only = Folders(folders.predictions / "shy", folders.masks)
    assert {e.method for e in folder_examples(named[:1], only, 2)} == {"another"}  # one record, one folder


def test_data_sets_have_folders_of_their_own(folders, tmp_path):
    for kind, source in (("maps/m", folders.predictions / "shy"), ("masks", folders.masks), ("images", folders.images)):
        for dataset in ("a", "b"):
            (tmp_path / kind).mkdir(parents=True, exist_ok=True)
            (tmp_path / kind / dataset).symlink_to(source)
    records = [
        evaluate(tmp_path / "maps/m" / d, tmp_path / "masks" / d, name="m", dataset=d).record for d in ("a", "b")
    ]
    both = Folders(tmp_path / "maps", tmp_path / "masks", tmp_path / "images")
    examples = folder_examples(records, both, 3)
    assert [example.dataset for example in examples] == ["a"] * 3 + ["b"] * 3
    assert all("image" in example.pictures for example in examples)


def test_void_pixels_do_not_count(folders, tmp_path):
    maps, masks = tmp_path / "maps", tmp_path / "masks"
    maps.mkdir()
    masks.mkdir()
    y = np.zeros((8, 8), np.uint8)
    y[:4] = 255
    y[:, :4] = 128  # void: half of the image
    p = np.full((8, 8), 250, np.uint8)
    p[:, :4] = 128
    Image.fromarray(y).save(masks / "x.png")
    Image.fromarray(p).save(maps / "x.png")
    settings = Settings(ignore_index=128)
    (example,) = folder_examples([evaluate(maps, masks, settings=settings).record], Folders(maps, masks), 5)
    assert example.accuracy == 0.5
    assert example.confidence == pytest.approx(250 / 255)
    assert example.entropy < 0.2
    assert sorted(set(example.pictures["mask"].pixels.ravel().tolist())) == [0, 128, 255]


def test_several_classes(tmp_path):
    rng = np.random.default_rng(0)
    maps, masks = tmp_path / "maps", tmp_path / "masks"
    maps.mkdir()
    masks.mkdir()
    expected = {}
    for i in range(6):
        p = rng.dirichlet(np.full(4, 0.3), (10, 12)).transpose(2, 0, 1)
        y = rng.integers(0, 5, (10, 12)).astype(np.uint8)  # 4 is void
        np.save(maps / f"{i}.npy", p)
        Image.fromarray(y).save(masks / f"{i}.png")
        valid = y < 4
        entropy = -(p * np.log(np.where(p > 0, p, 1))).sum(0) / np.log(4)
        right = (p.argmax(0) == y)[valid].mean()
        expected[str(i)] = (p.max(0)[valid].mean(), right, entropy[valid].mean())
    record = evaluate(maps, masks, settings=Settings(classes=4, ignore_index=4)).record
    examples = folder_examples([record], Folders(maps, masks), 6)
    assert [e.name for e in examples] == sorted(expected, key=lambda k: expected[k][1] - expected[k][0])
    for example in examples:
        figures = example.confidence, example.accuracy, example.entropy
        assert figures == pytest.approx(expected[example.name], abs=1e-9)


def test_folders_of_a_tool_are_read_as_they_are_evaluated(tmp_path):
    """nnU-Net writes labels, archive and pickle of a case side by side."""
    p, y = softmax_set(tmp_path, {"background": 0, "liver": 1, "tumour": 2, "ignore": 3}, (1, 9, 11), ending=".png")
    maps, masks = tmp_path / "nnunet-out", tmp_path / "labelsTr"
    examples = folder_examples([evaluate(maps, masks).record], Folders(maps, masks), 3)
    assert len(examples) == 3
    for example in examples:
        case = int(example.name.removeprefix("case_"))
        valid = y[case] != 3
        assert example.accuracy == pytest.approx((p[case].argmax(axis=0) == y[case])[valid].mean(), abs=1e-9)
        assert example.pictures.keys() >= {"mask"}


def test_an_image_without_valid_pixels_is_no_example(folders):
    evaluation = evaluate(folders.predictions / "shy", folders.masks)
    evaluation.rows[3] = 0
    names = [name for name, _, _ in most_overconfident(evaluation, COUNT)]
    assert len(names) == COUNT - 1
    assert evaluation.stems[3] not in names


def test_thresholds_of_the_record_are_those_of_the_pixels(folders):
    thresholds = evaluate(folders.predictions / "shy", folders.masks).record.thresholds
    p = np.stack([np.asarray(Image.open(path)) for path in sorted((folders.predictions / "shy").iterdir())]) / 255
    y = np.stack([np.asarray(Image.open(path)) for path in sorted(folders.masks.iterdir())]) > 127
    assert (thresholds.positives, thresholds.negatives) == (y.sum(), (~y).sum())
    for k in range(101):
        above = p > k / 100
        assert thresholds.true_positives[k] == (above & y).sum()
        assert thresholds.false_positives[k] == (above & ~y).sum()
