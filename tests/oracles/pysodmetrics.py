"""PySODMetrics under our names: curves over rising thresholds, and the scores of a set of maps."""

import warnings
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray


def pysodmetrics_scores(pairs: list[tuple[NDArray[Any], NDArray[np.bool_]]]) -> dict[str, Any]:
    """Score 8-bit maps, or float maps, which PySODMetrics takes as they are."""
    py_sod_metrics = pytest.importorskip("py_sod_metrics", reason="PySODMetrics is not installed (Python 3.14)")
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        names = ("Fmeasure", "Emeasure", "Smeasure", "WeightedFmeasure", "MAE")
        f, e, s, wf, mae = meters = [getattr(py_sod_metrics, name)() for name in names]
        for prediction, mask in pairs:
            is_byte = prediction.dtype == np.uint8
            for meter in meters:
                meter.step(prediction, mask.astype(np.uint8) * 255 if is_byte else mask, normalize=is_byte)
    f_result, e_result = f.get_results(), e.get_results()["em"]
    curves = {
        "precision": f_result["pr"]["p"][::-1],
        "recall": f_result["pr"]["r"][::-1],
        "f_curve": f_result["fm"]["curve"][::-1],
        "e_curve": e_result["curve"][::-1],
    }
    return curves | {
        "f_max": curves["f_curve"].max(),
        "f_mean": curves["f_curve"].mean(),
        "f_adaptive": f_result["fm"]["adp"],
        "e_max": curves["e_curve"].max(),
        "e_mean": curves["e_curve"].mean(),
        "e_adaptive": e_result["adp"],
        "s_measure": s.get_results()["sm"],
        "f_weighted": wf.get_results()["wfm"],
        "mae": mae.get_results()["mae"],
    }
