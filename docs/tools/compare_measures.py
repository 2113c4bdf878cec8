"""Print the table "Agreement with other packages" of docs/measures.md: `python docs/tools/compare_measures.py`.

It needs the extra `oracles`. All packages get the same pixels: foreground probabilities p, over- and under-confident by
turns and for a good part at 0 and 1 as those of segmentation models are, with labels y, and softmax probabilities of
four classes, on which calibrators are fitted and judged too. A loss and a guarantee get small images. A slow test
compares the output with the page.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from densecal.methods import create as create_method
from densecal.metrics import calibration_errors
from densecal.metrics.curves import Atoms
from densecal.metrics.smooth import smooth_curve
from densecal.posthoc import create
from densecal.posthoc.high_probability import hoeffding_bentkus
from densecal.posthoc.pixel_sample import PixelSample
from densecal.posthoc.risk_control import RiskCurve

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
SAME = "the same"
STOPS = "it stops after 200 steps of Adam"
CALIBRATORS = {
    "temperature": ("TemperatureScaling", {}, SAME),
    "ensemble-temperature": ("EnsembleTemperatureScaling", {}, SAME),
    "vector": ("VectorScaling", {}, SAME),
    "matrix": ("TranslationInvariantMatrixScaling", {}, SAME),
    "class-matrix": ("ClassConditionalMatrixScaling", {"strength": 0.0}, STOPS),
    "argmax-preserving": ("ArgmaxPreservingMatrixScaling", {"strength": 0.0}, STOPS),
    "order-preserving": ("OrderPreservingMatrixScaling", {"strength": 0.0}, STOPS),
}
"""What fiducio calls those that both have, our settings that make the problems the same, and why results differ."""


@dataclass(frozen=True)
class Row:
    """A figure by two packages, and why they differ."""

    figure: str
    ours: float
    package: str
    theirs: float
    reason: str

    @property
    def difference(self) -> float:
        """Theirs minus ours."""
        return self.theirs - self.ours


def foreground(spread: float = 6.0, pixels: int = 20_000) -> tuple[Floats, Ints]:
    """Return foreground probabilities and labels."""
    rng = np.random.default_rng(5)
    z = rng.normal(-1.0, spread, pixels)
    return 1 / (1 + np.exp(-z)), (rng.random(pixels) < 1 / (1 + np.exp(-0.8 * z - np.sin(2 * z) - 0.4))).astype(
        np.int64
    )


def softmax(classes: int = 4, pixels: int = 20_000) -> tuple[Floats, Ints]:
    """Return class probabilities (N, K) and labels."""
    rng = np.random.default_rng(6)
    z = rng.normal(0, 3, (pixels, classes))
    p, true = (np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) for x in (z, 0.7 * z + np.sin(2 * z)))
    return p, (rng.random((pixels, 1)) > np.cumsum(true, axis=1)).sum(axis=1)


def relplot_rows() -> Iterator[Row]:
    """Compare smooth errors and diagrams with the authors' package."""
    import relplot

    p, y = foreground()
    r = calibration_errors(p, y)
    c, hit = np.maximum(p, 1 - p), ((p > 0.5) == y).astype(int)
    yield Row("smece", r.smece, "relplot", float(relplot.smECE(c, hit)), SAME)
    yield Row("smece_foreground", r.smece_foreground, "relplot", float(relplot.smECE(p, y)), SAME)
    yield Row("smece_exact", r.smece_exact, "relplot", float(relplot.smECE(c, hit)), "relplot halves pixels at 0 and 1")
    q, labels = softmax()
    k = calibration_errors(q, labels, num_classes=4)
    confidence = relplot.multiclass_logits_to_confidences(q, labels, probs=True)
    yield Row("smece, 4 classes", k.smece, "relplot", float(relplot.smECE(*confidence)), SAME)
    theirs = relplot.prepare_rel_diagram(p, y, plot_confidence_band=False, report_CE_std=False)
    curve = smooth_curve(Atoms.from_counts(p, np.ones(len(p), np.int64), y), len(theirs["mesh"]))
    gap = float(np.nanmax(np.abs(theirs["mu"] - curve.accuracy)))
    yield Row("smooth diagram, largest difference", 0.0, "relplot", gap, SAME)


def torch_uncertainty_rows() -> Iterator[Row]:
    """Compare with torch-uncertainty, whose confidence is that of the winning class too."""
    import torch
    from torch_uncertainty.metrics.classification import AdaptiveCalibrationError, CalibrationError
    from torch_uncertainty.metrics.classification.calibration import SmoothCalibrationError

    q, labels = softmax()
    k = calibration_errors(q, labels, num_classes=4)
    given = torch.tensor(q), torch.tensor(labels)
    name = "torch-uncertainty"
    ece = float(CalibrationError(task="multiclass", num_classes=4, num_bins=10)(*given))
    yield Row("ece_ew, 4 classes", k.ece_ew, name, ece, "float32 sums")
    adaptive = float(AdaptiveCalibrationError(task="multiclass", num_classes=4, num_bins=10)(*given))
    yield Row("ece_em, 4 classes", k.ece_em, name, adaptive, SAME)
    single = torch.tensor(q, dtype=torch.float32), given[1]  # float64 raises an error
    reflected = SmoothCalibrationError(kernel_type="reflected")
    yield Row("smece, 4 classes", k.smece, name, float(reflected(*single)), SAME)
    logit = SmoothCalibrationError()
    yield Row("smece, 4 classes", k.smece, name, float(logit(*single)), "its default smooths logits: another measure")


