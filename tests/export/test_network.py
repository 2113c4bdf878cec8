"""densecal export: one file from images to calibrated probabilities, which is PyTorch's or is not written."""

import importlib.util
import json
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image
from scipy.special import expit, log_expit, softmax
from torch import nn

from densecal import export, posthoc
from densecal.cli import main
from densecal.errors import InputError
from densecal.export import TOLERANCE, export_model, pictures
from densecal.models import SegmentationModel, build
from densecal.prediction.predictor import Predictor, load_predictor
from densecal.training.loop import train
from tests.training.common import small_config

EXAMPLE = Path(__file__).parents[2] / "examples" / "export_onnx.py"
MEAN, STD = np.array([0.485, 0.456, 0.406]).reshape(3, 1, 1), np.array([0.229, 0.224, 0.225]).reshape(3, 1, 1)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    shallow = "model.options={encoder_depth: 3, decoder_channels: [16, 8, 8]}"
    train(small_config("model.encoder=resnet10t", shallow, "method.name=bce", "optim.lr=0.01", "optim.epochs=6"), out)
    return out


def session_of(path):
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def probabilities(path, images):
    (found,) = session_of(path).run(["probabilities"], {"images": np.ascontiguousarray(images)})
    return found


def metadata(path):
    return session_of(path).get_modelmeta().custom_metadata_map


