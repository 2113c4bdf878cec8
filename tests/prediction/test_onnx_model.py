"""Other people's ONNX files: images as they want them, probabilities out, without torch."""

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from scipy.special import expit, softmax

from densecal.errors import InputError
from densecal.prediction.onnx_model import load_onnx
from densecal.prediction.preprocess import PRESETS, Preprocess, parse_preprocess, read_preprocess
from tests.onnx_files import linear, logits
from tests.running import run


def photograph(height=6, width=8, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.fixture
def images(tmp_path):
    """Three images of different sizes."""
    folder = tmp_path / "images"
    folder.mkdir()
    for i, size in enumerate([(6, 8), (9, 16), (30, 20)]):
        Image.fromarray(photograph(*size, i)).save(folder / f"{i}.png")
    return folder


def steps(tmp_path, text):
    file = tmp_path / "steps.yaml"
    file.write_text(text)
    return str(file)


def only_map(model, image):
    (chunks,) = model.chunks([image])
    return np.concatenate(list(chunks), axis=1)


# ------------------------------------------------------------------ preprocessing


def test_u2net_divides_by_the_largest_byte_and_then_takes_the_mean_and_std_of_imagenet():
    image = photograph(40, 30) // 2
    resized = np.asarray(Image.fromarray(image).resize((320, 320), Image.Resampling.LANCZOS), np.float64)
    expected = (resized / resized.max() - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(PRESETS["u2net"].input(image, (320, 320)), expected, atol=1e-6)


def test_isnet_takes_bytes_minus_128_over_256():
    image = photograph(40, 30)
    resized = np.asarray(Image.fromarray(image).resize((1024, 1024), Image.Resampling.BILINEAR), np.float64)
    np.testing.assert_allclose(PRESETS["isnet"].input(image, (1024, 1024)), (resized - 128) / 256, atol=1e-6)


def test_a_black_image_has_no_largest_byte_to_divide_by():
    black = np.zeros((4, 4, 3), np.uint8)
    assert np.isfinite(PRESETS["u2net"].input(black, (4, 4))).all()


def test_the_channels_come_in_the_order_asked_for_with_mean_and_std_in_that_order():
    image = photograph(4, 5)
    x = Preprocess(scale=1.0, mean=(1.0, 2.0, 3.0), std=(1.0, 10.0, 100.0), order="bgr").input(image, (4, 5))
    blue, green, red = image[..., 2], image[..., 1], image[..., 0]
    np.testing.assert_allclose(x, np.stack([blue - 1.0, (green - 2.0) / 10, (red - 3.0) / 100], -1), rtol=1e-6)


def test_a_yaml_file_says_everything(tmp_path):
    text = (
        "size: [6, 8]\nscale: max\nmean: 0.5\nstd: [1, 2, 3]\norder: bgr\nresample: bicubic\noutput: maps\n"
        "activation: sigmoid\n"
    )
    expected = Preprocess((6, 8), "max", (0.5, 0.5, 0.5), (1.0, 2.0, 3.0), "bgr", "bicubic", "maps", "sigmoid")
    assert read_preprocess(steps(tmp_path, text)) == expected


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ({"sise": 3}, "sise: unknown key; expected one of size, scale, mean, std, order, resample, output, activation"),
        ({"size": 0}, "size: 0; expected a side in pixels up to 16,384, or [height, width]"),
        ({"size": [3, True]}, "size: [3, True]; expected a side in pixels"),
        ({"scale": 0}, "scale: 0; expected a number above 0, such as 255, or max"),
        ({"scale": "largest"}, "scale: 'largest'; expected a number above 0"),
        ({"mean": [1, 2]}, "mean: [1, 2]; expected a number, or a list of three"),
        ({"mean": float("nan")}, "mean: nan; expected a number"),
        ({"std": [1, 0, 1]}, "std: [1, 0, 1]; expected numbers above 0"),
        ({"order": "rbg"}, "order: 'rbg'; expected one of rgb, bgr"),
        ({"resample": "best"}, "resample: 'best'; expected one of bilinear, bicubic, lanczos"),
        ({"output": -1}, "output: -1; expected the index of an output from 0, or its name"),
        ({"activation": True}, "activation: True; expected one of none, sigmoid, softmax"),
        ([1], "list; expected keys among size"),
    ],
)
def test_a_wrong_key_or_value_is_one_line_that_names_it(content, error):
    with pytest.raises(InputError) as raised:
        parse_preprocess(content, "file.yaml")
    assert str(raised.value).startswith("file.yaml: ")
    assert error in str(raised.value)


def test_an_unknown_preset_lists_the_presets():
    with pytest.raises(InputError, match="u3net; expected one of u2net, isnet, or the name of a YAML file"):
        read_preprocess("u3net")


# ------------------------------------------------------------------ maps


@pytest.mark.parametrize(
    "file", [{}, {"batch": 1}, {"batch": 2}, {"last": True}, {"size": ("H", "W")}, {"classes": 0}, {"opset": 11}]
)
def test_maps_are_those_of_the_network_whatever_the_shape_of_its_input(tmp_path, images, file):
    path = linear(tmp_path / "model.onnx", **file)
    code, _, err = run(
        "predict", path, images, "--preprocess", steps(tmp_path, "size: [6, 8]"), "--out", tmp_path / "o"
    )
    assert code == 0, err
    for name in "012":
        image = Image.open(images / f"{name}.png")
        x = np.asarray(image.resize((8, 6), Image.Resampling.BILINEAR), np.float64) / 255
        p = Image.fromarray(expit(logits(x)).astype(np.float32)).resize(image.size, Image.Resampling.BILINEAR)
        levels = np.asarray(Image.open(tmp_path / "o" / f"{name}.png"))
        assert levels.dtype == np.uint16
        np.testing.assert_allclose(levels / 65535, np.asarray(p), atol=2e-5)


