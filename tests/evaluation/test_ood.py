"""`densecal evaluate --ood` and `densecal shift` as a user sees them."""

import csv
import json

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import roc_auc_score

from densecal.data.scenes import generate, write
from densecal.evaluation.model import ImageSet, evaluate_model
from densecal.evaluation.ood import compare_ood
from densecal.metrics import calibration_errors
from densecal.models import build
from densecal.training import checkpoint
from tests.evaluation.test_folders import make_pair, to_levels
from tests.running import run
from tests.training.common import small_config

FORMATS = ("png8", "png16", "npy")


def save_map(p, stem, form):
    if form == "npy":
        np.save(stem.with_name(f"{stem.name}.npy"), p)
    else:
        kind = np.uint8 if form == "png8" else np.uint16
        Image.fromarray(to_levels(p, kind)).save(stem.with_name(f"{stem.name}.png"))


def as_stored(p, form):
    top = {"png8": 255, "png16": 65535}.get(form)
    return p if top is None else np.rint(p * top) / top


def entropy(p):
    q = np.clip(np.stack([p, 1 - p]), 1e-300, 1)
    return -(q * np.log2(q)).sum(axis=0)


def make_data(root, form="png8", methods=("",), n=6, m=5):
    """Write maps and masks, and maps of images without foreground, with one folder per method."""
    (root / "masks").mkdir(parents=True)
    kept = {}
    for k, method in enumerate(methods):
        maps, ood = root / "maps" / method, root / "textures" / method
        maps.mkdir(parents=True)
        ood.mkdir(parents=True)
        inside = [make_pair(10 * k + i)[0] for i in range(n)]
        outside = [make_pair(500 + 10 * k + i, (25, 30 + i))[0] ** 2 for i in range(m)]
        for i, p in enumerate(inside):
            save_map(p, maps / f"{i}", form)
        for i, p in enumerate(outside):
            save_map(p, ood / f"t{i}", form)
        kept[method] = [as_stored(p, form) for p in inside], [as_stored(p, form) for p in outside]
    for i in range(n):
        Image.fromarray(make_pair(i)[1]).save(root / "masks" / f"{i}.png")
    return kept


def evaluate_json(root, *arguments):
    code, out, err = run("evaluate", *arguments, "--json", root / "out.json")
    assert code == 0, err
    return json.loads((root / "out.json").read_text()), out, err


@pytest.mark.parametrize("form", FORMATS)
def test_every_figure_of_an_ood_set(tmp_path, form):
    inside, outside = make_data(tmp_path, form)[""]
    arguments = (tmp_path / "maps", tmp_path / "masks", "--ood", tmp_path / "textures")
    record, out, _ = evaluate_json(tmp_path, *arguments)
    [entry] = record["ood"]
    assert entry["dataset"] == "textures"
    means = [[float(entropy(p).mean()) for p in maps] for maps in (inside, outside)]
    assert record["entropy"]["images"] == pytest.approx(means[0], rel=1e-9)
    assert entry["record"]["entropy"]["images"] == pytest.approx(means[1], rel=1e-9)
    labels = [0] * len(inside) + [1] * len(outside)
    assert entry["auroc"] == pytest.approx(roc_auc_score(labels, means[0] + means[1]), abs=1e-9)
    threshold = min(means[1])  # five images: 95 % of them are all
    assert entry["fpr95"] == pytest.approx(np.mean([mean >= threshold for mean in means[0]]), abs=1e-9)
    for side, maps in (("in", inside), ("out", outside)):
        h = np.concatenate([entropy(p).ravel() for p in maps])
        c = np.concatenate([np.maximum(p, 1 - p).ravel() for p in maps])
        assert np.abs(np.array(entry["entropy"][side]) - np.histogram(h, 100, (0, 1))[0]).sum() <= 4
        assert np.abs(np.array(entry["confidence"][side]) - np.histogram(c, 100, (0, 1))[0]).sum() <= 4
        assert sum(entry["entropy"][side]) == h.size
    pixels = np.concatenate([p.ravel() for p in outside])
    found = entry["record"]["calibration"]
    expected = calibration_errors(pixels, np.zeros(pixels.size, np.int64))
    for key in ("ece_ew", "oe_ew", "oe_ew_weighted", "accuracy", "mean_confidence", "brier"):
        assert found[key] == pytest.approx(getattr(expected, key), rel=1e-6), key
    assert found["accuracy"] == pytest.approx(np.mean(pixels <= 0.5), rel=1e-9)
    assert found.keys() == record["calibration"].keys()
    assert entry["record"]["segmentation"] == {}
    assert entry["record"]["images"] == len(outside)
    assert sum(n for _, _, n in entry["record"]["joint"]["counts"]) == len(outside)
    for text in ("textures", f"{100 * entry['auroc']:.2f}", f"{100 * found['ece_ew']:.2f}"):
        assert text in out


