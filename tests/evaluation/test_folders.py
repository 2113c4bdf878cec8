"""`densecal evaluate` as a user sees it: good folders, bad files, odd names, several methods, several processes."""

import csv
import json
import re
import resource
import shutil
import subprocess
import sys
import zlib
from collections import deque
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import gaussian_filter

from densecal.data.pairs import dataset_name
from densecal.evaluation.folders import evaluate, score_all
from densecal.evaluation.worker import Part, Settings
from densecal.io.pairs import Pair
from densecal.metrics import calibration_errors, intervals
from densecal.runtime.progress import silent
from tests.running import run

SIZE = (30, 40)


def make_pair(seed, size=SIZE):
    """Return a smooth random map, and a mask that is drawn from it."""
    rng = np.random.default_rng(seed)
    z = gaussian_filter(rng.normal(size=size), 4) * 30 - 1
    p = 1 / (1 + np.exp(-z))
    return p, rng.random(size) < p


def to_levels(p, kind=np.uint8):
    return (p * np.iinfo(kind).max).round().astype(kind)


@pytest.fixture
def folders(tmp_path):
    """Six 8-bit maps and masks."""
    maps, masks = tmp_path / "maps", tmp_path / "masks"
    maps.mkdir()
    masks.mkdir()
    for i in range(6):
        p, y = make_pair(i)
        Image.fromarray(to_levels(p)).save(maps / f"im {i}.png")
        Image.fromarray(y).save(masks / f"im {i}.png")
    return maps, masks


def evaluate_json(tmp_path, *arguments):
    code, _, err = run("evaluate", *arguments, "--json", tmp_path / "out.json")
    assert code == 0, err
    return json.loads((tmp_path / "out.json").read_text())


# ------------------------------------------------------------------ good input


def test_json_has_the_documented_keys_and_agrees_with_the_meter(folders, tmp_path):
    record = evaluate_json(tmp_path, *folders, "--name", "mine", "--dataset", "here")
    assert record["name"] == "mine"
    assert record["dataset"] == "here"
    assert record["images"] == 6
    assert record["pixels"] == 6 * SIZE[0] * SIZE[1]
    assert record["skipped"] == []
    maps = np.stack([np.asarray(Image.open(path)) for path in sorted(folders[0].iterdir())])
    masks = np.stack([np.asarray(Image.open(path)) for path in sorted(folders[1].iterdir())])
    expected = calibration_errors(maps, masks.astype(int)).as_dict()
    assert list(record["calibration"]) == list(expected)
    for name, value in expected.items():
        if name != "ci":
            assert record["calibration"][name] == pytest.approx(value, rel=1e-9), name
    for name, pair in expected["ci"].items():
        assert record["calibration"]["ci"][name] == pytest.approx(pair, rel=1e-9)
    assert record["segmentation"].keys() >= {
        "f_max", "f_mean", "f_adaptive", "e_max", "e_mean", "e_adaptive", "s_measure", "f_weighted", "mae", "iou",
        "dice",
    }  # fmt: skip
    assert sum(record["reliability"]["count"]) == record["pixels"]
    assert sum(n for _, _, n in record["joint"]["counts"]) == 6


@pytest.mark.parametrize("suffix", ["png", "tif", "webp", "npy", "npz", "tif32"])
def test_every_format_gives_the_same_figures(folders, tmp_path, suffix):
    other = tmp_path / "other"
    other.mkdir()
    for path in folders[0].iterdir():
        levels = np.asarray(Image.open(path))
        target = other / f"{path.stem}.{suffix.removesuffix('32')}"
        if suffix == "npy":
            np.save(target, (levels / 255).astype(np.float64))
        elif suffix == "npz":
            np.savez_compressed(target, levels / 255)
        elif suffix == "webp":
            Image.fromarray(levels).convert("RGB").save(target, lossless=True)
        elif suffix == "tif32":
            Image.fromarray((levels / 255).astype(np.float32)).save(target)
        else:
            Image.fromarray(levels.astype(np.uint16) * 257).save(target)
    a = evaluate_json(tmp_path, *folders)
    b = evaluate_json(tmp_path, other, folders[1])
    names = ["brier", "nll", "accuracy", "mean_confidence"]
    if suffix in ("png", "tif", "webp"):
        names += [
            "auroc_error",
            "aurc",
            "ece_boundary_5",
            "ece_image_mean",
            "ece_ew",
            "ece_em",
            "ece_sweep",
            "sce",
            "ace",
            "ece_foreground",
        ]
    for name in names:  # floats move values off bin edges and break ties between v and 255 - v
        assert b["calibration"][name] == pytest.approx(a["calibration"][name], abs=1e-6), name
    for name in ("f_max", "e_max", "s_measure", "f_weighted", "mae", "iou"):
        assert b["segmentation"][name] == pytest.approx(a["segmentation"][name], abs=1e-6), name


