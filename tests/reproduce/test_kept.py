"""Kept cells: tables are made from one small file, and its cells are finished wherever they are laid out."""

import json
from pathlib import Path

import pytest

from densecal.benchmark.matrix import Matrix
from densecal.benchmark.plan import Plan, is_finished
from densecal.reproduce.items import Scale, load_scale
from densecal.reproduce.kept import keep, lay_out, read_kept
from densecal.reproduce.runner import Workplace
from densecal.reproduce.smoke_data import write_data
from tests.records import small_record

LABELS = {"bce", "brier", "aslp-mc-hi", "slp-hi alpha=0.01"}


def write_cells(matrix: Matrix, folder: Path) -> dict[str, float]:
    """Write results as if the cells had been run; return the ECE of each on ECSSD."""
    errors = {}
    for i, cell in enumerate(Plan(matrix, folder).untuned):
        errors[cell.label] = 0.01 * (i + 1)
        names = ["validation", *(dataset.name for dataset in cell.datasets)]
        records = [
            small_record({"ece_ew": errors[cell.label]}, dataset=name, calibrator=calibrator)
            for name in names
            for calibrator in ("none", *cell.calibrators)
        ]
        result = {
            "version": 1, "digest": cell.digest, "label": cell.label, "overrides": list(cell.overrides),
            "method": cell.config.model_dump(mode="json")["method"], "grid": cell.grid, "device": "NVIDIA Secret 9000",
            "warnings": [], "evaluations": [r.to_json() for r in records],
        }  # fmt: skip
        cell.folder.mkdir(parents=True)
        cell.result.write_text(json.dumps(result))
    return errors


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> tuple[Path, dict[str, float]]:
    """Four cells run by someone else with data of their own, and kept in a file."""
    root = tmp_path_factory.mktemp("theirs")
    errors = write_cells(matrix_in(root), root / "runs")
    keep(root / "runs", root / "sod.jsonl")
    return root / "sod.jsonl", errors


def matrix_in(root: Path, weights: bool = False) -> Matrix:
    """The cells on generated data in a folder of its own."""
    write_data(root / "data", load_scale(Scale.smoke))
    if weights:
        (root / "data" / "weights").mkdir()
        (root / "data" / "weights" / "resnet50.safetensors").touch()
    matrix = Workplace(Scale.full, root / "data", root / "out").matrix("sod", LABELS)
    assert matrix is not None
    return matrix


def test_a_kept_file_is_light(tmp_path):
    write_cells(matrix_in(tmp_path), tmp_path / "runs")
    result = next((tmp_path / "runs").rglob("result.json"))
    content = json.loads(result.read_text())
    content["evaluations"][0]["calibration"]["ece_ew"] = 0.0123456789
    result.write_text(json.dumps(content))
    keep(tmp_path / "runs", tmp_path / "sod.jsonl")
    text = (tmp_path / "sod.jsonl").read_text()
    assert "0.01234568" in text
    assert "0.0123456789" not in text


def test_a_kept_file_holds_nothing_of_the_machine(kept):
    text = kept[0].read_text()
    assert str(kept[0].parent) not in text
    assert "Secret" not in text
    assert text.count("a CUDA GPU") == len(LABELS)


def test_tables_need_the_file_alone(kept):
    summary = read_kept("sod", Scale.full, kept[0])
    rows = {row.label: row for row in summary.rows if (row.dataset, row.calibrator) == ("ECSSD", "none")}
    assert {label: row.values("calibration", "ece_ew")["0"] for label, row in rows.items()} == kept[1]
    assert rows["slp-hi alpha=0.01"].method["alpha"] == 0.01
    labels = {label.removesuffix(", seed 0") for label in summary.missing}
    assert "slp-hi alpha=0.02" in labels
    assert not labels & LABELS


def test_cells_that_are_laid_out_are_finished_wherever_the_data_is(kept, tmp_path):
    matrix = matrix_in(tmp_path)
    before = Plan(matrix, tmp_path / "runs").untuned
    assert not any(map(is_finished, before))
    assert set(lay_out(kept[0], matrix, tmp_path / "runs")) == LABELS
    assert all(map(is_finished, before))
    times = {cell.label: cell.result.stat().st_mtime_ns for cell in before}
    assert lay_out(kept[0], matrix, tmp_path / "runs") == []
    assert {cell.label: cell.result.stat().st_mtime_ns for cell in before} == times


def test_cells_with_other_settings_are_not_laid_out(kept, tmp_path):
    matrix = matrix_in(tmp_path)
    longer = matrix.model_copy(update={"overrides": [*matrix.overrides, "optim.epochs=31"]})
    assert lay_out(kept[0], longer, tmp_path / "longer") == []
    more = matrix.model_copy(update={"calibrators": ["temperature", "platt"]})
    assert lay_out(kept[0], more, tmp_path / "more") == []
    assert lay_out(kept[0], matrix_in(tmp_path / "weighted", weights=True), tmp_path / "weights") == []


def test_the_weights_that_cells_started_from_are_kept(tmp_path):
    matrix = matrix_in(tmp_path / "a", weights=True)
    write_cells(matrix, tmp_path / "runs")
    keep(tmp_path / "runs", tmp_path / "sod.jsonl")
    summary = read_kept("sod", Scale.full, tmp_path / "sod.jsonl")
    assert Plan(summary.matrix, tmp_path).untuned[0].config.model.weights == "resnet50.safetensors"
    other = matrix_in(tmp_path / "b", weights=True)
    assert set(lay_out(tmp_path / "sod.jsonl", other, tmp_path / "other")) == LABELS


def test_later_cells_are_added(kept, tmp_path):
    file = tmp_path / "sod.jsonl"
    file.write_bytes(kept[0].read_bytes())
    matrix = Workplace(Scale.full, kept[0].parent / "data", tmp_path).matrix("sod", {"focal"})
    assert matrix is not None
    write_cells(matrix, tmp_path / "later")
    keep(tmp_path / "later", file)
    shown = {row.label for row in read_kept("sod", Scale.full, file).rows}
    assert shown == LABELS | {"focal"}
