"""`densecal reproduce` at the smoke scale: shared cells, a kill in the middle, and every item once."""

import csv
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from densecal.reproduce import load_items
from densecal.reproduce.items import find_item
from tests import forked
from tests.training.common import command, environment, run, with_forked_workers

FIGURES = {
    "joint-textures": ["joint-bins-textures.png", "joint-textures.png"],
    "entropy-maps": ["entropy.png"],
    "textures": ["textures.png"],
    "convergence": ["convergence.png"],
    "eta-lambda": [f"aslp-mc-{key}-{bins}-bins.png" for key in ("eta", "lam") for bins in (10, 100)],
    "slp-calibration": ["slp-alpha-10-bins.png", "slp-alpha-100-bins.png"],
    "slp-accuracy": ["slp-alpha-10-bins.png", "slp-alpha-100-bins.png"],
}


def finished(out: Path) -> dict[Path, int]:
    """The finished cells, and when they were finished."""
    return {path: path.stat().st_mtime_ns for path in out.glob("smoke/runs/*/cells/*/*/result.json")}


def make(item: str, out: Path) -> list[dict[str, str]]:
    """Run an item, check what it prints and return the lines of its CSV file."""
    done = run(with_forked_workers(command("reproduce", item, "--scale", "smoke", "--out", out)))
    assert done.returncode == 0, done.stderr
    assert load_items()[item].title.split(":")[0] in done.stdout or item == "textures"
    folder = out / "smoke" / item
    drawn = sorted(path.name for path in (folder / "figures").glob("*.png"))
    assert drawn == sorted(FIGURES.get(item, drawn if item.startswith("joint") else []))
    for name in drawn:
        assert np.asarray(Image.open(folder / "figures" / name).convert("L")).std() > 5  # something is on it
    if item == "textures":
        return []
    texts = [(folder / f"table.{suffix}").read_text() for suffix in ("md", "tex")]
    assert all("scale smoke: at most 12 generated scenes" in text for text in texts)
    return list(csv.DictReader((folder / "table.csv").open()))


@pytest.fixture(scope="module")
def resumed(tmp_path_factory) -> tuple[Path, list[dict[str, str]]]:
    """The folder of an item that was killed after its first cell, and then run again, and the lines of its CSV file."""
    out = tmp_path_factory.mktemp("paper")
    arguments = with_forked_workers(command("reproduce", "time", "--scale", "smoke", "--out", out))
    with forked.start(arguments, env=environment(), new_session=True) as process:
        end = time.monotonic() + 300
        while not finished(out):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    before = finished(out)
    assert [path.parts[-3] for path in before] == ["bce"]
    lines = make("time", out)
    after = finished(out)
    assert {path: after[path] for path in before} == before
    assert sorted(path.parts[-3] for path in after) == ["aslp-mc-hi", "bce"]
    return out, lines


@pytest.fixture(scope="module")
def killed(resumed) -> Path:
    return resumed[0]


def test_a_killed_item_resumes_without_running_a_finished_cell_again(resumed):
    _, lines = resumed
    assert [(line["row"], line["figure"], line["paper"]) for line in lines] == [
        ("Base model", "Hours", "2.3"), ("Base model", "Images/s", "53.40"),
        ("ASLP", "Hours", "2.5"), ("ASLP", "Images/s", "53.40"),
    ]  # fmt: skip
    assert all(float(line["ours"]) > 0 for line in lines)


def test_items_share_cells(killed):
    before = finished(killed)
    make("entropy-maps", killed)
    assert finished(killed) == before
    lines = make("table-2", killed)
    assert {path: time for path, time in finished(killed).items() if path in before} == before
    assert len(finished(killed)) == 9  # two of them were there
    ours = {line["row"]: line for line in lines if (line["data set"], line["figure"]) == ("textures", "ECE")}
    assert list(ours) == list(find_item("table-2").rows)
    for line in ours.values():
        assert float(line["difference"]) == pytest.approx(float(line["ours"]) - float(line["paper"]), abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("item", load_items())
def test_every_item_runs(item, killed):
    lines = make(item, killed)
    rows = {line["row"] for line in lines}
    assert rows >= set(find_item(item).rows) or find_item(item).kind in ("curves", "textures")
    for line in lines:
        if line["data set"] in find_item(item).data and not line["paper"].startswith("0 - "):
            trained = line["row"] not in rows or not find_item(item).sources()[line["row"]].is_published
            assert line["ours"] or not trained, line
