"""Documents from strangers: records, lists, loops of links, full disks. One line each, no traceback and no request."""

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from densecal.data import scenes
from densecal.training.config import dump_config
from densecal.training.loop import train
from tests.adversarial.common import assert_one_line, densecal, write_set
from tests.training.common import small_config

URL = "http://127.0.0.1:9/x.png"


@pytest.fixture
def no_network(monkeypatch):
    """Fail a test that connects to anything."""

    def connect(*_: object) -> None:
        raise AssertionError("a connection was attempted")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "getaddrinfo", connect)


# ------------------------------------------------------------------ descriptions of data sets


@pytest.mark.parametrize(
    "labels",
    [
        {"²": "background"},
        {"9" * 5000: "background"},
        {"0": "a", "2": "b"},
        {"a": True},
        {"a": 10**30},
        {"a": [[0]]},
        [],
    ],
)
def test_labels_of_a_data_set_that_make_no_sense_are_one_line(tmp_path, labels):
    (tmp_path / "maps").mkdir()
    np.savez(tmp_path / "maps" / "a.npz", probabilities=np.full((2, 1, 4, 4), 0.5))
    (tmp_path / "dataset.json").write_text(json.dumps({"labels": labels}))
    (tmp_path / "labels").mkdir()
    assert_one_line(densecal(tmp_path, "evaluate", "maps", "labels"), "dataset.json: labels", "; expected ")


# ------------------------------------------------------------------ evaluation records


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("classes", -1), ("classes", 0), ("classes", 10**9), ("classes", 10**20), ("classes", "two"), ("classes", 2.5),
        ("ignore_index", -1), ("ignore_index", 10**9), ("bins", 0), ("bins", None), ("bins", 10**30), ("bins", [10]),
    ],
)  # fmt: skip
def test_settings_of_a_record_that_make_no_sense_are_one_line(tmp_path, key, value):
    write_set(tmp_path)
    assert densecal(tmp_path, "evaluate", "maps", "masks", "--metrics", "fast", "--json", "scores.json")[0] == 0
    record = json.loads((tmp_path / "scores.json").read_text())
    record["settings"][key] = value
    (tmp_path / "scores.json").write_text(json.dumps(record))
    folders = ["--predictions", "maps", "--masks", "masks", "--images", "photos"]
    result = densecal(tmp_path, "report", "scores.json", *folders, "--out", "page.html")
    assert_one_line(result, f"scores.json: settings.{key}: ", "; expected ")
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("value", [None, [], "settings", 3, {}])
def test_settings_that_are_not_an_object_are_one_line(tmp_path, value):
    write_set(tmp_path)
    assert densecal(tmp_path, "evaluate", "maps", "masks", "--metrics", "fast", "--json", "scores.json")[0] == 0
    record = json.loads((tmp_path / "scores.json").read_text())
    (tmp_path / "scores.json").write_text(json.dumps({**record, "settings": value}))
    assert_one_line(densecal(tmp_path, "report", "scores.json", "--out", "page.html"), "scores.json: settings")


# ------------------------------------------------------------------ URLs


@pytest.mark.parametrize("line", [URL, f"0.png\t{URL}", f"0.png {URL}", "https://127.0.0.1/x.png", "s3://bucket/x.png"])
def test_a_url_in_a_list_file_is_refused_without_a_request(tmp_path, no_network, line):
    write_set(tmp_path)
    (tmp_path / "photos" / "list.txt").write_text(f"1.png\n{line}\n")
    for folder, name in ((tmp_path / "photos", "list.txt"), (tmp_path, "photos/list.txt")):
        result = densecal(folder, "data", "pack", name, "--out", "cache", "--workers", "1")
        assert_one_line(result, f"{name} line 2: the URL ", "expected a file")


