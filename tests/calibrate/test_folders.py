"""`densecal calibrate` and `densecal risk-control` as a user sees them: maps of every kind, runs, bad input."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.ndimage import gaussian_filter

from densecal.evaluation.folders import evaluate
from densecal.posthoc import create, load
from tests.posthoc.common import histogram_of
from tests.running import run
from tests.training.common import small_config

T = 1.8
SIZE = (40, 50)


def make(seed):
    """Return an over-confident logit map, as a model would give, and a mask drawn from the calibrated one."""
    rng = np.random.default_rng(seed)
    z = gaussian_filter(rng.normal(size=SIZE), 3) * 16 - 0.5
    y = rng.random(SIZE) < 1 / (1 + np.exp(-z))
    return T * z, y


def write(path, p, kind):
    if kind == "npy":
        np.save(path.with_name(path.name + ".npy"), p.astype(np.float32))
    else:
        dtype = np.uint8 if kind == "png8" else np.uint16
        Image.fromarray(np.rint(p * np.iinfo(dtype).max).astype(dtype)).save(path.with_name(path.name + ".png"))


@pytest.fixture
def folders(tmp_path):
    """maps/KIND/, masks/ and images/ of twelve scenes whose names hold dots."""
    for folder in ("masks", "images", *(f"maps/{kind}" for kind in ("png8", "png16", "npy"))):
        (tmp_path / folder).mkdir(parents=True)
    for i in range(12):
        z, y = make(i)
        for kind in ("png8", "png16", "npy"):
            write(tmp_path / "maps" / kind / f"a.{i}", 1 / (1 + np.exp(-z)), kind)
        Image.fromarray(y).save(tmp_path / "masks" / f"a.{i}.png")
        grey = np.repeat(np.uint8(255 / (1 + np.exp(-z)))[..., None], 3, axis=2)
        Image.fromarray(grey).resize((80, 64)).save(tmp_path / "images" / f"a.{i}.jpg")
    return tmp_path


# ------------------------------------------------------------------ maps


@pytest.mark.parametrize("kind", ["png8", "png16", "npy"])
def test_fit_apply_evaluate(folders, kind):
    maps, masks, out = folders / "maps" / kind, folders / "masks", folders / "out"
    code, text, error = run("calibrate", "fit", "temperature", maps, masks, "--out", folders / "cal.json")
    assert (code, error) == (0, "")
    data = json.loads((folders / "cal.json").read_text())
    assert data["method"] == "temperature"
    assert data["temperature"] == pytest.approx(T, rel=0.06)
    code, _, error = run("calibrate", "apply", folders / "cal.json", maps, "--out", out)
    assert (code, error) == (0, "")
    before, after = evaluate(maps, masks).record.calibration, evaluate(out, masks).record.calibration
    assert after["ece_ew"] < before["ece_ew"] / 3
    assert after["nll"] < before["nll"]
    assert after["accuracy"] == before["accuracy"]
    # what the command said of its own gain is what evaluate measures
    line = next(line for line in text.splitlines() if "after" in line)
    assert float(line.split()[2]) == pytest.approx(after["nll"], abs=2e-4)
    assert float(line.split()[4]) == pytest.approx(100 * after["ece_ew"], abs=0.05)
    suffix = "npy" if kind == "npy" else "png"
    assert sorted(p.name for p in out.iterdir()) == sorted(f"a.{i}.{suffix}" for i in range(12))


def test_written_maps_are_the_output_of_the_calibrator(folders):
    for kind in ("png8", "png16", "npy"):
        maps = folders / "maps" / kind
        assert run("calibrate", "fit", "platt", maps, folders / "masks", "--out", folders / f"{kind}.json")[0] == 0
        assert run("calibrate", "apply", folders / f"{kind}.json", maps, "--out", folders / kind)[0] == 0
    fitted = load(folders / "npy.json")
    p = np.load(folders / "maps/npy/a.3.npy").astype(np.float64)
    z = torch.tensor(np.log(p) - np.log1p(-p))
    written = np.load(folders / "npy" / "a.3.npy")
    assert written.dtype == np.float32
    assert written == pytest.approx(fitted(z[None, None])[0, 0].numpy(), abs=1e-6)
    for kind in ("png8", "png16"):
        image = np.asarray(Image.open(folders / kind / "a.3.png"))
        assert image.dtype == np.uint16
        assert np.abs(image / 65535 - written).mean() < (5e-3 if kind == "png8" else 1e-4)


@pytest.mark.parametrize("method", ["platt", "isotonic", "histogram", "beta"])
def test_every_map_calibrator_lowers_the_ece(folders, method):
    maps, masks = folders / "maps" / "png16", folders / "masks"
    code, text, _ = run("calibrate", "fit", method, maps, masks, "--out", folders / "cal.json")
    assert code == 0
    assert f"{method} fitted on 12 images" in text
    assert run("calibrate", "apply", folders / "cal.json", maps, "--out", folders / "out")[0] == 0
    before, after = evaluate(maps, masks).record.calibration, evaluate(folders / "out", masks).record.calibration
    assert after["ece_ew"] < before["ece_ew"] / 3


@pytest.mark.parametrize("method", ["local-temperature", "selective"])
def test_networks_take_images_of_any_size(folders, method):
    maps, images = folders / "maps" / "png16", folders / "images"
    for i in range(4, 12):  # four will do
        (maps / f"a.{i}.png").unlink()
        (folders / "masks" / f"a.{i}.png").unlink()
    code, _, error = run("calibrate", "fit", method, maps, folders / "masks", "--out", folders / "cal.json")
    assert code == 2
    assert "maps without images; expected --images" in error
    fit = ("calibrate", "fit", method, maps, folders / "masks", "--images", images, "--out", folders / "cal.json")
    code, text, error = run(*fit)
    assert (code, error) == (0, "")
    nll = [float(line.split()[2]) for line in text.splitlines()[1:]]
    assert nll[1] < nll[0]
    assert (folders / "cal.safetensors").is_file()
    code, _, error = run("calibrate", "apply", folders / "cal.json", maps, "--out", folders / "out")
    assert code == 2
    assert "--images" in error
    code, _, error = run("calibrate", "apply", folders / "cal.json", maps, "--images", images, "--out", folders / "out")
    assert (code, error) == (0, "")
    before, after = (np.asarray(Image.open(f / "a.0.png")).astype(int) for f in (maps, folders / "out"))
    assert np.array_equal(before * 2 > 65535, after * 2 > 65535)


def test_void_pixels_and_other_sizes(folders):
    """Void pixels are wrong on purpose; a map of another size is resized to its mask."""
    maps, masks = folders / "maps" / "npy", folders / "masks"
    for i in range(12):
        mask = np.asarray(Image.open(masks / f"a.{i}.png")).astype(np.uint8)
        mask[:10] = 100
        Image.fromarray(mask).save(masks / f"a.{i}.png")
        p = np.load(maps / f"a.{i}.npy")
        p[:10] = np.random.default_rng(i).random((10, SIZE[1]))
        np.save(maps / f"a.{i}.npy", p)
    np.save(maps / "a.0.npy", np.kron(np.load(maps / "a.0.npy"), np.ones((2, 2), np.float32)))
    fit = ("calibrate", "fit", "temperature", maps, masks, "--out", folders / "cal.json")
    assert run(*fit, "--ignore-index", "100")[0] == 0
    z, y = zip(*(make(i) for i in range(1, 12)), strict=True)
    z, y = np.stack(z)[:, 10:], np.stack(y)[:, 10:]
    expected = float(create("temperature").fit(histogram_of(z.ravel(), y.ravel())).temperature)
    assert float(load(folders / "cal.json").temperature) == pytest.approx(expected, rel=0.1)


@pytest.fixture
def class_folders(tmp_path):
    """Softmax maps of three classes, logits twice too large, with 9 as void."""
    (tmp_path / "maps").mkdir()
    (tmp_path / "masks").mkdir()
    for i in range(6):
        rng = np.random.default_rng(i)
        z = 2 * rng.normal(size=(3, 20, 30))
        p = np.exp(z) / np.exp(z).sum(axis=0)
        labels = (rng.random((20, 30)) > np.cumsum(p, axis=0)).sum(axis=0).clip(0, 2)
        labels[0] = 9
        q = np.exp(2 * z) / np.exp(2 * z).sum(axis=0)
        np.save(tmp_path / "maps" / f"{i}.npy", q.astype(np.float32))
        Image.fromarray(labels.astype(np.uint8)).save(tmp_path / "masks" / f"{i}.png")
    return tmp_path


@pytest.mark.parametrize("method", ["temperature", "vector"])
def test_softmax_maps(class_folders, method):
    from densecal.evaluation.worker import Settings

    maps, masks = class_folders / "maps", class_folders / "masks"
    settings = ("--classes", "3", "--ignore-index", "9")
    code, _, error = run("calibrate", "fit", method, maps, masks, *settings, "--out", class_folders / "cal.json")
    assert (code, error) == (0, "")
    if method == "temperature":
        assert json.loads((class_folders / "cal.json").read_text())["temperature"] == pytest.approx(2, rel=0.1)
    assert run("calibrate", "apply", class_folders / "cal.json", maps, "--out", class_folders / "out")[0] == 0
    figures = [
        evaluate(folder, masks, settings=Settings(classes=3, ignore_index=9)).record.calibration
        for folder in (maps, class_folders / "out")
    ]
    assert figures[1]["ece_ew"] < figures[0]["ece_ew"] / 3
    assert figures[1]["nll"] < figures[0]["nll"]


@pytest.mark.parametrize("method", ["temperature", "local-temperature"])
def test_a_label_beyond_the_classes_names_its_file(class_folders, method):
    maps, masks = class_folders / "maps", class_folders / "masks"
    arguments = ("calibrate", "fit", method, maps, masks, "--classes", "3", "--images", masks)
    code, _, error = run(*arguments, "--out", class_folders / "cal.json")
    assert code == 2
    assert "0.png: label 9; expected labels 0 to 2, or 255 for void" in error


@pytest.mark.parametrize("kind", ["png8", "npy"])
def test_masks_of_only_void_pixels_do_not_count(folders, kind):
    maps, masks = folders / "maps" / kind, folders / "masks"

    def fitted():
        fit = ("calibrate", "fit", "platt", maps, masks, "--ignore-index", "100", "--out", folders / "cal.json")
        assert run(*fit)[0] == 0
        return float(load(folders / "cal.json").a)

    everything = fitted()
    Image.fromarray(np.full(SIZE, 100, np.uint8)).save(masks / "a.0.png")
    void = fitted()
    next(maps.glob("a.0.*")).unlink()
    (masks / "a.0.png").unlink()
    assert void == fitted() != everything


def test_there_is_a_warning_for_saturated_8_bit_maps(folders):
    maps = folders / "maps" / "png8"
    for i in range(12):
        write(maps / f"a.{i}", 1 / (1 + np.exp(-4 * make(i)[0])), "png8")
    fit = ("calibrate", "fit", "temperature", maps, folders / "masks", "--out", folders / "cal.json")
    code, _, error = run(*fit)
    assert code == 0
    assert "levels 0 and 255" in error
    fit = ("calibrate", "fit", "isotonic", maps, folders / "masks", "--out", folders / "cal.json")
    assert run(*fit)[2] == ""


# ------------------------------------------------------------------ runs


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A small run on files, with images of several sizes."""
    from densecal.data.scenes import generate
    from densecal.training.loop import train

    root = tmp_path_factory.mktemp("run")
    scenes = generate(24, 32, 0)
    for folder in ("images", "masks"):
        (root / folder).mkdir()
    for i, (image, mask) in enumerate(zip(scenes.images, scenes.masks, strict=True)):
        size = (32 + 3 * (i % 4), 40)
        Image.fromarray(image).resize(size).save(root / "images" / f"{i:02}.png")
        Image.fromarray(mask).resize(size, Image.Resampling.NEAREST).save(root / "masks" / f"{i:02}.png")
    overrides = ["data.scenes=null", f"data.images={root / 'images'}", f"data.masks={root / 'masks'}",
                 "data.validation=8", f"data.cache={root / 'cache'}", "method.name=bce"]  # fmt: skip
    train(small_config(*overrides), root / "run")
    return root


