"""Ray: a cluster gives the bytes of one process, also when one of its nodes is killed in the middle."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np
import pytest
import yaml
from PIL import Image

pytest.importorskip("ray", reason="Ray is not installed: pip install 'densecal[ray]'")
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
import ray
from ray.cluster_utils import Cluster

from densecal.integrations.ray_engine import RayEngine
from tests.evaluation.test_folders import make_pair, to_levels
from tests.onnx_files import linear
from tests.running import run

NODE = {"num_cpus": 1, "object_store_memory": 100_000_000}
MAPS = int(os.environ.get("DENSECAL_RAY_MAPS", "20000"))
IMAGES = 2000


@contextlib.contextmanager
def cluster_of(nodes: int):
    """Several nodes on this machine, one CPU each; yields the cluster and its nodes but the first."""
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        others = [cluster.add_node(**NODE) for _ in range(nodes - 1)]
        cluster.wait_for_nodes()
        yield cluster, others
    finally:
        ray.shutdown()
        cluster.shutdown()


def write_maps(root: Path, count: int, size: tuple[int, int], kinds=(np.uint8,)) -> tuple[Path, Path]:
    for name in ("maps", "masks"):
        (root / name).mkdir()
    drawn = [make_pair(i, size) for i in range(min(count, 50))]
    for i in range(count):
        p, y = (np.roll(a, (i % size[0], i % size[1]), (0, 1)) for a in drawn[i % 50])
        kind = kinds[i % len(kinds)]
        if np.issubdtype(kind, np.floating):
            np.save(root / "maps" / f"im{i:05}.npy", p.astype(kind))
        else:
            Image.fromarray(to_levels(p, kind)).save(root / "maps" / f"im{i:05}.png", compress_level=1)
        Image.fromarray(y).save(root / "masks" / f"im{i:05}.png", compress_level=1)
    return root / "maps", root / "masks"


@contextlib.contextmanager
def killing(monkeypatch: pytest.MonkeyPatch, command: str, cluster: Cluster, node, share: float = 0.5):
    """Kill a node once a command has done a share of its work; yields a list that then has an entry."""
    killed = []

    def report(title, done, total, /, **figures):
        if not killed and done >= share * total > 0:
            cluster.remove_node(node, allow_graceful=False)
            killed.append(done)

    @contextlib.contextmanager
    def bar(keep=False):
        yield report

    with monkeypatch.context() as patch:
        patch.setattr(f"densecal.cli.{command}.progress_bar", bar)
        yield killed


def test_two_nodes_give_the_bytes_of_one_process(tmp_path, monkeypatch):
    maps, masks = write_maps(tmp_path, 100, (22, 30), (np.uint8, np.uint16, np.float32))
    (maps / "im00097.png").write_bytes(b"damaged")
    common = ["evaluate", maps, masks, "--skip-bad", "--json"]
    with cluster_of(2) as (cluster, _):
        ours = ["--engine", "ray", "--address", cluster.address]
        assert run(*common, tmp_path / "ray.json", *ours)[0] == 0
        monkeypatch.setattr("densecal.evaluation.totals.MOST_KEPT", 50)
        assert run(*common, tmp_path / "ray-sums.json", *ours)[0] == 0
        monkeypatch.undo()
        code, _, err = run("evaluate", maps, masks, *ours)
        assert (code, err.count("\n")) == (2, 1)
        assert "im00097.png: not an image" in err
        assert not ray.is_initialized()
        (maps / "im00097.png").unlink()
        (masks / "im00097.png").unlink()
        for name, more in (("ray", ours), ("one", [])):
            assert run("calibrate", "fit", "beta", maps, masks, "--out", tmp_path / f"{name}-cal.json", *more)[0] == 0
    assert (tmp_path / "ray-cal.json").read_bytes() == (tmp_path / "one-cal.json").read_bytes()
    (maps / "im00097.png").write_bytes(b"damaged")
    Image.new("L", (30, 22)).save(masks / "im00097.png")
    assert run(*common, tmp_path / "one.json", "--workers", 1)[0] == 0
    assert (tmp_path / "ray.json").read_bytes() == (tmp_path / "one.json").read_bytes()
    monkeypatch.setattr("densecal.evaluation.totals.MOST_KEPT", 50)
    assert run(*common, tmp_path / "one-sums.json", "--workers", 1)[0] == 0
    assert (tmp_path / "ray-sums.json").read_bytes() == (tmp_path / "one-sums.json").read_bytes()


# ------------------------------------------------------------------ nodes that die


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Maps and masks of 96 x 96 pixels."""
    return write_maps(tmp_path_factory.mktemp("many"), MAPS, (96, 96))


