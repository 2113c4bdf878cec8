"""Write the tables and plots of the pages with results: `python docs/tools/make_results.py`.

They are made from docs/results/NAME.jsonl, one packed benchmark each. A benchmark that was run in docs/results/NAME is
packed first. `--unpack NAME` lays a packed one out there, so that the cells that are missing can be run. A table stands
between `<!-- made: NAME -->` and `<!-- end -->`; everything else of a page is written by hand.

`--keep OUT` first adds the cells that `densecal reproduce --out OUT` has finished to docs/results/paper-*.jsonl.
`--lay-out OUT --scale SCALE --data DATA` puts the kept cells into OUT, where `densecal reproduce ITEM --scale SCALE
--data DATA --out OUT` then runs the others alone.
"""

import argparse
import contextlib
import functools
import io
import itertools
import json
import re
import statistics
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from matplotlib import colormaps
from matplotlib.figure import Figure
from PIL import Image

from densecal.benchmark.matrix import load_matrix
from densecal.benchmark.packed import pack, unpack
from densecal.benchmark.studies import convergence, sweeps
from densecal.benchmark.summary import Summary, results, summarise
from densecal.io.atomic import round_floats
from densecal.report.benchmark_figures import convergence_figure, sweep_figure
from densecal.report.figures import CYCLE, GREY
from densecal.reproduce.items import Scale, load_settings
from densecal.reproduce.kept import file_of, keep, labels_of, lay_out, light
from densecal.reproduce.runner import Workplace

sys.path.insert(0, str(Path(__file__).parent))
import paper_results

