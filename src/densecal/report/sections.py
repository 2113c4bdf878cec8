"""The parts of the page that need no script: summary, tables, controls and frames for the diagrams."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from densecal.evaluation.record import PairedDifference, Record
from densecal.report.runs import Run
from densecal.report.tables import COLUMNS, Column, best_values, by_dataset, used_columns

_TITLES = {
    "ece_ew": "expected calibration error, equal-width bins",
    "oe_ew": "over-confidence: the part of the ECE where confidence exceeds accuracy",
    "ece_em": "expected calibration error, equal-mass bins",
    "ece_sweep": "expected calibration error, monotone equal-mass bins",
    "ece_foreground": "expected calibration error of the foreground probability",
    "brier": "Brier score",
    "accuracy": "share of right pixels",
    "f_max": "best F over thresholds, maps stretched",
    "e_max": "best E over thresholds, maps stretched",
    "s_measure": "S-measure",
    "mae": "mean absolute error, maps stretched",
    "miou": "mean intersection over union",
}
_SUMMARY = ("ece_ew", "oe_ew", "brier", "accuracy", "f_max", "miou")
_PAIRED = ("ece_ew", "oe_ew", "brier", "accuracy")

text = html.escape


def section(name: str, title: str, *parts: str) -> str:
    """A part of the page with its heading."""
    return f'<section id="{name}" aria-labelledby="{name}-h"><h2 id="{name}-h">{title}</h2>{"".join(parts)}</section>'


def note(content: str) -> str:
    """A paragraph in a smaller voice; may hold markup."""
    return f'<p class="note">{content}</p>'


def summary_section(records: Sequence[Record], paired: Sequence[PairedDifference]) -> str:
    """The best of every data set with its interval, a diagram of all, and what is surely different."""
    cards = [_card(dataset, group) for dataset, group in by_dataset(list(records)).items()]
    options = {
        "ece_ew": "ECE", "oe_ew": "over-confidence", "ue_ew": "under-confidence", "brier": "Brier score", "nll": "NLL",
        "accuracy": "accuracy", "mean_confidence": "mean confidence", "ece_image_mean": "ECE, mean over images",
    }  # fmt: skip
    choices = "".join(f'<option value="{key}">{label}</option>' for key, label in options.items())
    figure = f'<div class="controls"><label>Figure <select id="forest-figure">{choices}</select></label></div>'
    return section(
        "summary", "Summary",
        note("★ marks the best of a data set. Intervals are 95 %, resampling images."),
        f'<div class="cards">{"".join(cards)}</div>',
        "<h3>Methods with their intervals</h3>", figure, '<figure id="forest"></figure>',
        _paired_table(paired),
    )  # fmt: skip


def choices_bar(records: Sequence[Record]) -> str:
    """Which data set and methods the diagrams show."""
    datasets = by_dataset(list(records))
    options = "".join(f'<option value="{text(dataset)}">{text(dataset)}</option>' for dataset in datasets)
    hidden = " hidden" if len(datasets) < 2 else ""
    return (
        f'<label{hidden}><span class="hidden">Data set of the diagrams</span>'
        f'<select id="dataset">{options}</select></label>'
        '<details id="pick"><summary>Methods</summary><fieldset id="shown"><legend>Methods in the diagrams</legend>'
        "</fieldset></details>"
    )


def methods_section(records: Sequence[Record]) -> str:
    """Every method on every data set, sortable."""
    columns = used_columns(list(records))
    heads = [_head("Method", "text"), _head("Data set", "text")]
    for column in columns:
        first = "ascending" if column.best is min else "descending"
        heads.append(_head(column.heading, "number", first, _TITLES.get(column.key, "")))
    heads.append(_head("Images", "number", "descending"))
    rows = []
    for dataset, group in by_dataset(list(records)).items():
        best = best_values(group, columns)
        for record in group:
            cells = [
                f'<th scope="row">{text(record.name)}</th>',
                f'<td class="text">{text(dataset)}</td>',
                *(_cell(record, column, best[column.key]) for column in columns),
                f'<td data-value="{int(record.images)}">{int(record.images):,}</td>',
            ]
            rows.append(f"<tr>{''.join(cells)}</tr>")
    table = f'<table class="sortable"><thead><tr>{"".join(heads)}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    return section(
        "methods", "Methods",
        note("Calibration and accuracy in per cent, F, E, S, MAE and mIoU as fractions; small: 95 % intervals. "
             "Press a heading to sort."),
        f'<div class="scroll" tabindex="0" role="group" aria-label="Table of methods">{table}</div>',
    )  # fmt: skip


def reliability_section(records: Sequence[Record]) -> str:
    """Frames of the reliability diagrams."""
    controls = ""
    if any(record.reliability.foreground is not None for record in records):
        controls = _radios(
            "kind", "Diagram of", {"all": "confidence, all pixels", "foreground": "foreground probability"}
        )
    key = (
        '<span class="key"><i class="right"></i>accuracy</span><span class="key"><i class="over"></i>more confident '
        'than right</span><span class="key"><i class="under"></i>less confident than right</span>'
    )
    return section(
        "reliability", "Reliability",
        note("A bar is the accuracy of the pixels with that confidence; on the dashed line the two are equal."),
        controls, note(key), '<div class="panels" id="reliability-panels"></div>',
    )  # fmt: skip


def image_section() -> str:
    """Frames of the joint diagrams and of the confidence histograms."""
    return section(
        "joint", "Images",
        note("Every image by its mean confidence and its accuracy; cells of a stronger colour hold more images, the "
             "cross is the mean. Below the dashed line the model is more confident than right."),
        '<div class="panels" id="joint-panels"></div>',
        "<h3>Confidence of right and wrong pixels</h3>", '<div class="panels" id="confidence-panels"></div>',
    )  # fmt: skip


def threshold_section() -> str:
    """The slider and what it moves."""
    pooling = _radios(
        "pooling", "Precision, recall and F",
        {"pooled": "raw maps, all pixels pooled", "mean": "maps stretched to 0 to 1, mean over images (as F max)"},
    )  # fmt: skip
    heads = ("Precision", "Recall", "F", "IoU", "Accuracy", "True +", "False +", "False &minus;", "True &minus;")
    table = (
        '<div class="scroll" tabindex="0" role="group" aria-label="Scores at the threshold"><table><thead><tr>'
        '<th class="text" scope="col">Method</th>'
        + "".join(f'<th scope="col">{head}</th>' for head in heads)
        + '</tr></thead><tbody id="threshold-rows"></tbody></table></div>'
    )
    confusion = (
        '<div class="scroll"><label>Pixels of <select id="confusion-of"></select></label>'
        '<table class="confusion"><thead><tr><td></td><th scope="col">said foreground</th>'
        '<th scope="col">said background</th></tr></thead><tbody>'
        '<tr><th scope="row">is foreground</th><td id="confusion-tp"></td><td id="confusion-fn"></td></tr>'
        '<tr><th scope="row">is background</th><td id="confusion-fp"></td><td id="confusion-tn"></td></tr>'
        "</tbody></table></div>"
    )
    curves = "".join(
        f'<figure class="panel" id="{name}"></figure>'
        for name in ("f-curve", "precision-recall", "precision-curve", "recall-curve")
    )
    return section(
        "threshold", "Threshold",
        note("A pixel is called foreground where its probability is above the threshold. F weighs precision "
             "(β² = 0.3). Counts, IoU and accuracy are of the raw maps, all pixels pooled."),
        '<div class="threshold-bar"><label for="threshold-at">Threshold</label>'
        '<input type="range" id="threshold-at" min="0" max="100" value="50" step="1">'
        '<output id="threshold-value" for="threshold-at">0.50</output></div>',
        pooling, table, f'<div class="beside">{confusion}</div>', f'<div class="panels pairs">{curves}</div>',
    )  # fmt: skip


def training_section(runs: Sequence[Run]) -> str:
    """The last line of every log, and frames of the curves."""
    rows = []
    for run in runs:
        last = run.log[-1]
        found = last["validation"]
        best = min(run.log, key=lambda line: _number(line["validation"].get("brier"), math.inf))
        cells = [
            f'<th scope="row">{text(run.name)}</th>', f"<td>{int(last['epoch'])}</td>",
            f"<td>{int(best['epoch'])}</td>", f"<td>{_fixed(last['loss'], 4)}</td>",
            *(f"<td>{_percent(found.get(key))}</td>" for key in ("ece_ew", "oe_ew", "brier", "accuracy")),
        ]  # fmt: skip
        rows.append(f"<tr>{''.join(cells)}</tr>")
    heads = ("Epochs", "Best epoch (Brier)", "Loss", "ECE", "OE", "Brier", "Accuracy")
    table = (
        '<div class="scroll" tabindex="0" role="group" aria-label="Table of runs"><table><thead><tr>'
        '<th class="text" scope="col">Run</th>'
        + "".join(f'<th scope="col">{head}</th>' for head in heads)
        + f"</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )
    return section(
        "training", "Training",
        note("Validation figures after the last epoch, in per cent, at the size the network sees."),
        table, '<div class="panels" id="training-charts"></div>',
    )  # fmt: skip


def alpha_section() -> str:
    """Frames of the histograms of alpha and of the images at their ends."""
    return section(
        "alpha", "Perturbation by image",
        note("How often the label of each training image was perturbed at the end of training (als: how strongly). It "
             "grows with the confidence of the model in that image."),
        '<div class="panels pairs" id="alpha-charts"></div>',
    )  # fmt: skip


def gallery_section() -> str:
    """Filters and frame of the gallery."""
    orders = {"gap": "most over-confident", "confidence": "most confident", "accuracy": "least accurate",
              "entropy": "highest entropy", "name": "name"}  # fmt: skip
    choices = "".join(f'<option value="{key}">{label}</option>' for key, label in orders.items())
    return section(
        "gallery", "Most over-confident images",
        note('Confidence <span class="ramp confidence" role="img" aria-label="dark is low, bright is high"></span> '
             'from a guess to 1, entropy <span class="ramp entropy" role="img" aria-label="dark is low, bright high">'
             "</span> from 0 to its maximum. Gap: mean confidence minus accuracy."),
        '<div class="controls" id="gallery-filters">'
        '<label class="field">Method<select id="gallery-method"><option value="">all</option></select></label>'
        '<label class="field">Data set<select id="gallery-dataset"><option value="">all</option></select></label>'
        f'<label class="field">Order<select id="gallery-order">{choices}</select></label>'
        '<label class="field">Name<input type="search" id="gallery-name" placeholder="part of a name"></label>'
        '<label class="field"><span>Gap of at least <output id="gallery-gap-value" for="gallery-gap"></output></span>'
        '<input type="range" id="gallery-gap" min="0" max="50" value="0" step="1"></label></div>',
        '<p class="note" id="gallery-count" role="status"></p><div id="gallery-cards"></div>'
        '<button id="gallery-more" type="button">Show more</button>',
    )  # fmt: skip


def outside_section(records: Sequence[Record]) -> str:
    """Figures out of distribution, and frames of the entropy histograms."""
    heads = ("Images", "ECE", "OE", "Accuracy", "Confidence", "AUROC", "FPR95")
    rows = []
    for record in records:
        for entry in record.ood:
            outside = entry.record
            figures = [outside.calibration.get(k) for k in ("ece_ew", "oe_ew", "accuracy", "mean_confidence")]
            cells = [
                f'<th scope="row">{text(record.name)}</th>', f'<td class="text">{text(entry.dataset)}</td>',
                f'<td class="text">{text(record.dataset)}</td>', f"<td>{int(outside.images):,}</td>",
                *(f"<td>{_percent(value)}</td>" for value in figures),
                f"<td>{_fixed(entry.auroc, 3)}</td>", f"<td>{_fixed(entry.fpr95, 3)}</td>",
            ]  # fmt: skip
            rows.append(f"<tr>{''.join(cells)}</tr>")
    table = (
        '<div class="scroll" tabindex="0" role="group" aria-label="Figures out of distribution"><table><thead><tr>'
        + "".join(f'<th class="text" scope="col">{head}</th>' for head in ("Method", "Out of distribution", "Against"))
        + "".join(f'<th scope="col">{head}</th>' for head in heads)
        + f"</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )
    return section(
        "ood", "Out of distribution",
        note("Images in which there is nothing to find. A model that knows this is unsure: its entropy is higher than "
             "on images like those of its training. AUROC and FPR95: how well an image's mean entropy tells the two."),
        table, '<div class="panels" id="ood-panels"></div>',
    )  # fmt: skip


def notes_section(records: Sequence[Record], notes: Sequence[str], commands: Sequence[str]) -> str:
    """Warnings, skipped files, and how to make the page again."""
    items = [text(line) for line in notes]
    for record in records:
        where = f"{record.name} on {record.dataset}"
        items += [text(f"{where}: {warning}") for warning in record.warnings]
        skipped = record.skipped
        if skipped:
            first = f"{skipped[0].file}: {skipped[0].reason}"
            items.append(text(f"{where}: {len(skipped)} files skipped, the first {first}"))
    parts = ["".join(f'<p class="warning">{item}</p>' for item in items)]
    if commands:
        parts.append(f"<h3>Make it again</h3><pre tabindex='0'><code>{text(chr(10).join(commands))}</code></pre>")
    return section("notes", "Notes", *parts)


def _card(dataset: str, group: list[Record]) -> str:
    """The best value of each important figure, and whose it is: of all that tie as shown, like the table's stars."""
    columns = [c for key in _SUMMARY for c in COLUMNS if c.key == key]
    columns = [c for c in columns if any(not math.isnan(c.value(record)) for record in group)]
    rows = []
    for column in columns:
        held = [record for record in group if not math.isnan(column.value(record))]
        best = column.text(column.best([column.value(record) for record in held]))
        star = "★ " if len(held) > 1 else ""
        unit = " %" if column.percent else ""
        names = ""
        for record in held:
            if column.text(column.value(record)) == best:
                interval = _interval(record, column)
                small = f"<small>{interval}</small>" if interval else ""
                names += f"<dd>{star}{text(record.name)}</dd><dd>{best}{unit}{small}</dd>"
        rows.append(f"<div><dt>{text(column.heading)}</dt>{names}</div>")
    images = max(int(record.images) for record in group)
    size = f"{len(group)} {'method' if len(group) == 1 else 'methods'}, {images:,} images"
    return f'<div class="fact"><h3>{text(dataset)}</h3>{note(size)}<dl>{"".join(rows)}</dl></div>'