def test_jpeg_maps_are_read(folders, tmp_path):
    other = tmp_path / "jpeg"
    other.mkdir()
    for path in folders[0].iterdir():
        Image.open(path).save(other / f"{path.stem}.jpg", quality=95)
    a, b = (evaluate_json(tmp_path, maps, folders[1]) for maps in (folders[0], other))
    assert b["calibration"]["accuracy"] == pytest.approx(a["calibration"]["accuracy"], abs=0.02)


def test_fast_leaves_out_the_costly_figures(folders, tmp_path):
    record = evaluate_json(tmp_path, *folders, "--metrics", "fast")
    assert record["segmentation"]["s_measure"] is None
    assert record["segmentation"]["f_weighted"] is None
    assert record["calibration"]["ece_boundary_5"] is None
    assert record["segmentation"]["f_max"] > 0


@pytest.mark.parametrize("kind", ["png", "npy"])
def test_figures_do_not_depend_on_the_number_of_workers(tmp_path, kind):
    maps, masks = tmp_path / "m", tmp_path / "y"
    maps.mkdir()
    masks.mkdir()
    for i in range(40):
        p, y = make_pair(i, (20, 25))
        if kind == "png":
            Image.fromarray(to_levels(p)).save(maps / f"{i}.png")
        else:
            np.save(maps / f"{i}.npy", p)
        Image.fromarray(y).save(masks / f"{i}.png")
    one = evaluate_json(tmp_path, maps, masks, "--workers", "1")
    two = evaluate_json(tmp_path, maps, masks, "--workers", "2")
    assert one == two


def test_names_may_hold_markup_and_any_character(tmp_path):
    maps, masks = tmp_path / "carte [bold]$x$", tmp_path / "masques é"
    maps.mkdir()
    masks.mkdir()
    for stem in ['it\'s "quoted"', "[red]日本語", "a b\tc", "-rf", "100% $x_1$"]:
        p, y = make_pair(1)
        Image.fromarray(to_levels(p)).save(maps / f"{stem}.png")
        Image.fromarray(y).save(masks / f"{stem}.png")
    (masks / 'it\'s "quoted".png').write_bytes(b"broken")
    record = evaluate_json(
        tmp_path,
        maps,
        masks,
        "--skip-bad",
        "--figures",
        tmp_path / "figures",
        "--latex",
        tmp_path / "t.tex",
    )
    assert record["images"] == 4
    assert record["skipped"][0]["file"].endswith('it\'s "quoted".png')
    assert r"\$x\$" in (tmp_path / "t.tex").read_text()


