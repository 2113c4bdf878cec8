"""A benchmark with `starts_from` trains the first stage once per seed, and every two-stage row continues from it."""

import json
import shutil
import signal
import time
from multiprocessing import Pipe
from pathlib import Path

import pytest
from pydantic import ValidationError
from safetensors.torch import load_file

from densecal.benchmark import open_tasks, summarise
from densecal.benchmark.cells import run_task
from densecal.benchmark.matrix import Matrix
from densecal.benchmark.packed import pack, unpack
from densecal.benchmark.plan import ERROR, Plan, is_finished
from densecal.benchmark.sets import ImageSets
from densecal.benchmark.workers import _try_task, forget_lost_first_stages
from densecal.errors import InputError
from densecal.runtime.progress import silent
from densecal.training.loop import train
from tests import forked
from tests.benchmark.test_benchmark import SMALL, matrix, write_matrix
from tests.training.common import command, environment, log_lines, run

METHODS = [
    {"name": "aslp-mc", "set": ["method={name: aslp-mc, lam: 50, eta: 0.02}"]},
    {"name": "als", "set": ["method={name: als, lam: 50, eta: 0.02}"]},
    "brier",
    "bce",
]


def started(**changes):
    return {
        "overrides": [*SMALL, "method={}", "optim.epochs=2"],
        "methods": METHODS,
        "seeds": [0, 1],
        "ensembles": [],
        "calibrators": [],
        "starts_from": "bce",
        **changes,
    }


def weights(run: Path):
    return {
        name: tensor.numpy().tobytes() for name, tensor in load_file(run / "checkpoints/last/model.safetensors").items()
    }


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out = tmp_path_factory.mktemp("started")
    plan, sets = Plan(matrix(**started(seeds=[0], methods=[*METHODS[:2], "bce"])), out), ImageSets()
    mine, other = Pipe()
    while tasks := open_tasks(plan, set()):
        assert any(_try_task(task, sets, other) for task in tasks)
    order = []
    while mine.poll():
        event, _ = mine.recv()
        order += [event.task] if event.state == "finished" else []
    return plan, order


def test_rows_with_two_stages_start_from_the_run_of_their_seed(tmp_path):
    plan = Plan(matrix(**started()), tmp_path)
    starts = {cell.key: cell.start and cell.start.key for cell in plan.untuned}
    assert starts == {
        "aslp-mc, seed 0": "bce, seed 0", "aslp-mc, seed 1": "bce, seed 1", "als, seed 0": "bce, seed 0",
        "als, seed 1": "bce, seed 1", "brier, seed 0": None, "brier, seed 1": None,
        "bce, seed 0": None, "bce, seed 1": None,
    }  # fmt: skip
    assert all(cell.config.two_stage == (cell.start is not None) for cell in plan.untuned)
    order = [task.key for task in open_tasks(plan, set())]
    assert order == [f"{name}, seed {seed}" for seed in (0, 1) for name in ("brier", "bce", "aslp-mc", "als")]


def test_the_first_stage_is_trained_once(done):
    plan, order = done
    assert order.index("bce, seed 0") < min(order.index("aslp-mc, seed 0"), order.index("als, seed 0"))
    cells = {cell.label: cell for cell in plan.untuned}
    epochs = {label: [line["epoch"] for line in log_lines(cell.run)] for label, cell in cells.items()}
    assert epochs == {"bce": [1, 2], "aslp-mc": [3, 4], "als": [3, 4]}
    assert all(is_finished(cell) for cell in cells.values())


def test_a_row_equals_a_run_that_trains_both_stages(done, tmp_path):
    plan, _ = done
    cell = next(cell for cell in plan.untuned if cell.label == "als")
    train(cell.config, tmp_path / "both")
    assert weights(tmp_path / "both") == weights(cell.run)


def test_the_command_of_a_row_names_the_run_it_starts_from(done):
    plan, _ = done
    commands = summarise(plan.matrix, plan.out, "").commands
    assert f"--from {plan.out / 'cells/bce/seed-0/run'} --out" in commands["als, seed 0"]
    assert "method.schedule=two-stage" in commands["als, seed 0"]
    assert "--from" not in commands["bce, seed 0"]


