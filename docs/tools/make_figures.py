"""Draw the figures of the documentation from `densecal demo --out demo`: `python docs/tools/make_figures.py demo`.

Writes docs/images/demo.png (a scene and the predictions of two models), reliability.png, joint.png and alpha.png.
"""

import json
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image

from densecal.methods import create
from densecal.report.figures import BLUE, CYCLE, GREY, RED, joint_figure, reliability_figure

IMAGES = Path(__file__).parents[1] / "images"


def save(figure: Figure, name: str, dpi: int = 100) -> None:
    """Write a PNG with a palette, which halves the size of a figure."""
    IMAGES.mkdir(exist_ok=True)
    figure.savefig(IMAGES / name, dpi=dpi)
    Image.open(IMAGES / name).convert("RGB").quantize(128).save(IMAGES / name, optimize=True)


def demo_figure(demo: Path, records: list[dict]) -> Figure:
    """Draw a held-out scene, its mask, the probabilities of both models, and both reliability diagrams."""
    names = [record["name"] for record in records]
    stem = most_telling_scene(demo, names)
    figure = Figure(figsize=(10, 2.6), layout="constrained")
    axes = figure.subplots(1, 5, width_ratios=[1, 1, 1, 1, 1.25])
    pictures = [demo / "held-out/images" / stem, demo / "held-out/masks" / stem]
    titles = ["scene", "truth"]
    pictures += [demo / "maps" / name / stem for name in names]
    titles += [f"{name}: probability" for name in names]
    for axis, path, title in zip(axes, pictures, titles, strict=False):
        pixels = np.asarray(Image.open(path))
        axis.imshow(
            pixels if pixels.ndim == 3 else pixels / (65535 if pixels.dtype == np.uint16 else 255), vmin=0, vmax=1
        )
        axis.set_title(title, fontsize=9)
        axis.set_axis_off()
    axis = axes[-1]
    axis.plot([0.5, 1], [0.5, 1], ":", color=GREY)
    for record, colour in zip(records, (RED, BLUE), strict=True):
        curve = record["reliability"]
        used = np.array(curve["count"]) > 0
        confidence, accuracy = np.array(curve["confidence"])[used], np.array(curve["accuracy"])[used]
        error = 100 * record["calibration"]["ece_ew"]
        axis.plot(confidence, accuracy, "o-", color=colour, label=f"{record['name']}, ECE {error:.1f} %", markersize=4)
    axis.set(xlabel="confidence", ylabel="accuracy", title="200 held-out scenes")
    axis.title.set_fontsize(9)
    axis.legend(frameon=False, fontsize=8)
    return figure


def most_telling_scene(demo: Path, names: list[str]) -> str:
    """Find the scene with most doubt of the second model where the first is wrong.

    The first model must find at least half of the object.
    """

    def doubt(path: Path) -> float:
        mask = np.asarray(Image.open(demo / "held-out/masks" / path.name)) > 0
        p, q = (np.asarray(Image.open(demo / "maps" / name / path.name)) / 65535 for name in names)
        foreground, wrong = p > 0.5, (p > 0.5) != mask
        if (foreground & mask).sum() < 0.5 * mask.sum():
            return 0.0
        return float((np.abs(p - 0.5) - np.abs(q - 0.5))[wrong].sum())

    return max((demo / "maps" / names[0]).glob("*.png"), key=doubt).name


def alpha_figure() -> Figure:
    """Draw the alpha of one image under the MC rule for several lambda, visit by visit."""
    warnings.simplefilter("ignore")
    figure = Figure(figsize=(7, 2.8), layout="constrained")
    axis = figure.subplots()
    y, index = torch.ones(1, 1, 1, 1), torch.tensor([0])
    options = {"lambda 500": {"lam": 500}, "lambda 800": {"lam": 800}, "lambda 2000": {"lam": 2000}}
    for (label, option), colour in zip({**options, "exact": {"constraint": "exact"}}.items(), CYCLE, strict=False):
        method = create("aslp-mc", num_samples=1, warmup=0, **option)
        method.freeze(0.957)
        alpha = [0.0]
        for _ in range(24):
            method.after_step(6.5 * y, y, index)
            alpha.append(float(method.alpha))
        axis.plot(alpha, "o-", markersize=3, label=label, color=colour)
    axis.axhline(0.043, linestyle=":", color=GREY)
    axis.set(xlabel="visits of the image", ylabel="alpha", title="hard inversion, g = 6.5, accuracy 0.957")
    axis.legend(frameon=False, fontsize=8, ncols=2)
    return figure


def main(folder: Path) -> None:
    """Draw all figures from the folder of a demo."""
    both = json.loads((folder / "evaluation.json").read_text())["evaluations"]
    save(demo_figure(folder, both), "demo.png", 110)
    save(reliability_figure(both), "reliability.png")
    save(joint_figure(both), "joint.png")
    save(alpha_figure(), "alpha.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
