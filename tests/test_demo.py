"""The demonstration: whole in small, and in full (slow) that it shows what it is there to show."""

import json
import re

import pytest

from densecal import demo
from densecal.errors import InputError
from tests.training.common import small_config


def test_a_small_demonstration_leaves_a_page_that_needs_no_network(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "HELD_OUT", 8)
    monkeypatch.setattr(demo, "load_config", lambda name, overrides=(): small_config("optim.epochs=1", *overrides))
    evaluations = demo.run_demo(tmp_path / "demo")
    assert [evaluation.record.name for evaluation in evaluations] == ["bce", "aslp-mc"]
    page = (tmp_path / "demo" / "report.html").read_text()
    assert page.count("true probability") == 16  # every held-out scene, seen by both models
    assert not re.search(r'(?:src|href)="(?!#)', page)
    assert "densecal train demo" in page
    demo.run_demo(tmp_path / "demo")  # an earlier one is replaced
    (tmp_path / "runs" / "bce").mkdir(parents=True)
    with pytest.raises(InputError, match="not a demonstration"):
        demo.run_demo(tmp_path / "runs")
    assert (tmp_path / "runs" / "bce").exists()
    (tmp_path / "demo" / "mine.txt").write_text("")
    with pytest.raises(InputError, match=r"mine\.txt"):
        demo.run_demo(tmp_path / "demo")


@pytest.mark.slow
def test_aslp_is_better_calibrated_at_equal_accuracy(tmp_path):
    plain, ours = (e.record.calibration for e in demo.run_demo(tmp_path / "demo"))
    assert ours["ece_ew"] < plain["ece_ew"]
    assert abs(ours["accuracy"] - plain["accuracy"]) < 0.005
    (pair,) = json.loads((tmp_path / "demo" / "evaluation.json").read_text())["paired"]
    assert pair["ci"]["ece_ew"][0] > 0  # plain minus ours, surely