def test_comparison_of_methods_and_data_sets(folders, tmp_path):
    root, truths = tmp_path / "root", tmp_path / "truths"
    for dataset in ("A", "B"):
        (truths / dataset).mkdir(parents=True)
        for path in folders[1].iterdir():
            (truths / dataset / path.name).write_bytes(path.read_bytes())
        for method, power in (("plain", 1.0), ("sharp", 3.0)):
            (root / method / dataset).mkdir(parents=True)
            for i in range(6):
                p, _ = make_pair(i)
                p = p**power / (p**power + (1 - p) ** power)
                Image.fromarray(to_levels(p)).save(root / method / dataset / f"im {i}.png")
    code, out, err = run(
        "evaluate", root, truths, "--json", tmp_path / "c.json", "--csv", tmp_path / "c.csv", "--latex",
        tmp_path / "c.tex", "--figures", tmp_path / "figures",
    )  # fmt: skip
    assert code == 0, err
    comparison = json.loads((tmp_path / "c.json").read_text())
    found = [(e["name"], e["dataset"]) for e in comparison["evaluations"]]
    assert found == [("plain", "A"), ("plain", "B"), ("sharp", "A"), ("sharp", "B")]
    assert "sharp" in out
    pair = comparison["paired"][0]
    assert (pair["a"], pair["b"]) == ("plain", "sharp")
    low, high = pair["ci"]["ece_ew"]
    assert low < pair["difference"]["ece_ew"] < high < 0  # the sharpened maps are surely worse
    rows = list(csv.DictReader((tmp_path / "c.csv").open()))
    assert float(rows[0]["ece_ew"]) == pytest.approx(comparison["evaluations"][0]["calibration"]["ece_ew"], rel=1e-9)
    best = min(comparison["evaluations"][i]["calibration"]["ece_ew"] for i in (0, 2))
    assert rf"\textbf{{{100 * best:.2f}}}" in (tmp_path / "c.tex").read_text()
    for dataset in ("A", "B"):
        names = {path.name for path in (tmp_path / "figures" / dataset).iterdir()}
        assert names == {
            "reliability.png", "reliability-foreground.png", "joint.png", "joint-bins.png", "confidence.png",
            "curves.png", "reliability-smooth.png",
        }  # fmt: skip


def test_k_classes(tmp_path):
    maps, masks = tmp_path / "maps", tmp_path / "labels"
    maps.mkdir()
    masks.mkdir()
    rng = np.random.default_rng(0)
    everything, labels = [], []
    for i in range(3):
        z = gaussian_filter(rng.normal(size=(4, 24, 20)), (0, 3, 3)) * 20
        p = np.exp(z) / np.exp(z).sum(0)
        y = p.argmax(0).astype(np.uint8)
        y[rng.random(y.shape) < 0.2] = 2
        y[:2] = 11
        np.save(maps / f"{i}.npy", p)
        image = Image.fromarray(y)
        image.putpalette([0, 0, 0, 128, 0, 0] + [9] * 30)
        image.save(masks / f"{i}.png")
        everything.append(p)
        labels.append(y)
    record = evaluate_json(tmp_path, maps, masks, "--classes", "4", "--ignore-index", "11")
    expected = calibration_errors(np.stack(everything), np.stack(labels), num_classes=4, ignore_index=11)
    assert record["calibration"]["ece_ew"] == pytest.approx(expected.ece_ew, rel=1e-9)
    assert record["calibration"]["ece_boundary_5"] == pytest.approx(expected.ece_boundary_5, rel=1e-9)
    assert 0 < record["segmentation"]["miou"] < 1
    assert record["segmentation"]["accuracy"] == pytest.approx(expected.accuracy, rel=1e-9)
    np.save(maps / "1.npy", everything[1][:3])
    code, _, err = run("evaluate", maps, masks, "--classes", "4", "--ignore-index", "11")
    assert code == 2
    assert "1.npy: an array of shape (3, 24, 20); expected shape (4, H, W)" in err


def test_void_pixels_of_binary_masks_are_left_out(folders, tmp_path):
    maps, masks = folders
    for path in masks.iterdir():
        y = np.asarray(Image.open(path)).astype(np.uint8) * 255
        y[:5] = 128
        Image.fromarray(y).save(path)
    record = evaluate_json(tmp_path, maps, masks, "--ignore-index", "128")
    assert record["pixels"] == 6 * (SIZE[0] - 5) * SIZE[1]
    assert record["warnings"] == []


