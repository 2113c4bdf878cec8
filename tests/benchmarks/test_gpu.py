"""The measurements of benchmarks/ for a GPU run, on small images and without one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
def test_every_entry_gives_a_rate(tmp_path):
    out = tmp_path / "measured.json"
    subprocess.run([sys.executable, BENCHMARKS / "gpu.py", "--tiny", "--out", out], check=True, timeout=300)
    measured = json.loads(out.read_text())
    entries = [found for found in measured.values() if isinstance(found, dict)]
    assert len(entries) == 6
    assert all(value > 0 for found in entries for value in found.values())


@pytest.mark.slow
def test_the_first_step_is_timed_with_and_without_packed_images():
    settings = ["data.images=null", "data.scenes.train=8", "data.scenes.validation=4", "model.weights=null"]
    settings += ["data.size=32", "optim.batch=4"]
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "first_step.py", *settings], check=True, capture_output=True, timeout=300
    )
    for parts in json.loads(done.stdout.splitlines()[-1]).values():
        assert 0 < parts["imports"] < parts["data and network"] < parts["first step"]