def test_a_run_is_fitted_on_its_validation_images_at_their_own_size(trained, tmp_path):
    from densecal.data import split
    from densecal.prediction.folder import predict
    from densecal.prediction.predictor import load_predictor

    code, text, error = run("calibrate", "fit", "platt", trained / "run", "--out", tmp_path / "cal.json")
    assert (code, error) == (0, "")
    assert "fitted on 8 images" in text
    predict(load_predictor(trained / "run"), trained / "images", tmp_path / "maps", format="npy")
    _, validation = split([f"{i:02}" for i in range(24)], 8)
    z, y = [], []
    for name in validation:
        p = np.load(tmp_path / "maps" / f"{name}.npy").astype(np.float64)
        z.append((np.log(p) - np.log1p(-p)).ravel())
        y.append((np.asarray(Image.open(trained / "masks" / f"{name}.png")) > 127).ravel())
    expected = create("platt").fit(histogram_of(np.concatenate(z), np.concatenate(y)))
    found = load(tmp_path / "cal.json")
    assert float(found.a) == pytest.approx(float(expected.a), abs=1e-3)
    assert float(found.b) == pytest.approx(float(expected.b), abs=1e-3)


def test_a_calibrator_that_needs_images_gets_those_of_the_run(trained, tmp_path):
    checkpoint = trained / "run" / "checkpoints" / "last"
    code, text, error = run("calibrate", "fit", "selective", checkpoint, "--out", tmp_path / "cal.json")
    assert (code, error) == (0, "")
    assert "selective fitted on 8 images" in text
    assert load(tmp_path / "cal.json").num_classes == 1