def test_zero_one_masks_may_have_a_void_value(folders, tmp_path):
    a = evaluate_json(tmp_path, *folders)["calibration"]["accuracy"]
    for path in folders[1].iterdir():
        y = np.asarray(Image.open(path)).astype(np.uint8)
        y[0, 0] = 255
        Image.fromarray(y).save(path)
    record = evaluate_json(tmp_path, *folders, "--ignore-index", "255")
    assert record["pixels"] == 6 * (SIZE[0] * SIZE[1] - 1)
    assert record["calibration"]["accuracy"] == pytest.approx(a, abs=1e-3)


def test_only_some_masks_may_have_void_pixels(folders, tmp_path):
    for i, path in enumerate(sorted(folders[1].iterdir())):
        y = np.asarray(Image.open(path)).astype(np.uint8)
        if i == 0:
            y[:2] = 255
        Image.fromarray(y).save(path)
    record = evaluate_json(tmp_path, *folders, "--ignore-index", "255")
    assert record["pixels"] == 6 * SIZE[0] * SIZE[1] - 2 * SIZE[1]


@pytest.mark.parametrize("void", [1, 128])
def test_void_means_the_same_in_integer_and_float_maps(folders, tmp_path, void):
    floats = tmp_path / "floats"
    floats.mkdir()
    for path in folders[0].iterdir():
        np.save(floats / f"{path.stem}.npy", np.asarray(Image.open(path)) / 255)
        y = np.asarray(Image.open(folders[1] / path.name)).astype(np.uint8) * 255
        y[:7] = void
        if path.stem == "im 5":
            y[:] = void
        Image.fromarray(y).save(folders[1] / path.name)
    a, b = (evaluate_json(tmp_path, maps, folders[1], "--ignore-index", void) for maps in (folders[0], floats))
    assert a["pixels"] == b["pixels"] == 5 * (SIZE[0] - 7) * SIZE[1]
    assert b["calibration"]["brier"] == pytest.approx(a["calibration"]["brier"], rel=1e-9)


def test_masks_of_nothing_but_void_pixels_are_an_error(folders):
    for path in folders[1].iterdir():
        Image.fromarray(np.full(SIZE, 128, np.uint8)).save(path)
    code, _, err = run("evaluate", *folders, "--ignore-index", "128")
    assert code == 2
    assert "nothing but void pixels" in err


def test_there_is_a_warning_if_the_void_value_is_that_of_the_foreground(folders, tmp_path):
    for path in folders[1].iterdir():
        Image.fromarray(np.asarray(Image.open(path)).astype(np.uint8) * 255).save(path)
    record = evaluate_json(tmp_path, *folders, "--ignore-index", "255")
    assert any("no mask holds foreground" in warning for warning in record["warnings"])


def test_masks_of_zero_and_one_give_the_same_figures(folders, tmp_path):
    a = evaluate_json(tmp_path, *folders)
    for path in folders[1].iterdir():
        Image.fromarray(np.asarray(Image.open(path)).astype(np.uint8)).save(path)
    assert evaluate_json(tmp_path, *folders) == a


# ------------------------------------------------------------------ maps that look unlike probabilities


def rewrite(folder, change):
    for path in folder.iterdir():
        Image.fromarray(change(np.asarray(Image.open(path)).astype(np.float64))).save(path)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda v: ((v - v.min()) / (v.max() - v.min()) * 255).round().astype(np.uint8), "min-max"),
        (lambda v: (255 - v).astype(np.uint8), "inverted"),
        (lambda v: (v // 32 * 32).astype(np.uint8), "grey levels"),
        (lambda v: np.asarray(Image.fromarray(v.astype(np.uint8)).resize((60, 50))), "resized"),
    ],
)
def test_there_is_a_warning_for_maps_that_look_wrong(folders, tmp_path, change, word):
    assert evaluate_json(tmp_path, *folders)["warnings"] == []
    rewrite(folders[0], change)
    warnings = evaluate_json(tmp_path, *folders)["warnings"]
    assert any(word in warning for warning in warnings), warnings