@pytest.mark.slow
def test_a_node_killed_in_the_middle_of_an_evaluation_changes_no_byte(many, tmp_path, monkeypatch):
    assert run("evaluate", *many, "--json", tmp_path / "one.json", "--workers", 1)[0] == 0
    with cluster_of(3) as (cluster, nodes):
        with killing(monkeypatch, "evaluate", cluster, nodes[0]) as killed:
            arguments = ["--engine", "ray", "--address", cluster.address]
            code, _, err = run("evaluate", *many, "--json", tmp_path / "ray.json", *arguments)
        assert code == 0, err
        assert killed
        assert killed[0] < 0.6 * MAPS
    assert (tmp_path / "ray.json").read_bytes() == (tmp_path / "one.json").read_bytes()
    assert json.loads((tmp_path / "ray.json").read_text())["images"] == MAPS


@pytest.mark.slow
def test_a_node_killed_in_the_middle_of_a_prediction_leaves_every_map_once_and_none_half(tmp_path, monkeypatch):
    model = linear(tmp_path / "model.onnx", size=(96, 96))
    (tmp_path / "steps.yaml").write_text("scale: 255")
    (tmp_path / "images").mkdir()
    rng = np.random.default_rng(0)
    for i in range(IMAGES):
        pixels = rng.integers(0, 255, (96, 96, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{i:04}.png", compress_level=1)
    common = ["predict", model, tmp_path / "images", "--preprocess", tmp_path / "steps.yaml", "--out"]
    assert run(*common, tmp_path / "one")[0] == 0
    with cluster_of(3) as (cluster, nodes):
        with killing(monkeypatch, "predict", cluster, nodes[0], 0.3) as killed:
            code, out, err = run(*common, tmp_path / "ray", "--engine", "ray", "--address", cluster.address)
        assert code == 0, err
        assert killed
        assert out == f"{tmp_path / 'ray'}: {IMAGES:,} maps\n"
    names = sorted(path.name for path in (tmp_path / "ray").iterdir())
    assert names == [f"{i:04}.png" for i in range(IMAGES)]
    for name in names:
        assert (tmp_path / "ray" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()


@pytest.mark.slow
def test_a_node_killed_in_the_middle_of_a_benchmark_runs_no_finished_cell_again(tmp_path, monkeypatch):
    small = [
        "data.size=32", "data.scenes.train=16", "data.scenes.validation=6", "optim.batch=4", "optim.epochs=3",
        "model.encoder=mobilenetv3_small_050", "model.options={decoder_channels: [16, 16, 8, 8, 8]}", "method={}",
    ]  # fmt: skip
    matrix = {
        "recipe": "demo", "overrides": small, "methods": ["bce", "focal"], "seeds": [0, 1, 2],
        "datasets": [{"name": "held-out", "scenes": {"count": 5, "seed": 50}}], "calibrators": ["temperature"],
        "ensembles": ["bce"],
    }  # fmt: skip
    file = tmp_path / "matrix.yaml"
    file.write_text(yaml.safe_dump(matrix))
    written: dict[Path, int] = {}
    with cluster_of(3) as (cluster, nodes):
        killed = []

        def watch(self, *arguments, **options):
            for event in whole(self, *arguments, **options):
                for path in (tmp_path / "ray").glob("*/**/result.json"):
                    assert written.setdefault(path, path.stat().st_mtime_ns) == path.stat().st_mtime_ns
                yield event
                if not killed and len(written) >= 2:
                    cluster.remove_node(nodes[0], allow_graceful=False)
                    killed.append(len(written))

        whole = RayEngine.map
        monkeypatch.setattr(RayEngine, "map", watch)
        arguments = ["--engine", "ray", "--address", cluster.address]
        code, _, err = run("benchmark", file, "--out", tmp_path / "ray", *arguments)
        assert code == 0, err
        assert killed
        assert killed[0] < 7
    assert len(written) == 7
    monkeypatch.undo()
    assert run("benchmark", file, "--out", tmp_path / "one")[0] == 0
    tables = [(tmp_path / name / "table.csv").read_text() for name in ("ray", "one")]
    assert tables[0] == tables[1]


@pytest.mark.slow
def test_two_workers_of_a_cluster_are_as_fast_as_two_processes(many, tmp_path, capsys):
    """At most 1.25 times the wall time, the cluster already started; the median of three, taken in turn."""
    times: dict[str, list[float]] = {"processes": [], "ray": []}
    with cluster_of(2) as (cluster, _):
        engines = {"processes": ["--workers", "2"], "ray": ["--engine", "ray", "--address", cluster.address]}
        for _ in range(3):
            for name, options in engines.items():
                start = time.perf_counter()
                command = [sys.executable, "-m", "densecal.cli", "evaluate", *map(str, many), *options]
                subprocess.run(command, check=True, capture_output=True)
                times[name].append(time.perf_counter() - start)
    ratio = median(times["ray"]) / median(times["processes"])
    with capsys.disabled():
        print(f"\n{MAPS:,} maps, seconds: {times}; Ray takes {ratio:.2f} times as long")
    assert ratio <= 1.25


@pytest.mark.slow
@pytest.mark.usefixtures("heeds_ctrl_c")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_command_leaves_the_cluster_idle(many, number, code):
    with cluster_of(1) as (cluster, _):
        command = [sys.executable, "-m", "densecal.cli", "evaluate", *map(str, many), "--engine", "ray"]
        command += ["--address", cluster.address]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        ray.init(cluster.address, log_to_driver=False)
        while ray.available_resources().get("CPU", 0) > 0.5:
            time.sleep(0.1)
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
        assert process.returncode == code, err
        assert err.endswith("densecal: evaluate: stopped; the same command starts again\n")
        deadline = time.monotonic() + 20
        while ray.available_resources().get("CPU", 0) < 0.5:
            assert time.monotonic() < deadline
            time.sleep(0.1)


# ------------------------------------------------------------------ the engine alone


@pytest.mark.slow
def test_results_come_in_order_and_a_call_that_kills_its_process_is_named(tmp_path):
    with cluster_of(1) as (cluster, _), RayEngine(cluster.address) as engine:
        slow_first = [(0.3 if i == 0 else 0.0, i) for i in range(8)]
        assert list(engine.map(_after, slow_first)) == list(range(8))
        assert sorted(engine.map(_after, slow_first, ordered=False)) == list(range(8))
        lost = list(engine.map(_exit, [("a",), ("b",)], lost=lambda call, reason: (call, bool(reason))))
        assert lost == [(("a",), True), (("b",), True)]


@pytest.mark.slow
def test_kept_results_take_no_shared_memory():
    """120 MB of results on nodes with 100 MB: Ray would write them to disk to make room."""
    with cluster_of(1) as (cluster, _), RayEngine(cluster.address) as engine:
        results = list(engine.map(np.ones, [(1_000_000,)] * 15))
        assert all(result.flags.writeable and result.sum() == 1_000_000 for result in results)


@pytest.mark.slow
def test_nodes_import_modules_before_the_first_call():
    with cluster_of(1) as (cluster, _), RayEngine(cluster.address, preload=["no_such_module", "wave"]) as engine:
        assert list(engine.map(_is_imported, [("wave",), ("sndhdr",)])) == [True, False]


def _is_imported(module: str) -> bool:
    return module in sys.modules


def _after(seconds: float, value: int) -> int:
    time.sleep(seconds)
    return value


def _exit(_: str) -> tuple[tuple[str], bool]:
    os._exit(1)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere", "127.0.0.1:x", "127.0.0.1:99999"])
def test_no_cluster_at_the_address_is_one_line_at_once(tmp_path, address):
    code, _, err = run("evaluate", tmp_path, tmp_path, "--engine", "ray", "--address", address)
    assert (code, err.count("\n")) == (2, 1)
    assert f"--address {address}" in err


@pytest.mark.slow
def test_an_aggregation_of_ray_data_has_the_figures_of_one_meter(tmp_path):
    pytest.importorskip("ray.data", reason="Ray Data needs pandas and pyarrow: pip install 'ray[data]'")
    from densecal.integrations.ray import CalibrationAggregate
    from densecal.metrics import CalibrationMeter

    meter, rows = CalibrationMeter(bins=15), []
    for i in range(40):
        p, y = make_pair(i, (12, 17))
        meter.update(p[None], y[None])
        rows.append({"probabilities": p, "masks": y.astype(np.uint8), "half": i % 2})
    with cluster_of(1) as (cluster, _):
        ray.init(cluster.address, log_to_driver=False)
        data = ray.data.from_items(rows, override_num_blocks=7)
        whole = data.aggregate(CalibrationAggregate(bins=15))["calibration"]
        with pytest.raises(Exception, match=r"no column 'probabilities'.*use map_groups there"):
            data.groupby("half").aggregate(CalibrationAggregate(bins=15)).take_all()
    expected = meter.compute().as_dict()
    for name in ("ece_ew", "ece_em", "ece_sweep", "brier", "nll"):
        assert whole[name] == expected[name]