def test_generated_scenes_are_validation_images_too(tmp_path):
    from densecal.training.loop import train

    train(small_config("method.name=bce", "optim.epochs=1"), tmp_path / "run")
    code, text, _ = run("calibrate", "fit", "isotonic", tmp_path / "run", "--out", tmp_path / "cal.json")
    assert code == 0
    assert "fitted on 6 images" in text


def test_masks_beside_a_run_are_refused(trained, tmp_path):
    fit = ("calibrate", "fit", "platt", trained / "run", trained / "masks", "--out", tmp_path / "cal.json")
    code, _, error = run(*fit)
    assert code == 2
    assert "nothing, because a run has its own data" in error


# ------------------------------------------------------------------ bad input


def test_a_failed_fit_leaves_the_old_file_alone(folders):
    maps, masks, cal = folders / "maps" / "png8", folders / "masks", folders / "cal.json"
    assert run("calibrate", "fit", "temperature", maps, masks, "--out", cal)[0] == 0
    before = cal.read_bytes()
    for path in masks.iterdir():
        Image.fromarray(np.zeros(SIZE, np.uint8)).save(path)
    code, _, error = run("calibrate", "fit", "temperature", maps, masks, "--out", cal)
    assert code == 2
    assert error == (
        "densecal: temperature: no foreground pixels; expected foreground and background pixels to fit on\n"
    )
    assert cal.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fit", "platts", "MAPS", "MASKS", "--out", "c.json"), "METHOD: 'platts'; expected one of argmax-preserving"),
        (("fit", "platt", "MAPS", "--out", "c.json"), "MASKS: nothing; expected a folder of masks"),
        (("fit", "platt", "nowhere", "--out", "c.json"), "expected a folder of maps, or a run"),
        (("fit", "platt", "MAPS", "nowhere", "--out", "c.json"), "nowhere: no such folder"),
        (("fit", "platt", "nowhere", "MASKS", "--out", "c.json"), "nowhere: no such folder"),
        (("fit", "platt", "MAPS", "MASKS", "--out", "c.yaml"), "expected a name that ends in .json"),
        (("fit", "platt", "MAPS", "MASKS", "--classes", "3", "--out", "c.json"), "platt: 3 classes"),
        (("fit", "vector", "MAPS", "MASKS", "--out", "c.json"), "vector: number of classes: 1"),
        (("fit", "selective", "MAPS", "MASKS", "--images", "EMPTY", "--out", "c.json"), "no image"),
        (("apply", "none.json", "MAPS", "--out", "o"), "none.json: no such file"),
        (("apply", "CAL", "nowhere", "--out", "o"), "nowhere: no such folder"),
        (("apply", "CAL", "EMPTY", "--out", "o"), "no prediction map"),
        (("apply", "CAL", "MAPS", "--out", "MAPS"), "another folder"),
    ],
)
def test_errors_about_bad_input_take_one_line_and_exit_with_2(folders, monkeypatch, arguments, message):
    monkeypatch.chdir(folders)
    (folders / "empty").mkdir()
    (folders / "cal.json").write_text(json.dumps(create("temperature").to_json()))
    places = {"MAPS": "maps/png8", "MASKS": "masks", "EMPTY": "empty", "CAL": "cal.json"}
    code, out, error = run("calibrate", *(places.get(argument, argument) for argument in arguments))
    assert code == 2
    assert out == ""
    assert message in error
    assert error.count("\n") == 1
    assert not (folders / "c.json").exists()