def command(monkeypatch, *arguments):
    """Exit code of the command."""
    monkeypatch.setattr(sys, "argv", ["densecal", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code or 0


def noise(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def small_network(classes=1):
    """Has a stride and a window that reaches over the border, so padding and cropping show."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(8, classes, 3, padding=1),
    )
    network[-1].weight.data.mul_(8)
    return SegmentationModel(network, "small", "resnet18", classes)


def ramp(low, high):
    """A network whose logit rises with a pixel's red value, from `low` at 0 to `high` at 255."""
    network = nn.Conv2d(3, 1, 1)
    network.weight.data.zero_()
    network.weight.data[0, 0] = (high - low) * float(STD[0, 0, 0])
    network.bias.data.fill_((high - low) * float(MEAN[0, 0, 0]) + low)
    return network


# ------------------------------------------------------------------ the command


def test_a_run_becomes_a_file_that_agrees_with_pytorch(run, tmp_path, monkeypatch, capsys):
    out = tmp_path / "new" / "model.onnx"
    assert command(monkeypatch, "export", run, "--out", out) == 0
    printed = capsys.readouterr().out
    assert "input unit, any batch, any size" in printed
    assert printed.count("largest difference") == 4
    assert max(map(float, re.findall(r"PyTorch (\S+)", printed))) < TOLERANCE
    agree(out, run, lambda z: expit(z), lambda images: images.astype(np.float32) / 255)
    described = metadata(out)
    assert (described["arch"], described["encoder"], described["size"]) == ("unet", "resnet10t", "32")
    assert json.loads(described["mean"]) == pytest.approx(MEAN.flatten().tolist())
    assert described["calibrator"] == "null"
    assert [file.name for file in out.parent.iterdir()] == ["model.onnx"]
    loaded = onnx.load(out)
    onnx.checker.check_model(loaded, full_check=True)
    assert (loaded.producer_name, loaded.opset_import[0].version) == ("densecal", 18)


def bilinear(p, height, width):
    """Resize a map as cameras' pipelines do: pixel centres at half integers, edges repeated."""
    rows = np.clip((np.arange(height) + 0.5) * p.shape[0] / height - 0.5, 0, p.shape[0] - 1)
    columns = np.clip((np.arange(width) + 0.5) * p.shape[1] / width - 0.5, 0, p.shape[1] - 1)
    by_row = np.stack([np.interp(rows, np.arange(p.shape[0]), column) for column in p.T], axis=1)
    return np.stack([np.interp(columns, np.arange(p.shape[1]), row) for row in by_row])


def test_predict_like_onnx_writes_the_maps_of_the_file(run, tmp_path, monkeypatch):
    photos = tmp_path / "photos"
    photos.mkdir()
    for i, size in enumerate([(50, 70), (32, 32), (20, 90)]):
        Image.fromarray(noise(*size, 3, seed=i)).save(photos / f"{i}.png")
    file = tmp_path / "model.onnx"
    assert command(monkeypatch, "export", run, "--out", file, "--input", "uint8") == 0
    for option, folder in (("--like-onnx", "like"), (None, "logits")):
        options = [] if option is None else [option]
        arguments = ["predict", run, photos, "--out", tmp_path / folder, "--format", "npy", *options]
        assert command(monkeypatch, *arguments) == 0
    largest = {"like": 0.0, "logits": 0.0}
    for path in photos.iterdir():
        image = Image.open(path)
        seen = np.asarray(image.resize((32, 32), Image.Resampling.BILINEAR)).transpose(2, 0, 1)[None]
        expected = bilinear(probabilities(file, seen)[0, 0], image.height, image.width)
        for folder in largest:
            map_ = np.load(tmp_path / folder / f"{path.stem}.npy")
            largest[folder] = max(largest[folder], np.abs(map_ - expected).max())
    assert largest["like"] < 1e-3 < largest["logits"]
    code = command(monkeypatch, "predict", tmp_path / "model.onnx", photos, "--out", tmp_path / "file", "--force")
    assert code == 0, "the file says itself how images are prepared"
    for file in photos.iterdir():
        own = np.load(tmp_path / "like" / f"{file.stem}.npy")
        assert np.abs(own - np.asarray(Image.open(tmp_path / "file" / file.name)) / 65535).max() < 1e-3
    tiled = ["predict", run, photos, "--out", tmp_path / "tiled", "--like-onnx", "--tile", 64]
    assert command(monkeypatch, *tiled) == 2


def test_the_example_goes_from_a_run_to_calibrated_probabilities(run, tmp_path, monkeypatch, capsys):
    out = tmp_path / "model.onnx"
    monkeypatch.setattr(sys, "argv", ["export_onnx.py", str(run), str(out)])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out
    assert float(re.search(r"PyTorch (\S+)", printed)[1]) < TOLERANCE
    assert 0.5 <= float(re.search(r"confidence (\S+)", printed)[1]) <= 1
    described = metadata(out)
    calibrator = json.loads(described["calibrator"])
    assert (described["input"], calibrator["method"]) == ("uint8", "temperature")
    assert calibrator["temperature"] != 1
    agree(out, run, lambda z: expit(z / calibrator["temperature"]), lambda images: images)


def agree(path, run, calibrated, fed):
    """The file gives the calibrated logits of the run's network, at two sizes and two batch sizes."""
    model = load_predictor(run, "cpu").model
    for batch in (1, 4):
        for height, width in ((64, 64), (50, 77)):
            images = noise(batch, 3, height, width)
            with torch.no_grad():
                z = model(torch.from_numpy(images).float() / 255).double().numpy()
            assert z.std() > 0.01
            assert np.abs(probabilities(path, fed(images)) - calibrated(z)).max() < 1e-5


class Drifting(nn.Module):
    """The file is of another function than the network."""

    def forward(self, x):
        return x[:, :1] + torch.onnx.is_in_onnx_export()


class Coarse(nn.Module):
    """Large numbers that cancel: float32 keeps few digits of the logit."""

    def __init__(self):
        super().__init__()
        self.whole, self.left, self.right = (nn.Conv2d(3, 1, 9, padding=4, bias=False) for _ in range(3))
        with torch.no_grad():
            self.whole.weight.normal_(generator=torch.Generator().manual_seed(0)).mul_(1e4)
            self.left.weight.copy_(self.whole.weight * (torch.arange(9) < 4))
            self.right.weight.copy_(self.whole.weight * (torch.arange(9) >= 4))

    def forward(self, x):
        return self.whole(x) - self.left(x) - self.right(x)


def pretend(monkeypatch, network, *overrides):
    """Every run has this network."""
    model = SegmentationModel(network, "pretended", "resnet18", 1)
    predictor = Predictor(model, small_config(*overrides), torch.device("cpu"))
    monkeypatch.setattr(export.network, "load_predictor", lambda run, device: predictor)


def test_a_file_that_disagrees_is_not_written(tmp_path, monkeypatch, capsys):
    pretend(monkeypatch, Drifting())
    former = tmp_path / "former.onnx"
    former.write_bytes(b"former")
    assert command(monkeypatch, "export", tmp_path, "--out", former, "--force") == 1
    assert re.search(
        r"differs from PyTorch by \S+ in a probability, on a batch of 1 of 32 x 32; expected 1e-04",
        capsys.readouterr().err,
    )
    assert [file.name for file in tmp_path.iterdir()] == ["former.onnx"]
    assert former.read_bytes() == b"former"


def test_a_network_that_rounds_coarsely_is_compared_with_its_own_rounding(tmp_path):
    model = SegmentationModel(Coarse(), "pretended", "resnet18", 1)
    said = []
    made = export_model(model, tmp_path / "model.onnx", 32, progress=lambda *step: said.append(step))
    assert {title for title, *_ in said[:-5]} == {"Tracing the network"}
    assert said[-5:] == [("Comparing the file with PyTorch", done, 4) for done in range(5)]
    worst = max(made.comparisons, key=lambda c: c.difference)
    assert worst.rounding > TOLERANCE, "PyTorch itself is off"
    assert TOLERANCE < worst.difference <= 3 * worst.rounding


class Positions(nn.Module):
    """Like a network with one learnt vector a position: of one size."""

    def __init__(self):
        super().__init__()
        self.positions = nn.Parameter(torch.linspace(-3, 3, 64 * 64).view(1, 1, 64, 64))

    def forward(self, x):
        return x[:, :1] + self.positions


def test_a_network_of_one_size_is_exported_at_that_size(tmp_path, monkeypatch, capsys):
    pretend(monkeypatch, Positions(), "data.size=64")
    assert command(monkeypatch, "export", tmp_path, "--out", tmp_path / "model.onnx") == 0
    printed = capsys.readouterr()
    assert "any batch, 64 x 64 pixels only" in printed.out
    assert printed.out.count("largest difference") == 2
    assert "depends on the image size" in printed.err
    assert probabilities(tmp_path / "model.onnx", np.zeros((5, 3, 64, 64), np.float32)).shape == (5, 1, 64, 64)
    with pytest.raises(Exception, match="Expected: 64"):
        probabilities(tmp_path / "model.onnx", np.zeros((1, 3, 96, 96), np.float32))


# ------------------------------------------------------------------ inputs and calibrators


def test_bytes_and_normalised_images_give_the_same_probabilities(tmp_path):
    model = small_network(classes=3)
    images = noise(2, 3, 40, 70)
    unit = images / 255.0
    fed = {
        "uint8": images,
        "normalised": ((unit - MEAN) / STD).astype(np.float32),
    }
    with torch.no_grad():
        expected = softmax(model(torch.from_numpy(unit).float()).double().numpy(), axis=1)
    assert expected.std() > 0.1
    for kind, array in fed.items():
        out = tmp_path / f"{kind}.onnx"
        made = export_model(model, out, 64, input=kind)
        assert made.difference < TOLERANCE
        assert np.abs(probabilities(out, array) - expected).max() < 1e-5
        described = metadata(out)
        assert (described["input"], described["classes"]) == (kind, "3")
        assert json.loads(described["normalised_inside"]) == (kind != "normalised")


def beta():
    """One of its two slopes is 0, as the bound of the fit allows."""
    made = posthoc.create("beta")
    for name, value in (("a", 0.1), ("b", 0.0), ("c", 0.3)):
        made.set_table(name, value)
    return made, lambda z: expit(0.3 + 0.1 * log_expit(z))


def isotonic():
    """Points far out on both sides, where an over-confident model's pixels are."""
    made = posthoc.create("isotonic")
    z, y = np.array([-37, -28, -21, -14, 0, 2, 7, 14, 21, 28, 37]), np.linspace(0, 1, 11)
    made.set_table("z", z)
    made.set_table("y", y)

    def expected(at):
        # above 0.5 the same function of 1 - p, whose floats reach as far as those of p do below
        low, high = np.interp(expit(at), expit(z), y), np.interp(-expit(-at), -expit(-z), y)
        return np.where(at < 0, low, high)

    return made, expected


def histogram():
    made = posthoc.create("histogram", bins=4)
    made.set_table("values", [0.1, 0.2, 0.7, 0.8])
    return made, lambda z: np.array([0.1, 0.2, 0.7, 0.8])[np.searchsorted([0.25, 0.5, 0.75], expit(z), side="right")]


@pytest.mark.parametrize("kind", [beta, isotonic, pytest.param(histogram, marks=pytest.mark.slow)])
def test_calibrators_keep_the_tails_of_overconfident_models(kind, tmp_path, monkeypatch):
    calibrator, expected = kind()
    posthoc.save(calibrator, tmp_path / "cal.json")
    pretend(monkeypatch, ramp(-40, 41))
    out = tmp_path / "model.onnx"
    options = ("--calibrator", tmp_path / "cal.json", "--input", "uint8")
    assert command(monkeypatch, "export", "run", *options, "--out", out) == 0
    assert json.loads(metadata(out)["calibrator"]) == calibrator.to_json()
    images = np.zeros((1, 3, 1, 256), np.uint8)
    images[0, 0, 0] = np.arange(256)
    z = -40 + 81 * np.arange(256) / 255
    assert np.abs(probabilities(out, images)[0, 0, 0] - expected(z)).max() < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "classes"),
    [
        ("temperature", 1), ("temperature", 4), ("vector", 4), ("platt", 1), ("isotonic", 1), ("histogram", 1),
        ("beta", 1), ("local-temperature", 1), ("local-temperature", 4), ("selective", 1), ("selective", 4),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["unit", "normalised"])
def test_every_calibrator_goes_into_the_file(name, classes, kind, tmp_path):
    calibrator = posthoc.create(name, **({"num_classes": classes} if classes > 1 else {}))
    generator = torch.Generator().manual_seed(0)
    for parameter in calibrator.parameters():
        parameter.data.normal_(std=0.3, generator=generator)
    for scalar in ("temperature", "a", "b", "start"):
        if scalar in calibrator.tables:
            calibrator.set_table(scalar, 1.7)
    if name == "vector":
        calibrator.set_table("weight", [0.5, 1.0, 1.5, 2.0])
    model = small_network(classes)
    made = export_model(model, tmp_path / "model.onnx", 64, calibrator, kind)
    assert made.any_size
    assert made.difference < TOLERANCE
    assert made.on_steps < 20
    for size in ((61, 90), (3, 1)):
        images = noise(2, 3, *size, seed=1)
        unit = torch.from_numpy(images / 255.0)
        with torch.no_grad():
            expected = calibrator.double()(model(unit.float()).double(), unit).numpy()
        fed = images / 255.0 if kind == "unit" else (images / 255.0 - MEAN) / STD
        wrong = np.abs(probabilities(tmp_path / "model.onnx", fed.astype(np.float32)) - expected) > TOLERANCE
        assert wrong.mean() <= (0.001 if name in ("histogram", "selective") else 0)


# ------------------------------------------------------------------ the comparison


def test_rounding_at_the_edge_of_a_step_is_no_disagreement():
    calibrator, expected = histogram()
    z = torch.zeros(1, 1, 8, 8)
    z[0, 0, 0, 0] = -1e-6  # the file may see it at +1e-6, on the other side of the edge at 0
    file = torch.from_numpy(expected(z.double().numpy())).float()
    file[0, 0, 0, 0] = 0.7
    found = export.comparison.compare_batch(file, z, torch.zeros(1, 3, 8, 8), calibrator)
    assert (found.difference, found.on_steps) == (pytest.approx(0, abs=1e-6), 1)
    for wrong in (0.75, 0.1):  # on neither side of that edge
        file[0, 0, 0, 0] = wrong
        assert export.comparison.compare_batch(file, z, torch.zeros(1, 3, 8, 8), calibrator).difference > 0.04
    z[0, 0, 0, 0] = -0.01  # too far from the edge for rounding
    file[0, 0, 0, 0] = 0.7
    assert export.comparison.compare_batch(file, z, torch.zeros(1, 3, 8, 8), calibrator).difference == pytest.approx(
        0.5
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nothing_but_numbers_agrees(bad):
    z = torch.zeros(1, 1, 8, 8)
    file = torch.full_like(z, 0.5)
    assert export.comparison.compare_batch(file, z, torch.zeros(1, 3, 8, 8), None).difference == 0
    file[0, 0, 3, 3] = bad
    assert export.comparison.compare_batch(file, z, torch.zeros(1, 3, 8, 8), None).difference == np.inf
    assert (
        export.comparison.compare_batch(torch.full((1, 1, 8, 9), 0.5), z, torch.zeros(1, 3, 8, 8), None).difference
        == np.inf
    )


def test_pictures_differ_and_fill_the_range():
    found = pictures(3, 40, 50)
    assert found.dtype == torch.uint8
    assert found.shape == (3, 3, 40, 50)
    for one in found:
        assert one.float().std() > 20
    assert found.unique().numel() == 256
    assert torch.equal(found, pictures(3, 40, 50))


# ------------------------------------------------------------------ bad input


def test_wrong_arguments_are_named(tmp_path, monkeypatch):
    model = small_network()
    with pytest.raises(InputError, match="--input: bytes; expected one of unit, uint8, normalised"):
        export_model(model, tmp_path / "model.onnx", 64, input="bytes")
    with pytest.raises(InputError, match=r"--out: .*model.pt; expected a name that ends in .onnx"):
        export_model(model, tmp_path / "model.pt", 64)
    with pytest.raises(InputError, match="vector for 4 classes; expected one for one foreground logit"):
        export_model(model, tmp_path / "model.onnx", 64, posthoc.create("vector", num_classes=4))
    monkeypatch.setattr(export.network, "MAX_BYTES", 100)
    with pytest.raises(InputError, match=r"resnet18: .* GB of weights; expected less than 2 GB"):
        export_model(model, tmp_path / "model.onnx", 64)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_a_run_is_one_line(tmp_path, monkeypatch, capsys):
    assert command(monkeypatch, "export", tmp_path, "--out", tmp_path / "model.onnx") == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_missing_packages_say_how_to_install_them(tmp_path, monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if "onnxs" in name else find(name, *more))
    assert command(monkeypatch, "export", tmp_path, "--out", tmp_path / "model.onnx") == 2
    assert "no onnxscript; expected pip install 'densecal[export]'" in capsys.readouterr().err


# ------------------------------------------------------------------ architectures


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "encoder", "options"),
    [
        ("unet", "mobilenetv3_small_050", {}),
        ("unet", "resnet18", {}),
        ("unet", "tf_efficientnet_lite0", {}),  # pads as TensorFlow does
        ("unet", "swin_tiny_patch4_window7_224", {}),
        ("deeplabv3plus", "resnet18", {}),
        ("fpn", "resnet18", {}),
        ("paper-unet", "resnet18", {"channels": 16}),
        ("edn", "resnet18", {}),
        ("icon", "resnet18", {}),
        ("ebmgsod", "resnet18", {}),
    ],
)
def test_every_architecture_is_exported(arch, encoder, options, tmp_path):
    torch.manual_seed(0)
    model = build(arch, encoder, **options).eval()
    spread(model)
    made = export_model(model, tmp_path / "model.onnx", 96)
    assert made.any_size
    assert made.difference < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("size", [64, 128])
def test_features_that_have_shrunk_to_a_pixel_may_grow_again(size, tmp_path):
    torch.manual_seed(0)
    model = build("edn", "resnet18").eval().to(memory_format=torch.channels_last)  # as load_predictor has it
    spread(model)
    made = export_model(model, tmp_path / "model.onnx", size)
    assert made.any_size
    assert made.difference < TOLERANCE


def test_a_file_that_onnxruntime_does_not_run_is_an_error(run, monkeypatch, tmp_path):
    def fails(*_):
        raise ValueError("shapes of a buffer differ")

    monkeypatch.setattr(onnxruntime.InferenceSession, "run", fails)
    with pytest.raises(
        export.ExportError, match="onnxruntime does not run the file at 32 x 32: shapes of a buffer differ"
    ):
        export.export_run(run, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


def spread(model):
    """Give random weights logits of mean 0 and standard deviation 3, without which all probabilities are the same."""
    with torch.no_grad():
        z = model(pictures(3, 96, 96).float() / 255)
    model.network = Standardised(model.network, float(z.mean()), float(z.std()) / 3)


class Standardised(nn.Module):
    def __init__(self, network, mean, std):
        super().__init__()
        self.network, self.mean, self.std = network, mean, std

    def forward(self, x):
        return (self.network(x) - self.mean) / self.std
