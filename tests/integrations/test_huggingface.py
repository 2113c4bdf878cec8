"""Runs and calibrators on the Hub: pushed to a server on this machine, and loaded from it as they were."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml

from densecal.evaluation.folders import evaluate
from densecal.io.images import save_png
from densecal.posthoc.logit_histogram import LogitHistogram
from densecal.posthoc.temperature import Temperature
from tests.integrations.hub_server import Hub

huggingface_hub = pytest.importorskip("huggingface_hub")
from densecal.errors import InputError  # noqa: E402
from densecal.integrations.huggingface import PICTURE, RECORD, HubCalibrator, HubRun  # noqa: E402


@pytest.fixture
def hub(monkeypatch, tmp_path):
    hub = Hub()
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE",
                        hub.url + "/{repo_id}/resolve/{revision}/{filename}")  # fmt: skip
    for name, value in (("HF_HUB_CACHE", str(tmp_path / "cache")), ("HF_TOKEN_PATH", str(tmp_path / "token"))):
        monkeypatch.setattr(huggingface_hub.constants, name, value)
    monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", hub.url)
    yield hub
    hub.close()


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """An over-confident model on twelve images."""
    folder, rng = tmp_path_factory.mktemp("maps"), np.random.default_rng(0)
    for kind in ("maps", "masks"):
        (folder / kind).mkdir()
    for i in range(12):
        z = rng.normal(0, 2, (16, 16))
        truth = rng.random(z.shape) < 1 / (1 + np.exp(-z))
        save_png(folder / "maps" / f"{i}.png", np.rint(65535 / (1 + np.exp(-3 * z))).astype(np.uint16), "test")
        save_png(folder / "masks" / f"{i}.png", (255 * truth).astype(np.uint8), "test")
    return replace(evaluate(folder / "maps", folder / "masks").record, name="sure", dataset="scenes")


@pytest.fixture(scope="module")
def calibrator():
    z = np.linspace(-4, 4, 500)
    histogram = LogitHistogram()
    histogram.update(z, (z + 3 * np.sin(31 * z) > 0).astype(np.int64))
    return Temperature().fit(histogram)


def test_a_calibrator_comes_back_as_it_was(hub, calibrator, record):
    HubCalibrator(calibrator, record).push_to_hub("me/cal", token="hf_test")
    assert set(hub.files["me/cal"]) == {"calibrator.json", "README.md", RECORD, PICTURE}
    loaded = HubCalibrator.from_pretrained("me/cal", token=False)
    assert float(loaded.calibrator.temperature) == float(calibrator.temperature)
    assert loaded.record.calibration["ece_ew"] == pytest.approx(record.calibration["ece_ew"], rel=1e-9)


def test_the_card_holds_the_figures_for_readers_and_for_the_hub(hub, calibrator, record):
    HubCalibrator(calibrator, record).push_to_hub("me/cal", token="hf_test")
    card = hub.files["me/cal"]["README.md"].decode()
    _, header, text = card.split("---\n", 2)
    (result,) = yaml.safe_load(header)["model-index"][0]["results"]
    figures = {metric["type"]: metric["value"] for metric in result["metrics"]}
    assert figures["ece_ew"] == pytest.approx(record.calibration["ece_ew"], abs=1e-6)
    assert result["dataset"]["name"] == "scenes"
    low, high = record.calibration.ci["ece_ew"]
    row = f"| ECE | {100 * record.calibration['ece_ew']:.2f} % | {100 * low:.2f} to {100 * high:.2f} % |"
    assert row in text
    assert "Over-confident by" in text
    assert f"({PICTURE})" in text
    assert hub.files["me/cal"][PICTURE].startswith(b"\x89PNG")
    assert huggingface_hub.ModelCard(card).data.pipeline_tag == "image-segmentation"


def test_a_folder_on_disk_is_loaded_without_a_hub(tmp_path, calibrator):
    HubCalibrator(calibrator).save_pretrained(tmp_path / "saved")
    loaded = HubCalibrator.from_pretrained(tmp_path / "saved").calibrator
    assert float(loaded.temperature) == float(calibrator.temperature)
    assert "## Calibration" not in (tmp_path / "saved/README.md").read_text()


def test_a_repository_that_is_not_there_is_one_line(hub):
    with pytest.raises(InputError, match="me/none") as caught:
        HubCalibrator.from_pretrained("me/none", token=False)
    assert "\n" not in str(caught.value)


def test_a_run_predicts_the_same_after_the_hub_and_leaves_its_optimizer_behind(hub, tmp_path, record):
    from densecal.prediction.predictor import load_predictor
    from densecal.training.config import load_config
    from densecal.training.loop import train

    small = ["data.scenes.train=4", "data.scenes.validation=2", "data.size=32", "optim.epochs=1", "optim.batch=2"]
    train(load_config("demo", [*small, "engine.loggers=[]"]), tmp_path / "run")
    HubRun(tmp_path / "run", record).push_to_hub("me/run", token="hf_test")
    names = set(hub.files["me/run"])
    assert {"config.yaml", "checkpoints/last/model.safetensors", "checkpoints/last/meta.json"} <= names
    assert len(hub.files["me/run"]["checkpoints/last/optimizer.pt"]) < 2000
    image = np.random.default_rng(0).integers(0, 255, (40, 50, 3), dtype=np.uint8)
    before = load_predictor(tmp_path / "run").probabilities([image])[0]
    shutil.rmtree(tmp_path / "run")
    loaded = HubRun.from_pretrained("me/run", token=False)
    assert torch.equal(load_predictor(loaded.folder).probabilities([image])[0], before)
    assert loaded.record.name == "sure"
