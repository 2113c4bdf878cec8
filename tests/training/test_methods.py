"""Methods that draw, mix or keep a state: an interrupted run ends like one that was not interrupted."""

import pytest
import torch
from safetensors.torch import load_file

from densecal.training.loop import train
from tests.training.common import log_lines, small_config


@pytest.mark.parametrize("name", ["adafocal", "mixup", "mmce"])
def test_a_resumed_run_ends_like_an_uninterrupted_one(name, tmp_path):
    shared = (f"method.name={name}", "optim.schedule=constant")
    train(small_config(*shared), tmp_path / "whole")
    train(small_config(*shared, "optim.epochs=2"), tmp_path / "parts")
    config = tmp_path / "parts" / "config.yaml"
    config.write_text(config.read_text().replace("epochs: 2\n", "epochs: 3\n", 1))
    train(small_config(*shared), tmp_path / "parts", resume=True)
    for file in ("model.safetensors", "method.safetensors"):
        whole, parts = (load_file(tmp_path / run / "checkpoints" / "last" / file) for run in ("whole", "parts"))
        assert whole.keys() == parts.keys()
        assert all(torch.equal(whole[key], parts[key]) for key in whole)
    if name == "adafocal":
        assert whole["gamma"].unique().numel() > 1
        assert whole["edges"][0] >= 0.5
        assert log_lines(tmp_path / "whole")[-1]["method"]["gamma_max"] == pytest.approx(whole["gamma"].max().item())
