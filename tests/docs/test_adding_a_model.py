"""The guide's example: short, runs as it is printed, and is a model like any other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from densecal.models import build, registry
from densecal.prediction.predictor import load_predictor
from densecal.training.config import load_config
from tests.training.common import log_lines

GUIDE = Path(__file__).parents[2] / "docs" / "adding-a-model.md"


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.ARCHITECTURES, "_items", dict(registry.ARCHITECTURES._items))
    exec(blocks()[0], {"__name__": "adding_a_model"})


def test_the_example_is_short() -> None:
    assert sum(len(block.splitlines()) for block in blocks()) < 40


@pytest.mark.usefixtures("registered")
def test_the_example_is_a_model_like_any_other() -> None:
    model = build("top-down", "resnet10t", channels=8)
    images = torch.rand(2, 3, 50, 70)
    assert model(images).shape == (2, 1, 50, 70)
    assert [tuple(head.shape) for head in model(images, heads=True)] == [(2, 1, 50, 70)] * 4
    exported = torch.export.export(model.eval(), (images,)).module()
    torch.testing.assert_close(exported(images), model(images), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("registered")
def test_the_example_trains_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fewer = ["data.scenes.train=6", "data.scenes.validation=2", "data.size=64", "optim.batch=3"]
    monkeypatch.setattr(
        "densecal.training.config.load_config", lambda name, overrides: load_config(name, [*fewer, *overrides])
    )
    exec(blocks()[1], {})
    assert [line["epoch"] for line in log_lines(tmp_path / "top-down")] == [1, 2]
    assert load_predictor(tmp_path / "top-down").model.arch == "top-down"
