"""K classes from end to end: every method, training, maps, figures per class, calibrators, void pixels."""

import json
import re
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from densecal.errors import InputError
from densecal.evaluation.model import evaluate_model, load_image_set, model_outputs
from densecal.labels import max_alpha, technique_strength
from densecal.methods import create, names, options
from densecal.metrics import CalibrationMeter
from densecal.posthoc import load
from densecal.training.config import load_config
from tests.running import run

K, VOID = 5, 5
HEIGHT, WIDTH = 48, 64
COLOURS = np.array([[150, 180, 230], [90, 90, 95], [60, 140, 60], [190, 60, 50], [230, 210, 60]])


def scene(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A road scene of sky, road and things of three classes, in colours that overlap, with void outlines."""
    rng = np.random.default_rng(seed)
    labels = np.zeros((HEIGHT, WIDTH), np.uint8)
    labels[rng.integers(20, 30) :] = 1
    for _ in range(4):
        kind, top, left = rng.integers(2, K), rng.integers(0, HEIGHT - 12), rng.integers(0, WIDTH - 12)
        height, width = rng.integers(6, 20, 2)
        labels[top : top + height, left : left + width] = kind
    image = COLOURS[labels] + rng.normal(0, 40, (HEIGHT, WIDTH, 3))
    masks = labels.copy()
    masks[:, 1:][labels[:, 1:] != labels[:, :-1]] = VOID
    return image.clip(0, 255).astype(np.uint8), masks


@pytest.fixture(scope="module")
def camvid(tmp_path_factory):
    """Scenes laid out as CamVid is: PART/ and PARTannot/."""
    root = tmp_path_factory.mktemp("set") / "CamVid"
    seed = 0
    for part, count in (("train", 20), ("val", 6), ("test", 6)):
        for folder in (part, f"{part}annot"):
            (root / folder).mkdir(parents=True)
        for i in range(count):
            image, labels = scene(seed := seed + 1)
            Image.fromarray(image).save(root / part / f"{part}.{i}.png")
            Image.fromarray(labels).save(root / f"{part}annot" / f"{part}.{i}.png")
    return root


# ------------------------------------------------------------------ methods


def batch(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    images, masks = zip(*(scene(seed) for seed in range(count)), strict=True)
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2) / 255, torch.from_numpy(np.stack(masks)).long()


@pytest.mark.parametrize("name", [name for name in names() if not name.startswith("test-")])
def test_every_method_trains_on_k_classes(name):
    """The cross entropy of the clean labels falls, and the method's state stays what it should be."""
    torch.manual_seed(0)
    given = {"warmup": 1, "preset": "stable"} if "preset" in options(name) else {}
    with warnings.catch_warnings(action="ignore"):
        method = create(name, num_samples=8, num_classes=K, ignore_index=VOID, **given)
    network = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, K, 3, padding=1))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    images, masks = batch(8)
    index = torch.arange(8)
    plain = nn.CrossEntropyLoss(ignore_index=VOID)
    before = plain(network(images), masks).item()
    for epoch in range(3):
        method.start_epoch(epoch)
        for step in (0, 4):
            part = slice(step, step + 4)
            for _ in range(6):
                mixed, targets = method.prepare(images[part], masks[part], index[part])
                logits = network(mixed)
                loss = method.loss(logits, targets)
                assert loss.isfinite()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                method.after_step(logits.detach(), masks[part], index[part])
        meter = CalibrationMeter(num_classes=K, ignore_index=VOID, boundary=False)
        with torch.no_grad():
            meter.update(logits=network(images), masks=masks)
        method.after_epoch(meter.compute())
    assert plain(network(images), masks).item() < 0.75 * before
    for key, value in method.state_dict().items():
        assert value.isfinite().all() or "accuracy" in key, key
    assert all(np.isfinite(value) for value in method.statistics().values())
    if hasattr(method, "alpha"):
        assert 0 <= float(method.alpha.min()) <= float(method.alpha.max()) < max_alpha(technique_strength("hi", K))
        # the closed loop perturbs no label while the network is not sure enough
        assert float(method.alpha.max()) > 0 or name == "aslp-cl"


def test_what_k_classes_do_not_support_is_an_error(camvid):
    with pytest.raises(InputError, match=r"technique: found 'dm' with 11 classes; expected 'm'"):
        load_config("camvid", ["method.technique=dm"])
    with pytest.raises(InputError, match="scenes for 3 classes; expected images"):
        load_config("demo", ["data.classes=3"])


# ------------------------------------------------------------------ from end to end


