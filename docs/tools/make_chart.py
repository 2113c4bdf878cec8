"""Draw the decision chart of docs/choosing.md, docs/images/choosing.png: `python docs/tools/make_chart.py`."""

from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from densecal.report.figures import BLUE, GREY

CHART = Path(__file__).parents[1] / "images/choosing.png"
BOXES = {
    "start": (2.2, 4.3, "What does\ndensecal evaluate find?"),
    "images": (5.6, 4.3, "Which images\nwill it meet?"),
    "train": (9.0, 4.3, "Will you train\nit anyway?"),
    "fine": (1.0, 2.6, "Leave it alone"),
    "under": (3.1, 2.6, "A temperature,\nno perturbed labels"),
    "sod": (5.0, 1.0, "Train recipe sod"),
    "risk": (7.0, 2.6, "densecal\nrisk-control"),
    "temperature": (9.0, 1.0, "densecal calibrate\nfit temperature"),
    "aslp": (11.2, 2.6, "Train with\nmethod.name=aslp-mc"),
}
QUESTIONS = ("start", "images", "train")
ARROWS = (
    ("start", "images", "over-\nconfident"),
    ("images", "train", "like the\nheld-out ones"),
    ("start", "fine", "ECE below\n0.5 %"),
    ("start", "under", "under-\nconfident"),
    ("images", "sod", "some without\nany object"),
    ("images", "risk", "objects must\nrarely be missed"),
    ("train", "temperature", "no, or with cross\nentropy alone"),
    ("train", "aslp", "yes, with IoU\nor Dice losses"),
)


def chart() -> Figure:
    """Draw boxes, and arrows with what leads along them."""
    figure = Figure(figsize=(12.4, 5.0), layout="constrained")
    axis = figure.subplots()
    axis.set(xlim=(0, 12.4), ylim=(0.4, 5))
    axis.set_axis_off()
    for first, second, text in ARROWS:
        (x1, y1, _), (x2, y2, _) = BOXES[first], BOXES[second]
        end = 62 if y1 == y2 else 26
        arrow = {"arrowstyle": "-|>", "color": GREY, "shrinkA": 30, "shrinkB": end, "linewidth": 1.5}
        axis.annotate("", (x2, y2), (x1, y1), arrowprops=arrow, zorder=0)
        label = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        axis.text((x1 + x2) / 2, (y1 + y2) / 2, text, ha="center", va="center", fontsize=9.5, color="#444", bbox=label)
    for name, (x, y, text) in BOXES.items():
        question = name in QUESTIONS
        style = "round,pad=0.6,rounding_size=0.9" if question else "round,pad=0.6,rounding_size=0.2"
        box = {"boxstyle": style, "facecolor": "white" if question else "#e6f1f9", "edgecolor": BLUE, "linewidth": 1.5}
        weight = "normal" if question else "bold"
        axis.text(x, y, text, ha="center", va="center", fontsize=10.5, weight=weight, bbox=box)
    return figure


if __name__ == "__main__":
    chart().savefig(CHART, dpi=100)
    Image.open(CHART).convert("RGB").quantize(64).save(CHART, optimize=True)
