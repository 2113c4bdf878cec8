"""A calibrator inside somebody else's ONNX file: the same names, the same other outputs, calibrated maps."""

import json

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image
from scipy.special import expit, logit, softmax

from densecal import posthoc
from densecal.errors import InputError
from densecal.export import ExportError, fold_calibrator, graph
from densecal.posthoc import LogitHistogram
from tests.onnx_files import linear, logits
from tests.running import run

QUICK = ("beta", "isotonic")
ONE = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
    for name in posthoc.names()
    if posthoc.find(name).binary and not posthoc.find(name).needs_images
]


def fitted(method, path):
    """A calibrator fitted on logits that are twice too large, and its file."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(20_000, generator=generator) * 3
    y = (torch.rand(20_000, generator=generator) < (z / 2 - 0.3).sigmoid()).long()
    histogram = LogitHistogram()
    histogram.update(z, y)
    calibrator = posthoc.create(method).fit(histogram)
    posthoc.save(calibrator, path)
    return calibrator


def temperature_file(path, temperature=2.0, classes=1):
    content = {"densecal": "calibrator", "version": 1, "method": "temperature", "classes": classes}
    path.write_text(json.dumps(content | {"temperature": temperature}))
    return path


def steps(tmp_path, text="scale: 255"):
    (tmp_path / "steps.yaml").write_text(text)
    return str(tmp_path / "steps.yaml")


def outputs(path, x):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    return dict(zip(names, session.run(None, {session.get_inputs()[0].name: x}), strict=True))


def inputs(batch=2, size=(6, 8)):
    return np.random.default_rng(0).random((batch, 3, *size)).astype(np.float32)


@pytest.mark.parametrize("method", ONE)
def test_every_calibrator_of_one_logit_computes_in_the_file_what_it_computes_in_python(tmp_path, method):
    calibrator = fitted(method, tmp_path / "cal.json")
    host = linear(tmp_path / "host.onnx")
    folded = fold_calibrator(host, tmp_path / "out.onnx", tmp_path / "cal.json", steps(tmp_path))
    assert folded.output == "maps"
    before, after = outputs(host, inputs()), outputs(tmp_path / "out.onnx", inputs())
    assert list(after) == ["maps", "aside"]
    expected = calibrator(posthoc.logit_histogram.logit(torch.from_numpy(before["maps"]))).numpy()
    close = np.abs(after["maps"] - expected) < 1e-5
    assert close.mean() > (0.97 if method in ("histogram", "isotonic", "selective") else 0.9999)  # jumps at edges
    assert np.abs(after["maps"] - before["maps"]).max() > 0.01, "the calibrator changes something"
    np.testing.assert_array_equal(after["aside"], before["aside"])


@pytest.mark.parametrize(
    "opset", [11, pytest.param(18, marks=pytest.mark.slow), pytest.param(21, marks=pytest.mark.slow)]
)
def test_graphs_of_older_and_newer_operators_are_joined(tmp_path, opset):
    host = linear(tmp_path / "host.onnx", opset=opset)
    fold_calibrator(host, tmp_path / "out.onnx", temperature_file(tmp_path / "cal.json"), steps(tmp_path))
    expected = expit(logits(np.moveaxis(inputs(), 1, -1)) / 2)
    np.testing.assert_allclose(outputs(tmp_path / "out.onnx", inputs())["maps"][:, 0], expected, atol=1e-5)
    onnx.checker.check_model(onnx.load(str(tmp_path / "out.onnx")), full_check=True)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ({"activation": None}, "activation: sigmoid"),
        pytest.param({"classes": 0}, "scale: 255", marks=pytest.mark.slow),
        pytest.param({"batch": 2}, "scale: 255", marks=pytest.mark.slow),
    ],
)
def test_outputs_of_other_kinds_are_calibrated_too(tmp_path, file, text):
    host = linear(tmp_path / "host.onnx", **file)
    fold_calibrator(host, tmp_path / "out.onnx", temperature_file(tmp_path / "cal.json"), steps(tmp_path, text))
    p = outputs(tmp_path / "out.onnx", inputs())["maps"]
    assert p.shape == outputs(host, inputs())["maps"].shape
    np.testing.assert_allclose(p.squeeze(), expit(logits(np.moveaxis(inputs(), 1, -1)) / 2), atol=1e-5)


def test_every_step_is_reported(tmp_path):
    said, calibrator = [], temperature_file(tmp_path / "cal.json")
    host = linear(tmp_path / "host.onnx")
    fold_calibrator(host, tmp_path / "out.onnx", calibrator, steps(tmp_path), lambda *step: said.append(step))
    titles = ["Running the network"] * 3 + ["Tracing the calibrator"] + ["Running the new file"] * 4
    assert said == [(title, done, 7) for done, title in enumerate(titles)]


def test_class_maps_are_calibrated(tmp_path):
    host = linear(tmp_path / "host.onnx", classes=3, activation="Softmax")
    fold_calibrator(host, tmp_path / "out.onnx", temperature_file(tmp_path / "cal.json", classes=3), steps(tmp_path))
    z = np.stack([(k + 1) * logits(np.moveaxis(inputs(), 1, -1)) for k in range(3)], axis=1)
    np.testing.assert_allclose(outputs(tmp_path / "out.onnx", inputs())["maps"], softmax(z / 2, axis=1), atol=1e-4)


def test_the_file_says_how_images_are_prepared_and_takes_no_second_calibrator(tmp_path):
    images = tmp_path / "images"
    images.mkdir()
    picture = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    Image.fromarray(picture).save(images / "a.png")
    host, calibrator = linear(tmp_path / "host.onnx"), temperature_file(tmp_path / "cal.json")
    options = ("--preprocess", steps(tmp_path, "scale: max\norder: bgr"), "--calibrator", calibrator)
    code, out, err = run("export", host, *options, "--out", tmp_path / "out.onnx")
    assert code == 0, err
    assert "output 'maps' is calibrated now" in out
    assert run("predict", tmp_path / "out.onnx", images, "--out", tmp_path / "maps")[0] == 0
    x = picture[..., ::-1] / picture.max()
    p = np.asarray(Image.open(tmp_path / "maps" / "a.png")) / 65535
    np.testing.assert_allclose(p, expit(logits(x) / 2), atol=2e-5)
    code, _, err = run("export", tmp_path / "out.onnx", "--calibrator", calibrator, "--out", tmp_path / "twice.onnx")
    assert code == 2
    assert "a file with a calibrator inside; expected the file without it" in err
    assert run("export", host, *options, "--out", tmp_path / "out.onnx")[0] == 0, "export replaces what it wrote itself"
    code, _, err = run("export", host, *options, "--out", host)
    assert code == 2
    assert "a file that this command reads" in err


@pytest.mark.slow
def test_probabilities_of_zero_and_one_stay_finite(tmp_path):
    host = linear(tmp_path / "host.onnx")
    fold_calibrator(host, tmp_path / "out.onnx", temperature_file(tmp_path / "cal.json"), steps(tmp_path))
    p = outputs(tmp_path / "out.onnx", np.stack([np.full((3, 6, 8), v, np.float32) for v in (1e6, -1e6)]))["maps"]
    np.testing.assert_allclose(p[:, 0, 0, 0], expit(logit([1 - 1e-7, 1e-7]) / 2), rtol=0.01)


@pytest.mark.parametrize(
    ("classes", "made", "error"),
    [
        (2, 1, "temperature for one foreground logit; expected one for 2 classes, which the model has"),
        (1, 3, "temperature for 3 classes; expected one for one foreground logit, which the model has"),
    ],
)
def test_a_calibrator_for_other_maps_is_refused(tmp_path, classes, made, error):
    host = linear(tmp_path / "host.onnx", classes=classes)
    with pytest.raises(InputError, match=error):
        fold_calibrator(
            host, tmp_path / "out.onnx", temperature_file(tmp_path / "c.json", classes=made), steps(tmp_path)
        )


def test_export_of_an_onnx_file_needs_a_calibrator(tmp_path):
    code, _, err = run("export", linear(tmp_path / "host.onnx"), "--out", tmp_path / "out.onnx")
    assert code == 2
    assert "--calibrator: nothing; expected a calibrator to put into the ONNX file" in err


def test_a_file_that_computes_something_else_is_not_written(tmp_path, monkeypatch):
    host, calibrator = linear(tmp_path / "host.onnx"), temperature_file(tmp_path / "cal.json")
    merge = graph._merge

    def wrong(*arguments):
        merged = merge(*arguments)
        kernel = next(one for one in merged.graph.initializer if one.name == "kernel")
        kernel.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(kernel) * 1.01, "kernel"))
        return merged

    monkeypatch.setattr(graph, "_merge", wrong)
    with pytest.raises(ExportError, match="differs from the original by"):
        fold_calibrator(host, tmp_path / "out.onnx", calibrator, steps(tmp_path))
    assert not (tmp_path / "out.onnx").exists()