# ------------------------------------------------------------------ risk control


@pytest.mark.parametrize("kind", ["png8", "npy"])
def test_risk_control(folders, kind):
    maps = folders / "maps" / kind
    code, text, _ = run("risk-control", maps, folders / "masks", "--alpha", "0.2", "--json", folders / "risk.json")
    assert code == 0
    record = json.loads((folders / "risk.json").read_text())
    assert record["images"] == 12
    assert f"p >= {record['threshold']:g}" in text
    assert record["lambda"] == pytest.approx(1 - record["threshold"])
    read = np.load if kind == "npy" else lambda path: np.asarray(Image.open(path)) / 255
    pairs = [(read(p), np.asarray(Image.open(folders / "masks" / f"{p.stem}.png"))) for p in sorted(maps.iterdir())]

    def bound(threshold):
        return (sum(1 - (p >= threshold)[y].mean() for p, y in pairs) + 1) / 13

    assert bound(record["threshold"]) == pytest.approx(record["bound"])
    assert bound(record["threshold"]) <= 0.2 < bound(record["threshold"] + 0.001)
    assert record["set_size"] == pytest.approx(np.mean([(p >= record["threshold"]).mean() for p, _ in pairs]))
    assert record["fpr"] == pytest.approx(np.mean([(p >= record["threshold"])[~y].mean() for p, y in pairs]))


