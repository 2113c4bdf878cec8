"""Layouts of tools: what they find, what they say, and what they refuse because two meanings are possible."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import save_file

from densecal.data.pairs import find_plan
from densecal.errors import InputError
from densecal.io import urls
from densecal.io.layouts.label_pngs import _COCO_MISSING
from densecal.io.layouts.registry import LAYOUTS, layout_names
from densecal.io.layouts.road_scenes import IDS
from densecal.io.map_files import read_map
from densecal.io.map_options import MapOptions
from densecal.io.pairs import read_class_pair
from tests.adversarial.common import densecal
from tests.docs.test_formats import (
    nifti,
    pictures,
    raster,
    softmax,
    volumes,
    write_mask2former,
    write_monai,
    write_monai_regions,
    write_sigmoids,
)

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"


def evaluate(root: Path, *arguments: str) -> tuple[int, str]:
    """Return exit code and standard error."""
    code, _, errors = densecal(root, "evaluate", *arguments, "--workers", "1", "--metrics", "fast", "--json", "s.json")
    return code, errors


def refused(root: Path, *arguments: str) -> str:
    """Return the one line that says why."""
    code, errors = evaluate(root, *arguments)
    lines = [line for line in errors.splitlines() if not line.startswith("note:")]
    assert code == 2, errors
    assert len(lines) == 1, errors
    return lines[0]


def brier(root: Path) -> float:
    return json.loads((root / "s.json").read_text())["calibration"]["brier"]


def label_pngs(folder: Path, labels: dict[str, np.ndarray]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, y in labels.items():
        Image.fromarray(y).save(folder / f"{name}.png")


def arrays(root: Path, suffix: str, scores: dict[str, np.ndarray], **fixed: np.ndarray) -> None:
    """Write an archive of named arrays per image, and its labels."""
    (root / "maps").mkdir()
    for stem, (_, y) in pictures(3).items():
        tensors = {name: np.ascontiguousarray(value, np.float32) for name, value in (scores | fixed).items()}
        if suffix == ".npz":
            np.savez(root / "maps" / f"{stem}.npz", **tensors)
        elif suffix == ".pt":
            torch.save(
                {name: {"data": torch.from_numpy(value)} for name, value in tensors.items()},
                root / "maps" / f"{stem}.pt",
            )
        else:
            save_file(tensors, root / "maps" / f"{stem}.safetensors")
        label_pngs(root / "labels", {stem: y})


def test_every_layout_is_in_the_documentation():
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"`{name}`" in text for name in layout_names()[2:])
    assert len({layout.name for layout in LAYOUTS}) == len(LAYOUTS)


# ------------------------------------------------------------------ what is said and found


def test_what_was_found_is_said_in_one_line(tmp_path):
    write_monai(tmp_path)
    code, errors = evaluate(tmp_path, "monai-out", "labelsTr")
    assert code == 0
    assert errors == (
        "note: monai-out: MONAI: 2 images NAME/NAME_trans.nii.gz, 3 channels (softmax; --multilabel for sigmoids)\n"
    ).replace("_trans.nii.gz", "_trans")


def test_plain_folders_say_nothing(tmp_path):
    (tmp_path / "maps").mkdir()
    for stem, (z, y) in pictures(3).items():
        np.save(tmp_path / "maps" / f"{stem}.npy", softmax(z))
        label_pngs(tmp_path / "labels", {stem: y})
    assert evaluate(tmp_path, "maps", "labels", "--classes", "3") == (0, "")


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("name", ["logits", "segmentation_scores", "seg_logits"])
def test_scores_with_negative_values_are_logits(tmp_path, suffix, name):
    z = pictures(3)["x"][0]
    arrays(tmp_path, suffix, {name: z[None], "labels": z[:1]})
    code, errors = evaluate(tmp_path, "maps", "labels")
    assert code == 0, errors
    assert f"2 files, 3 classes, logits called {name}" in errors


def test_smaller_logits_are_resized_before_the_softmax(tmp_path):
    z = np.random.default_rng(0).normal(0, 2, (1, 3, 2, 3))
    arrays(tmp_path, ".safetensors", {"logits": z})
    code, errors = evaluate(tmp_path, "maps", "labels")
    assert code == 0, errors
    assert "their logits were resized" in errors
    large = torch.nn.functional.interpolate(torch.from_numpy(np.float32(z)).double(), size=(4, 5), mode="bilinear")
    errors = [
        ((softmax(large[0].numpy()) - (np.arange(3)[:, None, None] == y)) ** 2).sum(0) for _, y in pictures(3).values()
    ]
    assert brier(tmp_path) == pytest.approx(np.mean(errors), abs=1e-9)


def test_a_file_of_torch_is_read_without_running_it(tmp_path):
    arrays(tmp_path, ".pt", {"seg_logits": pictures(3)["x"][0]})
    code, errors = evaluate(tmp_path, "maps", "labels")
    assert code == 0, errors
    assert "mmsegmentation: 2 files, 3 classes, logits called seg_logits.data" in errors


def test_one_channel_of_mmsegmentation_is_a_probability_already(tmp_path):
    """`postprocess_result` takes the sigmoid of a single channel before it calls it seg_logits."""
    p = np.random.default_rng(0).random((1, 4, 5))
    arrays(tmp_path, ".npz", {"seg_logits": p})
    label_pngs(tmp_path / "labels", {stem: (y > 0) * np.uint8(255) for stem, (_, y) in pictures(3).items()})
    code, errors = evaluate(tmp_path, "maps", "labels")
    assert code == 0, errors
    assert "one channel, probabilities called seg_logits" in errors
    expected = np.mean([(np.float32(p[0]) - (y > 0)) ** 2 for _, y in pictures(3).values()])
    assert brier(tmp_path) == pytest.approx(expected, abs=1e-7)


def test_an_option_that_is_given_is_not_doubted(tmp_path):
    write_mask2former(tmp_path)
    assert evaluate(tmp_path, "mask2former", "labels", "--normalise")[0] == 0
    normalised = brier(tmp_path)
    assert evaluate(tmp_path, "mask2former", "labels", "--logits")[0] == 0
    assert brier(tmp_path) != pytest.approx(normalised, abs=0.01)


def test_maps_and_masks_may_have_a_layout_each(tmp_path):
    arrays(tmp_path, ".npz", {"logits": np.random.default_rng(0).normal(size=(19, 4, 5))})
    for stem, target in (("x", "bonn_000000_000019"), ("y", "bonn_000001_000019")):
        (tmp_path / "maps" / f"{stem}.npz").rename(tmp_path / "maps" / f"{target}_leftImg8bit.npz")
        label_pngs(tmp_path / "gtFine" / "bonn", {f"{target}_gtFine_labelTrainIds": pictures(3)["x"][1]})
    code, errors = evaluate(tmp_path, "maps", "gtFine", "--format", "transformers,cityscapes")
    assert code == 0, errors
    assert [line.split(": ")[2] for line in errors.splitlines() if "note:" in line] == ["transformers", "Cityscapes"]


def test_label_ids_of_cityscapes_become_train_ids(tmp_path):
    ids = np.array([[0, 7, 8, 11], [255, 33, 31, 9]], np.uint8)
    label_pngs(
        tmp_path / "gt" / "ulm", {"ulm_000001_000019_gtFine_labelIds": ids, "ulm_000001_000019_gtFine_color": ids}
    )
    (tmp_path / "maps" / "ulm").mkdir(parents=True)
    np.save(tmp_path / "maps" / "ulm" / "ulm_000001_000019_leftImg8bit.npy", np.full((19, 2, 4), 1 / 19))
    plan = find_plan(tmp_path / "maps", tmp_path / "gt")
    assert plan.classes == len(plan.class_names) == len(IDS) == 19
    read = read_class_pair(plan.pairs[0], 19, options=plan.options)
    assert read.labels.tolist() == [[255, 0, 1, 2], [255, 18, 16, 255]]
    assert find_plan(tmp_path / "maps", tmp_path / "gt", classes=34).options.relabel is None


def test_labels_of_coco_stuff_lose_their_gaps(tmp_path):
    label_pngs(tmp_path / "stuffthingmaps", {"000000000139": np.array([[0, 12, 181, 255]], np.uint8)})
    (tmp_path / "maps").mkdir()
    np.save(tmp_path / "maps" / "000000000139.npy", np.full((171, 1, 4), 1 / 171))
    plan = find_plan(tmp_path / "maps", tmp_path / "stuffthingmaps")
    read = read_class_pair(plan.pairs[0], 171, options=plan.options)
    assert read.labels.tolist() == [[0, 11, 170, 255]]
    assert len(_COCO_MISSING) == 182 - 171


def test_labels_of_ade20k_begin_at_one(tmp_path):
    label_pngs(tmp_path / "gt", {"ADE_val_00000001": np.array([[0, 1, 2, 150]], np.uint8)})
    (tmp_path / "maps").mkdir()
    np.save(tmp_path / "maps" / "ADE_val_00000001.npy", np.full((150, 1, 4), 1 / 150))
    plan = find_plan(tmp_path / "maps", tmp_path / "gt")
    assert read_class_pair(plan.pairs[0], 150, options=plan.options).labels.tolist() == [[255, 0, 1, 149]]
    whole = find_plan(tmp_path / "maps", tmp_path / "gt", classes=151)
    assert whole.classes == 151
    assert whole.options.relabel is None


def test_regions_may_be_the_last_axis(tmp_path):
    data = write_sigmoids(tmp_path)
    for path in (tmp_path / "maps").iterdir():
        np.save(path, np.moveaxis(np.load(path), 0, -1))
    code, errors = evaluate(tmp_path, "maps", "masks", "--multilabel", "--classes", "3", "--channels-last")
    assert code == 0, errors
    records = json.loads((tmp_path / "s.json").read_text())["evaluations"]
    assert [record["calibration"]["brier"] for record in records] == pytest.approx(data, abs=1e-9)


def test_maps_of_methods_may_each_be_folders_of_images(tmp_path):
    write_monai(tmp_path)
    (tmp_path / "methods").mkdir()
    (tmp_path / "monai-out").rename(tmp_path / "methods" / "swin")
    code, errors = evaluate(tmp_path, "methods", "labelsTr")
    assert code == 0, errors
    assert json.loads((tmp_path / "s.json").read_text())["name"] == "swin"
    assert evaluate(tmp_path, "methods", "labelsTr", "--format", "monai")[0] == 0


def test_calibrators_take_folders_of_tools(tmp_path):
    write_monai(tmp_path)
    for name, (z, y) in volumes().items():
        nifti(tmp_path / "labelsTr" / f"{name}.nii.gz", np.where(y == 0, 0, z.argmax(axis=0)).astype(np.uint8))
    fit = ("calibrate", "fit", "temperature", "monai-out", "labelsTr", "--out", "cal.json")
    code, _, errors = densecal(tmp_path, *fit)
    assert code == 0, errors
    assert "MONAI: 2 images" in errors
    code, _, errors = densecal(
        tmp_path, "calibrate", "apply", "cal.json", "monai-out", "--out", "new", "--format", "monai"
    )
    assert code == 0, errors
    assert read_map(tmp_path / "new" / "x.nii.gz", 3).shape == (3, 3, 4, 5)


def test_a_region_is_calibrated_like_a_foreground_map(tmp_path):
    write_monai_regions(tmp_path)
    fit = ("calibrate", "fit", "temperature", "monai-out", "masks", "--multilabel", "--out", "cal.json")
    code, _, errors = densecal(tmp_path, *fit)
    assert code == 2
    assert "maps of 3 regions; expected --region with one of 0, 1, 2" in errors
    code, _, errors = densecal(tmp_path, *fit, "--region", "1")
    assert code == 0, errors


def test_a_folder_is_listed_once_however_many_layouts_look_at_it(tmp_path, monkeypatch):
    for folder in ("maps", "masks"):
        (tmp_path / folder).mkdir()
        np.save(tmp_path / folder / "a.npy", np.zeros((4, 5), np.uint8))
    listed = []
    entries = urls.entries
    monkeypatch.setattr(urls, "entries", lambda folder: listed.append(folder.name) or entries(folder))
    find_plan(tmp_path / "maps", tmp_path / "masks")
    assert sorted(listed) == ["maps", "masks"]
    np.save(tmp_path / "maps" / "b.npy", np.zeros((4, 5), np.uint8))
    with pytest.raises(InputError, match=r"b.npy: no mask of that name"):
        find_plan(tmp_path / "maps", tmp_path / "masks")


# ------------------------------------------------------------------ refused: two meanings, or none


@pytest.mark.parametrize("name", ["logits", "segmentation_scores", "seg_logits"])
def test_scores_without_a_negative_value_are_refused(tmp_path, name):
    arrays(tmp_path, ".npz", {name: np.abs(pictures(3)["x"][0])})
    line = refused(tmp_path, "maps", "labels")
    assert "scores without a negative value; expected --logits if they are logits, --normalise if they are sums" in line


def test_queries_are_refused_with_the_call_that_makes_scores(tmp_path):
    queries = {"class_queries_logits": np.zeros((1, 5, 4)), "masks_queries_logits": np.zeros((1, 5, 4, 5))}
    arrays(tmp_path, ".safetensors", queries)
    assert "return_segmentation_scores=True" in refused(tmp_path, "maps", "labels")


def test_files_of_two_tools_are_refused(tmp_path):
    z = pictures(3)["x"][0]
    arrays(tmp_path, ".npz", {"logits": z, "seg_logits": z})
    line = refused(tmp_path, "maps", "labels")
    assert "files that may be those of transformers and mmsegmentation" in line
    assert "--format transformers or --format mmseg" in line
    assert evaluate(tmp_path, "maps", "labels", "--format", "mmseg")[0] == 0


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_a_format_that_is_named_must_be_that_of_the_folder(tmp_path, layout):
    (tmp_path / "maps").mkdir()
    (tmp_path / "masks").mkdir()
    Image.new("L", (5, 4)).save(tmp_path / "maps" / "a.png")
    np.save(tmp_path / "masks" / "a.npy", np.zeros((4, 5), np.uint8))
    line = refused(tmp_path, "maps", "masks", "--format", layout.name)
    assert layout.expected in line or "no probabilities of nnU-Net" in line


def test_two_formats_of_the_same_side_are_refused(tmp_path):
    write_monai(tmp_path)
    line = refused(tmp_path, "monai-out", "labelsTr", "--format", "monai,nnunet")
    assert "one of them, because both lay out maps" in line


def test_several_volumes_per_folder_are_refused(tmp_path):
    write_monai(tmp_path)
    for name, (z, _) in volumes().items():
        nifti(tmp_path / "monai-out" / name / f"{name}_pre.nii.gz", softmax(z).astype(np.float32))
    line = refused(tmp_path, "monai-out", "labelsTr")
    assert "files NAME_pre, NAME_trans; expected one volume per folder; --strip-suffix _trans chooses one" in line
    assert evaluate(tmp_path, "monai-out", "labelsTr", "--strip-suffix", "_trans")[0] == 0


def test_sigmoids_given_as_softmax_are_refused(tmp_path):
    write_monai_regions(tmp_path)
    for path in (tmp_path / "masks").iterdir():
        path.unlink()
    for name, (_, y) in volumes().items():
        nifti(tmp_path / "masks" / f"{name}.nii.gz", y)
    assert "--multilabel for sigmoids" in refused(tmp_path, "monai-out", "masks")
    line = refused(tmp_path, "monai-out", "masks", "--multilabel")
    assert "masks/x.nii.gz: 1 bands or pages; expected 3 bands or pages" in line


def test_a_missing_file_of_a_class_is_refused(tmp_path):
    for stem, (z, y) in pictures(3).items():
        for k in (0, 2):
            raster(tmp_path / "maps" / f"{stem}_class_{k}.tif", softmax(z)[k : k + 1].astype(np.float32))
        raster(tmp_path / "labels" / f"{stem}.tif", y[None])
    assert "files of the classes 0, 2 for x; expected NAME_class_0 to NAME_class_1" in refused(
        tmp_path, "maps", "labels"
    )


def test_files_of_classes_that_differ_are_refused(tmp_path):
    for stem, (z, y) in pictures(2).items():
        raster(tmp_path / "maps" / f"{stem}_class_0.tif", softmax(z)[:1].astype(np.float32))
        raster(tmp_path / "maps" / f"{stem}_class_1.tif", softmax(z)[1:, :3].astype(np.float32))
        raster(tmp_path / "labels" / f"{stem}.tif", y[None])
    assert "x_class_1.tif: (1, 3, 5) float32; expected (1, 4, 5) float32, as x_class_0.tif has" in refused(
        tmp_path, "maps", "labels"
    )


def test_rounded_probabilities_of_terratorch_are_refused(tmp_path):
    for stem, (z, y) in pictures(3).items():
        raster(tmp_path / "maps" / f"{stem}_probabilities.tif", softmax(z).astype(np.int16))
        raster(tmp_path / "labels" / f"{stem}.tif", y[None])
    assert "probabilities rounded to int16; expected floats" in refused(tmp_path, "maps", "labels")


@pytest.mark.parametrize(
    ("mask", "classes", "words"),
    [
        ("ADE_val_00000001", "21", "150 for ADE20K, or 151"),
        ("000000000139_labelTrainIds", "182", "171 for COCO-Stuff"),
        ("bonn_000000_000019_gtFine_labelIds", "20", "19 for trainIds or 34 for labelIds"),
        ("bonn_000000_000019_gtFine_labelTrainIds", "34", "no _labelIds.png"),
    ],
)
def test_other_numbers_of_classes_than_a_data_set_has_are_refused(tmp_path, mask, classes, words):
    label_pngs(tmp_path / "gt", {mask: np.zeros((4, 5), np.uint8)})
    (tmp_path / "maps").mkdir()
    np.save(tmp_path / "maps" / "a.npy", np.full((int(classes), 4, 5), 1 / int(classes)))
    assert words in refused(tmp_path, "maps", "gt", "--classes", classes)


def test_labels_that_a_data_set_does_not_have_are_refused(tmp_path):
    label_pngs(tmp_path / "gt", {"ADE_val_00000001": np.full((4, 5), 255, np.uint8)})
    (tmp_path / "maps").mkdir()
    np.save(tmp_path / "maps" / "ADE_val_00000001.npy", np.full((150, 4, 5), 1 / 150))
    line = refused(tmp_path, "maps", "gt")
    assert "label 255; expected 0 to 150, the labels of ADE20K; --format plain reads labels as they are" in line


def test_masks_of_pascal_voc_without_a_map_are_refused_unless_a_list_leaves_them_out(tmp_path):
    masks = tmp_path / "VOC2012" / "SegmentationClass"
    label_pngs(masks, {name: np.zeros((4, 5), np.uint8) for name in ("2007_000032", "2007_000033")})
    lists = tmp_path / "VOC2012" / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    (lists / "val.txt").write_text("2007_000032\n2007_000033\n")
    (tmp_path / "maps").mkdir()
    np.save(tmp_path / "maps" / "2007_000033.npy", np.full((21, 4, 5), 1 / 21))
    with pytest.raises(InputError, match=r"2007_000032.png: no prediction map of that name"):
        find_plan(tmp_path / "maps", masks)
    (lists / "val.txt").write_text("2007_000033\n")
    assert len(find_plan(tmp_path / "maps", masks).pairs) == 1


def test_multilabel_maps_need_to_know_their_number(tmp_path):
    (tmp_path / "maps").mkdir()
    (tmp_path / "masks").mkdir()
    for folder in ("maps", "masks"):
        np.save(tmp_path / folder / "a.npy", np.zeros((3, 4, 5), np.float32 if folder == "maps" else np.uint8))
    with pytest.raises(InputError, match="--multilabel; expected --classes K as well"):
        find_plan(tmp_path / "maps", tmp_path / "masks", MapOptions(multilabel=True))
    label_pngs(tmp_path / "masks", {"a": np.zeros((4, 5), np.uint8)})
    (tmp_path / "masks" / "a.npy").unlink()
    line = refused(tmp_path, "maps", "masks", "--multilabel", "--classes", "3")
    assert "a picture of one channel; expected a mask with a channel per region" in line
