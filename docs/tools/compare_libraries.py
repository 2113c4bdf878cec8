"""Print the table "Against other libraries" of docs/metrics.md: `python docs/tools/compare_libraries.py`.

All libraries get the same inputs: eight smooth random maps of 64 x 64 pixels, p = sigmoid(z), as floats and as 8-bit
maps, with labels drawn with probability sigmoid(0.6 z - 0.5). So p is over-confident, more so on the foreground. A test
compares the output with the page.
"""

import warnings

import numpy as np
import py_sod_metrics as sod
import torch
from netcal.metrics import ECE
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter
from torchmetrics.classification import BinaryCalibrationError

from densecal.metrics import CalibrationMeter, SegmentationMeter, calibration_errors

Floats = NDArray[np.float64]
Masks = NDArray[np.bool_]
NOTHING = "-"


def inputs() -> tuple[Floats, Masks]:
    """Return probabilities and masks (8, 64, 64)."""
    rng = np.random.default_rng(7)
    z = np.stack([gaussian_filter(rng.normal(size=(64, 64)), 5) * 60 - 1.5 for _ in range(8)])
    return 1 / (1 + np.exp(-z)), rng.random(z.shape) < 1 / (1 + np.exp(0.5 - 0.6 * z))


def of_torchmetrics(p: Floats, y: Masks) -> float:
    """Return the ECE of torchmetrics, 10 bins, of float32 probabilities."""
    metric = BinaryCalibrationError(n_bins=10, norm="l1")
    return float(metric(torch.from_numpy(p.astype(np.float32)).flatten(), torch.from_numpy(y).flatten().long()))


def of_netcal(p: Floats, y: Masks) -> float:
    """Return the ECE of netcal, 10 bins, of the foreground probability."""
    return float(ECE(10).measure(p.ravel(), y.ravel().astype(int)))


def sod_scores(maps: NDArray[np.uint8], masks: Masks, normalize: bool = True) -> dict[str, float]:
    """Return the scores of 8-bit maps by PySODMetrics."""
    mae, s, e, f, w = sod.MAE(), sod.Smeasure(), sod.Emeasure(), sod.Fmeasure(), sod.WeightedFmeasure()
    for levels, mask in zip(maps, masks, strict=True):
        for metric in (mae, s, e, f, w):
            if normalize:
                metric.step(levels, mask * np.uint8(255))
            else:
                metric.step(levels / 255, mask, normalize=False)
    return {
        "mae": mae.get_results()["mae"],
        "s_measure": s.get_results()["sm"],
        "e_max": e.get_results()["em"]["curve"].max(),
        "f_max": f.get_results()["fm"]["curve"].max(),
        "f_weighted": w.get_results()["wfm"],
    }


def rows() -> list[tuple[str, str, str, str, str]]:
    """Return the rows: figure, densecal, torchmetrics, netcal, PySODMetrics."""
    p, y = inputs()
    maps = np.rint(p * 255).astype(np.uint8)
    exact = calibration_errors(torch.from_numpy(p[:, None]), torch.from_numpy(y[:, None]).double())
    levels = CalibrationMeter()
    levels.update(torch.from_numpy(maps[:, None]), torch.from_numpy(y[:, None]).double())
    segmentation = SegmentationMeter()
    for one, mask in zip(maps, y, strict=True):
        segmentation.update(one, mask)
    ours, theirs, raw = segmentation.compute().as_dict(), sod_scores(maps, y), sod_scores(maps, y, normalize=False)
    chosen = np.maximum(p, 1 - p), (p > 0.5) == y

    def line(name: str, *values: float | None) -> tuple[str, str, str, str, str]:
        cells = [NOTHING if value is None else f"{value:.6f}" for value in values]
        return name, cells[0], cells[1], cells[2], cells[3]

    return [
        line("ECE of the chosen class, floats", exact.ece_ew, of_torchmetrics(*chosen), of_netcal(*chosen), None),
        line("ECE of p against the mask, floats", exact.ece_foreground, of_torchmetrics(p, y), of_netcal(p, y), None),
        line("the library's own ECE, given p and y", exact.ece_ew, of_torchmetrics(p, y), of_netcal(p, y), None),
        line("ECE of the chosen class, 8-bit maps", levels.compute().ece_ew, None, None, None),
        *(line(f"{name}, 8-bit maps", ours[name], None, None, theirs[name]) for name in theirs),
        line("mae, not stretched", None, None, None, raw["mae"]),
    ]


def table() -> str:
    """Return the table as Markdown."""
    head = ["| figure | densecal | torchmetrics | netcal | PySODMetrics |", "|---|---:|---:|---:|---:|"]
    return "\n".join(head + [f"| {' | '.join(row)} |" for row in rows()])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(table())