def probmetrics_rows() -> Iterator[Row]:
    """Compare the decomposition with probmetrics, whose isotonic regression may be fitted on all pixels."""
    import torch
    from probmetrics.distributions import CategoricalDirac, CategoricalProbs
    from probmetrics.metrics import BrierLoss, CombinedMetrics, LogLoss, MetricsWithCalibration
    from probmetrics.splitters import AllSplitter
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.isotonic import IsotonicRegression

    class Isotonic(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
        """Isotonic regression of the foreground, without the mixture that probmetrics adds by default."""

        def fit(self, x: Floats, y: Ints) -> Isotonic:
            self.map_ = IsotonicRegression(out_of_bounds="clip").fit(x[:, 1], y)
            return self

        def predict_proba(self, x: Floats) -> Floats:
            q = self.map_.predict(x[:, 1])
            return np.stack([1 - q, q], axis=1)

    p, y = foreground(spread=2.0)
    r = calibration_errors(p, y)
    metrics = MetricsWithCalibration(CombinedMetrics([BrierLoss(), LogLoss()]), Isotonic(), AllSplitter(), "iso")
    found = metrics.compute_all(
        CategoricalDirac(torch.tensor(y), 2), CategoricalProbs(torch.tensor(np.stack([1 - p, p], 1)))
    )
    by_name = {name.rsplit("_iso", 1)[0]: float(value) for name, value in found.items()}
    for part, ours in (("calib-err", "calibration"), ("refinement", "refinement")):
        yield Row(
            f"brier_{ours}", getattr(r, f"brier_{ours}"), "probmetrics", by_name[f"{part}_brier"] / 2,
            "half of its sum over two classes",
        )  # fmt: skip
        yield Row(f"nll_{ours}", getattr(r, f"nll_{ours}"), "probmetrics", by_name[f"{part}_logloss"], SAME)


def other_rows() -> Iterator[Row]:
    """Compare with MAPIE, netcal and scikit-learn."""
    from mapie.metrics.calibration import expected_calibration_error
    from netcal.metrics import ACE, ECE
    from sklearn.metrics import brier_score_loss, log_loss, top_k_accuracy_score

    p, y = foreground(spread=2.0)
    r = calibration_errors(p, y)
    c, hit = np.maximum(p, 1 - p), ((p > 0.5) == y).astype(int)
    edges = [float(expected_calibration_error(hit, c, num_bins=n, split_strategy="uniform")) for n in (10, 11)]
    yield Row("ece_ew", r.ece_ew, "MAPIE, num_bins=10", edges[0], "it takes 10 edges, which bound 9 bins")
    yield Row("ece_ew", r.ece_ew, "MAPIE, num_bins=11", edges[1], SAME)
    order = np.argsort(c)
    for name, these, reason in (
        ("MAPIE, array split", slice(None), "it splits the pixels in the order given: sort them first"),
        ("MAPIE, array split, sorted", order, SAME),
    ):
        mass = expected_calibration_error(hit[these], c[these], num_bins=10, split_strategy="array split")
        yield Row("ece_em", r.ece_em, name, float(mass), reason)
    yield Row("ece_foreground", r.ece_foreground, "netcal", float(ECE(10).measure(p, y)), SAME)
    yield Row("ece_ew", r.ece_ew, "netcal", float(ECE(10).measure(p, y)), "its confidence is p, not max(p, 1 - p)")
    one = calibration_errors(p, y).classwise[1]
    held = one.count > 0
    yield Row(
        "mean gap of bins of p",
        float(np.abs(one.gap)[held].mean()),
        "netcal",
        float(ACE(10).measure(p, y)),
        "its ACE has bins of equal width",
    )
    yield Row("brier", r.brier, "scikit-learn", float(brier_score_loss(y, p)), SAME)
    yield Row("nll", r.nll, "scikit-learn", float(log_loss(y, p)), SAME)
    q, labels = softmax()
    for k, curve in calibration_errors(q, labels, num_classes=4).top_k.items():
        theirs = float(top_k_accuracy_score(labels, q, k=k))
        yield Row(f"hit rate of the top {k}, 4 classes", curve.mean_accuracy, "scikit-learn", theirs, SAME)


def fiducio_rows() -> Iterator[Row]:
    """Compare figures, and what calibrators that both have make of the pixels they were fitted on."""
    import fiducio
    import torch

    q, labels = softmax()
    k = calibration_errors(q, labels, num_classes=4)
    given = torch.tensor(q), torch.tensor(labels)
    yield Row("ece_ew, 4 classes", k.ece_ew, "fiducio", fiducio.expected_calibration_error(*given, n_bins=10), SAME)
    yield Row("brier, 4 classes", k.brier, "fiducio", fiducio.brier_score(*given), SAME)
    yield Row("nll, 4 classes", k.nll, "fiducio", fiducio.negative_log_likelihood(*given), SAME)
    log_q = np.log(q).astype(np.float32)
    maps = log_q.T[None, :, :, None]
    sample = PixelSample(4, len(q))
    sample.update(maps, labels[None, :, None], 255)
    for name, (theirs, settings, reason) in CALIBRATORS.items():
        p = create(name, num_classes=4, **settings).fit(sample)(maps.astype(np.float64))
        other = getattr(fiducio, theirs)(device="cpu").fit(torch.tensor(log_q), given[1])
        nll = fiducio.negative_log_likelihood(other.transform(torch.tensor(log_q)), given[1])
        ours = float(-np.log(p[0, labels, np.arange(len(q)), 0]).mean())
        yield Row(f"nll after `{name}`, 4 classes", ours, "fiducio", nll, reason)


def monai_rows() -> Iterator[Row]:
    """Compare with MONAI, which computes in float32 and has NACL as a loss."""
    import torch
    from monai.losses import NACLLoss
    from monai.metrics import CalibrationErrorMetric

    q, labels = softmax()
    k = calibration_errors(q, labels, num_classes=4)
    metric = CalibrationErrorMetric(num_bins=10)
    metric(torch.tensor(q).T[None], torch.nn.functional.one_hot(torch.tensor(labels)).T[None])
    yield Row("sce, 4 classes", k.sce, "MONAI", float(metric.aggregate()), "float32 sums")
    generator = torch.Generator().manual_seed(7)
    y = torch.randint(4, (2, 24, 24), generator=generator)
    z = torch.randn((2, 4, 24, 24), generator=generator).requires_grad_()
    ours = create_method("nacl", num_samples=2, num_classes=4).loss(z, y)
    theirs = NACLLoss(4, 2)(z, y)
    reason = "at the border it pads with zeros, we repeat pixels"
    yield Row("loss of `nacl`", ours.item(), "MONAI", theirs.item(), reason)
    slopes = (torch.autograd.grad(loss, z)[0][..., 1:-1, 1:-1] for loss in (ours, theirs))
    gap = float(torch.sub(*slopes).abs().max())
    yield Row("its slope inside the image, largest difference", 0.0, "MONAI", gap, SAME)


def guarantee_rows() -> Iterator[Row]:
    """Compare with MAPIE's thresholds for recall and its p-values."""
    from mapie.risk_control import SemanticSegmentationController
    from mapie.risk_control.methods import compute_hoeffding_bentkus_p_value

    p, y = (values.reshape(20, 1000) for values in foreground())
    curve = RiskCurve()
    for one, mask in zip(p, y, strict=True):
        curve.update(one, mask == 1)
    control = SemanticSegmentationController(
        lambda maps: maps[:, None],
        risk="recall",
        method="crc",
        target_level=0.85,
        predict_params=np.arange(curve.steps + 1) / curve.steps,
    )
    control.calibrate(p, y[:, :, None])
    threshold = float(control.best_predict_param[0])
    yield Row("threshold for 15 % missed", curve.control(0.15).threshold, "MAPIE", threshold, SAME)
    risk = np.linspace(0, 0.99, 37)
    theirs = np.minimum(compute_hoeffding_bentkus_p_value(risk, 200, 0.1)[:, 0], 1)
    gap = float(np.abs(hoeffding_bentkus(risk, 200, 0.1) - theirs).max())
    yield Row("p-values of risk control, largest difference", 0.0, "MAPIE", gap, SAME)


def rows() -> list[Row]:
    """Return all comparisons."""
    with warnings.catch_warnings(action="ignore"):
        made = (relplot_rows, torch_uncertainty_rows, probmetrics_rows, other_rows, fiducio_rows, monai_rows)
        return [row for rows_of in (*made, guarantee_rows) for row in rows_of()]


def table(compared: list[Row]) -> str:
    """Return comparisons as a Markdown table."""
    head = ["| figure | densecal | package | its value | difference | why |", "|---|---:|---|---:|---:|---|"]
    return "\n".join(
        head
        + [
            f"| {r.figure} | {r.ours:.6f} | {r.package} | {r.theirs:.6f} | {_short(r.difference)} | {r.reason} |"
            for r in compared
        ]
    )


def _short(difference: float) -> str:
    return "0" if abs(difference) < 5e-8 else f"{difference:.0e}"


if __name__ == "__main__":
    print(table(rows()))
