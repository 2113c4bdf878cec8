"""Every kind of fault is found, named and counted; a set without faults is fine."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from densecal.cli import app
from densecal.data.check import KINDS, NOTES, Report, check
from densecal.errors import InputError

from . import published, samples
from .test_duplicates import COPIES, frame, photograph

NAMES = [f"n{i:02}" for i in range(6)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A set of six without faults."""
    for i, name in enumerate(NAMES):
        samples.save(photograph(i), tmp_path / "set" / "images" / f"{name}.png")
        samples.save(samples.mask(i, 120, 160), tmp_path / "set" / "masks" / f"{name}.png")
    return tmp_path / "set"


def files_by_kind(report: Report) -> dict[str, list[list[str]]]:
    """File names by kind."""
    return {
        kind: [[Path(file).name for file in finding.files] for finding in findings]
        for kind, findings in report.by_kind().items()
    }


def detail(report: Report) -> str:
    assert len(report.findings) == 1
    return report.findings[0].detail


def test_a_set_without_faults_is_fine(root: Path):
    report = check(root, workers=1)
    assert report.fine
    assert report.findings == []


def test_missing_partners(root: Path):
    (root / "masks" / "n01.png").unlink()
    (root / "images" / "n02.png").unlink()
    report = check(root, workers=1)
    assert files_by_kind(report) == {"no-mask": [["n01.png"]], "no-image": [["n02.png"]]}
    assert not report.fine


def test_the_number_of_images_of_a_published_set(root: Path):
    root.rename(root.with_name("ECSSD"))
    report = check(root.with_name("ECSSD"), workers=1)
    assert list(files_by_kind(report)) == ["count"]
    assert detail(report) == "6 images; expected 1,000"
    assert report.as_dict()["home"].startswith("https://www.cse.cuhk.edu.hk")


def test_names_on_the_sets_list_without_an_image(tmp_path: Path):
    path = published.write_set("PASCAL VOC 2012 augmented", tmp_path, NAMES)
    (path / "ImageSets" / "Segmentation" / "trainaug.txt").write_text("\n".join([*NAMES, "gone"]))
    report = check(path, workers=1)
    assert files_by_kind(report)["absent"] == [["gone"]]
    assert report.classes == 21
    assert set(files_by_kind(report)) == {"absent", "count"}


def test_unreadable_files(root: Path):
    (root / "images" / "n01.png").write_bytes((root / "images" / "n01.png").read_bytes()[:200])
    (root / "masks" / "n02.png").write_bytes(b"no image")
    samples.save(photograph(1), root / "masks" / "n03.png")
    report = check(root, workers=1)
    assert files_by_kind(report) == {"unreadable": [["n01.png"], ["n02.png"], ["n03.png"]]}
    details = [finding.detail for finding in report.findings]
    assert "not an image" in details[1]
    assert "a colour image" in details[2]


def test_masks_of_another_size(root: Path):
    samples.save(samples.mask(0, 160, 120), root / "masks" / "n00.png")
    report = check(root, workers=1)
    assert list(files_by_kind(report)) == ["size"]
    assert detail(report) == "120 x 160 pixels; expected 160 x 120"


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [(0, "empty-mask", "highest value is 0"), (255, "full-mask", "lowest value is 255")],
)
def test_masks_of_one_value(root: Path, value: int, kind: str, words: str):
    samples.save(np.full((120, 160), value, np.uint8), root / "masks" / "n04.png")
    report = check(root, workers=1)
    assert files_by_kind(report) == {kind: [["n04.png"]]}
    assert words in detail(report)
    assert not report.fine


def test_a_label_map_among_foreground_masks_is_empty_and_grey(root: Path):
    samples.save(published.labels(0, 5, 7, 120, 160), root / "masks" / "n04.png")
    report = check(root, workers=1)
    assert set(files_by_kind(report)) == {"empty-mask", "grey-mask"}
    assert "highest value is 7" in report.findings[0].detail