@pytest.mark.parametrize(("spoiled", "warned"), [(3, False), (4, True)])
def test_there_is_a_warning_if_more_than_half_of_the_maps_have_few_levels(folders, tmp_path, spoiled, warned):
    for path in sorted(folders[0].iterdir())[:spoiled]:
        Image.fromarray(np.asarray(Image.open(path)) // 32 * 32).save(path)
    assert bool(evaluate_json(tmp_path, *folders)["warnings"]) == warned


@pytest.mark.parametrize(("levels", "warned"), [(31, True), (32, False)])
def test_fewer_than_32_levels_are_few(folders, tmp_path, levels, warned):
    rewrite(folders[0], lambda v: np.arange(v.size, dtype=np.uint8).reshape(v.shape) % np.uint8(levels) + np.uint8(60))
    found = [warning for warning in evaluate_json(tmp_path, *folders)["warnings"] if "grey levels" in warning]
    assert bool(found) == warned


@pytest.mark.parametrize(("spoiled", "warned"), [(4, False), (5, True)])
def test_there_is_a_warning_if_more_than_two_thirds_of_the_maps_are_inverted(folders, tmp_path, spoiled, warned):
    for path in sorted(folders[0].iterdir())[:spoiled]:
        Image.fromarray(255 - np.asarray(Image.open(path))).save(path)
    assert bool(evaluate_json(tmp_path, *folders)["warnings"]) == warned


@pytest.mark.parametrize("case", [str.lower, str.upper])
@pytest.mark.parametrize(
    "folder", ["masks", "mask", "gt", "gts", "labels", "ground_truth", "groundtruth", "annotations"]
)
def test_masks_in_a_folder_with_a_generic_name_are_named_after_its_parent(folder, case):
    assert dataset_name(Path("data") / "DUTS-TE" / case(folder)) == "DUTS-TE"
    assert dataset_name(Path("data") / "masks" / "DUTS-TE") == "DUTS-TE"
    assert dataset_name(Path("data") / "DUTS-TE" / f"{folder}-old") == f"{folder}-old"
    assert dataset_name(Path("/") / folder) == folder


def test_the_data_set_is_named_after_the_folder_of_masks(folders, tmp_path):
    assert folders[1].name == "masks"
    assert evaluate_json(tmp_path, *folders)["dataset"] == tmp_path.name
    other = folders[1].rename(tmp_path / "ECSSD")
    assert evaluate_json(tmp_path, folders[0], other)["dataset"] == "ECSSD"


def test_there_is_a_warning_for_grey_masks(folders, tmp_path):
    rewrite(folders[1], lambda v: (gaussian_filter(v * 255, 1)).astype(np.uint8))
    assert any("other than 0 and 255" in w for w in evaluate_json(tmp_path, *folders)["warnings"])


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.float32])
@pytest.mark.parametrize("void", [[], ["--ignore-index", "77"]])
def test_level_128_is_foreground_for_calibration_and_background_for_pysodmetrics(folders, tmp_path, kind, void):
    for i in range(6):
        p, y = make_pair(i)
        levels = np.where(y, 255, 0)
        levels[::3] = 128
        if void:
            levels[1::5] = 77
        Image.fromarray(levels.astype(np.uint8)).save(folders[1] / f"im {i}.png")
        folders[0].joinpath(f"im {i}.png").unlink()
        np.save(folders[0] / f"im {i}.npy", p.astype(kind) if kind == np.float32 else to_levels(p, kind))
    record = evaluate_json(tmp_path, *folders, *void)
    for cut, section in ((127, "calibration"), (128, "segmentation")):
        for path in folders[1].iterdir():
            levels = np.asarray(Image.open(path))
            binary = np.where(levels > cut, 255, 0)
            binary[levels == 77] = 77 if void else 0
            (tmp_path / "cut").mkdir(exist_ok=True)
            Image.fromarray(binary.astype(np.uint8)).save(tmp_path / "cut" / path.name)
        wanted = evaluate_json(tmp_path, folders[0], tmp_path / "cut", *void)
        assert record[section] == wanted[section], cut


