"""Damaged logs, loops of links and files in place of folders in a run: one line when it is resumed or reported."""

import shutil

import pytest

from densecal.training.loop import train
from tests.adversarial.common import assert_one_line, densecal
from tests.training.common import SMALL, small_config


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("damaged")
    train(small_config("optim.epochs=1"), folder / "run")
    return folder


@pytest.fixture
def folder(finished, tmp_path):
    """Return a run of two epochs that has finished one."""
    shutil.copytree(finished / "run", tmp_path / "run")
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace("epochs: 1\n", "epochs: 2\n", 1))
    return tmp_path


COMMANDS = {
    "train": ["train", "demo", *SMALL, "optim.epochs=2", "--resume", "--out", "run"],
    "report": ["report", "run", "--out", "page.html"],
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b"{", b"[1]\n", b"{}\n", b"[" * 100_000, b'{"epoch": 1}\n', b"null\n", b"9" * 5000]
)
def test_a_damaged_log_is_one_line(folder, command, content):
    (folder / "run" / "log.jsonl").write_bytes(content)
    before = sorted((folder / "run").rglob("*"))
    assert_one_line(densecal(folder, *COMMANDS[command]), "log.jsonl")
    assert (folder / "run" / "log.jsonl").read_bytes() == content
    assert sorted((folder / "run").rglob("*")) == before


@pytest.mark.parametrize("name", ["last", "best", "previous"])
@pytest.mark.parametrize("kind", ["a loop", "a file"])
def test_only_a_folder_is_a_checkpoint(folder, name, kind):
    path = folder / "run" / "checkpoints" / name
    shutil.rmtree(path, ignore_errors=True)
    path.symlink_to(path.name) if kind == "a loop" else path.write_text("")
    assert_one_line(densecal(folder, *COMMANDS["train"]), f"checkpoints/{name}: ", "expected a checkpoint folder")


@pytest.mark.parametrize("name", ["config.yaml", "log.jsonl", "checkpoints", "run"])
def test_a_loop_of_links_in_a_run_is_one_line(folder, name):
    path = folder / "run" / name if name != "run" else folder / "run"
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    path.symlink_to(path.name)
    assert_one_line(densecal(folder, *COMMANDS["train"]), name)
    assert_one_line(densecal(folder, "predict", "run", "photos", "--out", "maps"))
