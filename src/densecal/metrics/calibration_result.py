"""The calibration figures of one set of predictions, computed from its sketch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.metrics.binned import (
    band_ece,
    class_atoms,
    classwise_curves,
    equal_width_curve,
    foreground_atoms,
    foreground_curve,
    top_k_curves,
)
from densecal.metrics.bootstrap import column_sums, figures, intervals, with_image_ece
from densecal.metrics.class_tables import adaptive_error, thresholded_adaptive_error
from densecal.metrics.curves import Atoms, ReliabilityCurve, aurc, equal_mass, error_auroc, sweep
from densecal.metrics.decomposition import decompose
from densecal.metrics.levels import BOUNDARY_DISTANCES, ROW_SCALARS
from densecal.metrics.poisson import PoissonTable
from densecal.metrics.sketch import Sketch
from densecal.metrics.smooth import smooth_error


@dataclass(frozen=True)
class CalibrationResult:
    """The figures of one set of predictions, as fractions; NaN where a figure is not defined or was not measured.

    Attributes:
        ece_ew: Expected calibration error, equal-width bins.
        oe_ew: Over-confidence error, the over-confident part of ``ece_ew``: the formula of the paper's text.
        oe_ew_weighted: Over-confidence error weighted by confidence: most likely the form of the paper's tables.
        ue_ew: Under-confidence error.
        ece_em: ECE with equal-mass bins.
        oe_em: Over-confidence error with equal-mass bins.
        oe_em_weighted: ``oe_em`` weighted by confidence.
        ece_sweep: ECE with as many equal-mass bins as keep the accuracy monotone.
        oe_sweep: Over-confidence error with the same bins.
        oe_sweep_weighted: ``oe_sweep`` weighted by confidence.
        sweep_bins: Number of these bins.
        ece_debias: Debiased squared calibration error (not a root, may be negative).
        mce: Largest gap of any equal-width bin.
        brier: Mean squared error of the probability (summed over classes for K classes).
        nll: Negative log-likelihood with probabilities clipped at 1e-7.
        accuracy: Share of correct pixels.
        mean_confidence: Mean probability of the winning class.
        ece_image_mean: Mean of the per-image ECEs.
        ece_boundary_5: ECE within 5 pixels of a boundary in the mask, in volumes 5 mm.
        ece_boundary_15: ECE within 15 pixels or mm of it.
        ece_foreground: ECE of the foreground probability against the mask (binary and multi-label).
        sce: Static (class-wise, equal-width) calibration error.
        ace: Adaptive (class-wise, equal-mass) calibration error.
        auroc_error: AUROC of low confidence as a detector of wrong pixels.
        aurc: Area under the risk-coverage curve.
        smece: Smooth calibration error of the winning class, as the package relplot computes it.
        smece_exact: The same by its formula: relplot counts pixels at 0 and 1 by half.
        smece_foreground: ``smece`` of the foreground probability (binary and multi-label).
        smece_foreground_exact: ``smece_exact`` of the foreground probability.
        tace: ``ace`` of the probabilities above 1 %.
        brier_calibration: The part of the Brier score that the best rising recalibration would remove.
        brier_refinement: The rest of it, which only a better model could remove.
        nll_calibration: The part of the NLL that the best rising recalibration would remove.
        nll_refinement: The rest of it.
        images: Number of images counted.
        pixels: Number of valid pixels counted.
        reliability: Equal-width curve of the winning class.
        reliability_foreground: Equal-width curve of the foreground probability (binary and multi-label).
        classwise: Equal-width curve of every class.
        top_k: By k, for softmax maps of more classes: how often the true class is among the k most probable ones, over
            their probability together.
        rows: Per-image table that the intervals resample.
        sketch: The counts themselves, shared with the meter: later updates change them.
        sums: Sums over images, where there were too many to keep their rows.
    """

    ece_ew: float
    oe_ew: float
    oe_ew_weighted: float
    ue_ew: float
    ece_em: float
    oe_em: float
    oe_em_weighted: float
    ece_sweep: float
    oe_sweep: float
    oe_sweep_weighted: float
    sweep_bins: int
    ece_debias: float
    mce: float
    brier: float
    nll: float
    accuracy: float
    mean_confidence: float
    ece_image_mean: float
    ece_boundary_5: float
    ece_boundary_15: float
    ece_foreground: float
    sce: float
    ace: float
    auroc_error: float
    aurc: float
    smece: float
    smece_exact: float
    smece_foreground: float
    smece_foreground_exact: float
    tace: float
    brier_calibration: float
    brier_refinement: float
    nll_calibration: float
    nll_refinement: float
    images: int = field(metadata={"scalar": False})
    pixels: int = field(metadata={"scalar": False})
    reliability: ReliabilityCurve = field(repr=False, metadata={"scalar": False})
    reliability_foreground: ReliabilityCurve | None = field(repr=False, metadata={"scalar": False})
    classwise: list[ReliabilityCurve] = field(repr=False, metadata={"scalar": False})
    top_k: dict[int, ReliabilityCurve] = field(repr=False, metadata={"scalar": False})
    rows: NDArray[np.float64] = field(repr=False, metadata={"scalar": False})
    sketch: Sketch = field(repr=False, metadata={"scalar": False})
    sums: PoissonTable | None = field(default=None, repr=False, metadata={"scalar": False})

    @classmethod
    def from_sketch(cls, sketch: Sketch, sums: PoissonTable | None = None) -> CalibrationResult:
        """Compute every figure of a sketch.

        Args:
            sketch: The counts.
            sums: The sums over images, in place of the rows of the sketch.
        """
        invalid = int(sketch.tables["invalid"])
        if invalid:
            raise ValueError(
                f"{invalid} pixels with probabilities outside [0, 1] or NaN, that do not sum to 1, or with labels that "
                "are not a class"
            )
        image_rows = sketch.image_rows()
        rows = with_image_ece(image_rows)
        images = len(rows) if sums is None else sums.images
        if images == 0:
            raise ValueError("nothing to measure: no valid pixel has been counted")
        by_image = figures(column_sums(rows)) if sums is None else sums.figures()
        pooled = {name: float(value) for name, value in by_image.items()}
        top = Atoms.from_counts(*sketch.top_atoms())
        width, mass, swept = equal_width_curve(sketch), equal_mass(top, sketch.bins), sweep(top)
        classwise = classwise_curves(sketch)
        foreground = foreground_curve(sketch, classwise)
        bands = [band_ece(sketch, band) for band in range(len(BOUNDARY_DISTANCES))]
        classes = class_atoms(sketch)
        of_foreground = foreground_atoms(sketch, classes)
        decomposed = classes if sketch.num_classes > 1 else classes[1:]
        return cls(
            ece_ew=width.ece,
            oe_ew=width.oe,
            oe_ew_weighted=width.oe_weighted,
            ue_ew=width.ue,
            ece_em=mass.ece,
            oe_em=mass.oe,
            oe_em_weighted=mass.oe_weighted,
            ece_sweep=swept.ece,
            oe_sweep=swept.oe,
            oe_sweep_weighted=swept.oe_weighted,
            sweep_bins=len(swept.count),
            ece_debias=width.debias,
            mce=width.mce,
            brier=pooled["brier"],
            nll=pooled["nll"],
            accuracy=pooled["accuracy"],
            mean_confidence=pooled["mean_confidence"],
            ece_image_mean=pooled["ece_image_mean"],
            ece_boundary_5=bands[0],
            ece_boundary_15=bands[1],
            ece_foreground=math.nan if foreground is None else foreground.ece,
            sce=float(np.mean([curve.ece for curve in classwise])),
            ace=adaptive_error(classes, sketch.bins),
            auroc_error=error_auroc(top),
            aurc=aurc(top),
            smece=smooth_error(top)[0],
            smece_exact=smooth_error(top, exact=True)[0],
            smece_foreground=math.nan if of_foreground is None else smooth_error(of_foreground)[0],
            smece_foreground_exact=math.nan if of_foreground is None else smooth_error(of_foreground, exact=True)[0],
            tace=thresholded_adaptive_error(classes, sketch.bins),
            **decompose(pooled["brier"], pooled["nll"], decomposed, sketch.softmax),
            images=images,
            pixels=top.total,
            reliability=width,
            reliability_foreground=foreground,
            classwise=classwise,
            top_k=top_k_curves(sketch),
            rows=image_rows,
            sketch=sketch,
            sums=sums,
        )

    @cached_property
    def ci(self) -> dict[str, tuple[float, float]]:
        """95 % intervals by name, from resampled images; NaN where there is only one image."""
        return intervals(self.rows) if self.sums is None else self.sums.intervals()

    def scalars(self) -> dict[str, float]:
        """Return the figures by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.metadata.get("scalar", True)}

    def as_dict(self) -> dict[str, Any]:
        """Return the figures by name, and their intervals under ``ci``."""
        return {**self.scalars(), "ci": {name: list(pair) for name, pair in self.ci.items()}}

    def image_points(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the mean confidence and the accuracy of every image: the points of the paper's joint density plot."""
        rows = self.rows[self.rows[:, 0] > 0]
        column = ROW_SCALARS.index
        return rows[:, column("confidence")] / rows[:, 0], rows[:, column("correct")] / rows[:, 0]
