"""The line that says how far our results agree with the paper is computed, and changes when the results do."""

import dataclasses

import pytest

from densecal.benchmark.summary import Row, Summary
from densecal.reproduce.agreement import agreement
from densecal.reproduce.datasets import SetFiles
from densecal.reproduce.items import Scale, find_item, load_settings
from densecal.reproduce.kept import labels_of
from densecal.reproduce.results import Results
from densecal.reproduce.scaled import scaled_matrix
from densecal.reproduce.tables import item_tables
from tests.records import small_record


def row(label: str, dataset: str, figures: dict[str, float], method=None, grid=None) -> Row:
    calibration = {key: value for key, value in figures.items() if key != "f_max"}
    record = small_record(calibration, {"f_max": figures.get("f_max", 0.9)}, dataset=dataset)
    record = dataclasses.replace(record, more_bins={"100": record.calibration})
    return Row(label, "none", dataset, False, "", method or {"name": label}, grid or {}, {"0": record}, {})


def line_of(item: str, tmp_path, rows: list[Row], logs=None) -> str:
    settings = load_settings("sod")
    sets = {dataset: SetFiles(dataset) for dataset in settings.tests}
    matrix = scaled_matrix(settings, Scale.full, labels_of(settings), SetFiles("DUTS-TR"), sets)
    results = Results(tmp_path)
    results.summaries["sod"] = Summary(matrix, "", rows, {}, {}, [], logs or {}, {}, {})
    return agreement(find_item(item), results, item_tables(item, find_item(item), results))


def ablation(aslp: float, als: float) -> list[Row]:
    """Three rows of Table 3; in the paper both methods have less ECE and OE than the baseline."""
    errors = {"bce": 0.05, "aslp-mc-hi": aslp, "als": als}
    return [row(name, "ECSSD", {"ece_ew": ece, "oe_ew_weighted": ece / 2}) for name, ece in errors.items()]


@pytest.mark.parametrize(("aslp", "als", "agree"), [(0.01, 0.02, 2), (0.01, 0.06, 1), (0.06, 0.07, 0)])
def test_rows_that_differ_from_the_baseline_as_in_the_paper_are_counted(aslp, als, agree, tmp_path):
    line = line_of("table-3", tmp_path, ablation(aslp, als))
    assert line == (
        "rows that differ from the baseline in the paper's direction, "
        f"ECSSD: ECE {agree} of 2, OE weighted {agree} of 2"
    )


def test_an_item_without_our_rows_has_no_line(tmp_path):
    assert line_of("table-3", tmp_path, []) == ""
    assert line_of("table-1", tmp_path, []) == ""
    assert line_of("slp-calibration", tmp_path, []) == ""
    assert line_of("joint-textures", tmp_path, []) == ""


def test_without_a_baseline_the_order_of_rows_is_compared(tmp_path):
    """In the paper: ASLP_MC 0.48, label smoothing 0.83, Brier loss 1.37, AdaFocal 1.63."""
    names = ("aslp-mc-hi", "label-smoothing", "brier", "adafocal")
    for errors, correlation in (((1, 2, 3, 4), "1.00"), ((4, 3, 2, 1), "-1.00"), ((2, 1, 3, 4), "0.80")):
        rows = [row(name, "ECSSD", {"ece_ew": e / 100}) for name, e in zip(names, errors, strict=True)]
        assert line_of("table-1", tmp_path, rows) == (
            f"order of rows, ECSSD: ECE rank correlation {correlation} (4 rows)"
        )


def curve(name: str, key: str, values: dict[float, dict[str, float]], **method: object) -> list[Row]:
    short = key.partition(".")[2]
    return [
        row(f"{name} {short}={x}", "ECSSD", figures, {"name": name, short: x, **method}, {key: x})
        for x, figures in values.items()
    ]


def test_curves_that_fall_and_then_rise_are_counted(tmp_path):
    rows = [row("bce", "ECSSD", {"ece_ew": 0.05})]
    errors = {"hi": (0.03, 0.02, 0.3), "si": (0.03, 0.02, 0.01)}
    for technique, (a, b, c) in errors.items():
        points = {0.01: {"ece_ew": a}, 0.05: {"ece_ew": b}, 0.3: {"ece_ew": c}}
        rows += [
            dataclasses.replace(r, label=r.label.replace("slp", f"slp-{technique}"))
            for r in curve("slp", "method.alpha", points, technique=technique)
        ]
    line = line_of("slp-calibration", tmp_path, rows)
    assert line == "ECSSD: the error falls and then rises with alpha for 1 of 2 techniques; in the paper for all"


def test_where_f_max_drops_is_said(tmp_path):
    rows = [row("bce", "ECSSD", {"f_max": 0.9})]
    points = {0.01: {"f_max": 0.91}, 0.1: {"f_max": 0.891}, 0.3: {"f_max": 0.8}}
    rows += [
        dataclasses.replace(r, label=r.label.replace("slp", f"slp-{technique}"))
        for technique in ("hi", "si")
        for r in curve("slp", "method.alpha", points, technique=technique)
    ]
    assert "F max falls by more than 0.01 from 0.3 (HI), from 0.3 (SI)" in line_of("slp-accuracy", tmp_path, rows)


def test_errors_inside_and_outside_the_papers_range_of_lambda_are_given(tmp_path):
    base = {"name": "aslp-mc", "eta": 0.002, "lam": 2000}
    own = row("aslp-mc-hi", "DUTS-TE", {"ece_ew": 0.02}, base)
    rows = [row("bce", "DUTS-TE", {"ece_ew": 0.05}), own]
    for lam, error in ((500, 0.01), (10000, 0.04), (50000, 0.09)):
        rows.append(row(f"lambda lam={lam}", "DUTS-TE", {"ece_ew": error}, {**base, "lam": lam}, {"method.lam": lam}))
    line = line_of("eta-lambda", tmp_path, rows)
    assert line == ("DUTS-TE: lambda 500 to 10000, which the paper calls stable: ECE 1.00 to 4.00, 9.00 at 50000")


def test_epochs_to_converge_are_those_of_the_logs(tmp_path):
    def log(per_epoch: float) -> dict[int, list[dict[str, object]]]:
        lines = [
            {
                "epoch": 30 + i,
                "method": {"alpha_mean": 0.1, "expected_confidence": 1 - min(0.1, per_epoch * i)},
                "validation": {"accuracy": 0.9},
            }
            for i in range(1, 31)
        ]
        return {0: lines}

    labels = {"aslp-mc-hi": ("hi", "paper", 0.02), "unnormalised technique=hi": ("hi", "none", 0.02),
              "unnormalised technique=m": ("m", "none", 0.0095)}  # fmt: skip
    rows = [
        row(label, "ECSSD", {"ece_ew": 0.01}, {"name": "aslp-mc", "technique": technique, "grad_norm": norm})
        for label, (technique, norm, _) in labels.items()
    ]
    line = line_of("convergence", tmp_path, rows, {label: log(speed) for label, (_, _, speed) in labels.items()})
    assert "unnormalised (in the paper HI 5, M and DM 11): HI 5, M 10" in line
    assert "normalised (in the paper equal): HI 5" in line


def test_a_picture_is_described_by_the_gap(tmp_path):
    figures = {"bce": (0.95, 0.90), "aslp-mc-hi": (0.89, 0.91)}
    rows = [row(n, "textures", {"mean_confidence": c, "accuracy": a}) for n, (c, a) in figures.items()]
    line = line_of("joint-textures", tmp_path, rows)
    assert line == "a picture; confidence minus accuracy on textures: Baseline +5.0, ASLP_MC -2.0 points"