def test_grey_masks_are_a_note_and_not_a_fault(root: Path):
    mask = samples.mask(0, 120, 160)
    mask[:3, :5] = 90
    samples.save(mask, root / "masks" / "n00.png")
    report = check(root, workers=1)
    assert files_by_kind(report) == {"grey-mask": [["n00.png"]]}
    assert detail(report) == "15 of 19,200 pixels"
    assert report.fine


def test_images_without_an_object_belong_to_some_sets(tmp_path: Path):
    path = published.write_set("COD10K train", tmp_path, NAMES)
    samples.save(np.zeros((30, 40), np.uint8), path / "GT_Object" / "n04.png")
    assert set(files_by_kind(check(path, workers=1))) == {"count"}


def test_labels(tmp_path: Path):
    path = published.write_set("CamVid train", tmp_path, NAMES)
    annotations = path.with_name("trainannot")
    assert set(files_by_kind(check(path, workers=1))) == {"count"}
    bad = published.labels(0, 11, 11)
    bad[4, :7] = 200
    samples.save(bad, annotations / "n00.png")
    samples.save(np.full((30, 40), 11, np.uint8), annotations / "n01.png")
    report = check(path, workers=1)
    assert files_by_kind(report) == {
        "count": [["train"]],
        "labels": [["n00.png"]],
        "empty-mask": [["n01.png"]],
    }
    assert report.findings[1].detail == "labels 200 (7 pixels); expected 0 to 10, or 11 for void pixels"
    assert set(files_by_kind(check(path, classes=201, ignore_index=11, workers=1))) == {"count", "empty-mask"}
    assert len(files_by_kind(check(path, classes=5, ignore_index=255, workers=1))["labels"]) == 6


def test_copies_inside_a_set(root: Path):
    samples.save(photograph(0), root / "images" / "n01.png")
    assert files_by_kind(check(root, workers=1)) == {"duplicate": [["n00.png", "n01.png"]]}
    assert detail(check(root, workers=1)) == "their masks differ"
    samples.save(samples.mask(0, 120, 160), root / "masks" / "n01.png")
    assert detail(check(root, workers=1)) == ""
    COPIES["encoding"](Image.fromarray(photograph(5))).save(root / "images" / "n02.png")
    report = check(root, workers=1)
    assert files_by_kind(report) == {"duplicate": [["n00.png", "n01.png"]], "near-duplicate": [["n02.png", "n05.png"]]}
    assert report.findings[1].detail.startswith("correlation 0.99") or report.findings[1].detail == "correlation 1.000"


def test_copies_in_another_set(root: Path, tmp_path: Path):
    other = tmp_path / "other"
    samples.save(photograph(77), other / "a.png")
    samples.save(photograph(3), other / "b.png")
    small = Image.fromarray(photograph(4)).resize((80, 60))
    samples.save(np.asarray(small), other / "c.jpg")
    report = check(root, against=[other], workers=1)
    assert files_by_kind(report) == {"shared": [["n03.png", "b.png"]], "near-shared": [["n04.png", "c.jpg"]]}
    assert not report.fine
    assert check(root, against=[samples.zipped(tmp_path / "x.zip", ["a"])], workers=1).fine


def test_similar_images_are_not_wrong(tmp_path: Path):
    for folder, time in (("a", 0), ("b", 1)):
        for seed in range(3):
            samples.save(frame(seed, time), tmp_path / folder / f"{folder}{seed}.png")
    report = check(tmp_path / "a", against=[tmp_path / "b"], workers=1)
    assert files_by_kind(report) == {"similar-shared": [[f"a{i}.png", f"b{i}.png"] for i in range(3)]}
    assert report.fine
    assert report.count("similar-shared") == "3 pairs among 6 images"


def test_copies_are_counted_as_pairs_among_images(root: Path, tmp_path: Path):
    other = tmp_path / "other"
    for name in ("a", "b", "c"):
        samples.save(photograph(3), other / f"{name}.png")
    report = check(root, against=[other], workers=1)
    assert report.count("shared") == "3 pairs among 4 images"
    assert report.as_dict()["copies"] == {"shared": {"pairs": 3, "images": 4}}
    assert check(other, workers=1).count("duplicate") == "3 pairs among 3 images"
    code, text = run(other)
    assert (code, "3 pairs among 3 images" in text) == (1, True)


