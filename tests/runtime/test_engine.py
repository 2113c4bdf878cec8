"""What an engine may do without changing a byte: run calls in other processes, out of order, and more than once."""

import dataclasses
import pickle
import random
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from densecal.benchmark.matrix import Matrix
from densecal.benchmark.plan import ERROR, VERSION, Plan
from densecal.benchmark.workers import Event, run_benchmark
from densecal.calibrate import folders
from densecal.calibrate.fit import fit
from densecal.evaluation import folders as evaluation
from densecal.evaluation.folders import evaluate_shared
from densecal.evaluation.worker import Settings
from densecal.io.atomic import write_atomically, write_json
from densecal.posthoc import calibrator_files, save
from densecal.prediction.job import Job, predict_on
from densecal.runtime.engine import LocalEngine
from tests.evaluation.test_folders import make_pair, to_levels
from tests.onnx_files import linear
from tests.records import small_record
from tests.running import run

KINDS = ("uint8", "uint16", "float32")


class Rough:
    """An engine that sends everything as bytes, shuffles the work, and does some of it twice."""

    def __init__(self, seed=0):
        self.random = random.Random(seed)
        self.calls = 0

    def map(self, function, calls, *, gpu=False, ordered=True, lost=None):
        sent = [pickle.dumps((function, call)) for call in calls]
        self.calls += len(sent)
        order = self.random.sample(range(len(sent)), len(sent))
        done = {}
        for number in [*order, *order[::3]]:
            again, call = pickle.loads(sent[number])
            done[number] = pickle.loads(pickle.dumps(again(*call)))
        yield from (done[number] for number in range(len(sent)))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Maps of three kinds, mixed; the chunks that they are cut into are small."""
    root = tmp_path_factory.mktemp("engine")
    for name in ("maps", "masks"):
        (root / name).mkdir()
    for i in range(40):
        p, y = make_pair(i, (20, 30))
        if i % 3 == 2:
            np.save(root / "maps" / f"im{i:02}.npy", p.astype(np.float32))
        else:
            Image.fromarray(to_levels(p, (np.uint8, np.uint16)[i % 3])).save(root / "maps" / f"im{i:02}.png")
        Image.fromarray(y).save(root / "masks" / f"im{i:02}.png")
    return root / "maps", root / "masks"


@pytest.mark.parametrize("exact", [True, False])
def test_an_evaluation_is_the_same_to_the_bit(pairs, monkeypatch, exact):
    monkeypatch.setattr(evaluation, "CHUNK", 3)
    if not exact:  # float pixels are counted in fine bins from the middle on
        monkeypatch.setattr("densecal.metrics.sketch.EXACT_PIXELS", 5000)
    one = evaluate_shared(*pairs, settings=Settings())
    engine = Rough()
    other = evaluate_shared(*pairs, settings=Settings(), engine=engine)
    assert engine.calls == 14
    assert repr(other.record) == repr(one.record)
    assert np.array_equal(other.rows, one.rows)


class Sizes:
    """An engine of this process that notes how many pairs each call has."""

    def __init__(self):
        self.stems, self.sizes = [], []

    def map(self, function, calls, *, gpu=False):
        for call in calls:
            self.sizes.append(len(call[0]))
            self.stems += [pair.stem for pair in call[0]]
            yield function(*call)


@pytest.mark.parametrize(("seconds", "sizes"), [(0, [3] * 13 + [1]), (1e9, [3, 12, 12, 12, 1])])
def test_a_call_has_more_chunks_where_they_are_quick_and_every_pair_is_scored_once(pairs, monkeypatch, seconds, sizes):
    one = evaluate_shared(*pairs, settings=Settings())
    monkeypatch.setattr(evaluation, "CHUNK", 3)
    monkeypatch.setattr(evaluation, "_MOST_CHUNKS", 4)
    monkeypatch.setattr(evaluation, "_CALL_SECONDS", seconds)
    engine = Sizes()
    other = evaluate_shared(*pairs, settings=Settings(), engine=engine)
    assert engine.sizes == sizes
    assert engine.stems == [f"im{i:02}" for i in range(40)]
    assert repr(other.record) == repr(one.record)
    assert np.array_equal(other.rows, one.rows)


@pytest.mark.parametrize("exact", [True, False])
def test_a_calibrator_is_the_same_file(pairs, tmp_path, monkeypatch, exact):
    monkeypatch.setattr(folders, "CHUNK", 3)
    if not exact:
        monkeypatch.setattr("densecal.posthoc.logit_histogram.EXACT_PIXELS", 3000)
    for name, engine in (("one", LocalEngine()), ("other", Rough())):
        data = folders.MapData(*pairs)
        data.engine = engine
        save(fit("platt", data).calibrator, tmp_path / f"{name}.json")
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "other.json").read_bytes()
    assert calibrator_files(tmp_path / "one.json")[0].exists()


def test_a_prediction_writes_every_map_once_and_removes_what_killed_writers_left(tmp_path):
    model = linear(tmp_path / "model.onnx")
    (tmp_path / "steps.yaml").write_text("scale: 255")
    (tmp_path / "images").mkdir()
    for i in range(11):
        pixels = np.random.default_rng(i).integers(0, 255, (9, 7, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{i}.png")
    arguments = ["--preprocess", tmp_path / "steps.yaml", "--uncertainty", "--batch", 2]
    assert run("predict", model, tmp_path / "images", "--out", tmp_path / "one", *arguments)[0] == 0
    out = tmp_path / "other"
    out.mkdir()
    (out / ".3.png.abcdefgh.tmp").write_bytes(b"half")
    (out / ".notes.png.abcdefgh.tmp").write_bytes(b"of somebody else")
    job = Job(
        (model,), tmp_path / "images", out, uncertainty=True, batch=2, preprocess=str(tmp_path / "steps.yaml"),
        device="cpu",
    )  # fmt: skip
    assert predict_on(Rough(), job) == 11
    (out / ".notes.png.abcdefgh.tmp").unlink()
    assert contents(out) == contents(tmp_path / "one")
    assert len(contents(out)) == 33


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_killed_writer_leaves_a_name_that_is_recognised(tmp_path):
    """The pattern of `remove_unfinished` is that of the names that `write_atomically` gives."""
    from densecal.io.atomic import remove_unfinished

    long = "x" * 60 + ".png"

    def interrupted(_):
        (temporary,) = tmp_path.glob(".*.tmp")
        remove_unfinished(tmp_path, {"other.png"})
        assert temporary.exists()
        remove_unfinished(tmp_path, {long})
        assert not temporary.exists()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / long, interrupted)


# ------------------------------------------------------------------ benchmarks


class Eager:
    """A cluster that runs a call as soon as it is given, and loses some for good."""

    def __init__(self, loses=()):
        self.loses, self.ran = loses, []

    def map(self, function, calls, *, gpu=False, ordered=True, lost=None):
        waited = 0
        for call in calls:
            if call is None:
                waited += 1
                assert waited < 3
                continue
            waited = 0
            self.ran.append(call[2])
            yield lost(call, "out of memory") if call[2] in self.loses else function(*pickle.loads(pickle.dumps(call)))


@pytest.fixture
def trainings(monkeypatch):
    """Tasks write a result at once; returns their names in the order in which they were run."""
    ran = []

    def run_task(task, sets, progress):
        ran.append(task.key)
        record = dataclasses.replace(small_record(), calibrator="none").to_json()
        content = {"version": VERSION, "digest": task.digest, "warnings": [], "evaluations": [record]}
        write_json(task.result, content)

    monkeypatch.setattr("densecal.benchmark.cells.run_task", run_task)
    return ran


def matrix():
    return Matrix.model_validate({
        "recipe": "demo", "overrides": ["data.size=32", "data.scenes.train=4", "data.scenes.validation=2", "method={}"],
        "methods": ["bce", "focal"], "seeds": [0, 1], "datasets": [{"name": "a", "scenes": {"count": 2}}],
        "ensembles": ["bce"],
    })  # fmt: skip


def test_a_cluster_runs_every_cell_once_and_what_depends_on_cells_after_them(tmp_path, trainings):
    events, cluster = [], Eager()
    run_benchmark(matrix(), tmp_path, 1, events.append, cluster)
    assert sorted(trainings) == sorted(set(trainings)) == sorted(cluster.ran)
    assert len(trainings) == 5
    assert trainings[-1] == "bce, ensemble, seed all" or trainings.index("bce, ensemble, seed all") >= 2
    assert sum(event.state == "finished" for event in events) == 5
    run_benchmark(matrix(), tmp_path, 1, events.append, Eager())
    assert len(trainings) == 5


def test_a_cell_that_is_lost_for_good_has_failed_and_is_tried_again_by_the_next_call(tmp_path, trainings):
    events = []
    run_benchmark(matrix(), tmp_path, 1, events.append, Eager(["bce, seed 1"]))
    assert Event("bce, seed 1", "failed", "out of memory") in events
    cell = next(cell for cell in Plan(matrix(), tmp_path).untuned if cell.key == "bce, seed 1")
    assert (cell.folder / ERROR).read_text() == "out of memory\n"
    assert len(trainings) == 3
    run_benchmark(matrix(), tmp_path, 1, events.append, Eager())
    assert len(trainings) == 5


# ------------------------------------------------------------------ options


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "MAPS", "MASKS", "--address", "auto"], "--address: auto; expected --engine ray as well"),
        (["calibrate", "fit", "local-temperature", "MAPS", "MASKS", "--out", "c.json", "--engine", "ray"],
         "expected maps of one foreground probability, and a calibrator that is fitted from counts"),
        (["benchmark", "m.yaml", "--out", "out", "--jobs", "2", "--engine", "ray"], "--jobs: 2 with --engine ray"),
    ],
)  # fmt: skip
def test_options_that_do_not_go_together_are_refused(pairs, arguments, message):
    names = {"MAPS": pairs[0], "MASKS": pairs[1]}
    code, _, err = run(*(names.get(argument, argument) for argument in arguments))
    assert (code, err.count("\n"), message in err) == (2, 1, True), err


def test_without_ray_one_line_says_how_to_install_it(pairs, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "densecal.integrations.ray_engine", raising=False)
    code, _, err = run("evaluate", *pairs, "--engine", "ray")
    assert (code, err.count("\n")) == (2, 1)
    assert "pip install 'densecal[ray]'" in err


def test_under_torchrun_ray_is_refused(pairs, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, _, err = run("calibrate", "fit", "temperature", *pairs, "--out", "cal.json", "--engine", "ray")
    assert code == 2
    assert "--engine ray: under torchrun" in err
