"""A run with a calibrator of its own: fitted when training ends, and part of the model from then on."""

import shutil

import numpy as np
import pytest
import torch

from densecal import posthoc
from densecal.benchmark.sets import ImageSets
from densecal.calibrate import runs
from densecal.calibrate.fit import fit
from densecal.calibrate.runs import RunData, train_and_calibrate
from densecal.errors import InputError
from densecal.evaluation.model import evaluate_model
from densecal.export import export_run
from densecal.prediction import batches as prediction
from densecal.prediction.ensembles import load_ensemble
from densecal.prediction.predictor import load_predictor
from densecal.report.runs import read_run, validate_run
from tests.training.common import small_config

CONFIG = small_config("model.calibrator=temperature")
IMAGE = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("own") / "run"
    train_and_calibrate(CONFIG, out)
    return out


def temperature(run):
    return float(posthoc.load(run / "calibrator.json").temperature)


def test_the_calibrator_is_the_one_that_calibrate_fit_finds_on_the_validation_images(run):
    expected = fit("temperature", RunData(run / "checkpoints" / "last")).calibrator
    assert temperature(run) == float(expected.temperature)
    assert temperature(run) != 1


@pytest.mark.parametrize(("pixels", "groups"), [(1 << 24, [4, 2]), (32 * 32, [2, 2, 2])])
def test_images_go_through_the_network_together_and_come_out_one_by_one(run, monkeypatch, pixels, groups):
    data = RunData(run / "checkpoints" / "last")
    source, names = data.part.source, data.part.names
    alone = [data.predictor.logits([source.image(name)])[0] for name in names]
    together, told = [], []
    data.predictor.model.register_forward_pre_hook(lambda _, given: together.append(len(given[0])))
    monkeypatch.setattr(runs, "AT_ONCE", 4)
    monkeypatch.setattr(prediction, "LARGE_PIXELS", pixels)
    batches = list(data.batches(lambda *done: told.append(done)))
    assert together == groups
    assert told == [("Predicting", done, 6) for done in range(1, 7)]
    for name, batch, logits in zip(names, batches, alone, strict=True):
        image, mask = source.image(name), source.mask(name)
        torch.testing.assert_close(batch.logits[0], logits, rtol=1e-4, atol=1e-4)
        assert np.array_equal(batch.masks[0, 0], mask > 127)
        torch.testing.assert_close(batch.images[0], torch.tensor(image).permute(2, 0, 1) / 255)


def test_predictions_of_a_run_are_calibrated_and_those_of_a_checkpoint_are_not(run):
    calibrated, plain = load_predictor(run), load_predictor(run / "checkpoints" / "last")
    z = plain.logits([IMAGE])[0]
    torch.testing.assert_close(calibrated.logits([IMAGE])[0], z)
    torch.testing.assert_close(plain.probabilities([IMAGE])[0], z[0].sigmoid())
    expected = (z[0] / temperature(run)).sigmoid()
    torch.testing.assert_close(calibrated.probabilities([IMAGE])[0], expected)
    (chunks,) = calibrated.chunks([IMAGE])
    np.testing.assert_allclose(np.concatenate(list(chunks), axis=1)[0], expected, atol=1e-6)


def test_an_exported_file_contains_the_calibrator(run, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    export_run(run, tmp_path / "model.onnx", input="uint8")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    image = IMAGE[:32, :32]
    (p,) = session.run(None, {"images": image.transpose(2, 0, 1)[None]})
    np.testing.assert_allclose(p[0, 0], load_predictor(run).probabilities([image])[0], atol=1e-4)


def test_an_ensemble_does_not_use_the_calibrator_of_a_member(run):
    assert load_ensemble([run]).calibrator is not None
    with pytest.warns(UserWarning, match="the mean is not calibrated: temperature was fitted to one model alone"):
        assert load_ensemble([run, run]).calibrator is None


def test_a_run_killed_before_the_fit_continues_with_the_fit(run, tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(runs, "fit", killed)
        with pytest.raises(KeyboardInterrupt):
            train_and_calibrate(CONFIG, out)
    with pytest.warns(UserWarning, match="its temperature was not fitted, or not yet"):
        assert load_predictor(out).calibrator is None
    # and that kill may have come between the two renames of the last checkpoint
    (out / "checkpoints" / "last").rename(out / "checkpoints" / "last.new")
    assert train_and_calibrate(CONFIG, out, resume=True) is None
    assert temperature(out) == temperature(run)


def test_a_failed_fit_keeps_the_model_and_warns(tmp_path, monkeypatch):
    def unfit(*_):
        raise InputError("temperature", "no foreground pixels", "both classes")

    monkeypatch.setattr(runs, "fit", unfit)
    with pytest.warns(UserWarning, match="no foreground pixels; expected both classes; .* is left without temperature"):
        assert train_and_calibrate(CONFIG, tmp_path / "run") is not None


def test_a_report_shows_the_calibrated_model(run):
    found = validate_run(read_run(run, "own"), 1).evaluation.record.calibration["nll"]
    predictor = load_predictor(run)
    (data,) = ImageSets().of(predictor.config, ())
    plain, calibrated = (
        evaluate_model(predictor.model, data, {"": one})[""].record.calibration["nll"]
        for one in (None, predictor.calibrator)
    )
    assert found == pytest.approx(calibrated, rel=1e-9)
    assert found != pytest.approx(plain, rel=1e-9)


def test_a_second_calibrator_is_refused(run, tmp_path):
    with pytest.raises(InputError, match="a run with its own temperature; expected its model without it"):
        RunData(run)
    with pytest.raises(InputError, match="a run with its own temperature; expected its model without it"):
        export_run(run, tmp_path / "model.onnx", run / "calibrator.json")


def test_the_file_of_another_calibrator_is_refused(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    posthoc.save(posthoc.create("platt"), tmp_path / "run" / "calibrator.json")
    with pytest.raises(InputError, match="platt for 1 classes; expected temperature for 1"):
        load_predictor(tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "classes", "expected"),
    [("nonsense", 1, "beta"), ("local-temperature", 1, "platt"), ("isotonic", 3, "temperature, vector")],
)
def test_an_unsuitable_calibrator_is_refused_before_training(name, classes, expected):
    data = ["data.scenes=null", "data.images=x"] if classes > 1 else []
    with pytest.raises(InputError, match=f"model.calibrator is '{name}'; expected one of .*{expected}"):
        small_config(f"model.calibrator={name}", f"data.classes={classes}", *data)