def test_a_row_waits_for_its_first_stage_and_is_given_up_if_that_fails(tmp_path):
    plan, sets = Plan(matrix(**started(seeds=[0], methods=["bce", METHODS[0]])), tmp_path), ImageSets()
    bce, aslp = plan.untuned
    mine, other = Pipe()
    assert open_tasks(plan, set()) == [bce, aslp]  # a worker with nothing else to do stays for it
    assert not _try_task(aslp, sets, other)
    assert not mine.poll()
    assert not aslp.folder.exists()
    bce.folder.mkdir(parents=True)
    (bce.folder / ERROR).write_text("out of memory\n")
    assert open_tasks(plan, set()) == []
    missing = summarise(plan.matrix, tmp_path, "").missing
    assert missing == {"bce, seed 0": "out of memory", "aslp-mc, seed 0": "its first stage, bce, seed 0, failed"}


def test_a_first_stage_without_its_checkpoint_is_one_line(done, tmp_path):
    plan, _ = done
    shutil.copytree(plan.out, tmp_path / "out")
    copy = Plan(plan.matrix, tmp_path / "out")
    als = next(cell for cell in copy.untuned if cell.label == "als")
    shutil.rmtree(als.folder)
    shutil.rmtree(als.start.run / "checkpoints")
    _, other = Pipe()
    assert _try_task(als, ImageSets(), other)
    text = (als.folder / ERROR).read_text()
    assert text.startswith(f"{als.start.run}: no checkpoint; expected ")
    assert text.count("\n") == 1


def test_an_unpacked_first_stage_is_trained_again_only_for_rows_that_start_from_it(done, tmp_path):
    plan, _ = done
    pack(plan.out, tmp_path / "packed.jsonl")
    unpack(tmp_path / "packed.jsonl", tmp_path / "out")
    copy = Plan(plan.matrix, tmp_path / "out")
    cells = {cell.label: cell for cell in copy.untuned}
    forget_lost_first_stages(copy)
    assert open_tasks(copy, set()) == []
    shutil.rmtree(cells["als"].folder)
    kept = cells["aslp-mc"].result.read_bytes()
    forget_lost_first_stages(copy)
    assert [task.label for task in open_tasks(copy, set())] == ["bce", "als"]
    forget_lost_first_stages(copy)
    _, other = Pipe()
    while tasks := open_tasks(copy, set()):
        assert any(_try_task(task, ImageSets(), other) for task in tasks)
    assert cells["aslp-mc"].result.read_bytes() == kept
    assert weights(cells["als"].run) == weights(next(cell.run for cell in plan.untuned if cell.label == "als"))
    forget_lost_first_stages(copy)
    assert open_tasks(copy, set()) == []


def test_a_run_that_started_elsewhere_is_replaced(done, tmp_path):
    plan, _ = done
    shutil.copytree(plan.out, tmp_path / "out")
    copy = Plan(plan.matrix, tmp_path / "out")
    als = next(cell for cell in copy.untuned if cell.label == "als")
    before = weights(als.run)
    als.result.unlink()
    shutil.rmtree(als.run)
    train(als.config, als.run)  # with a first stage of its own
    run_task(als, ImageSets(), silent)
    assert weights(als.run) == before
    assert [line["epoch"] for line in log_lines(als.run)] == [3, 4]


def test_a_row_may_keep_its_warmup(tmp_path):
    row = {
        "name": "code",
        "set": ["method.name=aslp-mc", "method={name: aslp-mc, lam: 50, schedule: warmup, warmup: 1}"],
    }
    code = Plan(matrix(**started(methods=["bce", row], seeds=[0])), tmp_path).untuned[1]
    assert code.start is None
    assert code.config.total_epochs == 2


