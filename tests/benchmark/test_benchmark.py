"""Benchmarks: the matrix file, what is run again and what is not, a kill in the middle, tables, studies, figures."""

import contextlib
import csv
import io
import json
import math
import os
import re
import shutil
import signal
import time
import warnings
from multiprocessing import Pipe
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from rich.console import Console
from sklearn.metrics import roc_auc_score
from typer.testing import CliRunner

from densecal.benchmark import load_matrix, open_tasks, run_benchmark, summarise
from densecal.benchmark.cells import evaluate_everywhere, run_task
from densecal.benchmark.matrix import Matrix
from densecal.benchmark.packed import pack, unpack
from densecal.benchmark.plan import Plan, is_finished
from densecal.benchmark.sets import ImageSets
from densecal.benchmark.studies import convergence, effective_ranges, sweeps
from densecal.benchmark.summary import Row, Summary
from densecal.benchmark.tuning import Trial, choices, choose
from densecal.benchmark.workers import _environments, _forget_failures, _try_task
from densecal.cli import app
from densecal.data.informationless import without_information
from densecal.data.scenes import generate
from densecal.data.shift import shifted
from densecal.errors import InputError
from densecal.evaluation.model import ImageSet, evaluate_model
from densecal.evaluation.record import Calibration
from densecal.metrics import calibration_errors
from densecal.prediction.ensembles import with_mc_dropout
from densecal.prediction.predictor import load_predictor
from densecal.report.benchmark_figures import write_benchmark_figures
from densecal.report.benchmark_tables import csv_text, latex_text, markdown_text, terminal_tables, write_tables
from densecal.report.inputs import read_inputs
from densecal.runtime.cores import SHARE, cores
from densecal.runtime.lock import lock_folder
from densecal.runtime.progress import silent
from tests import forked
from tests.records import small_record
from tests.training.common import command, environment, run, with_forked_workers

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = [
    "data.size=32", "data.scenes.train=16", "data.scenes.validation=6", "optim.batch=4", "optim.epochs=3",
    "optim.lr=0.01", "model.encoder=test_efficientnet", "model.options={decoder_channels: [16, 16, 8, 8, 8]}",
    "method={}",
]  # fmt: skip


def settings(**changes):
    """A matrix of four short trainings."""
    return {
        "recipe": "demo",
        "overrides": SMALL,
        "methods": [
            "bce",
            {"name": "aslp-si", "set": ["method.name=aslp-mc", "method.technique=si", "method.warmup=1"]},
        ],
        "seeds": [0, 1],
        "datasets": [{"name": "held-out", "scenes": {"count": 7, "seed": 50}}],
        "calibrators": ["temperature"],
        "ensembles": ["bce"],
        **changes,
    }


def write_matrix(path, **changes):
    path.write_text(yaml.safe_dump(settings(**changes)))
    return path


def matrix(**changes):
    return Matrix.model_validate(settings(**changes))


def mtimes(out, pattern="cells/**/*"):
    return {path: path.stat().st_mtime_ns for path in sorted(out.glob(pattern)) if path.is_file()}