def test_a_report_of_a_strangers_run_makes_no_request(tmp_path, no_network):
    config = small_config("optim.epochs=1", "engine.loggers=[]")
    train(config, tmp_path / "run")
    data = config.data.model_copy(update={"scenes": None, "images": "http://127.0.0.1:9/photos", "masks": "masks"})
    stranger = config.model_copy(update={"data": data})
    (tmp_path / "run" / "config.yaml").write_text(dump_config(stranger))
    for meta in (tmp_path / "run").glob("checkpoints/*/meta.json"):
        meta.write_text(json.dumps({**json.loads(meta.read_text()), "config": stranger.model_dump(mode="json")}))
    code, _, errors = densecal(tmp_path, "report", "run", "--out", "page.html")
    assert code == 0, errors
    assert errors.count("a report makes no request") == 2  # its validation images, and pictures of its training images


# ------------------------------------------------------------------ loops of links

LOOP = "loop"
LOOPED = {
    "maps": ["evaluate", LOOP, "masks"],
    "masks": ["evaluate", "maps", LOOP],
    "a method's maps": ["evaluate", "methods", "masks"],
    "an output": ["evaluate", "maps", "masks", "--json", LOOP],
    "figures": ["evaluate", "maps", "masks", "--figures", LOOP],
    "maps to calibrate": ["calibrate", "apply", "cal.json", LOOP, "--out", "out"],
    "a folder of maps": ["calibrate", "apply", "cal.json", "maps", "--out", LOOP],
    "masks to fit on": ["calibrate", "fit", "temperature", "maps", LOOP, "--out", "out.json"],
    "a run": ["predict", LOOP, "photos", "--out", "out"],
    "images": ["data", "check", LOOP],
    "images to pack": ["data", "pack", LOOP, "--out", "out"],
    "a cache": ["data", "pack", "photos", "masks", "--workers", "1", "--out", LOOP],
    "scenes": ["data", "scenes", LOOP, "--count", "1"],
    "a report": ["report", LOOP, "--out", "page.html"],
    "a run folder": ["train", "demo", "--out", LOOP],
    "a recipe": ["train", "loop.yaml", "--out", "out"],
    "a benchmark": ["benchmark", "matrix.yaml", "--out", LOOP],
    "a demonstration": ["demo", "--out", LOOP],
    "risk control": ["risk-control", LOOP, "masks"],
}


@pytest.mark.parametrize("name", LOOPED)
def test_a_loop_of_links_is_one_line(tmp_path, name):
    write_set(tmp_path)
    (tmp_path / LOOP).symlink_to("other")
    (tmp_path / "other").symlink_to(LOOP)
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    (tmp_path / "methods").mkdir()
    (tmp_path / "methods" / "mine").symlink_to("mine")
    (tmp_path / "matrix.yaml").write_text(yaml.safe_dump({"recipe": "demo", "methods": ["bce"]}))
    before = sorted(tmp_path.rglob("*"))
    assert_one_line(densecal(tmp_path, *LOOPED[name]))
    assert sorted(tmp_path.rglob("*")) == before, "nothing is written"


# ------------------------------------------------------------------ full disks


def test_a_full_disk_leaves_no_half_of_a_set_of_scenes(tmp_path, monkeypatch):
    written = []

    def save(path: Path, *_: object) -> None:
        written.append(path)
        if len(written) > 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        path.write_bytes(b"scene")

    monkeypatch.setattr(scenes, "save_png", save)
    assert_one_line(densecal(tmp_path, "data", "scenes", "out", "--count", "8", "--size", "16"), "No space left")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(
    not Path("/proc/self/mountinfo").exists() or os.geteuid() != 0, reason="needs a file system to fill"
)
def test_scenes_on_a_disk_that_is_really_full_are_one_line(tmp_path):
    (tmp_path / "small").mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", tmp_path / "small"], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("this machine lets nobody mount")
    try:
        assert_one_line(densecal(tmp_path / "small", "data", "scenes", "out", "--count", "40"), "No space left")
        assert os.listdir(tmp_path / "small") == []
    finally:
        subprocess.run(["umount", tmp_path / "small"], check=True)
        shutil.rmtree(tmp_path / "small")


def test_an_unforeseen_error_of_the_system_names_the_path(tmp_path):
    script = "import densecal.cli as cli\ncli._command = lambda: open('missing\\x1b/file')\ncli.main()"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(r"densecal: missing\x1b/file: No such file or directory; expected ")
    assert done.stderr.count("\n") == 1