def test_zips_and_processes(tmp_path: Path):
    names = [f"{i:03}" for i in range(40)]
    path = samples.zipped(tmp_path / "x.zip", names)
    more = samples.zipped(tmp_path / "y.zip", ["again"], first=7)
    calls: list[tuple[int, int]] = []
    report = check([path, more], against=[more], workers=2, progress=lambda _, *step: calls.append(step))
    assert files_by_kind(report) == {
        "duplicate": [["007.png", "again.png"]],
        "shared": [["007.png", "again.png"], ["again.png", "again.png"]],
    }
    assert calls[-1] == (42, 42)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert files_by_kind(check([path, more], against=[more], workers=1)) == files_by_kind(report)


def test_a_set_without_masks_and_an_empty_set(tmp_path: Path):
    images, _ = samples.folders(tmp_path / "set", ["a", "b"])
    assert check(images, workers=1).fine
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no image files"):
        check(tmp_path / "empty")


@pytest.mark.parametrize(
    ("name", "masks", "wanted"),
    [
        ("DUTS-TR", "DUTS-TR-Mask", "DUTS-TR-Mask"),
        ("CHAMELEON", "GT", "masks"),
        ("CamVid train", "trainannot", "trainannot"),
        ("CAMO test", "GT", "GT"),
        ("PASCAL VOC 2012 augmented", "SegmentationClass*", "SegmentationClassAug"),
    ],
)
def test_a_published_set_without_its_masks(name: str, masks: str, wanted: str, tmp_path: Path):
    path = published.write_set(name, tmp_path, NAMES)
    for folder in list(tmp_path.rglob(masks)):
        shutil.rmtree(folder)
    report = check(path, workers=1)
    assert report.files.layout is not None
    assert report.files.layout.name == name
    assert not report.fine
    (finding,) = report.by_kind()["no-mask"]
    assert finding.detail == f"no masks at all; expected a folder {wanted}"


def test_unreadable_images_of_the_other_set_are_named(root: Path, tmp_path: Path):
    images, _ = samples.folders(tmp_path / "other", ["a", "b"])
    (images / "a.png").write_bytes(b"xx")
    assert files_by_kind(check(root, against=[images], workers=1)) == {"unreadable": [["a.png"]]}


def run(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["data", "check", *map(str, arguments), "--workers", "1"])
    return result.exit_code, result.output


def test_the_command_exits_with_1_on_faults_and_writes_everything(root: Path, tmp_path: Path):
    code, text = run(root)
    assert code == 0
    assert "6 images, 6 masks" in text
    assert "nothing is wrong" in text
    for i, name in enumerate([f"[red]{i}" for i in range(25)]):
        samples.save(photograph(100 + i), root / "images" / f"{name}.png")
        samples.save(np.zeros((120, 160), np.uint8), root / "masks" / f"{name}.png")
    code, text = run(root / "images", root / "masks", "--json", tmp_path / "out.json")
    assert code == 1
    assert "[red]0.png: its highest value is 0" in text
    assert "and 5 more" in text
    assert "something is wrong" in text
    record = json.loads((tmp_path / "out.json").read_text())
    assert record["fine"] is False
    assert (record["images"], record["masks"], record["classes"]) == (31, 31, 1)
    assert len(record["findings"]["empty-mask"]) == 25
    code, text = run(samples.zipped(tmp_path / "a.zip", ["a"]), samples.zipped(tmp_path / "b.zip", ["b"], first=1))
    assert (code, "2 images" in text) == (0, True)


def test_the_command_says_that_there_were_no_masks(tmp_path: Path):
    images, masks = samples.folders(tmp_path / "set", ["a"])
    assert "nothing is wrong; no masks were given, so only the images were checked" in run(images)[1]
    assert "no masks were given" not in run(images, masks)[1]


def test_every_kind_has_a_text():
    assert set(NOTES) < set(KINDS)