def test_without_ood_the_record_has_no_further_keys(tmp_path):
    make_data(tmp_path)
    folders = (tmp_path / "maps", tmp_path / "masks")
    plain, *_ = evaluate_json(tmp_path, *folders)
    assert list(plain) == [
        "densecal", "schema", "name", "dataset", "images", "pixels", "skipped", "warnings", "calibration",
        "segmentation",
        "reliability", "joint", "settings", "segmentation_ci", "thresholds", "curves", "logits",
        "cases", "regions",
    ]  # fmt: skip
    beside, *_ = evaluate_json(tmp_path, *folders, "--ood", tmp_path / "textures")
    assert {key: beside[key] for key in plain} == plain
    assert beside.keys() - plain.keys() == {"entropy", "ood"}


def test_every_ood_set_holds_a_folder_for_each_of_several_methods(tmp_path):
    make_data(tmp_path, methods=("one", "two"))
    result, out, _ = evaluate_json(
        tmp_path, tmp_path / "maps", tmp_path / "masks", "--ood", tmp_path / "textures",
        "--csv", tmp_path / "all.csv", "--latex", tmp_path / "all.tex",
    )  # fmt: skip
    alone, *_ = evaluate_json(
        tmp_path, tmp_path / "maps" / "two", tmp_path / "masks", "--ood", tmp_path / "textures" / "two"
    )
    one, two = result["evaluations"]
    assert one["ood"][0]["record"]["name"] == "one"
    assert two["ood"][0]["auroc"] == alone["ood"][0]["auroc"]
    assert two["ood"][0]["record"]["calibration"] == alone["ood"][0]["record"]["calibration"]
    assert {(pair["dataset"], pair["a"], pair["b"]) for pair in result["paired"]} == {
        (one["dataset"], "one", "two"),
        ("textures", "one", "two"),
    }
    rows = list(csv.DictReader((tmp_path / "all.csv").open()))
    assert [(row["name"], row["dataset"]) for row in rows[2:]] == [("one", "textures"), ("two", "textures")]
    assert "textures & two" in (tmp_path / "all.tex").read_text()
    assert out.count("textures") == 2


def test_processes_and_void_pixels_change_nothing_out_of_distribution(tmp_path):
    make_data(tmp_path, n=70, m=40)
    folders = (tmp_path / "maps", tmp_path / "masks", "--metrics", "fast", "--ood", tmp_path / "textures")
    a, *_ = evaluate_json(tmp_path, *folders, "--workers", "1")
    b, *_ = evaluate_json(tmp_path, *folders, "--workers", "2")
    assert a == b
    c, _, err = evaluate_json(tmp_path, *folders, "--workers", "1", "--ignore-index", "7")
    assert c["ood"] == a["ood"]
    assert "no mask holds foreground" not in err


def test_void_pixels_have_no_entropy(tmp_path):
    inside, _ = make_data(tmp_path, "npy")[""]
    mask = np.zeros(inside[0].shape, np.uint8)
    mask[:, :20] = 7
    Image.fromarray(mask).save(tmp_path / "masks" / "0.png")
    void = np.full(inside[1].shape, 7, np.uint8)
    Image.fromarray(void).save(tmp_path / "masks" / "1.png")
    arguments = ("--ignore-index", "7", "--ood", tmp_path / "textures")
    record, *_ = evaluate_json(tmp_path, tmp_path / "maps", tmp_path / "masks", *arguments)
    assert record["entropy"]["images"][0] == pytest.approx(entropy(inside[0][:, 20:]).mean(), rel=1e-9)
    assert record["entropy"]["images"][1] is None
    assert sum(record["entropy"]["histogram"]) == record["pixels"]
    assert 0 <= record["ood"][0]["auroc"] <= 1


def test_figures_are_written_beside_the_others(tmp_path):
    make_data(tmp_path)
    figures = tmp_path / "figures"
    code, _, err = run(
        "evaluate", tmp_path / "maps", tmp_path / "masks", "--ood", tmp_path / "textures", "--figures", figures,
    )  # fmt: skip
    assert code == 0, err
    assert (figures / "joint.png").is_file()
    for name in ("histograms", "joint", "reliability"):
        with Image.open(figures / "ood" / "textures" / f"{name}.png") as picture:
            assert np.asarray(picture.convert("L")).std() > 5


def test_errors_about_wrong_folders_take_one_line(tmp_path):
    make_data(tmp_path, methods=("one", "two"))
    maps, masks, ood = tmp_path / "maps", tmp_path / "masks", tmp_path / "textures"
    cases = {
        "no such folder": (maps, masks, "--ood", tmp_path / "nothing"),
        "no such folder; expected the maps of one": (maps, masks, "--ood", ood / "one"),
        "a second --ood folder called textures": (maps, masks, "--ood", ood, "--ood", ood),
        "maps of 3 classes": (maps / "one", masks, "--ood", ood / "one", "--classes", "3"),
        "no prediction map": (maps / "one", masks, "--ood", empty_folder(tmp_path, "one")),
    }
    for message, arguments in cases.items():
        code, _, err = run("evaluate", *arguments)
        assert code == 2
        assert message in err
        assert err.count("\n") == 1


