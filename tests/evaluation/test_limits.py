"""Limits and baselines: what fails, what passes, what cannot be compared, in Python and as a command."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from densecal.errors import InputError
from densecal.evaluation.folders import evaluate
from densecal.evaluation.limits import COMPARED, HIGHER_IS_BETTER, LOWER_IS_BETTER, NEITHER, check_limits
from densecal.evaluation.record import Calibration, Record, RecordSettings, to_file
from densecal.evaluation.worker import Settings
from densecal.integrations.pytest import assert_calibration
from densecal.io.atomic import write_json
from tests.records import small_record
from tests.running import run

DICE = {"dice": 0.8, "dice_image_mean": 0.8}


def record(ece: float = 0.03, spread: float = 0.01, **others: Any) -> Record:
    """A record whose figures have intervals of half-width ``spread``, apart from ece_em and dice."""
    figures = {"ece_ew": ece, "accuracy": 0.9, "ece_em": 0.03}
    ci = {name: (figures[name] - spread, figures[name] + spread) for name in ("ece_ew", "accuracy")}
    return replace(small_record(calibration=figures, segmentation=DICE), calibration=Calibration(figures, ci), **others)


def write(path: Path, *records: Record) -> Path:
    write_json(path, {"densecal": "evaluate"} | to_file(records))
    return path


def results(*arguments: Any, **options: Any) -> list[bool | None]:
    return [comparison.passed for comparison in check_limits(*arguments, **options)]


# ------------------------------------------------------------------ limits


@pytest.mark.parametrize(("limit", "passed"), [(0.02, False), (0.03, True), (0.04, True)])
def test_a_figure_may_not_be_above_its_maximum(limit: float, passed: bool):
    assert results(record(ece=0.03), maximum={"ece_ew": limit}) == [passed]


@pytest.mark.parametrize(("limit", "passed"), [(0.91, False), (0.9, True), (0.8, True)])
def test_a_figure_may_not_be_below_its_minimum(limit: float, passed: bool):
    assert results(record(), minimum={"accuracy": limit}) == [passed]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "limits: none; expected a maximum, a minimum or a baseline"),
        ({"maximum": {"ece_w": 0.1}}, r"maximum of ece_w: no such figure; expected another name \(did you mean ece_ew"),
        ({"maximum": {"zzzzzz": 0.1}}, "maximum of zzzzzz: no such figure; expected one of ece_ew, "),
        ({"maximum": {"dice": 0.9}}, r"maximum of dice: a limit on the wrong side; expected a minimum \(--min\)"),
        ({"minimum": {"ece_ew": 0.9}}, r"minimum of ece_ew: a limit on the wrong side; expected a maximum \(--max\)"),
        ({"maximum": {"ece_ew": 2}}, "maximum of ece_ew: 2; expected a fraction: 2 % is 0.02"),
        ({"maximum": {"ece_ew": math.nan}}, "maximum of ece_ew: nan; expected a number"),
        ({"maximum": {"ece_ew": -0.1}}, "maximum of ece_ew: -0.1; expected a number that is not negative"),
        ({"maximum": {"mce": 0.1}}, "method on set: has no mce; expected a figure to compare with the limit 0.1"),
        ({"maximum": {"ece_ew": 0.1}, "name": "other"}, "method on set: no evaluation of other on any data set"),
    ],
)
def test_bad_limits_are_one_line(options: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        check_limits(record(), **options)


def test_a_figure_that_is_null_or_a_list_over_classes_cannot_pass():
    unknown = replace(record(), segmentation={"dice": math.nan, "iou": (0.9, 0.8)})
    with pytest.raises(InputError, match="has no dice"):
        check_limits(unknown, minimum={"dice": 0.1})
    with pytest.raises(InputError, match="iou is a list over classes"):
        check_limits(unknown, minimum={"iou": 0.1})


def test_figures_above_one_may_have_limits_above_one():
    assert results(small_record(calibration={"nll": 2.0}), maximum={"nll": 1.5}) == [False]


@pytest.mark.parametrize("classes", [None, 3])
def test_every_figure_of_an_evaluation_has_a_direction(tmp_path: Path, classes: int | None):
    rng = np.random.default_rng(0)
    for folder in ("maps", "masks"):
        (tmp_path / folder).mkdir()
    for i in range(2):
        p = rng.random((12, 12)) if classes is None else rng.dirichlet(np.ones(classes), (12, 12)).transpose(2, 0, 1)
        np.save(tmp_path / "maps" / f"{i}.npy", p.astype(np.float32))
        np.save(tmp_path / "masks" / f"{i}.npy", rng.integers(0, classes or 2, (12, 12)).astype(np.uint8))
    settings = Settings(classes=classes)
    done = evaluate(tmp_path / "maps", tmp_path / "masks", workers=1, settings=settings).record
    known = {*LOWER_IS_BETTER, *HIGHER_IS_BETTER, *NEITHER}
    assert {*done.calibration, *done.segmentation} - known == set(), "add them to a tuple of evaluation/limits.py"
    assert set(COMPARED) <= known


# ------------------------------------------------------------------ a baseline


def test_the_margin_is_that_of_two_independent_estimates():
    """With symmetric intervals the textbook has z = (a - b) / sqrt(s_a^2 + s_b^2), and 1.96 as its limit."""
    for standard_error_a, standard_error_b in ((0.01, 0.01), (0.002, 0.03)):
        together = 1.96 * math.hypot(standard_error_a, standard_error_b)
        for factor, passed in ((0.99, True), (1.01, False)):
            before = record(ece=0.1, spread=1.96 * standard_error_b)
            now = record(ece=0.1 + factor * together, spread=1.96 * standard_error_a)
            assert results(now, maximum={"ece_ew": 1.0}, baseline=before) == [True, passed]


def test_the_ends_that_face_each_other_count():
    figures = {"ece_ew": 0.05}
    before = replace(record(), calibration=Calibration(figures, {"ece_ew": (0.0, 0.06)}))
    now = replace(record(), calibration=Calibration({"ece_ew": 0.07}, {"ece_ew": (0.06, 0.5)}))
    assert results(now, baseline=before) == [False]  # 0.02 > sqrt(0.01^2 + 0.01^2)
    assert results(before, baseline=now) == [True]


def test_a_fall_of_accuracy_is_worse_and_a_rise_is_not():
    low = replace(record(), calibration=Calibration({"accuracy": 0.8}, {"accuracy": (0.79, 0.81)}))
    high = replace(record(), calibration=Calibration({"accuracy": 0.9}, {"accuracy": (0.89, 0.91)}))
    assert results(low, baseline=high) == [False]
    assert results(high, baseline=low) == [True]


def test_equal_evaluations_pass_without_any_interval_width():
    assert results(record(spread=0.0), baseline=record(ece=0.03 + 1e-12, spread=0.0)) == [True, True]
    assert results(record(ece=0.03 + 1e-12, spread=0.0), baseline=record(spread=0.0)) == [True, True]
    assert results(record(ece=0.031, spread=0.0), baseline=record(spread=0.0)) == [False, True]


def test_without_limits_parts_of_the_ece_are_not_compared():
    figures = {"ece_ew": 0.01, "ue_ew": 0.01}
    before = replace(
        record(), calibration=Calibration({"ece_ew": 0.05, "ue_ew": 0.0}, {"ece_ew": (0.05, 0.05), "ue_ew": (0.0, 0.0)})
    )
    now = replace(record(), calibration=Calibration(figures, dict.fromkeys(figures, (0.01, 0.01))))
    assert results(now, baseline=before) == [True]
    assert results(now, baseline=before, maximum={"ue_ew": 0.02}) == [True, False]


def test_a_figure_without_interval_is_not_compared_and_that_is_said():
    found = check_limits(record(), baseline=record(), maximum={"ece_ew": 0.1, "ece_em": 0.1})
    assert [comparison.passed for comparison in found] == [True, True, True, None]
    assert found[-1].line == "ece_em of method on set with method on set: the evaluation has no interval of it"


@pytest.mark.parametrize(
    ("before", "message"),
    [
        (record(settings=RecordSettings(15, None, None)), "settings.bins: 15; expected 10"),
        (record(settings=RecordSettings(10, 3, None)), "settings.classes: 3; expected None"),
        (record(dataset="others"), "no evaluation of method on set; .*it has method on others; .* --dataset"),
        (record(spread=math.nan), "no figure of method on set that has an interval in both evaluations"),
    ],
)
def test_a_baseline_that_cannot_be_compared_is_an_error(before: Record, message: str):
    with pytest.raises(InputError, match=message):
        check_limits(record(), baseline=before)


# ------------------------------------------------------------------ files of several evaluations


def test_every_evaluation_is_compared_with_its_own_baseline(tmp_path: Path):
    pairs = [(name, dataset) for dataset in ("s", "t") for name in ("a", "b")]
    old = [record(ece=0.1 * i, name=name, dataset=dataset) for i, (name, dataset) in enumerate(pairs, 1)]
    before = write(tmp_path / "old.json", *old)
    same = write(tmp_path / "same.json", *old[::-1])
    assert set(results(same, maximum={"ece_ew": 1.0}, baseline=before)) == {True}
    worse = write(tmp_path / "worse.json", *[replace(r, calibration=record(ece=0.31).calibration) for r in old])
    lines = [c.line for c in check_limits(worse, maximum={"ece_ew": 1.0}, baseline=before) if not c.passed]
    assert [line.split(" is ")[0] for line in lines] == ["ece_ew of a on s", "ece_ew of b on s"]
    assert len(check_limits(worse, maximum={"ece_ew": 1.0}, dataset="t", name="b")) == 1


def test_the_only_methods_of_a_data_set_are_compared_whatever_they_are_called(tmp_path: Path):
    new, old = record(name="v2"), record(name="v1")
    assert results(new, baseline=old) == [True, True]
    several = write(tmp_path / "old.json", old, record(name="v0"))
    with pytest.raises(InputError, match="no evaluation of v2 on set"):
        check_limits(new, baseline=several)
    with pytest.raises(InputError, match="no evaluation of v0 on set"):
        check_limits(several, baseline=old, name=None)


def test_a_repeated_evaluation_is_an_error(tmp_path: Path):
    twice = write(tmp_path / "twice.json", record(), record())
    for arguments in ({"scores": twice}, {"scores": record(name="method"), "baseline": twice}):
        with pytest.raises(InputError, match="several evaluations of method on set"):
            check_limits(**arguments, maximum={"ece_ew": 0.1})  # type: ignore[arg-type]


# ------------------------------------------------------------------ the command and the helper for tests


def test_the_command_says_what_failed_and_what_passed(tmp_path: Path):
    scores, old = write(tmp_path / "scores.json", record(ece=0.03)), write(tmp_path / "old.json", record(ece=0.01))
    code, out, err = run("check", scores, "--max", "ece_ew=0.02", "--min", "dice=0.7", "--baseline", old)
    assert (code, err) == (1, "")
    assert out.splitlines() == [
        "failed: ece_ew of method on set is 0.03 (95 %: 0.02 to 0.04), above the limit 0.02",
        "passed: dice of method on set is 0.8, within the limit 0.7",
        "failed: ece_ew of method on set is 0.03 (95 %: 0.02 to 0.04), worse than 0.01 (95 %: 0 to 0.02) "
        f"in {old}: difference +0.02, margin 0.01414",
        f"not compared: dice of method on set with {old}: the evaluation has no interval of it",
    ]
    assert run("check", scores, "--max", "ece_ew=0.03", "--min", "dice=0.7")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "check: nothing to compare with; expected --max, --min or --baseline"),
        (["--max", "ece_ew"], "--max: 'ece_ew'; expected FIGURE=LIMIT"),
        (["--max", "ece_ew=2%"], "--max: 'ece_ew=2%'; expected FIGURE=LIMIT"),
        (["--max", "ece_ew=0.1", "--max", "ece_ew=0.2"], "--max: two limits of ece_ew; expected one"),
        (["--baseline", "scores.json"], "baseline scores.json: the file that is checked; expected an older evaluation"),
        (["--baseline", "missing.json"], "missing.json: no such file"),
        (["--baseline", "notes.json"], "notes.json: "),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    write(Path("scores.json"), record())
    Path("notes.json").write_text('{"name": "x"}')
    code, out, err = run("check", "scores.json", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"densecal: {message}")
    assert err.count("\n") == 1


def test_a_test_fails_with_the_lines_that_failed(tmp_path: Path):
    scores = write(tmp_path / "scores.json", record(ece=0.03))
    assert_calibration(scores, maximum={"ece_ew": 0.03}, minimum={"dice": 0.8}, baseline=record(ece=0.02))
    with pytest.raises(AssertionError) as caught:
        assert_calibration(scores, maximum={"ece_ew": 0.02, "ece_em": 0.1}, minimum={"dice": 0.9})
    assert str(caught.value).splitlines() == [
        "ece_ew of method on set is 0.03 (95 %: 0.02 to 0.04), above the limit 0.02",
        "dice of method on set is 0.8, below the limit 0.9",
    ]


def test_the_page_shows_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for file, ece, interval in (("scores.json", 0.0312, (0.0251, 0.038)), ("old.json", 0.0114, (0.0069, 0.0162))):
        figures = Calibration({"ece_ew": ece}, {"ece_ew": interval})
        write(Path(file), replace(record(name="unet", dataset="ECSSD"), calibration=figures))
    _, out, _ = run("check", "scores.json", "--max", "ece_ew=0.02", "--baseline", "old.json")
    page = Path(__file__).parents[2] / "docs/howto/fail-when-worse.md"
    assert f"```text\n{out}```" in page.read_text(encoding="utf-8")
