"""Draw what calibrators of one logit learn: `python docs/tools/make_calibrator_figure.py MAPS MASKS`.

They are fitted on every other image. The dots are the frequencies of foreground in the other images. Both axes are
logits, so that a temperature is a line through the middle. Writes docs/images/calibrators.png.
"""

import sys
from pathlib import Path

import numpy as np
from make_figures import save
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from densecal.calibrate.folders import MapData
from densecal.posthoc import LogitHistogram, create
from densecal.report.figures import CYCLE, GREY

PANELS = {"few parameters": ("temperature", "platt", "beta"), "curves": ("isotonic", "spline", "venn-abers")}
WIDEST = 7.5
"""Logits from -7.5 to 7.5 are drawn: probabilities from 0.0006 to 0.9994."""
WIDTHS = (3.5, 2.0, 1.0)
"""A line that lies on another leaves it visible."""
STEP = 0.5
FEWEST = 1000
"""Dots of fewer pixels are left out."""
TICKS = (0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999)


def frequencies(histogram: LogitHistogram) -> tuple[np.ndarray, np.ndarray]:
    """Return mean logits of steps, and the frequency of foreground in each."""
    z, y, n = histogram.by_label()
    step = np.rint(z / STEP).astype(int)
    step -= (first := step.min())
    count, foreground, total = (np.bincount(step, w, step.max() + 1) for w in (n, n * y, n * z))
    drawn = (count >= FEWEST) & (np.abs(np.arange(len(count)) + first) * STEP <= WIDEST)
    return total[drawn] / count[drawn], foreground[drawn] / count[drawn]


def logit(p: np.ndarray) -> np.ndarray:
    """Return the logits of probabilities."""
    return np.log(p) - np.log1p(-p)


def draw(axis: Axes, names: tuple[str, ...], fitted_on: LogitHistogram, dots: tuple[np.ndarray, np.ndarray]) -> None:
    """Draw calibrators into a panel."""
    z = np.linspace(-WIDEST, WIDEST, 1201)
    axis.plot([-WIDEST, WIDEST], [-WIDEST, WIDEST], ":", color=GREY, label="unchanged")
    for name, colour, width in zip(names, CYCLE, WIDTHS, strict=False):
        p = create(name).fit(fitted_on)(z.reshape(1, 1, 1, -1)).ravel()
        axis.plot(z, logit(np.clip(p, 1e-7, 1 - 1e-7)), color=colour, label=name, linewidth=width)
    x, frequency = dots
    axis.plot(x, logit(np.clip(frequency, 1e-7, 1 - 1e-7)), "k.", markersize=5, label="other images")
    places = [float(logit(np.array(tick))) for tick in TICKS]
    labels = [f"{tick:g}" for tick in TICKS]
    axis.set_xticks(places, labels, fontsize=8)
    axis.set_yticks(places, labels, fontsize=8)
    axis.set(xlim=(-WIDEST, WIDEST), ylim=(-WIDEST, WIDEST), xlabel="probability of the model")
    axis.legend(frameon=False, fontsize=8)


def main(maps: Path, masks: Path) -> None:
    """Draw the figure for foreground maps and masks."""
    data = MapData(maps, masks)
    half = np.arange(len(data)) % 2
    first, second = data.histograms(half.tolist())
    figure = Figure(figsize=(8, 4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axis, (title, names) in zip(panels, PANELS.items(), strict=True):
        draw(axis, names, first, frequencies(second))
        axis.set_title(title, fontsize=9)
    panels[0].set_ylabel("after calibration, or frequency of foreground")
    save(figure, "calibrators.png", dpi=90)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