def _paired_table(paired: Sequence[PairedDifference]) -> str:
    """Differences between methods; those whose interval leaves out 0 are marked."""
    rows = []
    for pair in paired:
        cells = ""
        for key in _PAIRED:
            low, high = pair.ci.get(key, (None, None))
            if low is None or high is None:
                cells += "<td>-</td>"
                continue
            sure = ' class="best"' if low > 0 or high < 0 else ""
            mark = '● <span class="hidden">sure </span>' if sure else ""
            value = f"{100 * pair.difference[key]:+.2f}"
            cells += f"<td{sure}>{mark}{value}<small>{100 * low:+.2f} to {100 * high:+.2f}</small></td>"
        names = f"{text(pair.a)} &minus; {text(pair.b)}"
        rows.append(f'<tr><th scope="row">{names}</th><td class="text">{text(pair.dataset)}</td>{cells}</tr>')
    if not rows:
        return ""
    heads = "".join(f'<th scope="col">{name}</th>' for name in ("ECE", "OE", "Brier", "Accuracy"))
    return (
        "<details><summary>Differences between methods on the same images</summary>"
        + note("First minus second, in points, with 95 % intervals. ● : the interval leaves out 0.")
        + '<div class="scroll" tabindex="0" role="group" aria-label="Differences"><table><thead><tr>'
        f'<th class="text" scope="col">Methods</th><th class="text" scope="col">Data set</th>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div></details>"
    )