def figures_of(out):
    """What must not depend on interruptions: the rows of results.json and the table."""
    results = json.loads((out / "results.json").read_text())
    return results["rows"], (out / "table.csv").read_text()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A benchmark that was not interrupted: its matrix file and its folder."""
    root = tmp_path_factory.mktemp("benchmark")
    textures = root / "textures"
    textures.mkdir()
    rng = np.random.default_rng(0)
    for i in range(3):
        Image.fromarray(rng.integers(0, 255, (20 + i, 30, 3), dtype=np.uint8)).save(textures / f"{i}.png")
    datasets = [*settings()["datasets"], {"name": "textures", "images": str(textures), "ood": True}]
    file = write_matrix(root / "matrix.yaml", datasets=datasets)
    plan, sets, done = Plan(load_matrix(file), root / "out"), ImageSets(), set()
    while tasks := open_tasks(plan, done):
        run_task(tasks[0], sets, silent)
    result = CliRunner().invoke(app, ["benchmark", str(file), "--out", str(root / "out")])
    assert result.exit_code == 0, result.output
    return file, root / "out"


# ------------------------------------------------------------------ the matrix file


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": ["bce"]}, r"method: an unknown key; expected one of recipe, overrides, methods"),
        ({"methods": []}, "methods: .*at least 1 item"),
        ({"methods": ["bce", "bce"]}, "methods: 'bce' twice"),
        ({"methods": ["nonsense"]}, r"methods.0: 'nonsense', which is not a method"),
        ({"methods": [{"name": "al", "set": ["method.technique=si"]}]}, r"methods.0: 'al', which is not a method"),
        ({"methods": [{"name": "al", "set": ["optim.lr=1", "method.nam=als"]}]}, r"methods.0: 'method.nam' in set,"),
        ({"methods": [{"name": "bce", "sets": []}]}, r"methods.0.sets: an unknown key; expected one of name, set"),
        ({"methods": [{"name": "bce", "grid": {"method.x": []}}]}, r"methods.0.grid.method.x: .*at least 1 item"),
        ({"seeds": [0, 0]}, "seeds: 0 twice"),
        ({"seeds": ["a"]}, r"seeds.0: 'a'; expected a valid integer"),
        ({"datasets": [{"name": "a"}]}, r"datasets.0: none or several of images, scenes and informationless"),
        ({"datasets": [{"name": "a", "scenes": {}, "ood": True}]}, r"datasets.0: ood, masks or groups without images"),
        ({"datasets": [{"name": "a", "scenes": {"counts": 1}}]}, r"counts: an unknown key; expected one of count"),
        ({"datasets": [{"name": "validation", "scenes": {}}]}, r"datasets: the name 'validation'"),
        ({"ensembles": ["other"]}, "ensembles has 'other'"),
        ({"seeds": [1]}, "ensembles of one seed"),
        ({"keep": "none"}, "expected keep: last"),
        ({"keep": "all"}, "keep: 'all'; expected 'last' or 'none'"),
        ({"tune": {"aslp-si": {"key": "method.eta", "values": [1]}}}, r"tune.aslp-si.values: .*at least 2 items"),
        ({"tune": {"bce": {"key": "method.eta", "values": [1, 2]}}}, "tune without the method 'bce'"),
    ],
)  # fmt: skip
def test_a_wrong_matrix_names_the_key(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        load_matrix(write_matrix(tmp_path / "matrix.yaml", **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"recipe": "nonsense"}, "no such recipe"),
        ({"methods": ["bce", {"name": "aslp-mc", "set": ["method.technique=xx"]}]}, "method aslp-mc: .*technique"),
        ({"overrides": [*SMALL, "engine.devices=2"]}, "one process per device"),
        ({"calibrators": ["nonsense"]}, "calibrators: 'nonsense'; expected one of"),
        ({"methods": ["bce", {"name": "a b", "set": ["method.name=bce"]}, {"name": "a/b", "set": ["method.name=bce"]}]},
         "'a b' and 'a/b', which need the same folder"),
    ],
)  # fmt: skip
def test_wrong_settings_are_found_before_anything_is_trained(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        Plan(matrix(**changes), tmp_path)


def test_errors_about_wrong_files_name_the_file(tmp_path):
    for name, text in (("a.yaml", "[1, 2"), ("b.yaml", "just text"), ("c.yaml", "recipe: demo")):
        (tmp_path / name).write_text(text)
        result = CliRunner().invoke(app, ["benchmark", str(tmp_path / name), "--out", str(tmp_path / "out")])
        assert isinstance(result.exception, InputError)
        assert name in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_missing_data_is_an_error_before_anything_is_trained(tmp_path):
    file = write_matrix(tmp_path / "m.yaml", datasets=[{"name": "a", "images": str(tmp_path / "nowhere")}])
    result = CliRunner().invoke(app, ["benchmark", str(file), "--out", str(tmp_path / "out")])
    assert "nowhere" in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_budgets_are_equal(tmp_path):
    tune = {"aslp-si": {"key": "method.eta", "values": [1, 2]}, "brier": {"key": "optim.lr", "values": [1, 2, 3]}}
    with pytest.raises(InputError, match="2 values for aslp-si, 3 values for brier; expected the same number"):
        load_matrix(write_matrix(tmp_path / "m.yaml", tune=tune, methods=[*settings()["methods"], "brier"]))


def test_a_grid_gives_a_cell_for_every_combination_and_seed(tmp_path):
    entry = {"name": "slp", "grid": {"method.technique": ["hi", "m"], "method.alpha": ["1e-2", 0.2]}}
    cells = Plan(matrix(methods=["bce", entry]), tmp_path).untuned[2:]
    assert [cell.label for cell in cells[::2]] == [
        "slp technique=hi alpha=1e-2", "slp technique=hi alpha=0.2",
        "slp technique=m alpha=1e-2", "slp technique=m alpha=0.2",
    ]  # fmt: skip
    assert [cell.config.method.options for cell in cells[::2]] == [
        {"technique": t, "alpha": a} for t in ("hi", "m") for a in (0.01, 0.2)
    ]
    assert cells[0].grid == {"method.technique": "hi", "method.alpha": 0.01}
    assert [cell.config.engine.seed for cell in cells] == [0, 1] * 4
    assert len({cell.folder for cell in cells}) == 8


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.yaml")))
def test_the_example_matrices_are_valid(name, tmp_path):
    assert Plan(load_matrix(EXAMPLES / name), tmp_path).untuned


# ------------------------------------------------------------------ what is run


def test_every_cell_leaves_its_files(whole):
    _, out = whole
    for label in ("bce", "aslp-si"):
        for seed in (0, 1):
            folder = out / "cells" / label / f"seed-{seed}"
            result = json.loads((folder / "result.json").read_text())
            assert [(r["dataset"], r["calibrator"]) for r in result["evaluations"]] == [
                (d, c) for d in ("validation", "held-out", "textures") for c in ("none", "temperature")
            ]
            assert json.loads((folder / "calibrators" / "temperature.json").read_text())["method"] == "temperature"
            assert os.listdir(folder / "run" / "checkpoints") == ["last"]
            assert not (folder / "error.txt").exists()
    for name in ("table.md", "table.tex", "table.csv", "results.json", "commands.md", "figures/joint-held-out.png"):
        assert (out / name).stat().st_size > 0
    assert "densecal train demo" in (out / "commands.md").read_text()


def test_evaluations_are_those_of_the_predicted_probabilities(whole):
    _, out = whole
    scenes = generate(7, 32, 50)
    members = []
    for seed in (0, 1):
        folder = out / "cells" / "bce" / f"seed-{seed}"
        p = torch.stack(load_predictor(folder / "run").probabilities(list(scenes.images))).double()
        members.append(p)
        result = json.loads((folder / "result.json").read_text())
        plain, scaled = (r for r in result["evaluations"] if r["dataset"] == "held-out")
        assert plain["calibration"]["ece_ew"] == pytest.approx(
            calibration_errors(p, scenes.masks // 255).ece_ew, abs=1e-6
        )
        T = json.loads((folder / "calibrators" / "temperature.json").read_text())["temperature"]
        again = calibration_errors((p.logit() / T).sigmoid(), scenes.masks // 255)
        assert scaled["calibration"]["nll"] == pytest.approx(again.nll, abs=1e-5)
    result = json.loads((out / "references" / "bce" / "ensemble" / "result.json").read_text())
    record = next(r for r in result["evaluations"] if r["dataset"] == "held-out" and r["calibrator"] == "none")
    mean = calibration_errors(torch.stack(members).mean(dim=0), scenes.masks // 255)
    for figure in ("ece_ew", "brier", "nll", "accuracy"):
        assert record["calibration"][figure] == pytest.approx(getattr(mean, figure), abs=1e-6)


def test_images_without_foreground_are_right_where_background_is_predicted(whole):
    _, out = whole
    result = json.loads((out / "cells" / "bce" / "seed-0" / "result.json").read_text())
    record = next(r for r in result["evaluations"] if r["dataset"] == "textures")
    images = [np.asarray(Image.open(path)) for path in sorted((out.parent / "textures").iterdir())]
    p = load_predictor(out / "cells" / "bce" / "seed-0" / "run").probabilities(images)
    background = torch.cat([(one <= 0.5).flatten() for one in p]).double().mean()
    assert record["calibration"]["accuracy"] == pytest.approx(float(background), abs=1e-6)
    assert record["pixels"] == sum(image.shape[0] * image.shape[1] for image in images)


def test_entropy_tells_images_without_foreground_from_the_validation_images(whole):
    _, out = whole
    result = json.loads((out / "cells" / "bce" / "seed-1" / "result.json").read_text())
    inside, outside = (
        next(r for r in result["evaluations"] if r["dataset"] == name)["entropy"]["images"]
        for name in ("validation", "textures")
    )
    expected = roc_auc_score([0] * len(inside) + [1] * len(outside), inside + outside)
    rows = json.loads((out / "results.json").read_text())["rows"]
    row = next(r for r in rows if (r["name"], r["dataset"]) == ("bce", "textures"))
    assert row["figures"]["auroc"]["seeds"]["1"] == pytest.approx(expected)
    text = (out / "table.md").read_text()
    assert "AUROC" in text.partition("## textures")[2]
    assert "F max" not in text.partition("## textures")[2]


def test_an_image_of_only_void_pixels_does_not_count_in_the_mean_entropy():
    rng = np.random.default_rng(0)
    masks = [np.full((8, 8), 255, np.uint8), *rng.integers(0, 3, (2, 8, 8), dtype=np.uint8)]
    images = rng.integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        records = [
            evaluate_everywhere(
                lambda x: 4 * x, [ImageSet("set", ["void", "a", "b"][few:], images[few:], masks[few:], 3, 255)],
                {"none": None}, torch.device("cpu"), (10,), silent,
            )[0]
            for few in (0, 1)
        ]  # fmt: skip
    assert np.isnan(records[0].entropy.images).tolist() == [True, False, False]
    assert records[0].entropy.mean == pytest.approx(records[1].entropy.mean)


def test_the_network_runs_once_whatever_the_numbers_of_bins():
    made = generate(3, 32, 5)
    data = ImageSet("set", list("abc"), made.images, list(made.masks // 255))
    seen = []

    def bright(images):
        seen.append(len(images))
        return 6 * images.mean(dim=1, keepdim=True) - 3

    cpu = torch.device("cpu")
    [record] = evaluate_everywhere(bright, [data], {"none": None}, cpu, (10, 100), silent)
    assert seen == [3]
    for bins, found in ((10, record.calibration), (100, record.more_bins["100"])):
        alone = evaluate_model(bright, data, bins=bins)["model"].record.calibration
        assert repr(found) == repr(alone)


def test_images_of_only_void_pixels_do_not_count_in_the_separation(whole, tmp_path):
    file, out = whole
    shutil.copytree(out, tmp_path / "out")
    path = tmp_path / "out" / "cells" / "bce" / "seed-1" / "result.json"
    result = json.loads(path.read_text())
    for record in result["evaluations"]:
        record["entropy"]["images"].insert(1, None)
    path.write_text(json.dumps(result))
    before, after = (
        row.values("ood", "auroc")
        for folder in (out, tmp_path / "out")
        for row in summarise(load_matrix(file), folder, "").rows
        if (row.name, row.dataset) == ("bce", "textures")
    )
    assert after == before


def test_shifted_images_and_mc_dropout_are_rows_too(tmp_path):
    scenes = {"count": 3, "seed": 9}
    plan = Plan(
        matrix(
            methods=["bce"], seeds=[0], ensembles=[], mc_dropout=["bce"],
            overrides=[*SMALL, "optim.epochs=1", "model.options.dropout=0.3"],
            datasets=[{"name": "noisy", "scenes": scenes, "shift": {"kind": "noise", "severity": 4}}],
        ),
        tmp_path,
    )  # fmt: skip
    sets = ImageSets()
    while tasks := open_tasks(plan, set()):
        run_task(tasks[0], sets, silent)
    made = generate(3, 32, 9)
    noisy = [shifted(image, "noise", 4, 0, f"{i:05}") for i, image in enumerate(made.images)]
    cell = plan.untuned[0]
    predictor = load_predictor(cell.run)
    rows = {row.name: row for row in summarise(plan.matrix, tmp_path, "").rows if row.dataset == "noisy"}
    for name, model in (("bce", predictor), ("bce MC dropout", with_mc_dropout(predictor))):
        expected = calibration_errors(torch.stack(model.probabilities(noisy)).double(), made.masks // 255)
        assert rows[name].values("calibration", "brier")["0"] == pytest.approx(expected.brier, abs=1e-6)
    assert rows["bce"].values("calibration", "brier") != rows["bce MC dropout"].values("calibration", "brier")


def test_validation_images_without_their_information_are_a_row_too(tmp_path):
    plan = Plan(
        matrix(
            methods=["bce"], seeds=[0], ensembles=[], overrides=[*SMALL, "optim.epochs=1"],
            datasets=[{"name": "nothing", "informationless": True}],
        ),
        tmp_path,
    )  # fmt: skip
    while tasks := open_tasks(plan, set()):
        run_task(tasks[0], ImageSets(), silent)
    cell = plan.untuned[0]
    held_out = generate(16 + 6, 32, cell.config.data.scenes.seed)
    images, masks = torch.tensor(held_out.images[16:]), torch.tensor(held_out.masks[16:])[:, None]
    stripped = without_information(images.permute(0, 3, 1, 2) / 255, masks, torch.arange(6), epoch=0, seed=0)
    levels = (stripped * 255).round().byte().permute(0, 2, 3, 1).numpy()
    expected = calibration_errors(
        torch.stack(load_predictor(cell.run).probabilities(list(levels))).double(), np.zeros((6, 32, 32), np.uint8)
    )
    rows = {row.name: row for row in summarise(plan.matrix, tmp_path, "").rows if row.dataset == "nothing"}
    assert rows["bce"].ood
    assert rows["bce"].values("calibration", "brier")["0"] == pytest.approx(expected.brier, abs=1e-6)


def test_masks_of_several_classes_cannot_be_empty(tmp_path):
    several = ["data.scenes=null", "data.images=photos", "data.classes=3"]
    few = [setting for setting in SMALL if "scenes" not in setting]
    changed = matrix(overrides=[*few, *several], datasets=[{"name": "a", "informationless": True}], calibrators=[])
    with pytest.raises(InputError, match="datasets: a: informationless images for 3 classes"):
        Plan(changed, tmp_path)


def test_every_method_has_its_first_seed_before_any_has_its_second(tmp_path):
    assert [(task.label, task.seed) for task in open_tasks(Plan(matrix(), tmp_path), set())] == [
        ("bce", 0), ("aslp-si", 0), ("bce", 1), ("aslp-si", 1),
    ]  # fmt: skip


def test_files_of_several_classes_are_evaluated_at_the_size_of_their_masks(tmp_path):
    valid = {}
    for part in ("images", "masks"):
        (tmp_path / "data" / part).mkdir(parents=True)
    for i in range(8):
        height = 30 + i
        labels = np.repeat(np.arange(41) // 14, height).reshape(41, height).T.astype(np.uint8)  # three stripes
        labels[:i] = 255
        valid[f"{i}"] = (height - i) * 41
        Image.fromarray(labels).save(tmp_path / "data" / "masks" / f"{i}.png")
        colours = np.stack([80 * (labels == k) + 20 * i for k in range(3)], axis=2).astype(np.uint8)
        Image.fromarray(colours).save(tmp_path / "data" / "images" / f"{i}.png")
    (tmp_path / "validation.txt").write_text("2\n5\n")
    few = [setting for setting in SMALL if "scenes" not in setting]
    several = matrix(
        methods=["bce"], seeds=[0], ensembles=[], calibrators=["temperature", "vector"],
        overrides=[
            *few, "optim.epochs=8", "data.scenes=null", f"data.images={tmp_path / 'data'}", "data.classes=3",
            f"data.validation={tmp_path / 'validation.txt'}", f"data.cache={tmp_path / 'cache'}", "data.workers=1",
        ],
        datasets=[{"name": "again", "images": str(tmp_path / "data")}],
    )  # fmt: skip
    cell = Plan(several, tmp_path / "out").untuned[0]
    run_task(cell, ImageSets(), silent)
    records = json.loads(cell.result.read_text())["evaluations"]
    assert [(r["dataset"], r["calibrator"]) for r in records] == [
        (d, c) for d in ("validation", "again") for c in ("none", "temperature", "vector")
    ]
    assert records[0]["images"] == 2
    assert records[0]["pixels"] == valid["2"] + valid["5"]
    assert 0 <= records[0]["segmentation"]["miou"] <= 1
    assert "mIoU" in markdown_text(summarise(several, tmp_path / "out", ""))
    nll = [record["calibration"]["nll"] for record in records[:3]]
    assert nll[2] <= nll[1] + 1e-9 <= nll[0] + 2e-9  # each calibrator can do what the one before it can


def test_a_finished_benchmark_runs_nothing_and_its_tables_come_from_the_files_alone(whole, tmp_path):
    file, out = whole
    copy = tmp_path / "out"
    shutil.copytree(out, copy)
    shutil.rmtree(copy / "figures")
    for name in ("table.md", "table.tex", "table.csv", "results.json", "commands.md"):
        (copy / name).unlink()
    for checkpoints in copy.glob("cells/*/*/run/checkpoints"):
        shutil.rmtree(checkpoints)
    before = mtimes(copy)
    run_benchmark(load_matrix(file), copy)
    result = CliRunner().invoke(app, ["benchmark", str(file), "--out", str(copy), "--tables-only"])
    assert result.exit_code == 0, result.output
    assert mtimes(copy) == before
    assert figures_of(copy) == figures_of(out)
    for name in ("table.md", "table.tex"):
        assert (copy / name).read_text().replace(str(copy), str(out)) == (out / name).read_text()
    assert (copy / "figures" / "joint-textures.png").exists()


def test_a_packed_benchmark_is_finished_and_gives_the_same_tables(whole, tmp_path):
    file, out = whole
    packed, copy = tmp_path / "packed.jsonl", tmp_path / "out"
    pack(out, packed)
    unpack(packed, copy)
    assert packed.stat().st_size < sum(path.stat().st_size for path in out.rglob("result.json")) / 4
    assert open_tasks(Plan(load_matrix(file), copy), set()) == []
    result = CliRunner().invoke(app, ["benchmark", str(file), "--out", str(copy), "--tables-only"])
    assert result.exit_code == 0, result.output
    for name in ("table.md", "table.tex", "table.csv"):
        assert (copy / name).read_text().replace(str(copy), str(out)) == (out / name).read_text()
    assert "AUROC" in (copy / "table.md").read_text()
    assert not (copy / "figures").exists()  # joint densities are not packed
    logs = [summarise(load_matrix(file), folder, "").logs["aslp-si"][1] for folder in (out, copy)]
    kept = ("alpha_mean", "expected_confidence")
    assert [{key: line["method"][key] for key in kept} for line in logs[0]] == [
        {key: line["method"][key] for key in kept} for line in logs[1]
    ]
    with pytest.raises(InputError, match="an unpacked result without curves"):
        read_inputs([copy])


def test_packing_adds_and_replaces_tasks_and_unpacking_leaves_results_alone(whole, tmp_path):
    packed, copy = tmp_path / "packed.jsonl", tmp_path / "out"
    pack(whole[1], packed)
    content = packed.read_bytes()
    shutil.copytree(whole[1] / "cells" / "bce", copy / "cells" / "bce")
    pack(copy, packed)
    assert packed.read_bytes() == content
    before = mtimes(copy)
    unpack(packed, copy)
    assert before.items() <= mtimes(copy).items()
    assert len(list(copy.rglob("result.json"))) == len(content.splitlines()) == 5
    pack(copy, tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == content


def test_a_file_that_is_no_packed_benchmark_is_refused(tmp_path):
    (tmp_path / "packed.jsonl").write_text('{"task": "cells/bce/seed-0"}\n')
    with pytest.raises(InputError, match="line 1: a line without task and result"):
        unpack(tmp_path / "packed.jsonl", tmp_path / "out")


@pytest.mark.parametrize("task", ["../elsewhere", "/elsewhere", 3])
def test_a_packed_task_stays_inside_its_folder(tmp_path, task):
    (tmp_path / "packed.jsonl").write_text(json.dumps({"task": task, "result": {"evaluations": []}}) + "\n")
    with pytest.raises(InputError, match=r"line 1: task .*; expected a folder inside the benchmark folder"):
        unpack(tmp_path / "packed.jsonl", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["packed.jsonl"]


def test_a_changed_matrix_runs_only_changed_cells(whole, tmp_path):
    file, out = whole
    datasets = yaml.safe_load(file.read_text())["datasets"]

    def keys(**changes):
        return [task.key for task in open_tasks(Plan(matrix(**{"datasets": datasets, **changes}), out), set())]

    assert keys() == []
    assert keys(seeds=[0, 1, 2]) == ["bce, seed 2", "aslp-si, seed 2"]
    other = {"name": "aslp-si", "set": ["method.name=aslp-mc", "method.technique=m"]}
    assert keys(methods=["bce", other]) == ["aslp-si, seed 0", "aslp-si, seed 1"]
    assert len(keys(bins=[10, 20])) == 4  # the ensemble is opened by its members
    assert keys(keep="none", ensembles=[]) == []


def test_a_new_data_set_is_evaluated_without_training_again(whole, tmp_path):
    _, out = whole
    copy = tmp_path / "out"
    shutil.copytree(out, copy)
    plan = Plan(matrix(datasets=[{"name": "other", "scenes": {"count": 3, "seed": 9}}], bins=[10, 25]), copy)
    cell = plan.untuned[0]
    held = cell.run / "config.yaml"
    elsewhere = held.read_text().replace("kernels: true", "kernels: false")  # how fast it was trained is no matter
    assert elsewhere != held.read_text()
    held.write_text(elsewhere)
    before = mtimes(copy, "cells/bce/seed-0/run/**/*")
    run_task(cell, ImageSets(), silent)
    assert mtimes(copy, "cells/bce/seed-0/run/**/*") == before
    assert is_finished(cell)
    records = json.loads(cell.result.read_text())["evaluations"]
    assert [record["dataset"] for record in records] == ["validation"] * 2 + ["other"] * 2
    scenes = generate(3, 32, 9)
    p = torch.stack(load_predictor(cell.run).probabilities(list(scenes.images))).double()
    for bins, found in ((10, records[2]["calibration"]), (25, records[2]["more_bins"]["25"])):
        assert found["ece_ew"] == pytest.approx(calibration_errors(p, scenes.masks // 255, bins).ece_ew, abs=1e-6)


def test_a_cell_that_another_process_holds_is_left_alone(whole, tmp_path):
    plan = Plan(matrix(), tmp_path)
    mine, other = Pipe()
    with lock_folder(plan.untuned[0].folder) as held:
        assert held
        # a lock belongs to the open file, so that a second one in this process is refused like another process's
        assert not _try_task(plan.untuned[0], ImageSets(), other)
    assert not mine.poll()
    assert not plan.untuned[0].result.exists()


def test_a_cell_that_fails_says_why_and_is_tried_again_by_the_next_call(tmp_path):
    plan = Plan(
        matrix(methods=["bce", "brier"], ensembles=[], seeds=[0], overrides=[*SMALL, "optim.epochs=1"]), tmp_path
    )
    bad = plan.untuned[0]
    bad.folder.mkdir(parents=True)
    bad.run.write_text("in the way")
    mine, other = Pipe()
    for cell in plan.untuned:
        assert _try_task(cell, ImageSets(), other)
    states = []
    while mine.poll():
        event, _ = mine.recv()
        states.append((event.task, event.state))
    assert ("bce, seed 0", "failed") in states
    assert states[-1] == ("brier, seed 0", "finished")
    assert "in the way" not in (bad.folder / "error.txt").read_text()
    assert open_tasks(plan, set()) == []
    summary = summarise(plan.matrix, tmp_path, "command")
    assert list(summary.missing) == ["bce, seed 0"]
    assert "Missing: bce, seed 0" in markdown_text(summary)
    bad.run.unlink()
    _forget_failures(tmp_path)
    assert open_tasks(plan, set()) == [bad]


@contextlib.contextmanager
def running_benchmark(arguments, out):
    """A benchmark that has begun to train its first cell, and that writes its errors into a pipe."""
    with forked.start(arguments, env=environment()) as process:
        while process.poll() is None and not list(out.glob("cells/*/*/run/log.jsonl")):
            time.sleep(0.01)
        yield process


def kill_in_the_middle(arguments, out):
    """Start a benchmark and kill it shortly after its first cell."""
    # its worker is forked; that of the call that continues starts afresh, as users' do
    with forked.start(with_forked_workers(arguments), env=environment()) as process:
        end = time.monotonic() + 200
        while process.poll() is None and not list(out.glob("cells/*/*/result.json")) and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.3)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL, "the benchmark ended before it could be killed"


def test_a_killed_benchmark_continues_and_ends_the_same(whole, tmp_path):
    file, out = whole
    arguments = command("benchmark", file, "--out", tmp_path / "out")
    kill_in_the_middle(arguments, tmp_path / "out")
    done_before = {path.parent for path in tmp_path.glob("out/cells/*/*/result.json")}
    assert 1 <= len(done_before) < 4
    before = {path: time_ for path, time_ in mtimes(tmp_path / "out").items() if set(path.parents) & done_before}
    done = run(arguments)
    assert done.returncode == 0, done.stderr
    after = mtimes(tmp_path / "out")
    assert {path: after[path] for path in before} == before
    assert figures_of(tmp_path / "out") == figures_of(out)


@pytest.mark.slow
def test_a_benchmark_that_is_asked_to_stop_ends_without_a_failure_and_continues(whole, tmp_path):
    file, out = whole
    arguments = command("benchmark", file, "--out", tmp_path / "out")
    with running_benchmark(arguments, tmp_path / "out") as process:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate()
    assert process.returncode == 143
    assert errors == "densecal: stopped; the same command continues\n"
    assert not list(tmp_path.glob("out/**/error.txt"))
    done = run(arguments)
    assert done.returncode == 0, done.stderr
    assert figures_of(tmp_path / "out") == figures_of(out)


@pytest.mark.slow
def test_a_worker_that_dies_fails_only_its_own_cell(whole, tmp_path):
    file, out = whole
    arguments = command("benchmark", file, "--out", tmp_path / "out")
    with running_benchmark(arguments, tmp_path / "out") as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        worker = [int(c) for c in children if b"spawn_main" in Path(f"/proc/{c}/cmdline").read_bytes()]
        os.kill(worker[-1], signal.SIGKILL)
        _, errors = process.communicate()
    assert process.returncode == 1
    assert "missing: bce, seed 0: the process died" in errors
    assert len(list(tmp_path.glob("out/cells/*/*/result.json"))) == 3
    done = run(arguments)
    assert done.returncode == 0, done.stderr
    assert figures_of(tmp_path / "out") == figures_of(out)


def test_jobs_share_the_cores_of_the_machine(whole, monkeypatch):
    file, out = whole
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("densecal.benchmark.workers.cores", lambda: 16)
    four = _environments(Plan(load_matrix(file), out), 4)
    assert [(job[SHARE], job["OMP_NUM_THREADS"]) for job in four] == [("4", "4")] * 4
    monkeypatch.setenv(SHARE, "1")
    assert cores() == 1


@pytest.mark.slow
def test_two_calls_at_once_and_two_jobs_share_the_cells(whole, tmp_path):
    file, out = whole
    arguments = command("benchmark", file, "--out", tmp_path / "out", "--jobs", "2")
    calls = [forked.start(arguments, env=environment()) for _ in range(2)]
    outputs = [call.communicate() for call in calls]
    assert [call.returncode for call in calls] == [0, 0], outputs
    ended = re.findall(r"^(.*): finished", "\n".join(errors for _, errors in outputs), re.MULTILINE)
    expected = ["aslp-si, seed 0", "aslp-si, seed 1", "bce, ensemble, seed all", "bce, seed 0", "bce, seed 1"]
    assert sorted(ended) == expected
    assert figures_of(tmp_path / "out") == figures_of(out)


# ------------------------------------------------------------------ tuning


def test_a_strength_is_chosen_by_calibration_among_those_that_keep_the_score():
    trials = (
        Trial("w=1", 0.03, 0.90),
        Trial("w=2", 0.02, 0.8951),
        Trial("w=3", 0.01, 0.8949),
        Trial("w=4", 0.02, 0.91),
    )
    choice = choose(trials, reference=0.90)
    assert (choice.chosen, choice.kept_score) == ("w=2", True)
    choice = choose(trials, reference=0.99)
    assert (choice.chosen, choice.kept_score) == ("w=4", False)


def test_tuning_looks_at_validation_images_alone_and_trains_the_choice_once(tmp_path):
    tuned = matrix(
        methods=["bce", "label-smoothing"], seeds=[0, 1], ensembles=[], calibrators=[],
        overrides=[*SMALL, "optim.epochs=1"], tune={"label-smoothing": {"key": "method.beta", "values": [0.1, 0.4]}},
    )  # fmt: skip
    plan, sets = Plan(tuned, tmp_path), ImageSets()
    assert [task.key for task in open_tasks(plan, set())] == [
        "label-smoothing with method.beta=0.1, seed 0", "label-smoothing with method.beta=0.4, seed 0",
        "bce, seed 0", "bce, seed 1",
    ]  # fmt: skip
    for cell in [*plan.trials, plan.untuned[0]]:
        assert choices(plan) == {}
        run_task(cell, sets, silent)
    trials = [json.loads(cell.result.read_text())["evaluations"] for cell in plan.trials]
    assert [[record["dataset"] for record in records] for records in trials] == [["validation"]] * 2
    choice = choices(plan)["label-smoothing"]
    assert [trial.ece for trial in choice.trials] == [records[0]["calibration"]["ece_ew"] for records in trials]
    first, second = plan.tuned_cells({"label-smoothing": choice.chosen})
    assert [task.key for task in open_tasks(plan, set())] == [first.key, "bce, seed 1", second.key]
    assert choice.chosen in first.overrides
    run_task(first, sets, silent)
    chosen = next(cell for cell in plan.trials if cell.trial == choice.chosen)
    weights = [cell.run / "checkpoints" / "last" / "model.safetensors" for cell in (first, chosen)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert (first.run / "log.jsonl").read_bytes() == (chosen.run / "log.jsonl").read_bytes()  # timings and all
    assert "## Tuned strengths" in markdown_text(summarise(tuned, tmp_path, "command"))


# ------------------------------------------------------------------ tables


def record(ece, oe=0.01, f_max=0.9, more=None):
    def figures(error):
        return {"ece_ew": error, "oe_ew": oe, "oe_ew_weighted": 0.9 * oe, "ece_em": error / 2, "oe_em_weighted": 0.007}

    more_bins = {str(bins): Calibration(figures(value), {}) for bins, value in (more or {}).items()}
    return small_record(figures(ece), {"f_max": f_max}, more_bins=more_bins)


def row(label, *eces, dataset="held-out", method=None, grid=None, reference="", **figures):
    records = {str(seed): record(ece, **figures) for seed, ece in enumerate(eces)}
    return Row(label, "none", dataset, False, reference, method or {"name": label}, grid or {}, records, {})


def summary(rows, logs=None, **changes):
    return Summary(matrix(**changes), "densecal benchmark m.yaml --out out", rows, {}, {}, [], logs or {}, {}, {})


def test_best_and_second_are_those_of_the_means():
    rows = [
        row("a", 0.02, 0.04), row("b", 0.01, 0.03), row("c", 0.020001, 0.02), row("d", 0.05, 0.05),
        row("a", 0.001, 0.001, reference="ensemble"),
    ]  # fmt: skip
    text = markdown_text(summary(rows))
    assert "| a | *3.00* ± 1.41 |" in text
    assert "| b | **2.00** ± 1.41 |" in text
    assert "| c | **2.00** ± 0.00 |" in text  # reads the same as the best
    assert "| d | 5.00 ± 0.00 |" in text
    assert "| a ensemble | 0.10 ± 0.00 |" in text  # for reference: not marked
    tex = latex_text(summary(rows))
    assert r"b & \textbf{2.00} {\scriptsize$\pm$ 1.41}" in tex
    assert r"a & \underline{3.00}" in tex
    assert r"\multicolumn{2}{c}{held-out}" in tex
    assert tex.count(r"\midrule") == 2 * 2  # one table per binning


def test_tables_have_the_papers_form_of_over_confidence_and_its_other_binnings():
    study = summary([row("a", 0.02, 0.04), row("b", 0.01, 0.03)])
    text = markdown_text(study)
    assert "| method | ECE | OE weighted |\n| --- | ---: | ---: |\n| a | *3.00* ± 1.41 | 0.90 ± 0.00 |" in text
    assert "OE weighted: each bin's over-confidence times its confidence, the form of the paper's tables." in text
    assert "## Bins of equal mass\n\n| method | ECE em | OE em weighted |\n" in text
    assert "| a | *1.50* ± 0.71 | 0.70 ± 0.00 |" in text
    details = text.split("## held-out")[1]
    assert "| method | ECE | OE | OE weighted | ECE em |" in details
    assert "| a | *3.00* ± 1.41 | 1.00 ± 0.00 | 0.90 ± 0.00 |" in details
    tex = latex_text(study)
    assert r"Method & ECE\textsubscript{EM} $\downarrow$ & OE\textsubscript{EM} $\downarrow$ \\" in tex
    shown = "".join(rendered(table) for table in terminal_tables(study))
    assert all(name in shown for name in ("OE weighted", "OE em weighted", "Bins of equal mass"))
    assert "sweep" not in shown  # these records do not have it


def test_dice_and_iou_are_on_the_terminal_and_in_latex(whole):
    file, out = whole
    shown = "".join(rendered(table) for table in terminal_tables(summarise(load_matrix(file), out, "command")))
    masks = (out / "table.tex").read_text().split("% masks at 0.5")[1].split("% 95 %")[0]
    heads = ("Dice", "IoU", "Dice/image", "IoU/image")
    assert all(re.search(rf"\b{head}\b", shown) for head in heads)
    assert " & ".join(["Method", *[rf"{head} $\uparrow$" for head in heads] * 2]) + r" \\" in masks
    assert r"\multicolumn{4}{c}{validation} & \multicolumn{4}{c}{held-out}" in masks
    assert r"\cmidrule(lr){2-5} \cmidrule(lr){6-9}" in masks
    assert "textures" not in masks  # which have no foreground
    line = next(csv.DictReader(io.StringIO((out / "table.csv").read_text())))
    assert line["dataset"] == "validation"
    mean, spread = (f"{float(line[key]):.3f}" for key in ("dice_image_mean", "dice_image_mean_std"))
    assert mean in masks.split(r"\midrule")[1]
    assert f"{mean} ± {spread}" in shown


def test_intervals_over_images_are_in_every_table(whole):
    file, out = whole
    rows, _ = figures_of(out)
    first = next(row for row in rows if row["dataset"] == "held-out")
    for key, factor, digits in (("ece_ew", 100, 2), ("dice_image_mean", 1, 3), ("iou_image_mean", 1, 3)):
        intervals = first["figures"][key]["interval"]
        assert len(intervals) == 2  # one per seed
        low, high = (sum(ends) / 2 for ends in zip(*intervals.values(), strict=True))
        mean, low, high = (f"{factor * value:.{digits}f}" for value in (first["figures"][key]["mean"], low, high))
        assert f" {mean} ({low} to {high}) |" in (out / "table.md").read_text()
        assert rf"{mean} {{\scriptsize({low}--{high})}}" in (out / "table.tex").read_text()
        shown = rendered(terminal_tables(summarise(load_matrix(file), out, "command"))[-1])
        assert f"{low} to {high}" in shown
        line = next(r for r in csv.DictReader((out / "table.csv").open()) if r["dataset"] == "held-out")
        assert [f"{factor * float(line[f'{key}_{end}']):.{digits}f}" for end in ("low", "high")] == [low, high]
    intervals = (out / "table.tex").read_text().split("% 95 % intervals")[1]
    assert r"\multicolumn{1}{c}{textures}" in intervals  # the ECE alone: images without an object have no Dice


def rendered(table):
    console = Console(file=io.StringIO(), width=160)
    console.print(table)
    return console.file.getvalue()


def test_the_table_holds_mean_and_spread_of_the_result_files(whole):
    _, out = whole
    lines = list(csv.DictReader(io.StringIO((out / "table.csv").read_text())))
    assert len(lines) == 3 * (2 * 2 + 2)
    for line in lines:
        if line["reference"]:
            continue
        values = {"ece_ew": [], "brier": [], "f_max": []}
        for seed in (0, 1):
            result = json.loads((out / "cells" / line["label"] / f"seed-{seed}" / "result.json").read_text())
            found = next(
                r
                for r in result["evaluations"]
                if (r["dataset"], r["calibrator"]) == (line["dataset"], line["calibrator"])
            )
            both = {**found["calibration"], **found["segmentation"]}
            for key, seen in values.items():
                seen.append(both[key])
        for key, seen in values.items():
            assert float(line[key]) == pytest.approx(np.mean(seen), rel=1e-8)
            assert float(line[f"{key}_std"]) == pytest.approx(np.std(seen, ddof=1), rel=1e-7)
    results = json.loads((out / "results.json").read_text())
    figure = results["rows"][0]["figures"]["ece_ew"]
    low, high = figure["interval"]["0"]
    assert low < figure["seeds"]["0"] < high


def test_seeds_that_are_missing_are_said():
    text = markdown_text(summary([row("a", 0.02), row("b", 0.01, 0.02)]))
    assert "Not all seeds: a (seeds 0)." in text
    assert "| a | *2.00* |" in text


def test_results_of_other_settings_are_said(whole):
    _, out = whole
    changed = summarise(matrix(overrides=[*SMALL, "optim.lr=0.02"]), out, "command")
    assert len(changed.stale) == 5
    assert "Made with other settings" in markdown_text(changed)


# ------------------------------------------------------------------ studies


def slp_rows(dataset, curves):
    rows = [row("bce", 0.03, 0.03, dataset=dataset, more={100: 0.035})]
    for technique, curve in curves.items():
        for alpha, ece in curve.items():
            method = {"name": "slp", "technique": technique, "alpha": alpha}
            rows.append(
                row(
                    f"slp {technique} {alpha}",
                    ece - 0.001,
                    ece + 0.001,
                    dataset=dataset,
                    method=method,
                    grid={"method.alpha": alpha},
                    more={100: ece + 0.004},
                )
            )
    return rows


CURVES = {
    "hi": {0.01: 0.02, 0.05: 0.01, 0.1: 0.05, 0.2: 0.02},
    "m": {0.3: 0.04, 0.1: 0.015, 0.01: 0.0285},
    "dm": {0.01: 0.031, 0.1: 0.01},
    "si": {0.01: 0.04, 0.2: 0.05},
}


def test_the_effective_range_ends_where_the_error_of_cross_entropy_is_reached():
    study = summary(slp_rows("held-out", CURVES), bins=[10, 100])
    (sweep,) = sweeps(study)
    assert (sweep.method, sweep.key, list(sweep.lines)) == ("slp", "alpha", ["hi", "m", "dm", "si"])
    ranges = {r.line: r for r in effective_ranges(study, sweep, 10)}
    assert [(r.lower, r.upper) for r in ranges.values()] == [(0, 0.05), (0, 0.1), (0.1, 0.1), (None, None)]
    assert [r.best for r in ranges.values()] == [0.05, 0.1, 0.1, 0.01]
    assert [r.upper for r in effective_ranges(study, sweep, 100)] == [0.05, 0.1, 0.1, None]
    text = markdown_text(study)
    assert "| hi | 0 - 5 (best 5: 1.00) |" in text
    assert "| dm | 10 - 10 (best 10: 1.00) |" in text
    assert "| si | none (best 1: 4.00) |" in text
    assert "alpha" in csv_text(study).splitlines()[0]


@given(st.lists(st.floats(0.001, 0.1), min_size=2, max_size=8), st.floats(0.001, 0.1))
def test_every_value_of_the_effective_range_is_effective_and_its_neighbours_are_not(errors, baseline):
    curve = {0.01 * (i + 1): error for i, error in enumerate(errors)}
    rows = slp_rows("held-out", {"hi": curve})[1:]
    study = summary([row("bce", baseline, baseline), *rows])
    (found,) = effective_ranges(study, sweeps(study)[0], 10)
    effective = [a for a, error in curve.items() if np.mean([error - 0.001, error + 0.001]) < baseline]
    if found.upper is None:
        assert not effective
        return
    inside = [a for a in curve if found.lower <= a <= found.upper]
    assert set(inside) <= set(effective)
    assert found.best in inside
    values = sorted(curve)
    before, after = values.index(inside[0]) - 1, values.index(inside[-1]) + 1
    assert before < 0 or values[before] not in effective
    assert after == len(values) or values[after] not in effective


def test_without_cross_entropy_the_value_zero_is_the_baseline():
    rows = slp_rows("held-out", {"hi": {0.0: 0.03, 0.01: 0.02, 0.2: 0.05}})[1:]
    study = summary(rows)
    (found,) = effective_ranges(study, sweeps(study)[0], 10)
    assert (found.upper, found.baseline) == (0.01, pytest.approx(0.03))


def log(slope, epochs=6):
    alphas = [min(0.05, slope * epoch) for epoch in range(epochs)]
    return [
        {"epoch": i + 1, "validation": {"accuracy": 0.95}, "method": {"alpha_mean": a, "expected_confidence": 1 - a}}
        for i, a in enumerate(alphas)
    ]


def test_convergence_is_the_mean_over_seeds_of_the_logs():
    rows, logs = [], {}
    for technique in ("m", "hi"):
        for norm in ("paper", "none"):
            label = f"rule {technique} {norm}"
            method = {"name": "aslp-mc", "technique": technique, "grad_norm": norm}
            rows.append(
                row(label, 0.02, 0.02, method=method, grid={"method.technique": technique, "method.grad_norm": norm})
            )
            logs[label] = {0: log(0.01), 1: log(0.03, epochs=4)}
    paths = convergence(summary(rows, logs))
    assert [(p.technique, p.grad_norm) for p in paths] == [(t, n) for t in ("hi", "m") for n in ("none", "paper")]
    assert paths[0].epochs == [1, 2, 3, 4]
    assert paths[0].alpha == pytest.approx([0, 0.02, 0.035, 0.04])
    assert paths[0].confidence == pytest.approx([1, 0.98, 0.965, 0.96])


def test_figures_are_drawn_for_what_there_is(tmp_path):
    rows = slp_rows("held-out", CURVES)
    for value in (0.0005, 0.002, 0.05):
        method = {"name": "aslp-mc", "eta": value}
        rows.append(row(f"eta {value}", 0.02, 0.03, method=method, grid={"method.eta": value}, more={100: 0.03}))
    method = {"name": "aslp-mc", "technique": "hi", "grad_norm": "none"}
    rows.append(row("rule", 0.02, 0.02, method=method, grid={"method.grad_norm": "none"}))
    study = summary(
        rows, {"rule": {0: log(0.01)}}, bins=[10, 100],
    )  # fmt: skip
    drawn = [path.name for path in write_benchmark_figures(study, tmp_path)]
    assert drawn == [
        "joint-held-out.png", "joint-bins-held-out.png", "sweep-slp-alpha-10-bins.png", "sweep-slp-alpha-100-bins.png",
        "sweep-aslp-mc-eta-10-bins.png", "sweep-aslp-mc-eta-100-bins.png", "convergence.png",
    ]  # fmt: skip
    for name in drawn:
        assert np.asarray(Image.open(tmp_path / name).convert("L")).std() > 5  # something is on it
    write_tables(study, tmp_path)
    assert math.isclose(float(next(csv.DictReader((tmp_path / "effective_alpha.csv").open()))["upper"]), 0.05)