DOCS = Path(__file__).parents[1]
RESULTS = DOCS / "results"
PAGES = [DOCS / "results.md", DOCS / "results-appendix.md", DOCS / "paper.md", DOCS.parent / "README.md"]
BLOCK = re.compile(r"(<!-- made: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
TEMPERATURE = "temperature"
RECOMMENDED = "| bce + informationless + ema + temperature "


class Column(NamedTuple):
    """A figure of a data set, shown times a factor: 100 for per cent."""

    title: str
    dataset: str
    key: str
    factor: int = 100
    digits: int = 2


DUTS = [
    Column("validation ECE", "validation", "ece_ew"),
    Column("ECSSD ECE", "ECSSD", "ece_ew"),
    Column("ECSSD ECE, equal mass", "ECSSD", "ece_em"),
    Column("ECSSD OE", "ECSSD", "oe_ew"),
    Column("ECSSD NLL", "ECSSD", "nll", 1, 3),
    Column("ECSSD F max", "ECSSD", "f_max", 1, 4),
    Column("textures ECE", "textures", "ece_ew"),
    Column("textures accuracy", "textures", "accuracy", 100, 1),
]
SHORT = [DUTS[i] for i in (0, 1, 3, 5, 6)]
AWAY = [
    Column("validation ECE", "validation", "ece_ew"),
    Column("validation NLL", "validation", "nll", 1, 4),
    Column("informationless ECE", "informationless", "ece_ew"),
    Column("informationless NLL", "informationless", "nll", 1, 4),
    Column("ECSSD ECE", "ECSSD", "ece_ew"),
    Column("ECSSD F max", "ECSSD", "f_max", 1, 4),
    Column("textures ECE", "textures", "ece_ew"),
]
CAMVID = [
    Column("held-out ECE", "validation", "ece_ew"),
    Column("test ECE", "CamVid", "ece_ew"),
    Column("test OE", "CamVid", "oe_ew"),
    Column("test NLL", "CamVid", "nll", 1, 3),
    Column("test accuracy", "CamVid", "accuracy", 100, 1),
    Column("test mIoU", "CamVid", "miou", 100, 1),
]

BOTH = [
    Column("held-out ECE", "held-out", "ece_ew"),
    Column("held-out NLL", "held-out", "nll", 1, 3),
    Column("held-out F max", "held-out", "f_max", 1, 3),
    Column("informationless ECE", "informationless", "ece_ew"),
    Column("informationless OE", "informationless", "oe_ew"),
]
BAND = [
    Column("held-out ECE", "held-out", "ece_ew"),
    Column("ECE, equal mass", "held-out", "ece_em"),
    Column("OE", "held-out", "oe_ew"),
    Column("NLL", "held-out", "nll", 1, 3),
    Column("F max", "held-out", "f_max", 1, 3),
]


STUDY = [
    Column("validation ECE", "validation", "ece_ew"),
    Column("validation OE", "validation", "oe_ew"),
    Column("validation NLL", "validation", "nll", 1, 4),
    Column("validation F max", "validation", "f_max", 1, 4),
    Column("ECSSD ECE", "ECSSD", "ece_ew"),
    Column("ECSSD NLL", "ECSSD", "nll", 1, 3),
    Column("ECSSD F max", "ECSSD", "f_max", 1, 4),
]


@functools.cache
def summary_of(name: str) -> Summary:
    """A packed benchmark."""
    matrix = RESULTS / f"{name}.yaml"
    if not matrix.is_file():  # a study whose matrix is an example
        matrix = DOCS.parent / "examples" / f"{name.replace('-', '_')}.yaml"
    # the paths of a matrix begin at the root of the repository
    with contextlib.chdir(DOCS.parent), tempfile.TemporaryDirectory() as folder:
        unpack(RESULTS / f"{name}.jsonl", Path(folder))
        return summarise(load_matrix(matrix), Path(folder), "")


@functools.cache
def rows_of(name: str) -> list[dict]:
    """The rows of a benchmark, from the results of its cells."""
    return round_floats(results(summary_of(name))["rows"])


def seeds_of(rows: list[dict], label: str, calibrator: str, dataset: str, key: str, reference: str = "") -> list[float]:
    """Return a figure of every seed of a row; an ensemble has one."""
    wanted = (label, calibrator, dataset, reference)
    for row in rows:
        if (row["label"], row["calibrator"], row["dataset"], row["reference"]) == wanted:
            return list(row["figures"][key]["seeds"].values())
    return []


def rows_of_prototype() -> list[dict]:
    """The rows of the study of regions, whose method is no longer in the code."""
    rows = json.loads((RESULTS / "study-regions.json").read_text(encoding="utf-8"))
    for row in rows:
        seeds = {key: {"seeds": dict(enumerate(values))} for key, values in row["figures"].items()}
        row |= {"reference": "", "figures": seeds}
    return rows


def table(rows: list[dict], columns: list[Column], prefix: str = "", reference: str = "") -> list[str]:
    """Return one line per method, without and with a temperature: mean and, for several seeds, standard deviation."""
    labels = list(dict.fromkeys(row["label"] for row in rows))
    lines = []
    for calibrator in ("none", TEMPERATURE):
        for label in labels:
            cells = [seeds_of(rows, label, calibrator, c.dataset, c.key, reference) for c in columns]
            if cells[0]:
                name = prefix + label + (f", {reference}" if reference else "")
                name += f" + {calibrator}" if calibrator != "none" else ""
                shown = [_shown(values, column) for values, column in zip(cells, columns, strict=True)]
                lines.append(f"| {name} | {len(cells[0])} | {' | '.join(shown)} |")
    return lines


def with_head(columns: list[Column], lines: list[str]) -> str:
    """Return a complete Markdown table."""
    head = f"| method | seeds | {' | '.join(column.title for column in columns)} |"
    return "\n".join([head, "|---|" + "---:|" * (len(columns) + 1), *lines]) + "\n"


def _shown(values: list[float], column: Column) -> str:
    values = [column.factor * value for value in values]
    mean = f"{statistics.fmean(values):.{column.digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.{column.digits}f}"


def log_of(name: str, label: str, seed: int) -> list[dict]:
    """The log of a benchmark's run, one line per epoch."""
    return summary_of(name).logs[label][seed]


def products() -> str:
    """Return the table of the mean confidence of ASLP_MC on validation images, predicted and measured."""
    lines = ["| run | accuracy | clean labels: C0 | labels: L | predicted | measured |", "|---|" + "---:|" * 5]
    runs = {"duts": (1, 2), "camvid": (0, 1, 2), "camvid-long": (0, 1), "camvid-small": (0, 1, 2)}
    for name, seeds in runs.items():
        classes = 2 if name == "duts" else 11
        for seed in seeds:
            clean, run = (log_of(name, method, seed)[-1] for method in ("bce", "aslp-mc"))
            C0, L = clean["validation"]["mean_confidence"], run["method"]["expected_confidence"]
            predicted = L * C0 + (1 - L) * (1 - C0) / (classes - 1)
            shown = [run["validation"]["accuracy"], C0, L, predicted, run["validation"]["mean_confidence"]]
            lines.append(f"| {name}, seed {seed} | {' | '.join(f'{100 * value:.1f}' for value in shown)} |")
    return "\n".join(lines) + "\n"


def lambdas() -> str:
    """Return the table of what lambda does to labels and network, from the study of the rule on generated scenes."""
    names = ["lambda", "multiplier mu", "labels: L, last 8 epochs", "accuracy", "confidence", "held-out ECE"]
    lines = [f"| {' | '.join(names)} |", "|" + "---:|" * len(names)]
    rows = rows_of("study-rule")
    for lam in (10, 100, 400, 2000):
        logs = [log_of("study-rule", f"lambda lam={lam}", seed) for seed in (0, 1)]
        ends = [log[-1] for log in logs]
        by_seed = [
            [statistics.fmean(line["method"]["expected_confidence"] for line in log[-8:]) for log in logs],
            [end["validation"]["accuracy"] for end in ends],
            [end["validation"]["mean_confidence"] for end in ends],
        ]
        ece = statistics.fmean(seeds_of(rows, f"lambda lam={lam}", "none", "held-out", "ece_ew"))
        shown = [" / ".join(f"{100 * value:.1f}" for value in values) for values in by_seed]
        lines.append(f"| {lam} | {ends[0]['method']['multiplier']:.2g} | {' | '.join(shown)} | {100 * ece:.1f} |")
    return "\n".join(lines) + "\n"


def start() -> str:
    """Return the table of what a share of the initial weights does."""
    columns = [f"{data} {key}" for key in ("ece_ew", "nll") for data in ("validation", "informationless")]
    names = ["share", "temperature", "validation ECE", "informationless ECE", "validation NLL", "informationless NLL"]
    lines = [f"| {' | '.join(names)} | sum |", "|" + "---:|" * (len(names) + 1)]
    for row in json.loads((RESULTS / "study-start.json").read_text())["rows"]:
        ece, nll = [100 * row[name] for name in columns[:2]], [row[name] for name in columns[2:]]
        shown = [f"{row['temperature']:.2f}", *(f"{x:.2f}" for x in ece), *(f"{x:.4f}" for x in [*nll, sum(nll)])]
        lines.append(f"| {100 * row['share']:.0f} % | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def blocks() -> dict[str, str]:
    """Return all tables by name."""
    networks = [
        line
        for name, folder in (("EDN", "edn"), ("ICON", "icon"), ("EBMGSOD", "ebmgsod"))
        for line in table(rows_of(folder), DUTS, f"{name}, ")
    ]
    short = [row for row in table(rows_of("duts"), SHORT) if TEMPERATURE not in row or row.startswith("| bce ")]
    both = [row for row in table(rows_of("away"), SHORT) if row.startswith(RECOMMENDED)]
    scenes = rows_of("study-both")
    both_on_scenes = table(scenes, BOTH) + table(scenes, BOTH, reference="ensemble")
    return {
        "short": with_head(SHORT, short + both),
        "duts": with_head(DUTS, table(rows_of("duts"), DUTS)),
        "away": with_head(AWAY, table(rows_of("away"), AWAY) + table(rows_of("away"), AWAY, reference="ensemble")),
        "networks": with_head(DUTS, networks),
        "duts-small": with_head(DUTS, table(rows_of("duts-small"), DUTS)),
        "products": products(),
        "lambdas": lambdas(),
        "start": start(),
        "camvid": with_head(CAMVID, table(rows_of("camvid"), CAMVID)),
        "both": with_head(BOTH, both_on_scenes),
        "band": with_head(BAND, table(rows_of("study-band"), BAND)),
        "dice": with_head(STUDY, table(rows_of("dice"), STUDY)),
        "regions": with_head(STUDY, table(rows_of_prototype(), STUDY)),
        "camvid-long": with_head(CAMVID, table(rows_of("camvid-long"), CAMVID)),
        "camvid-small": with_head(CAMVID, table(rows_of("camvid-small"), CAMVID)),
        "duts-more": with_head(DUTS, table(rows_of("duts-more"), DUTS)),
        **paper_results.blocks(),
    }


def page(text: str) -> str:
    """Return the page with new tables."""
    made = blocks()
    return BLOCK.sub(lambda match: match[1] + made[match[2]] + match[3], text)


def scatter() -> Figure:
    """Plot ECE on ECSSD against ECE on textures: circles for methods as they are, squares with a temperature."""
    figure = Figure(figsize=(9.5, 8.5), layout="constrained")
    axis = figure.subplots()
    numbers = itertools.count(1)
    candidates = rows_of("away")
    colours = [*CYCLE, GREY, "#8c564b", *colormaps["Dark2"].colors, *colormaps["tab10"].colors]
    for rows in (rows_of("duts") + rows_of("duts-more"), candidates):
        labels = dict.fromkeys((row["label"], row["reference"]) for row in rows)
        for (label, reference), colour in zip(labels, itertools.cycle(colours), strict=False):
            style = {"color": colour, "markersize": 7, "markeredgewidth": 2}
            style |= {"markerfacecolor": "white"} if rows is candidates else {}
            points, number = [], next(numbers)
            name = f"{number}  {label}" + (f", {reference}" if reference else "")
            for calibrator, marker in (("none", "o"), (TEMPERATURE, "s")):
                photographs, textures = (
                    100 * statistics.fmean(seeds_of(rows, label, calibrator, dataset, "ece_ew", reference))
                    for dataset in ("ECSSD", "textures")
                )
                points.append((photographs, textures))
                axis.plot(photographs, textures, marker, label=name if marker == "o" else None, **style)
                axis.annotate(str(number), (photographs, textures), (5, 4), textcoords="offset points", fontsize=7)
            axis.annotate("", points[1], points[0], arrowprops={"arrowstyle": "->", "color": colour}, zorder=0)
    photographs = 100 * statistics.fmean(seeds_of(rows_of("duts"), "bce", TEMPERATURE, "ECSSD", "ece_ew"))
    textures = 100 * statistics.fmean(seeds_of(rows_of("duts"), "aslp-mc", "none", "textures", "ece_ew"))
    lowest = 0.05
    axis.fill_between([lowest, photographs], 0, textures, color=GREY, alpha=0.2, linewidth=0)
    axis.set(xlabel="in distribution: ECE on ECSSD, %", ylabel="out of distribution: ECE on textures, %", ylim=(0, 15))
    axis.set(xscale="log", xlim=(lowest, 13), xticks=[0.1, 0.2, 0.5, 1, 2, 5, 10])
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter("")
    figure.legend(frameon=False, fontsize=8, loc="outside lower center", ncols=3)
    return figure


def trajectory() -> Figure:
    """The closed loop at work: its level, the gap that drives it and the error, over the epochs of a run."""
    lines = log_of("away", "aslp-cl + informationless", 0)
    curves = {
        "level: 1 - C": [100 * (1 - line["method"]["bound"]) for line in lines],
        "smoothed gap: confidence - accuracy": [100 * line["method"]["gap"] for line in lines],
        "validation ECE": [100 * line["validation"]["ece_ew"] for line in lines],
    }
    figure = Figure(figsize=(7.5, 3.4), layout="constrained")
    axis = figure.subplots()
    for (label, values), colour, marker in zip(curves.items(), CYCLE, "os^", strict=False):
        axis.plot([line["epoch"] for line in lines], values, f"{marker}-", color=colour, label=label)
    axis.axhline(0, color=GREY, linewidth=1)
    axis.set(xlabel="epoch", ylabel="%")
    axis.legend(frameon=False, fontsize=8)
    return figure


def study_figures() -> dict[str, Figure]:
    """The figures over settings of the studies on generated scenes, by name."""
    figures = {}
    for name in ("study-slp", "study-rule"):
        summary = summary_of(name)
        for sweep in sweeps(summary):
            figures[f"sweep-{sweep.method}-{sweep.key}"] = sweep_figure(summary, sweep, summary.bins)
    paths = convergence(summary_of("study-rule"))
    if paths:  # the logs of the runs that the committed figure shows were not kept
        figures["convergence"] = convergence_figure(paths)
    return figures


def save(figure: Figure, name: str, dpi: int) -> None:
    """Write a PNG with a palette, which takes a quarter of the bytes."""
    content = io.BytesIO()
    figure.savefig(content, dpi=dpi)
    palette = Image.open(content).convert("RGB").quantize(64)
    palette.save(DOCS / "images" / f"{name}.png", optimize=True)


def keep_cells(out: Path) -> None:
    """Add the cells that `densecal reproduce` has finished to the kept ones."""
    for scale in paper_results.SCALES:
        for folder in sorted((out / scale / "runs").glob("*")):
            keep(folder, file_of(folder.name, scale, RESULTS))


def lay_out_cells(out: Path, scale: Scale, data: Path) -> None:
    """Put the kept cells of a scale where `densecal reproduce` looks for them."""
    work = Workplace(scale, data.absolute(), out.absolute() / scale)
    for file in sorted(RESULTS.glob(f"paper-{scale}-*.jsonl")):
        name = file.stem.removeprefix(f"paper-{scale}-")
        matrix = work.matrix(name, labels_of(load_settings(name)))
        if matrix is not None:
            print(name, *lay_out(file, matrix, work.root / "runs" / name), sep="\n  ")


def main() -> None:
    """Pack what was run, and write the pages and the plots."""
    for folder in sorted(path for path in RESULTS.iterdir() if path.is_dir()):
        pack(folder, RESULTS / f"{folder.name}.jsonl", light)
    for path in PAGES:
        path.write_text(page(path.read_text(encoding="utf-8")), encoding="utf-8")
    save(scatter(), "home-away", dpi=100)
    save(trajectory(), "closed-loop", dpi=100)
    for name, figure in study_figures().items():
        save(figure, name, dpi=150)
    for name, figure in paper_results.figures().items():
        save(figure, name, dpi=90)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--unpack", metavar="NAME", help="lay out docs/results/NAME.jsonl as a folder, and do no more")
    parser.add_argument("--keep", metavar="OUT", type=Path, help="first keep the cells of densecal reproduce --out OUT")
    parser.add_argument("--lay-out", metavar="OUT", type=Path, help="put the kept cells into OUT, and do no more")
    parser.add_argument("--scale", type=Scale, default=Scale.cpu, help="the scale of --lay-out")
    parser.add_argument("--data", type=Path, default=Path("data"), help="the folder of data sets of --lay-out")
    options = parser.parse_args()
    if options.unpack:
        unpack(RESULTS / f"{options.unpack}.jsonl", RESULTS / options.unpack)
    elif options.lay_out:
        lay_out_cells(options.lay_out, options.scale, options.data)
    else:
        if options.keep:
            keep_cells(options.keep)
        main()
