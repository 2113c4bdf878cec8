"""The guide to other people's tools shows lines of the examples, which run, and names that exist."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from densecal.integrations.lightning import LOGGED
from densecal.training import loggers

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^`examples/(\w+)\.py`(.*?)(?=^## |\Z)", GUIDE, flags=re.DOTALL | re.MULTILINE))


def test_every_example_with_a_tool_is_in_the_guide():
    assert sorted(SECTIONS) == [
        "hugging_face_trainer", "lightning_callback", "optuna_search", "smp_training", "torchmetrics_collection",
    ]  # fmt: skip


@pytest.mark.parametrize("name", SECTIONS)
def test_code_of_the_guide_is_code_of_the_example(name: str):
    lines = {line.strip() for line in (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8").splitlines()}
    (block,) = re.findall(r"```python\n(.*?)```", SECTIONS[name], re.DOTALL)
    shown = [line.strip() for line in block.splitlines() if line]
    assert len(shown) > 3
    assert [line for line in shown if line not in lines] == []


def test_the_figures_of_the_callback_are_named():
    assert " ".join(f"val_{name}" for name in LOGGED) in GUIDE


def test_a_logger_works_as_shown(monkeypatch: pytest.MonkeyPatch):
    told: list[object] = []
    logger = SimpleNamespace(write=told.append, close=lambda: told.append("closed"))
    monkeypatch.setattr(loggers, "WandbLogger", lambda folder, settings: told.append((folder, settings)) or logger)
    (code,) = re.findall(r"```\n(from densecal.training import loggers.*?)```", GUIDE, re.DOTALL)
    exec(code, {"Path": Path, "result": SimpleNamespace(ece_ew=0.1)})
    line = {"epoch": 1, "loss": 0.31, "validation": {"ece_ew": 0.1}}
    assert told == [(Path("runs/mine"), {"lr": 1e-3}), line, "closed"]