def test_risk_control_needs_enough_images(folders):
    code, _, error = run("risk-control", folders / "maps" / "png8", folders / "masks", "--alpha", "0.05")
    assert code == 2
    assert "12 images for alpha 0.05; expected at least 19 (1/alpha - 1)" in error
    code, _, error = run("risk-control", folders / "maps" / "png8", folders / "masks", "--alpha", "1.5")
    assert code == 2


def test_risk_control_by_groups(folders):
    arguments = folders / "maps" / "png8", folders / "masks", "--json", folders / "risk.json"
    code, text, _ = run("risk-control", *arguments, "--alpha", "0.4", "--groups", r"a\.(1?)")
    assert code == 2  # "a.0" and others have an empty group
    listed = folders / "patients.csv"
    listed.write_text("".join(f"a.{i},{i // 3}\n" for i in range(12)))
    code, text, _ = run("risk-control", *arguments, "--alpha", "0.4", "--groups", listed)
    assert code == 0
    assert "from 12 images in 4 groups" in text
    assert "at most 40 % expected on a new group" in text
    record = json.loads((folders / "risk.json").read_text())
    assert (record["images"], record["groups"]) == (12, 4)
    code, _, error = run("risk-control", *arguments, "--alpha", "0.1", "--groups", listed)
    assert code == 2
    assert "4 groups for alpha 0.1; expected at least 9 (1/alpha - 1)" in error


def test_a_useless_guarantee_exits_with_3_and_says_what_would_be_of_use(folders):
    for path in (folders / "maps" / "npy").iterdir():
        np.save(path, np.zeros(SIZE, np.float32))
    arguments = folders / "maps" / "npy", folders / "masks", "--alpha", "0.2", "--json", folders / "risk.json"
    code, text, error = run("risk-control", *arguments)
    assert code == 3
    assert "foreground is p >= 0 " in text
    message = (
        "alpha 0.2 is met only by calling every pixel foreground, which is of no use; no alpha below 1 does better"
    )
    assert error == f"densecal: risk-control: foreground: {message}\n"
    record = json.loads((folders / "risk.json").read_text())
    assert (record["trivial"], record["smallest_alpha"], record["fpr"]) == (True, None, 1.0)
    for path in (folders / "maps" / "npy").iterdir():  # a third of the foreground is lost with the background
        mask = np.asarray(Image.open(folders / "masks" / f"{path.stem}.png"))
        np.save(path, np.where(mask & (np.arange(SIZE[1]) % 3 > 0), 0.5, 0.0).astype(np.float32))
    code, text, error = run("risk-control", *arguments)
    assert code == 3
    smallest = json.loads((folders / "risk.json").read_text())["smallest_alpha"]
    assert f"the smallest alpha without that is {smallest:g}" in error
    assert 0.3 < smallest < 0.45
    assert run("risk-control", *arguments[:3], str(smallest))[0] == 0


@pytest.fixture
def risk_folders(tmp_path):
    """softmax/ and labels/ of three classes: the third is in the last 4 of 20 images only; class 3 is void."""
    rng = np.random.default_rng(0)
    for folder in ("softmax", "labels"):
        (tmp_path / folder).mkdir()
    for i in range(20):
        z = gaussian_filter(rng.normal(size=(3, 12, 14)), (0, 2, 2)) * 12
        z[2] += 0 if i >= 16 else -50
        p = np.exp(z) / np.exp(z).sum(axis=0)
        labels = (rng.random((12, 14)) > np.cumsum(p, axis=0)).sum(axis=0).clip(max=2)
        labels[0] = 3
        np.save(tmp_path / "softmax" / f"{i:02}.npy", p.astype(np.float32))
        Image.fromarray(labels.astype(np.uint8)).save(tmp_path / "labels" / f"{i:02}.png")
    return tmp_path