def test_resizing_follows_the_specification(folders, tmp_path):
    import torch

    path = folders[0] / "im 0.png"
    small = np.asarray(Image.open(path).resize((20, 15)))
    Image.fromarray(small).save(path)
    for stem in range(1, 6):
        (folders[0] / f"im {stem}.png").unlink()
        (folders[1] / f"im {stem}.png").unlink()
    resized = torch.nn.functional.interpolate(
        torch.from_numpy(small / 255.0)[None, None], size=SIZE, mode="bilinear", align_corners=False
    )
    expected = calibration_errors(resized, torch.from_numpy(np.array(Image.open(folders[1] / "im 0.png")))[None, None])
    assert evaluate_json(tmp_path, *folders)["calibration"]["ece_ew"] == pytest.approx(expected.ece_ew)


# ------------------------------------------------------------------ bad input


def bomb(path):
    """A PNG header that claims 60,000 x 60,000 pixels."""
    header = b"IHDR" + (60_000).to_bytes(4, "big") * 2 + b"\x08\x00\x00\x00\x00"
    chunk = (13).to_bytes(4, "big") + header + zlib.crc32(header).to_bytes(4, "big")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk + b"\x00\x00\x00\x00IDAT\x35\xaf\x06\x1e")


def nan_map(path):
    path.unlink()
    values = np.full(SIZE, 0.5)
    values[3, 4] = np.nan
    np.save(path.with_suffix(".npy"), values)


def saved(array):
    def make(path):
        path.unlink()
        np.save(path.with_suffix(".npy"), array)

    return make


def huge_npy(path):
    path.unlink()
    with path.with_suffix(".npy").open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, {"descr": "<f8", "fortran_order": False, "shape": (10**6, 10**6)})


BAD_MAPS = {
    "missing": (lambda path: path.unlink(), "no prediction map of that name"),
    "empty file": (lambda path: path.write_bytes(b""), "not an image"),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-200]), "unreadable"),
    "text": (lambda path: path.write_text("hello"), "not an image"),
    "bomb": (bomb, "3600000000 pixels"),
    "colour": (lambda path: Image.new("RGB", (40, 30), (250, 20, 90)).save(path), "a colour image"),
    "nan": (nan_map, "NaN"),
    "range": (saved(np.full(SIZE, 1.5)), "values from 1.5 to 1.5"),
    "shape": (saved(np.zeros((2, 3, 4, 5))), "shape (2, 3, 4, 5)"),
    "type": (saved(np.zeros(SIZE, np.int64)), "values of type int64"),
    "objects": (saved(np.array([{}], dtype=object)), "pickled objects"),
    "huge": (huge_npy, "1,000,000,000,000 values"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_MAPS)
def test_an_error_about_a_bad_map_takes_one_line_and_nothing_is_written(folders, tmp_path, case):
    spoil, message = BAD_MAPS[case]
    spoil(folders[0] / "im 3.png")
    target = tmp_path / "out.json"
    code, _, err = run("evaluate", *folders, "--json", target)
    assert code == 2
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert "im 3" in err
    assert message in err
    assert "expected" in err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["maps", "masks"]
    code, _, err = run("evaluate", *folders, "--json", target, "--skip-bad")
    assert code == 0, err
    record = json.loads(target.read_text())
    assert record["images"] == 5
    assert message in record["skipped"][0]["reason"]
    assert "im 3" in record["skipped"][0]["file"]


def test_missing_and_damaged_masks_are_named(folders, tmp_path):
    (folders[1] / "im 2.png").unlink()
    code, _, err = run("evaluate", *folders)
    assert code == 2
    assert "im 2.png: no mask of that name" in err
    (folders[1] / "im 2.png").write_bytes(b"\x89PNG\r\n")
    code, _, err = run("evaluate", *folders)
    assert code == 2
    assert "im 2.png: not an image" in err


def test_a_label_beyond_the_classes_is_named(tmp_path):
    for name in ("maps", "labels"):
        (tmp_path / name).mkdir()
    np.save(tmp_path / "maps" / "x.npy", np.full((2, 4, 4), 0.5))
    Image.fromarray(np.full((4, 4), 7, np.uint8)).save(tmp_path / "labels" / "x.png")
    code, _, err = run("evaluate", tmp_path / "maps", tmp_path / "labels", "--classes", "2")
    assert code == 2
    assert "x.png: label 7; expected labels 0 to 1, or 255 for void" in err


