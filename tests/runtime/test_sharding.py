"""One folder shared by several processes: the output does not depend on their number."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from densecal.runtime.sharding import Processes
from tests import forked
from tests.evaluation.test_folders import make_pair, to_levels

IMAGES = 140
SIZE = (22, 30)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write 8-bit, 16-bit and float maps in turn, enough for four processes; one map is damaged."""
    root = tmp_path_factory.mktemp("sharded")
    for folder in ("maps", "masks"):
        (root / folder).mkdir()
    for i in range(IMAGES):
        p, y = make_pair(i, SIZE)
        stem = f"im{i:04d}"
        if i % 3 == 2:
            np.save(root / "maps" / f"{stem}.npy", p)
        else:
            Image.fromarray(to_levels(p, (np.uint8, np.uint16)[i % 3])).save(root / "maps" / f"{stem}.png")
        Image.fromarray(y).save(root / "masks" / f"{stem}.png")
    (root / "maps" / f"im{IMAGES - 5:04d}.png").unlink(missing_ok=True)
    (root / "maps" / f"im{IMAGES - 5:04d}.npy").write_bytes(b"not an array")
    return root


def torchrun(processes: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "densecal.cli", *map(str, arguments)]
    if processes == 1:
        return forked.run(command, env=environment)
    command[1:1] = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)


# what torchrun does with its arguments, but the processes are forked and need not import everything
_LAUNCHED = """
import sys
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from densecal import cli
def work():
    try:
        cli.main()
    except SystemExit as stop:
        if stop.code:
            raise
options = dict(rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=0, start_method="fork")
elastic_launch(LaunchConfig(1, 1, int(sys.argv.pop(1)), **options), work)()
"""


def launch(processes: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    return forked.run([sys.executable, "-c", _LAUNCHED, str(processes), *map(str, arguments)])


@pytest.mark.parametrize("several", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_one_and_several_processes_write_the_same_bytes(folders: Path, several: int) -> None:
    written, printed = [], []
    for processes in (1, several):
        out = folders / f"{processes}.json"
        start = torchrun if processes != 2 else launch
        done = start(
            processes, "evaluate", folders / "maps", folders / "masks", "--json", out, "--workers", 1, "--skip-bad"
        )
        assert done.returncode == 0, done.stderr
        written.append(out.read_bytes())
        printed.append(done.stdout)
    assert written[0] == written[1]
    assert printed[0] == printed[1]
    record = json.loads(written[0])
    assert record["images"] == IMAGES - 1
    assert [Path(entry["file"]).stem for entry in record["skipped"]] == [f"im{IMAGES - 5:04d}"]


@pytest.mark.slow
def test_bad_input_of_one_process_is_reported_in_one_line_and_ends_all(folders: Path) -> None:
    done = torchrun(2, "evaluate", folders / "maps", folders / "masks", "--workers", 1)
    assert done.returncode != 0
    assert done.stderr.count("densecal: ") == 1
    assert f"im{IMAGES - 5:04d}.npy: unreadable" in done.stderr


@pytest.mark.slow
def test_predict_divides_the_images_among_processes(tmp_path: Path) -> None:
    tiny = ["data.size=32", "data.scenes.train=4", "data.scenes.validation=2", "optim.epochs=1", "optim.batch=2"]
    assert torchrun(1, "data", "scenes", tmp_path / "scenes", "--count", 7, "--size", 40).returncode == 0
    run = torchrun(1, "train", "demo", *tiny, "--out", tmp_path / "run")
    assert run.returncode == 0, run.stderr
    maps = {}
    for processes in (1, 3):
        out = tmp_path / f"maps{processes}"
        done = torchrun(processes, "predict", tmp_path / "run", tmp_path / "scenes/images", "--out", out, "--batch", 2)
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"{out}: 7 maps\n"
        maps[processes] = {path.name: path.read_bytes() for path in out.iterdir()}
    assert len(maps[1]) == 7
    assert maps[1] == maps[3]


@given(st.integers(0, 50), st.integers(1, 9))
def test_shares_are_even_and_cover_everything(items: int, count: int) -> None:
    shares = [list(Processes(rank, count).share(range(items))) for rank in range(count)]
    assert [item for share in shares for item in share] == list(range(items))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