def empty_folder(root, method):
    (root / "empty" / method).mkdir(parents=True)
    return root / "empty"


def test_a_bad_map_out_of_distribution_is_named_or_skipped(tmp_path):
    make_data(tmp_path)
    (tmp_path / "textures" / "t1.png").write_bytes(b"no picture")
    arguments = ("evaluate", tmp_path / "maps", tmp_path / "masks", "--ood", tmp_path / "textures")
    code, _, err = run(*arguments)
    assert code == 2
    assert "t1.png" in err
    code, _, err = run(*arguments, "--skip-bad")
    assert code == 0
    assert "skipped: maps on textures" in err
    assert "t1.png" in err


def test_records_of_models_compare_like_those_of_folders():
    def flat(images):
        return 8 * (images.mean(dim=1, keepdim=True) - 0.5)

    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (6, 16, 16, 3), dtype=np.uint8)
    masks = [np.zeros((16, 16), np.uint8) for _ in images]
    masks[0][3:9] = 1
    inside = ImageSet("in", list("abc"), images[:3], masks[:3])
    outside = ImageSet("out", list("xyz"), images[3:], masks[3:])
    records = [evaluate_model(flat, data)["model"].record for data in (inside, outside)]
    entry = compare_ood(*records)
    p = [flat(torch.tensor(images[i : i + 3]).permute(0, 3, 1, 2) / 255).sigmoid().double().numpy() for i in (0, 3)]
    means = np.concatenate([entropy(maps).mean(axis=(1, 2, 3)) for maps in p])
    assert entry.auroc == pytest.approx(roc_auc_score([0, 0, 0, 1, 1, 1], means))
    assert entry.dataset == "out"
    assert entry.confidence.outside == records[1].reliability.histogram.count


# ------------------------------------------------------------------ shift


@pytest.fixture
def untrained(tmp_path):
    """A run folder of a network that never saw an image, and scenes."""
    config = small_config()
    torch.manual_seed(0)
    model = build(config.model.arch, config.model.encoder, None, 1, **config.model.options)
    meta = {"epoch": 1, "best": 1.0, "config": config.model_dump(mode="json")}
    checkpoint.save(tmp_path / "run" / "checkpoints" / "last", model.state_dict(), {}, {}, meta)
    write(generate(5, 40, seed=1), tmp_path / "scenes")
    return tmp_path


def test_shift_prints_a_table_and_writes_records_and_curves(untrained):
    code, out, err = run(
        "shift", untrained / "run", untrained / "scenes" / "images", untrained / "scenes" / "masks",
        "--json", untrained / "shift.json", "--figures", untrained / "figures", "--device", "cpu",
    )  # fmt: skip
    assert code == 0, err
    [found] = json.loads((untrained / "shift.json").read_text())["evaluations"]
    assert (found["name"], found["dataset"]) == ("run", "scenes")
    assert list(found["shift"]) == ["noise", "blur", "jpeg", "brightness", "contrast"]
    records = [record for by_severity in found["shift"].values() for record in by_severity.values()]
    assert len(records) == 25
    assert all(record["pixels"] == found["clean"]["pixels"] == 5 * 40 * 40 for record in records)
    lines = [line for line in out.splitlines() if "noise" in line and "ECE" in line]
    shown = [float(cell) for cell in lines[0].replace("│", " ").split()[3:]]
    expected = [found["clean"], *found["shift"]["noise"].values()]
    assert shown == [round(100 * record["calibration"]["ece_ew"], 2) for record in expected]
    with Image.open(untrained / "figures" / "shift.png") as picture:
        assert np.asarray(picture.convert("L")).std() > 5


def test_shift_shows_a_calibrator_beside_the_model(untrained):
    text = {"densecal": "calibrator", "version": 1, "method": "temperature", "classes": 1, "temperature": 4.0}
    (untrained / "hot.json").write_text(json.dumps(text))
    arguments = ("shift", untrained / "run", untrained / "scenes", "--device", "cpu", "--json", untrained / "s.json")
    code, _, err = run(*arguments, "--calibrator", untrained / "hot.json")
    assert code == 0, err
    plain, hot = json.loads((untrained / "s.json").read_text())["evaluations"]
    assert hot["name"] == "run with hot"
    for kind, by_severity in plain["shift"].items():
        for severity, record in by_severity.items():
            here, there = record["calibration"], hot["shift"][kind][severity]["calibration"]
            # logits next to 0 round to a probability of 0.5 once they are divided
            assert here["accuracy"] == pytest.approx(there["accuracy"], abs=2e-3)
            assert here["mean_confidence"] > there["mean_confidence"]


def test_shift_needs_masks(untrained):
    code, _, err = run("shift", untrained / "run", untrained / "scenes" / "images")
    assert code == 2
    assert "images without masks" in err
