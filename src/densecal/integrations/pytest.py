"""An assertion for test suites: it fails when calibration is beyond its limits or worse than before."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from densecal.evaluation.limits import check_limits
from densecal.evaluation.record import Record


def assert_calibration(
    scores: Record | Path | str,
    *,
    maximum: Mapping[str, float] | None = None,
    minimum: Mapping[str, float] | None = None,
    baseline: Record | Path | str | None = None,
) -> None:
    """Fail a test where `densecal check` would fail, with one line per figure.

    Args:
        scores: A record, such as `densecal.evaluate(...).record`, or a file that `densecal evaluate --json` wrote.
        maximum: Largest values allowed, of figures for which lower is better: `{"ece_ew": 0.02}`.
        minimum: Smallest values allowed, of figures for which higher is better: `{"dice": 0.9}`.
        baseline: An older record or file. No figure may be clearly worse than in it.

    Raises:
        AssertionError: A figure is beyond its limit, or worse than in the baseline.
        InputError: There is nothing to check, a figure is unknown or missing, or the baseline does not fit.
    """
    __tracebackhide__ = True  # pytest shows the test, not this function
    comparisons = check_limits(scores, maximum=maximum, minimum=minimum, baseline=baseline)
    failed = [comparison.line for comparison in comparisons if comparison.passed is False]
    if failed:
        raise AssertionError("\n".join(failed))