def test_missing_and_empty_folders(folders, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments, message in [
        ((tmp_path / "nowhere", folders[1]), "nowhere: no such folder"),
        ((folders[0], tmp_path / "nowhere"), "nowhere: no such folder"),
        ((empty, folders[1]), "empty: no prediction map"),
        ((folders[0], empty), "empty: no mask"),
    ]:
        code, _, err = run("evaluate", *arguments)
        assert code == 2
        assert message in err
        assert err.count("\n") == 1


def test_an_output_file_that_cannot_be_written_is_an_error(folders, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = run("evaluate", *folders, "--json", tmp_path / "file" / "out.json")
    assert code == 2
    assert "cannot be written" in err


def test_images_above_the_pixel_limit_are_refused(folders):
    code, _, err = run("evaluate", *folders, "--max-pixels", "100")
    assert code == 2
    assert "at most 100 pixels (raise the limit with --max-pixels)" in err


def test_constant_and_single_class_maps_give_null_not_a_crash(tmp_path):
    for name in ("maps", "masks"):
        (tmp_path / name).mkdir()
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "maps" / "a.png")
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "masks" / "a.png")
    record = evaluate_json(tmp_path, tmp_path / "maps", tmp_path / "masks", "--figures", tmp_path / "figures")
    assert record["calibration"]["auroc_error"] is None
    assert record["calibration"]["ece_boundary_5"] is None
    assert record["calibration"]["accuracy"] == 1


# ------------------------------------------------------------------ the command itself


def test_help_answers_within_a_second_and_without_torch():
    code = """
import sys
import densecal.cli
sys.argv = ["densecal", "--help"]
try:
    densecal.cli.main()
except SystemExit:
    pass
assert "torch" not in sys.modules
"""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # processor time, so that other load on the machine changes nothing
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1


def test_version():
    code, out, _ = run("--version")
    assert code == 0
    assert out.startswith("densecal ")


# ------------------------------------------------------------------ groups and single images


def test_groups_are_what_intervals_resample(folders, tmp_path):
    alone = evaluate_json(tmp_path, *folders)
    assert "groups" not in alone
    listed = tmp_path / "patients.csv"
    listed.write_text("".join(f"im {i}.png,patient {i // 2}\n" for i in range(6)))
    record = evaluate_json(tmp_path, *folders, "--groups", listed)
    assert record["groups"] == 3
    for name in ("ece_ew", "accuracy"):
        assert record["calibration"][name] == alone["calibration"][name]
        assert record["calibration"]["ci"][name] != alone["calibration"]["ci"][name]
    expected = intervals(evaluate(*folders).rows, [f"{i // 2}" for i in range(6)])
    for name, ends in expected.items():
        assert record["calibration"]["ci"][name] == pytest.approx(ends, rel=1e-9)
    code, text, error = run("evaluate", *folders, "--groups", "im ([0-4])")
    assert (code, text) == (2, "")
    assert error == "densecal: --groups: no group for 'im 5'; expected names that match 'im ([0-4])'\n"
    code, text, _ = run("evaluate", *folders, "--groups", r"im \d")
    assert code == 0
    assert "6 images in 6 groups" in " ".join(text.split())