def test_a_grid_over_networks_starts_from_the_run_of_the_same_network(tmp_path):
    grid = {"model.encoder": ["test_efficientnet", "resnet10t"]}
    rows = [{"name": "bce", "grid": grid}, {**METHODS[1], "grid": grid}]
    plan = Plan(matrix(**started(methods=rows, seeds=[0])), tmp_path)
    starts = {cell.label: cell.start.label for cell in plan.untuned if cell.start}
    assert starts == {f"als encoder={name}": f"bce encoder={name}" for name in grid["model.encoder"]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"starts_from": "plain"}, "starts_from is 'plain'; expected a method that is not tuned, one of aslp-mc"),
        ({"keep": "none"}, "starts_from with keep: none; expected keep: last"),
        ({"starts_from": "brier"}, "starts_from: brier, which trains brier; expected a method of bce"),
        (
            {"methods": ["bce", {"name": "als", "set": ["data.size=64"]}]},
            "method als: starts_from bce: a run with data.size = 32, not 64; expected a run with the same network",
        ),
        (
            {"methods": ["bce", {"name": "als", "set": ["model.encoder=resnet10t"]}]},
            "a run with model.encoder = 'test_efficientnet', not 'resnet10t'",
        ),
        (
            {"methods": ["bce", {"name": "als", "set": ["data.scenes.validation=5"]}]},
            "method als: starts_from bce: a run with data.scenes = ",
        ),
        ({"methods": ["bce", {"name": "als", "set": ["method.warmup=1"]}]}, "method als: .*method.warmup with"),
    ],
)  # fmt: skip
def test_a_matrix_whose_rows_cannot_start_there_is_refused(tmp_path, changes, message):
    with pytest.raises((InputError, ValidationError), match=message):
        Plan(matrix(**started(**changes)), tmp_path)


def test_results_depend_on_the_first_stage_only_where_there_is_one(tmp_path):
    rows = ["bce", "brier", {"name": "als", "set": ["method.schedule=two-stage"]}]
    with_start, without = (
        {cell.label: cell for cell in Plan(matrix(**started(starts_from=s, methods=rows, seeds=[0])), tmp_path).untuned}
        for s in ("bce", None)
    )
    assert with_start["als"].config == without["als"].config
    same = {label for label in with_start if with_start[label].digest == without[label].digest}
    assert same == {"bce", "brier"}


@pytest.mark.slow
def test_a_killed_benchmark_does_not_train_the_first_stage_again(tmp_path):
    file = write_matrix(tmp_path / "matrix.yaml", **started(seeds=[0], methods=["bce", METHODS[0], METHODS[1]]))
    arguments = command("benchmark", file, "--out", tmp_path / "out", "--jobs", "2")
    with forked.start(arguments, env=environment(), new_session=True) as process:
        while process.poll() is None and not list(tmp_path.glob("out/cells/als/seed-0/run/checkpoints/last")):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    first = tmp_path / "out/cells/bce/seed-0"
    before = {path: path.stat().st_mtime_ns for path in first.rglob("*") if path.is_file()}
    again = run(arguments)
    assert again.returncode == 0, again.stderr
    assert {path: path.stat().st_mtime_ns for path in before} == before
    whole = run(command("benchmark", file, "--out", tmp_path / "whole"))
    assert whole.returncode == 0, whole.stderr
    rows = [json.loads((tmp_path / name / "results.json").read_text())["rows"] for name in ("out", "whole")]
    assert rows[0] == rows[1]


def test_cells_of_version_0_1_with_another_default_strength_are_run_again(tmp_path):
    """lambda was 2000 by default and is 500 now, so that a cell which leaves it open has another digest."""

    def digest(*settings):
        row = {"name": "row", "set": list(settings)}
        given = {"recipe": "demo", "overrides": ["method={}"], "methods": [row], "seeds": [0]}
        (cell,) = Plan(Matrix.model_validate(given), tmp_path).cells({})
        return cell.digest

    left_open = digest("method.name=aslp-mc")
    assert left_open == digest("method.name=aslp-mc", "method.preset=stable")
    assert left_open != digest("method.name=aslp-mc", "method.preset=paper")
    assert digest("method.name=aslp-mc", "method.lam=500.0") != left_open  # a strength that was given stays as it was