def test_a_network_may_leave_the_sigmoid_to_us(tmp_path):
    raw = linear(tmp_path / "raw.onnx", activation=None)
    model = load_onnx(raw, steps(tmp_path, "activation: sigmoid"))
    np.testing.assert_allclose(only_map(model, photograph())[0], expit(logits(photograph() / 255)), atol=1e-6)


@pytest.mark.parametrize(("activation", "ours"), [("Softmax", "none"), (None, "softmax")])
def test_maps_of_several_classes_are_arrays(tmp_path, images, activation, ours):
    path = linear(tmp_path / "model.onnx", classes=3, activation=activation)
    arguments = ("--preprocess", steps(tmp_path, f"activation: {ours}"), "--out", tmp_path / "o")
    code, _, err = run("predict", path, images, *arguments)
    assert code == 0, err
    p = np.load(tmp_path / "o" / "0.npy")
    z = np.stack([(k + 1) * logits(photograph() / 255) for k in range(3)])
    np.testing.assert_allclose(p, softmax(z, axis=0), atol=1e-5)


def test_an_output_is_chosen_by_its_index_or_its_name(tmp_path):
    path = linear(tmp_path / "model.onnx", activation=None)
    expected = expit(-logits(photograph() / 255))  # `aside` is minus the logit
    for output in ("1", "aside"):
        model = load_onnx(path, steps(tmp_path, f"output: {output}\nactivation: sigmoid"))
        np.testing.assert_allclose(only_map(model, photograph())[0], expected, atol=1e-6)


def test_confidence_and_entropy_come_along(tmp_path, images):
    path = linear(tmp_path / "model.onnx")
    run(
        "predict", path, images, "--preprocess", steps(tmp_path, "scale: 255"), "--uncertainty", "--out", tmp_path / "o"
    )
    p = np.asarray(Image.open(tmp_path / "o" / "0.png")) / 65535
    confidence = np.asarray(Image.open(tmp_path / "o" / "confidence" / "0.png")) / 65535
    np.testing.assert_allclose(confidence, np.maximum(p, 1 - p), atol=2e-5)


# ------------------------------------------------------------------ what cannot be


@pytest.mark.parametrize(
    ("file", "text", "error"),
    [
        (
            {"activation": None},
            "scale: 255",
            "expected probabilities, or activation: sigmoid or softmax in --preprocess",
        ),
        ({}, "size: 7", "an input of 6 x 8; expected 7 x 7, the size of --preprocess"),
        ({"size": ("H", "W")}, "scale: 255", "any size; expected size in --preprocess, the side it was trained at"),
        ({}, "output: 2", "no output 2; expected 0 to 1, or one of maps, aside"),
        ({}, "activation: softmax", "softmax over one channel, which is 1 everywhere; expected activation: sigmoid"),
    ],
)
def test_what_does_not_fit_is_one_line_that_names_the_key(tmp_path, images, file, text, error):
    path = linear(tmp_path / "model.onnx", **file)
    code, _, err = run("predict", path, images, "--preprocess", steps(tmp_path, text), "--out", tmp_path / "o")
    assert code == 2
    assert error in err
    assert err.count("\n") == 1


def test_a_file_that_does_not_say_how_images_are_prepared_needs_preprocess(tmp_path, images):
    code, _, err = run("predict", linear(tmp_path / "model.onnx"), images, "--out", tmp_path / "o")
    assert code == 2
    assert "expected --preprocess with one of u2net, isnet or a YAML file" in err


def test_something_else_by_the_name_of_an_onnx_file_is_one_line(tmp_path, images):
    file = tmp_path / "model.onnx"
    file.write_bytes(b"nothing of the kind")
    code, _, err = run("predict", file, images, "--preprocess", "u2net", "--out", tmp_path / "o")
    assert code == 2
    assert "expected an ONNX file that onnxruntime can run" in err


@pytest.mark.parametrize("options", [("--tile", 64), ("--mc-dropout", 3), ("--like-onnx",), ("--ensemble", "run")])
def test_options_of_runs_are_refused(tmp_path, images, options):
    file = linear(tmp_path / "model.onnx")
    code, _, err = run("predict", file, images, "--preprocess", "u2net", "--out", tmp_path / "o", *options)
    assert code == 2
    assert f"{options[0]}: with an ONNX file; expected a run folder" in err


def test_a_run_needs_no_preprocess(tmp_path, images):
    code, _, err = run("predict", tmp_path, images, "--preprocess", "u2net", "--out", tmp_path / "o")
    assert code == 2
    assert "--preprocess: with a run; expected an ONNX file" in err


def test_onnx_files_need_no_torch(tmp_path, images):
    path = linear(tmp_path / "model.onnx")
    code = (
        "import sys; sys.modules['torch'] = None\n"  # importing it fails from here on
        f"sys.argv = ['densecal', 'predict', {str(path)!r}, {str(images)!r}, '--preprocess', "
        f"{steps(tmp_path, 'size: [6, 8]')!r}, '--out', {str(tmp_path / 'o')!r}]\n"
        "from densecal.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "o").iterdir())) == 3