def _head(label: str, kind: str, first: str = "ascending", title: str = "") -> str:
    hint = f' title="{text(title)}"' if title else ""
    return (
        f'<th scope="col" data-kind="{kind}" data-first="{first}"{hint}>'
        f'<button type="button">{text(label)}</button></th>'
    )


def _cell(record: Record, column: Column, best: float) -> str:
    value = column.value(record)
    shown = column.text(value)
    raw = "" if math.isnan(value) else repr(value)
    is_best = shown != "-" and shown == column.text(best)
    mark = '<span aria-hidden="true">★ </span><span class="hidden">best </span>' if is_best else ""
    interval = _interval(record, column)
    small = f"<small>{interval}</small>" if interval else ""
    return f'<td data-value="{raw}"{" class=best" if is_best else ""}>{mark}{shown}{small}</td>'


def _interval(record: Record, column: Column) -> str:
    intervals = record.calibration.ci if column.section == "calibration" else {}
    low, high = intervals.get(column.key, (None, None))
    return "" if low is None or high is None else f"{column.text(low)} &ndash; {column.text(high)}"


def _radios(name: str, legend: str, options: dict[str, str]) -> str:
    inputs = "".join(
        f'<label><input type="radio" name="{name}" value="{value}"{"" if i else " checked"}>{text(label)}</label>'
        for i, (value, label) in enumerate(options.items())
    )
    return f'<div class="controls"><fieldset id="{name}"><legend>{text(legend)}</legend>{inputs}</fieldset></div>'


def _number(value: float | None, missing: float) -> float:
    return missing if value is None else value


def _percent(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{100 * value:.2f}"


def _fixed(value: float | None, digits: int) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.{digits}f}"
