"""Make docs/published.md's tables and pictures from docs/results/published.json: `python docs/tools/make_published.py`.

`... collect FOLDER` first packs what the page's commands wrote, files of `densecal evaluate --json` in FOLDER.
It holds figures and curves, and no picture of anybody's data set.
`... scenes FOLDER` draws the generated scenes in FOLDER (scenes/, scenes-maps/, cal.json).
"""

import json
import re
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from densecal import load_calibrator
from densecal.io.atomic import write_text
from densecal.report.figures import BLUE, GREY, RED

DOCS = Path(__file__).parents[1]
RESULTS = DOCS / "results/published.json"
PAGE = DOCS / "published.md"
BLOCK = re.compile(r"(<!-- made: ([\w-]+) -->\n)(.*?)(<!-- end -->)", flags=re.DOTALL)
FIGURES = ("ece_ew", "oe_ew", "nll", "brier", "accuracy", "ece_boundary_5")
SCORES = ("f_max", "mae", "iou")
SHOWN_SCENES = 3
ORDER = ("before", "temperature", "platt", "beta", "isotonic")
"""Rows of a table; the others come first."""
NAMES = {"u2netp": "U\N{SUPERSCRIPT TWO}-Netp", "isnet": "ISNet"}


def collect(folder: Path) -> None:
    """Pack figures, intervals and curves of the evaluations whose files lie in a folder, in place of older ones."""
    models = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        records = content.get("evaluations", [content])
        records.sort(key=lambda record: ORDER.index(record["name"]) if record["name"] in ORDER else -1)
        models[path.stem] = {
            "rows": [packed(record) for record in records],
            "paired": [
                {"a": pair["a"], "b": pair["b"], "difference": pair["difference"]["ece_ew"], "ci": pair["ci"]["ece_ew"]}
                for pair in content.get("paired", [])
                if pair["a"] == "before"
            ],
        }
    write_text(RESULTS, json.dumps(dict(sorted(models.items())), indent=1) + "\n")


def packed(record: dict) -> dict:
    """Return what the page shows of a record."""
    calibration, curve = record["calibration"], record["reliability"]
    return {
        "name": record["name"],
        "images": record["images"],
        "figures": {key: round(calibration[key], 6) for key in FIGURES}
        | {key: round(record["segmentation"][key], 5) for key in SCORES},
        "ci": {
            key: [round(end, 6) for end in calibration["ci"][key]] for key in ("ece_ew", "oe_ew", "nll", "accuracy")
        },
        "reliability": {
            "count": curve["count"],
            "confidence": [None if v is None else round(v, 5) for v in curve["confidence"]],
            "accuracy": [None if v is None else round(v, 5) for v in curve["accuracy"]],
        },
    }


def blocks() -> dict[str, str]:
    """Return the page's tables by name."""
    models = json.loads(RESULTS.read_text(encoding="utf-8"))
    return {name: table(model["rows"]) for name, model in models.items()}


