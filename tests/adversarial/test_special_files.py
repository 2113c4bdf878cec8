"""Pipes, devices and loops of links in place of files: named in one line, never waited for or overwritten."""

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from densecal.errors import InputError
from densecal.io.atomic import write_atomically, write_text
from densecal.io.documents import read_json, read_lines
from densecal.io.map_files import read_map
from densecal.training.config import dump_config
from densecal.training.loop import train
from tests import forked
from tests.adversarial.common import assert_one_line, densecal, write_set
from tests.training.common import small_config

INPUTS = {
    "a map": ("maps/2.png", ["evaluate", "maps", "masks"]),
    "a mask": ("masks/2.png", ["evaluate", "maps", "masks"]),
    "an array": ("maps/2.npy", ["evaluate", "maps", "masks"]),
    "a calibrator": ("cal.json", ["calibrate", "apply", "cal.json", "maps", "--out", "out"]),
    "an evaluation": ("scores.json", ["report", "scores.json", "--out", "report.html"]),
    "a recipe": ("own.yaml", ["train", "own.yaml", "--out", "run"]),
    "a matrix": ("matrix.yaml", ["benchmark", "matrix.yaml", "--out", "out"]),
}


def make_special(path: Path, kind: str) -> None:
    path.unlink(missing_ok=True)
    if kind == "a named pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero" if kind == "a device" else path.name)


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("kind", ["a named pipe", "a device", "a loop"])
def test_no_command_waits_for_a_special_file(tmp_path, name, kind):
    path, command = INPUTS[name]
    write_set(tmp_path)
    if path == "maps/2.npy":
        (tmp_path / "maps" / "2.png").unlink()
    make_special(tmp_path / path, kind)
    assert_one_line(densecal(tmp_path, *command), path)


def test_a_special_file_is_skipped_and_named_on_request(tmp_path):
    write_set(tmp_path)
    make_special(tmp_path / "maps" / "2.png", "a named pipe")
    code, _, errors = densecal(tmp_path, "evaluate", "maps", "masks", "--skip-bad", "--json", "out.json")
    assert code == 0, errors
    (skipped,) = json.loads((tmp_path / "out.json").read_text())["skipped"]
    assert skipped == {"file": "maps/2.png", "reason": "a named pipe; expected a regular file"}


@pytest.mark.parametrize(
    "read", [read_map, lambda path: read_json(path, "JSON"), lambda path: read_lines(path, "names")]
)
def test_readers_refuse_special_files_and_follow_links_to_regular_ones(tmp_path, read):
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(InputError, match=r"pipe\.png: a named pipe; expected "):
        read(tmp_path / "pipe.png")
    write_set(tmp_path)
    (tmp_path / "link.png").symlink_to(tmp_path / "maps" / "0.png")
    (tmp_path / "link.json").symlink_to(tmp_path / "cal.json")
    assert read(tmp_path / ("link.png" if read is read_map else "link.json")) is not None


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("special")
    train(small_config("optim.epochs=1", "engine.loggers=[]"), folder / "run")
    return folder


OF_A_RUN = {
    "weights of a model": ("run/checkpoints/last/model.safetensors", ["predict", "run", "photos", "--out", "out"]),
    "state of an optimizer": (
        "run/checkpoints/last/optimizer.pt",
        ["train", "run/config.yaml", "--out", "run", "--resume"],
    ),
    "meta.json": ("run/checkpoints/last/meta.json", ["predict", "run/checkpoints/last", "photos", "--out", "out"]),
    "a log": ("run/log.jsonl", ["report", "run", "--out", "page.html"]),
    "settings": ("run/config.yaml", ["train", "demo", "--out", "run", "--resume"]),
    "pretrained weights": ("w.safetensors", ["train", "demo", "model.weights=w.safetensors", "--out", "new"]),
    "a pickle": ("w.pth", ["train", "demo", "model.weights=w.pth", "--out", "new"]),
    "a validation list": ("v.txt", ["train", "own.yaml", "--out", "new"]),
    "a list": ("photos.txt", ["predict", "run", "photos.txt", "--out", "out"]),
}


