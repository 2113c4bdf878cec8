"""`densecal report` on evaluations, runs and benchmarks, intact and damaged."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from densecal.cli import app
from densecal.errors import InputError
from densecal.evaluation.folders import evaluate, paired_differences
from densecal.evaluation.ood import evaluate_ood
from densecal.evaluation.record import to_file
from densecal.evaluation.worker import Settings
from densecal.io.atomic import write_json
from densecal.report.collect import collect
from densecal.report.inputs import read_inputs
from densecal.training.loop import train
from tests.report.material import write_maps
from tests.training.common import small_config


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    folders = write_maps(folder, count=8)
    evaluations = [evaluate(folders.predictions / name, folders.masks, dataset="d") for name in ("shy", "sure")]
    records = [evaluation.record for evaluation in evaluations]
    write_json(folder / "one.json", to_file(records[:1]))
    write_json(folder / "two.json", to_file(records, paired_differences(evaluations)))
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    train(small_config("optim.epochs=2"), folder / "aslp")
    train(small_config("optim.epochs=1", "method.name=bce"), folder / "bce")
    return folder


def invoke(*arguments):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def data_of(path):
    return json.loads(re.search(r'id="data">(.*?)</script>', path.read_text(), re.DOTALL)[1])


def test_an_evaluation_alone(folder, tmp_path):
    result = invoke(folder / "one.json", "--out", tmp_path / "r.html")
    assert result.exit_code == 0, result.output
    data = data_of(tmp_path / "r.html")
    assert [record["name"] for record in data["records"]] == ["shy"]
    assert data["gallery"] == data["runs"] == data["pictures"] == []
    assert "give --predictions" in (tmp_path / "r.html").read_text()


def test_evaluations_with_their_maps_have_a_gallery(folder, tmp_path):
    result = invoke(
        folder / "two.json", "--predictions", folder / "maps", "--masks", folder / "masks", "--images",
        folder / "images", "--examples", 3, "--out", tmp_path / "r.html",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    data = data_of(tmp_path / "r.html")
    assert [e["method"] for e in data["gallery"]] == ["shy"] * 3 + ["sure"] * 3
    used = {index for e in data["gallery"] for _, index in e["pictures"]}
    assert used == set(range(len(data["pictures"])))
    assert "Differences between methods" in (tmp_path / "r.html").read_text()


def test_runs_show_training_alpha_and_their_validation_images(runs, tmp_path):
    result = invoke(runs / "aslp", runs / "bce", "--examples", 2, "--out", tmp_path / "r.html")
    assert result.exit_code == 0, result.output
    data = data_of(tmp_path / "r.html")
    assert [(r["name"], r["dataset"]) for r in data["records"]] == [("aslp", "validation"), ("bce", "validation")]
    lines = [json.loads(line) for line in (runs / "aslp" / "log.jsonl").read_text().splitlines()]
    assert data["runs"][0]["ece"] == pytest.approx([line["validation"]["ece_ew"] for line in lines], abs=1e-6)
    # the evaluated model is that of the last line of the log
    assert data["records"][0]["figures"]["brier"] == pytest.approx(lines[-1]["validation"]["brier"], abs=1e-5)
    assert sum(data["runs"][0]["histogram"]["counts"]) == 18
    assert data["runs"][1]["histogram"] is None
    highest = data["runs"][0]["highest"]
    assert [e["value"] for e in highest] == sorted((e["value"] for e in highest), reverse=True)
    assert all(len(entry["pictures"]) == 2 for entry in highest)
    assert len(data["gallery"]) == 4
    assert "Differences between methods" in (tmp_path / "r.html").read_text()


def test_a_run_without_checkpoint_or_images_still_shows_its_log(runs, tmp_path):
    run = tmp_path / "moved"
    run.mkdir()
    for name in ("log.jsonl", "alpha.csv"):
        (run / name).write_bytes((runs / "aslp" / name).read_bytes())
    config = (runs / "aslp" / "config.yaml").read_text()
    gone = re.sub(r"scenes:\n(    .*\n)+", "scenes: null\n", config).replace("images: null", "images: gone/")
    (run / "config.yaml").write_text(gone)
    result = invoke(run, "--out", tmp_path / "r.html")
    assert result.exit_code == 0, result.output
    assert "moved: not evaluated on its validation images" in result.output
    assert "moved: no pictures of its training images (gone" in result.output
    data = data_of(tmp_path / "r.html")
    assert data["records"] == []
    assert len(data["runs"]) == 1


def test_runs_on_other_images_are_not_compared(runs, tmp_path):
    train(small_config("optim.epochs=1", "data.scenes.seed=9"), tmp_path / "other")
    page = collect([runs / "bce", tmp_path / "other"], examples=1)
    assert [record.dataset for record in page.records] == ["validation", "validation (2)"]
    assert [example.dataset for example in page.examples] == ["validation", "validation (2)"]
    assert page.paired == []


def test_a_benchmark_folder(folder, tmp_path):
    base = tmp_path / "bench"
    outside = evaluate_ood(folder / "empty" / "shy", dataset="void").record.to_json()
    inside = evaluate(folder / "maps" / "shy", folder / "masks", settings=Settings(entropy=True)).record.to_json()
    for seed in (0, 1):
        records = [
            {**inside, "dataset": "validation", "calibrator": "none"},
            {**inside, "dataset": "validation", "calibrator": "temperature"},
            {**outside, "dataset": "void", "calibrator": "none"},
            {**outside, "dataset": "scrambled", "calibrator": "none"},
        ]
        cell = base / "cells" / "bce" / f"seed-{seed}"
        write_json(cell / "result.json", {"label": "bce", "seed": seed, "evaluations": records})
    datasets = [{"name": "void", "ood": True}, {"name": "scrambled", "informationless": True}]
    matrix = {"seeds": [0, 1], "datasets": datasets}
    write_json(base / "results.json", {"matrix": matrix, "rows": []})
    inputs = read_inputs([base])
    assert [record.name for record in inputs.records] == [
        "bce, seed 0", "bce, seed 0 + temperature", "bce, seed 1", "bce, seed 1 + temperature",
    ]  # fmt: skip
    assert [len(record.ood) for record in inputs.records] == [2, 0, 2, 0]
    assert [entry.dataset for entry in inputs.records[0].ood] == ["void", "scrambled"]


def test_equal_names_are_told_apart(folder, runs, tmp_path):
    (tmp_path / "again.json").write_text((folder / "one.json").read_text())
    inputs = read_inputs([folder / "one.json", tmp_path / "again.json"])
    assert [record.name for record in inputs.records] == ["shy", "shy (again)"]
    copy = tmp_path / "y" / "bce"
    copy.mkdir(parents=True)
    for name in ("config.yaml", "log.jsonl"):
        (copy / name).write_bytes((runs / "bce" / name).read_bytes())
    assert [run.name for run in read_inputs([runs / "bce", copy]).runs] == [f"{runs.name}/bce", "y/bce"]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.json", "{", "not JSON"),
        ("a.json", "[]", "no JSON object"),
        ("a.json", '{"evaluations": 3}', "evaluations: 3; expected a list"),
        ("a.json", '{"name": "x"}', "dataset: missing; expected text"),
        ("a.json", '{"evaluations": [4]}', r"evaluations\.0: 4; expected an object"),
        ("a.json", '{"name": 3, "dataset": "x"}', "name: 3; expected text"),
        ("run/log.jsonl", "{}", "not an entry of a log"),
        ("run/log.jsonl", '{"epoch": 1, "loss": 1, "validation": 3}', "damaged figures"),
    ],
)
def test_what_is_damaged_is_named(tmp_path, name, content, problem):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    (path.parent / "config.yaml").write_text("")
    with pytest.raises(InputError, match=problem) as raised:
        read_inputs([path if path.suffix == ".json" else path.parent])
    assert str(path.parent) in str(raised.value)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda record: record["reliability"].pop("histogram"), "reliability.histogram: missing"),
        (lambda record: record["joint"].pop("counts"), "joint.counts: missing"),
        (lambda record: record["calibration"].update(ece_ew="much"), "calibration.ece_ew: 'much'"),
        (lambda record: record["calibration"].update(ece_ew=10**400), "calibration.ece_ew: an integer of 1,329 bits"),
        (lambda record: record["calibration"]["ci"].update(ece_ew=[0, 10**400]), "calibration.ci.ece_ew.1: an integer"),
        (lambda record: record.update(curves=[1, 2]), "curves: [1, 2]"),
        (lambda record: record.update(ood=[{}]), "ood.0.dataset: missing"),
        (lambda record: record.update(warnings=3), "warnings: 3"),
        (lambda record: record.update(evaluations=[dict(record)], paired=[{"a": "x"}]), "paired.0.dataset: missing"),
    ],
)
def test_damaged_figures_are_one_line(folder, tmp_path, damage, problem):
    record = json.loads((folder / "one.json").read_text())
    damage(record)
    (tmp_path / "bad.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match=rf"bad\.json: {re.escape(problem)}"):
        read_inputs([tmp_path / "bad.json"])


def test_paths_that_are_nothing_and_half_given_folders_are_refused(folder, tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_inputs([tmp_path / "gone"])
    with pytest.raises(InputError, match="nothing that can be reported"):
        read_inputs([tmp_path])
    result = invoke(folder / "one.json", "--masks", folder / "masks", "--out", tmp_path / "r.html")
    assert isinstance(result.exception, InputError)
    assert not (tmp_path / "r.html").exists()
    (tmp_path / "binary.json").write_bytes(np.arange(9, dtype=np.float64).tobytes())
    with pytest.raises(InputError, match="unreadable"):
        read_inputs([tmp_path / "binary.json"])