def brute_force(maps, masks, bins=10):
    """Return NLL, top-label ECE, ECE per class and IoU per class, computed pixel by pixel in float64."""
    p = np.concatenate([np.load(path).reshape(K, -1) for path in sorted(maps.glob("*.npy"))], axis=1).astype(float)
    y = np.concatenate([np.asarray(Image.open(path)).ravel() for path in sorted(masks.iterdir())])
    p, y = p[:, y != VOID], y[y != VOID]

    def ece(value, hit):
        cell = np.minimum((value * bins).astype(int), bins - 1)
        return sum(abs((value - hit)[cell == b].sum()) for b in range(bins)) / len(value)

    winner = p.argmax(axis=0)
    iou = [((winner == k) & (y == k)).sum() / ((winner == k) | (y == k)).sum() for k in range(K)]
    return SimpleNamespace(
        nll=-np.log(p[y, np.arange(len(y))].clip(1e-7)).mean(),
        ece=ece(p.max(axis=0), winner == y),
        by_class=[ece(p[k], y == k) for k in range(K)],
        iou=iou,
        pixels=len(y),
    )


def test_train_predict_evaluate_calibrate_and_evaluate_again(camvid, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    settings = [
        f"data.images={camvid / 'train'}", f"data.validation={camvid / 'val'}", f"data.classes={K}",
        f"data.ignore_index={VOID}", "data.size=64", "data.workers=1", "model.arch=unet",
        "model.encoder=test_efficientnet", "model.options={decoder_channels: [16, 16, 8, 8, 8]}",
        "model.weights=null", "optim.epochs=2", "optim.batch=5", "optim.lr=3e-3", "method.warmup=1",
    ]  # fmt: skip
    folder = tmp_path / "run"
    code, text, error = run("train", "camvid", *settings, "--out", folder)
    assert code == 0
    assert re.fullmatch(r"(Epoch \d of 2: .* left\n){2}", error)
    assert "accuracy" in text
    assert len((folder / "alpha.csv").read_text().splitlines()) == 21

    test, masks = camvid / "test", camvid / "testannot"
    assert run("predict", folder, test, "--out", tmp_path / "maps", "--uncertainty")[0] == 0
    one = np.load(tmp_path / "maps" / "test.0.npy")
    assert (one.shape, one.dtype) == ((K, HEIGHT, WIDTH), np.float32)
    np.testing.assert_allclose(one.sum(axis=0), 1, atol=1e-6)
    np.testing.assert_allclose(np.load(tmp_path / "maps" / "confidence" / "test.0.npy"), one.max(axis=0), atol=1e-6)

    k_classes = ("--classes", K, "--ignore-index", VOID)

    def evaluate_maps(maps):
        options = ("--json", tmp_path / "e.json", "--figures", tmp_path / "figures", "--csv", tmp_path / "e.csv")
        code, text, error = run("evaluate", maps, masks, *k_classes, *options)
        assert (code, error) == (0, "")
        assert "miou" in text
        record = json.loads((tmp_path / "e.json").read_text())
        expected = brute_force(maps, masks)
        assert record["pixels"] == expected.pixels
        assert record["calibration"]["nll"] == pytest.approx(expected.nll, abs=1e-7)
        assert record["calibration"]["ece_ew"] == pytest.approx(expected.ece, abs=1e-9)
        assert record["calibration"]["sce"] == pytest.approx(np.mean(expected.by_class), abs=1e-9)
        assert [c["ece"] for c in record["reliability"]["classes"]] == pytest.approx(expected.by_class, abs=1e-9)
        assert record["segmentation"]["iou"] == pytest.approx(expected.iou, abs=1e-9)
        assert record["segmentation"]["miou"] == pytest.approx(np.mean(expected.iou), abs=1e-9)
        assert Image.open(tmp_path / "figures" / "reliability-classes.png").width > 600
        return record["calibration"]

    before = evaluate_maps(tmp_path / "maps")
    for method in ("temperature", "vector"):
        calibrator, out = tmp_path / f"{method}.json", tmp_path / method
        code, text, error = run("calibrate", "fit", method, folder, "--out", calibrator)
        assert (code, error) == (0, "")
        assert "fitted on 6 images" in text
        assert load(calibrator).num_classes == K
        assert run("calibrate", "apply", calibrator, tmp_path / "maps", "--out", out)[0] == 0
        after = evaluate_maps(out)
        assert after["nll"] < before["nll"]
        if method == "temperature":
            assert after["accuracy"] == before["accuracy"]

    # maps in place of the run: the same calibrator, from the same images
    assert run("predict", folder, camvid / "val", "--out", tmp_path / "val")[0] == 0
    arguments = ("calibrate", "fit", "vector", tmp_path / "val", camvid / "valannot", *k_classes)
    assert run(*arguments, "--out", tmp_path / "again.json")[0] == 0
    found, again = load(tmp_path / "vector.json"), load(tmp_path / "again.json")
    torch.testing.assert_close(again.weight, found.weight, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(again.bias, found.bias, atol=1e-3, rtol=1e-3)


def test_calibrated_maps_are_the_same_in_chunks(camvid, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    (tmp_path / "maps").mkdir()
    for i in range(2):
        p = rng.dirichlet(np.ones(K), (HEIGHT, WIDTH)).transpose(2, 0, 1)
        np.save(tmp_path / "maps" / f"test.{i}.npy", p.astype(np.float64 if i else np.float32))
    for name in ("0", "1"):
        (tmp_path / "masks").mkdir(exist_ok=True)
        Image.open(camvid / "testannot" / f"test.{name}.png").save(tmp_path / "masks" / f"test.{name}.png")
    shared = (tmp_path / "maps", tmp_path / "masks", "--classes", K, "--ignore-index", VOID)
    files = []
    for chunk in (1 << 20, 130):
        monkeypatch.setattr("densecal.io.row_chunks.CHUNK", chunk)
        assert run("calibrate", "fit", "vector", *shared, "--out", tmp_path / f"{chunk}.json")[0] == 0
        out = tmp_path / f"out-{chunk}"
        assert run("calibrate", "apply", tmp_path / f"{chunk}.json", tmp_path / "maps", "--out", out)[0] == 0
        files.append([np.load(out / f"test.{i}.npy") for i in range(2)])
    for whole, chunked in zip(*files, strict=True):
        assert whole.dtype == chunked.dtype
        np.testing.assert_allclose(chunked, whole, atol=1e-6)


# ------------------------------------------------------------------ models on data sets


def by_brightness(images):
    return torch.stack([4 * (k + 1) * images.mean(dim=1) for k in range(K)], dim=1)


@pytest.mark.parametrize("values", [1 << 27, 1])
def test_void_pixels_have_no_entropy(camvid, monkeypatch, values):
    monkeypatch.setattr("densecal.evaluation.model.MAX_VALUES", values)
    data = load_image_set("set", camvid / "test", size=64, classes=K, ignore_index=VOID, workers=1)
    data.masks[2] = np.full_like(data.masks[2], VOID)
    record = evaluate_model(by_brightness, data)["model"].record
    histogram, images = np.zeros(100, int), {}
    for samples, _, z, y in model_outputs(by_brightness, data):
        p = z.double().softmax(dim=1).numpy()
        h = -(p * np.log(p)).sum(axis=1) / np.log(K)
        for sample, one, labels in zip(samples, h, y.numpy(), strict=True):
            valid = one[labels != VOID]
            histogram += np.bincount((valid * 100).astype(int).clip(0, 99), minlength=100)
            images[sample] = valid.mean() if valid.size else np.nan
    assert list(record.entropy.histogram) == histogram.tolist()
    assert list(record.entropy.images) == pytest.approx([images[i] for i in range(6)], abs=1e-12, nan_ok=True)
    assert np.isnan(record.entropy.images[2])
    assert sum(histogram) == record.pixels


# ------------------------------------------------------------------ names of the classes


@pytest.fixture
def softmax(tmp_path):
    """Two softmax maps of three classes, and their labels."""
    rng = np.random.default_rng(0)
    for folder in ("maps", "labels"):
        (tmp_path / folder).mkdir()
    for i in range(2):
        np.save(tmp_path / "maps" / f"{i}.npy", rng.dirichlet(np.ones(3), (8, 9)).transpose(2, 0, 1))
        Image.fromarray(rng.integers(0, 3, (8, 9)).astype(np.uint8)).save(tmp_path / "labels" / f"{i}.png")
    return tmp_path / "maps", tmp_path / "labels"


@pytest.mark.parametrize("from_file", [True, False])
def test_names_of_the_classes_are_kept_in_the_record(softmax, tmp_path, from_file):
    (tmp_path / "names.txt").write_text("road\n\nsky \ncar\n")
    names = tmp_path / "names.txt" if from_file else "road, sky,car"
    code, _, err = run("evaluate", *softmax, "--classes", 3, "--class-names", names, "--json", tmp_path / "a.json")
    assert code == 0, err
    assert json.loads((tmp_path / "a.json").read_text())["settings"]["class_names"] == ["road", "sky", "car"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [(["--classes", 3], "2 names; expected 3, as many as --classes"), ([], "2 names; expected --classes as well")],
)
def test_names_must_be_as_many_as_classes(softmax, options, expected):
    code, _, err = run("evaluate", *softmax, "--class-names", "road,sky", *options)
    assert code == 2
    assert err.strip().endswith(f"--class-names: {expected}")