def read_classes(folder):
    for path in sorted((folder / "softmax").iterdir()):
        labels = np.asarray(Image.open(folder / "labels" / f"{path.stem}.png"))
        yield np.load(path)[:, 1:], labels[1:]


def test_every_class_has_a_threshold_from_the_images_that_show_it(risk_folders):
    arguments = risk_folders / "softmax", risk_folders / "labels", "--json", risk_folders / "risk.json"
    code, text, error = run("risk-control", *arguments, "--classes", "3", "--ignore-index", "3", "--alpha", "0.25")
    assert (code, error) == (0, "")
    content = json.loads((risk_folders / "risk.json").read_text())
    assert (content["alpha"], [entry["class"] for entry in content["classes"]]) == (0.25, [0, 1, 2])
    for k, entry in enumerate(content["classes"]):
        pairs = [(p[k], y == k) for p, y in read_classes(risk_folders) if (y == k).any()]

        def bound(threshold, pairs=pairs):
            return (sum(1 - (p >= threshold)[y].mean() for p, y in pairs) + 1) / (len(pairs) + 1)

        assert entry["images"] == len(pairs)
        assert entry["bound"] == pytest.approx(bound(entry["threshold"]))
        assert bound(entry["threshold"]) <= 0.25 < bound(entry["threshold"] + 0.001)
        assert f"class {k} is p >= {entry['threshold']:g} " in text
    assert content["classes"][2]["images"] == 4
    assert text.count("at most 25 % expected on a new image that shows it") == 3


def test_a_class_that_too_few_images_show_has_no_threshold(risk_folders):
    arguments = risk_folders / "softmax", risk_folders / "labels", "--json", risk_folders / "risk.json"
    code, text, error = run("risk-control", *arguments, "--classes", "3", "--ignore-index", "3", "--alpha", "0.15")
    assert code == 3
    assert (
        error
        == "densecal: risk-control: class 2: 4 images show it; expected at least 6 (1/alpha - 1) for a threshold\n"
    )
    content = json.loads((risk_folders / "risk.json").read_text())
    assert content["classes"][2] == {"class": 2, "threshold": None, "images": 4}
    assert "class 1 is p >= " in text
    assert "class 2" not in text
    code, _, error = run("risk-control", *arguments, "--classes", "3", "--ignore-index", "3", "--alpha", "1.5")
    assert code == 2


def test_classes_by_groups(risk_folders):
    arguments = risk_folders / "softmax", risk_folders / "labels", "--json", risk_folders / "risk.json"
    options = "--classes", "3", "--ignore-index", "3", "--alpha", "0.5", "--groups"
    listed = risk_folders / "groups.csv"
    listed.write_text("".join(f"{i:02},{i // 2}\n" for i in range(20)))
    code, _text, error = run("risk-control", *arguments, *options, listed)
    assert (code, error) == (0, "")
    entries = json.loads((risk_folders / "risk.json").read_text())["classes"]
    assert [(entry["images"], entry["groups"]) for entry in entries][2] == (4, 2)
    units = [[], []]
    for i, (p, y) in enumerate(read_classes(risk_folders)):
        if (y == 2).any():
            units[(i - 16) // 2].append(1 - (p[2] >= entries[2]["threshold"])[y == 2].mean())
    assert entries[2]["bound"] == pytest.approx((sum(map(np.mean, units)) + 1) / 3)


def test_help_loads_no_torch():
    script = (
        "import sys; sys.argv = ['densecal', 'calibrate', 'fit', '--help']\n"
        "from densecal import cli\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules\n"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True).returncode == 0


def test_maps_are_calibrated_without_the_packages_of_training(folders):
    """What ``pip install .`` leaves out is not there."""
    hide = "import sys; sys.modules.update(timm=None, safetensors=None, yaml=None, lightning_fabric=None)"
    arguments = ["densecal", "calibrate", "fit", "temperature", "maps/png16", "masks", "--out", "alone.json"]
    code = f"{hide}; sys.argv = {arguments}; import densecal.cli; densecal.cli.main()"
    ended = subprocess.run([sys.executable, "-c", code], cwd=folders, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert (folders / "alone.json").is_file()