@pytest.mark.parametrize("name", OF_A_RUN)
@pytest.mark.parametrize("kind", ["a named pipe", "a device"])
def test_no_file_of_a_run_is_waited_for(run, tmp_path, name, kind):
    path, command = OF_A_RUN[name]
    write_set(tmp_path)
    shutil.copytree(run / "run", tmp_path / "run")
    data = {"images": "photos", "masks": "masks", "validation": "v.txt", "scenes": None, "size": 32}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump({**yaml.safe_load(dump_config(small_config())), "data": data}))
    make_special(tmp_path / path, kind)
    assert_one_line(densecal(tmp_path, *command))


@pytest.mark.parametrize("file", ["images.u8", "masks.u8", "manifest.json"])
@pytest.mark.parametrize("kind", ["a named pipe", "a device"])
def test_a_special_file_in_a_cache_is_a_damaged_cache(tmp_path, file, kind):
    write_set(tmp_path)
    command = ["data", "pack", "photos", "masks", "--size", "16", "--workers", "1", "--out", "cache"]
    assert densecal(tmp_path, *command)[0] == 0
    make_special(tmp_path / "cache" / file, kind)
    code, out, errors = densecal(tmp_path, *command)
    assert code == 0, errors
    assert "4 samples, packed" in out
    assert (tmp_path / "cache" / file).is_file()


# ------------------------------------------------------------------ outputs


def test_a_device_is_written_to_and_stays_a_device(tmp_path):
    before = os.stat("/dev/null")
    write_set(tmp_path)
    code, _, errors = densecal(tmp_path, "evaluate", "maps", "masks", "--json", "/dev/null", "--csv", "/dev/null")
    assert code == 0, errors
    after = os.stat("/dev/null")
    assert stat.S_ISCHR(after.st_mode)
    assert (after.st_ino, after.st_rdev) == (before.st_ino, before.st_rdev)


def test_a_named_pipe_is_written_to(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE) as reader:
        write_text(tmp_path / "pipe", "all of it\n" * 3_000)
        assert reader.stdout is not None
        assert reader.stdout.read() == b"all of it\n" * 3_000
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def command_line(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run([sys.executable, "-m", "densecal.cli", *arguments], cwd=folder)


def test_standard_output_holds_the_json_alone(tmp_path):
    write_set(tmp_path)
    done = command_line(tmp_path, "evaluate", "maps", "masks", "--json", "-")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["images"] == 4
    assert "4 images" in done.stderr
    assert not (tmp_path / "-").exists()


def test_a_calibrator_goes_to_standard_output(tmp_path):
    write_set(tmp_path)
    done = command_line(tmp_path, "calibrate", "fit", "temperature", "maps", "masks", "--out", "-")
    assert json.loads(done.stdout)["method"] == "temperature"


def test_links_are_written_through(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link.txt").symlink_to(tmp_path / "real" / "file.txt")
    for text in ("first", "second"):  # the target is missing at first
        write_text(tmp_path / "link.txt", text)
        assert (tmp_path / "link.txt").is_symlink()
        assert (tmp_path / "real" / "file.txt").read_text() == text


def test_a_closed_reader_is_one_line():
    script = """
import sys
from pathlib import Path
from densecal.errors import InputError
from densecal.io.atomic import write_text
sys.stdin.readline()
try:
    write_text(Path("-"), "x" * 1_000_000)
except InputError as error:
    print(error, file=sys.stderr)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.write("\n")
        process.stdin.close()
        assert process.stderr.readline() == "-: cannot be written (Broken pipe); expected a reader at its other end\n"


def test_nothing_is_left_of_a_write_that_fails(tmp_path):
    def fail(stream):
        stream.write(b"half")
        raise KeyError

    write_text(tmp_path / "file", "whole")
    with pytest.raises(KeyError):
        write_atomically(tmp_path / "file", fail)
    assert (tmp_path / "file").read_text() == "whole"
    assert len(list(tmp_path.iterdir())) == 1