def table(rows: list[dict]) -> str:
    """Return a table of maps, with intervals in brackets."""
    lines = ["| maps | ECE | OE | NLL | accuracy | F max |", "|---|---:|---:|---:|---:|---:|"]
    for row in rows:
        cells = [interval(row, "ece_ew", 100, 2), interval(row, "oe_ew", 100, 2), interval(row, "nll", 1, 3)]
        cells += [interval(row, "accuracy", 100, 2), f"{row['figures']['f_max']:.3f}"]
        lines.append(f"| {row['name']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def interval(row: dict, key: str, factor: float, digits: int) -> str:
    """Return a figure and its interval."""
    low, high = (factor * end for end in row["ci"][key])
    return f"{factor * row['figures'][key]:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def page(text: str) -> str:
    """Return the page with new tables."""
    made = blocks()
    return BLOCK.sub(lambda match: match[1] + made[match[2]] + match[4], text)


def figure(name: str) -> Figure:
    """Draw how often a model is right at each confidence, before and after, and the ECE after every calibrator."""
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))[f"{name}-halves"]["rows"]
    before, temperature = (next(row for row in rows if row["name"] == key) for key in ("before", "temperature"))
    count = before["images"]
    drawn = Figure(figsize=(9.2, 3.5), layout="constrained")
    drawn.suptitle(f"{NAMES[name]} on {count} images of ECSSD; calibrators fitted on {count} others", fontsize=10)
    left, right = drawn.subplots(1, 2)
    left.plot([50, 100], [50, 100], ":", color=GREY)
    for row, label, colour in ((before, "as downloaded", RED), (temperature, "with a temperature", BLUE)):
        curve = row["reliability"]
        used = [i for i, pixels in enumerate(curve["count"]) if pixels]
        points = [[100 * curve[side][i] for i in used] for side in ("confidence", "accuracy")]
        left.plot(*points, "o-", color=colour, label=label, markersize=5)
    left.set(xlabel="confidence (%)", ylabel="pixels that are right (%)")
    left.legend(frameon=False, fontsize=9, loc="upper left")
    for position, row in enumerate(reversed(rows)):
        low, high = (100 * end for end in row["ci"]["ece_ew"])
        value, colour = 100 * row["figures"]["ece_ew"], RED if row is before else BLUE
        right.plot([low, high], [position, position], color=colour, linewidth=1.5)
        right.plot(value, position, "o", color=colour)
        right.annotate(f"{value:.2f} %", (value, position), (0, 6), textcoords="offset points", ha="center", fontsize=9)
    labels = ["as downloaded" if row is before else row["name"] for row in reversed(rows)]
    right.set(xlabel="ECE (%), with its 95 % interval", yticks=range(len(rows)), yticklabels=labels)
    right.set_xlim(left=0)
    right.set_ylim(-0.5, len(rows) - 0.4)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    return drawn


def scenes(folder: Path) -> Figure:
    """Draw the scenes on which the model is most over-confident, and its confidence where it is wrong."""
    calibrator = load_calibrator(folder / "cal.json")
    examples = []
    for path in sorted((folder / "scenes-maps").glob("*.png")):
        p = np.asarray(Image.open(path)) / 65535
        mask = np.asarray(Image.open(folder / "scenes/masks" / path.name)) > 0
        inside = np.clip(p, 1e-6, 1 - 1e-6)
        after = 1 / (1 + np.exp(-np.log(inside / (1 - inside)) / float(calibrator.temperature)))
        confidences = [np.maximum(q, 1 - q) for q in (p, after)]
        examples.append((confidences[0].mean() - ((p > 0.5) == mask).mean(), path.name, mask, p, confidences))
    examples.sort(key=lambda example: (-example[0], example[1]))
    drawn = Figure(figsize=(8.4, 1.9 * SHOWN_SCENES), layout="constrained")
    for axes, (_, name, mask, p, confidences) in zip(drawn.subplots(SHOWN_SCENES, 5), examples, strict=False):
        wrong = (p > 0.5) != mask
        pictures = [np.asarray(Image.open(folder / "scenes/images" / name)), mask, p > 0.5]
        pictures += [np.where(wrong, c, np.nan) for c in confidences]
        titles = ["scene", "truth", "U\N{SUPERSCRIPT TWO}-Netp's answer"]
        titles += [
            f"where wrong, {100 * c[wrong].mean():.0f} % sure\n{label}"
            for c, label in zip(confidences, ("as downloaded", "with a temperature"), strict=True)
        ]
        for column, (axis, picture, title) in enumerate(zip(axes, pictures, titles, strict=True)):
            axis.imshow(picture, cmap="gray" if column < 3 else "YlOrRd", vmin=0 if column < 3 else 0.5, vmax=1)
            axis.set_title(title, fontsize=8)
            axis.set(xticks=[], yticks=[], facecolor="#eeeeee")
    return drawn


def save(drawn: Figure, name: str) -> None:
    """Write a PNG with a palette."""
    path = DOCS / "images" / name
    drawn.savefig(path, dpi=110)
    Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)


def main(arguments: list[str]) -> None:
    """Do what the command line says."""
    if arguments[:1] == ["collect"]:
        collect(Path(arguments[1]))
    elif arguments[:1] == ["scenes"]:
        save(scenes(Path(arguments[1])), "published-scenes.png")
        return
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    for name in NAMES:
        save(figure(name), f"published-{name}.png")


if __name__ == "__main__":
    main(sys.argv[1:])