def test_differences_resample_groups_too(folders, tmp_path):
    maps, masks = folders
    both = tmp_path / "both"
    for method in ("one", "two"):
        (both / method).mkdir(parents=True)
    for path in maps.iterdir():
        level = np.asarray(Image.open(path))
        Image.fromarray(level).save(both / "one" / path.name)
        Image.fromarray(level // 2 + 40).save(both / "two" / path.name)
    alone = evaluate_json(tmp_path, both, masks)["paired"][0]
    listed = tmp_path / "patients.tsv"
    listed.write_text("".join(f"im {i}\t{i // 3}\n" for i in range(6)))
    grouped = evaluate_json(tmp_path, both, masks, "--groups", listed)["paired"][0]
    assert grouped["difference"] == alone["difference"]
    assert grouped["ci"]["ece_ew"] != alone["ci"]["ece_ew"]


@pytest.mark.parametrize("groups", [(), ("--groups", "im")])
def test_one_image_or_group_has_null_intervals_in_every_output(folders, tmp_path, groups):
    maps, masks = folders
    if not groups:
        for folder in folders:
            for path in sorted(folder.iterdir())[1:]:
                path.unlink()
    both = tmp_path / "both"
    for method in ("one", "two"):
        shutil.copytree(maps, both / method)
    files = [tmp_path / name for name in ("out.json", "out.csv", "out.tex")]
    outputs = [f"--{kind}={path}" for kind, path in zip(("json", "csv", "latex"), files, strict=True)]
    code, _, error = run("evaluate", both, masks, *groups, *outputs)
    assert code == 0
    what = "group" if groups else "image"
    assert error.count(f"only one {what}: no intervals, because nothing shows how {what}s differ") == 2
    content = json.loads(files[0].read_text())
    assert {tuple(ends) for ends in content["paired"][0]["ci"].values()} == {(None, None)}
    for record in content["evaluations"]:
        assert {tuple(ends) for ends in record["calibration"]["ci"].values()} == {(None, None)}
        assert record["calibration"]["ece_ew"] > 0
    (row, _) = csv.DictReader(files[1].open())
    assert (row["ece_ew_low"], row["ece_ew_high"]) == ("", "")
    code, text, _ = run("evaluate", maps, masks, *groups)
    assert code == 0
    assert "nan" not in (text + files[1].read_text() + files[2].read_text()).lower()
    assert " to " not in text
    code, _, error = run("report", files[0], "--out", tmp_path / "page.html")
    assert code == 0, error
    page = (tmp_path / "page.html").read_text()
    assert '"intervals":{}' in page
    assert "nan" not in re.sub(r"<(script|style).*?</\1>", "", page, flags=re.S).lower()
    assert "+0.00" in page


class CountingEngine:
    """An engine that keeps some calls under way, and takes the same time for every pair."""

    def __init__(self, ahead: int, seconds: float) -> None:
        self.ahead, self.seconds = ahead, seconds
        self.sizes: list[int] = []

    def map(self, function, calls, *, gpu=False):
        pending = deque()
        for pairs, *_ in calls:
            self.sizes.append(len(pairs))
            pending.append(Part(stems=[pair.stem for pair in pairs], seconds=self.seconds * len(pairs)))
            if len(pending) > self.ahead:
                yield pending.popleft()
        yield from pending


def sizes_of_calls(pairs: int, ahead: int, seconds: float) -> list[int]:
    engine = CountingEngine(ahead, seconds)
    named = [Pair(f"{i:05}", Path("map.png"), Path("mask.png")) for i in range(pairs)]
    total, _ = score_all(named, Settings(full=False), 1, False, silent, engine=engine)
    assert total.stems == [pair.stem for pair in named]
    return engine.sizes


def test_calls_take_about_a_second_from_the_second_one_on():
    assert sizes_of_calls(2000, 0, 1e-3) == [32, 512, 512, 512, 432]
    assert sizes_of_calls(400, 0, 1e-2) == [32, *[96] * 3, 80]
    assert sizes_of_calls(100, 0, 2.0) == [32, 32, 32, 4]


@pytest.mark.parametrize("pairs", [1000, 1280, 5000])
def test_no_call_is_larger_than_a_share_of_what_is_left_among_those_under_way(pairs):
    ahead = 6  # of two workers
    sizes = sizes_of_calls(pairs, ahead, 1e-4)
    left = pairs - np.cumsum([0, *sizes])
    shares = left[:-1] / (ahead + 1)
    assert all(size <= max(32, share + 32 / (ahead + 1)) for size, share in zip(sizes, shares, strict=True))
    assert sizes[: ahead + 1] == [32] * (ahead + 1)
    assert max(sizes) >= min(512, shares[ahead + 1] - 32)
