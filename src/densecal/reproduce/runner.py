"""Running an item: find its data, run the cells it needs, evaluate published maps, compare with the paper."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from densecal.benchmark.matrix import REFERENCE, Matrix
from densecal.benchmark.plan import Plan
from densecal.benchmark.summary import summarise
from densecal.benchmark.workers import Watch, run_benchmark
from densecal.errors import InputError
from densecal.io.atomic import write_text
from densecal.io.outputs import check_outputs
from densecal.reproduce import datasets
from densecal.reproduce.agreement import agreement
from densecal.reproduce.comparison import Comparison, csv_text, latex_text, markdown_text
from densecal.reproduce.datasets import SetFiles
from densecal.reproduce.figures import draw
from densecal.reproduce.items import MAPS, Item, Scale, find_item, load_scale, load_settings
from densecal.reproduce.published import evaluate_maps, missing_maps
from densecal.reproduce.results import Results
from densecal.reproduce.scaled import describe_config, scaled_matrix, weights_file
from densecal.reproduce.smoke_data import write_data
from densecal.reproduce.tables import item_tables
from densecal.runtime.cores import cores

_MOST_JOBS = 4
_TABLES = ("table.md", "table.tex", "table.csv")


@dataclass(frozen=True)
class Outcome:
    """The outcome of running an item.

    Attributes:
        comparisons: Its tables.
        files: Everything that was written.
        missing: Data sets and maps that are missing, with where to obtain them and where they belong.
        failed: Cells without a result, and why.
    """

    comparisons: list[Comparison]
    files: list[Path]
    missing: list[str]
    failed: dict[str, str]


def reproduce(
    name: str, scale: Scale, data: Path, out: Path, watch: Watch | None = None, force: bool = False
) -> Outcome:
    """Run what an item needs and is not finished yet, and write its tables and figures.

    Cells are shared: a row that several items show is trained once per scale.

    Args:
        name: The item.
        scale: How much is run.
        data: Folder of the data sets; generated ones take its place at the scale ``smoke``.
        out: Folder of all items.
        watch: Called with every event of the benchmark.
        force: Replace tables and figures that this command did not write.

    Raises:
        InputError: There is no such item, a file of something else is in the way, or nothing of the item can be run
            with the data at hand.
    """
    item, folder = find_item(name), out.absolute() / scale / name
    targets = [(folder / file, Path(file).suffix[1:]) for file in _TABLES]
    check_outputs("reproduce", [*targets, *((file, "png") for file in (folder / "figures").glob("*.png"))], [], force)
    work = Workplace(scale, data.absolute(), out.absolute() / scale)
    work.check(name, item)
    results = work.run(item, watch)
    missing = work.missing(item, results)
    comparisons = item_tables(name, item, results)
    agreed = "" if scale is Scale.smoke else agreement(item, results, comparisons)
    head = [f"scale {scale}: {work.describe()}", *results.settings]
    notes = [note for note in (item.note, agreed and f"agreement: {agreed}", *missing) if note]
    comparisons = [Comparison(c.title, [*head, *c.head], c.columns, c.rows, notes) for c in comparisons]
    made_by = f"\nMade by `{_command(name, scale, data, out)}`.\n"
    contents = (f"<!-- densecal reproduce -->\n{markdown_text(comparisons)}{made_by}", latex_text(comparisons))
    texts = dict(zip(_TABLES, (*contents, csv_text(comparisons)), strict=True))
    if not any(comparison.rows for comparison in comparisons):
        texts = {}
    for file, text in texts.items():
        write_text(folder / file, text)
    drawn = draw(item, results, folder / "figures")
    failed = {task: why for summary in results.summaries.values() for task, why in summary.missing.items()}
    return Outcome(comparisons, [*(folder / file for file in texts), *drawn], missing, failed)


class Workplace:
    """Where an item is run: the data of its scale, and the folder of its results.

    Args:
        scale: How much is run.
        data: Folder of the data sets.
        root: Folder of the scale.
    """

    def __init__(self, scale: Scale, data: Path, root: Path) -> None:
        self.scale, self.data, self.root = scale, data, root
        self.settings = load_scale(scale)
        if scale is Scale.smoke:
            self.data = root / "data"
            write_data(self.data, self.settings)

    def find(self, dataset: str) -> SetFiles | None:
        """Return a data set as it is in the folder of data sets."""
        return datasets.find(dataset, self.data, self.root / "lists")

    def check(self, name: str, item: Item) -> None:
        """Refuse an item of which nothing can be run.

        Raises:
            InputError: Names the missing data sets, where to obtain them and where they belong.
        """
        sources = item.sources().values()
        trains = list(dict.fromkeys(load_settings(s.matrix).train for s in sources if not s.is_published))
        absent = [dataset for dataset in item.data if self.find(dataset) is None]
        if len(absent) < len(item.data):
            has_maps = any((self.data / MAPS / source.label).is_dir() for source in sources if source.is_published)
            if has_maps or not item.rows or any(self.find(train) is not None for train in trains):
                return
            absent = trains
        first, *others = (datasets.missing(dataset, self.data) for dataset in absent)
        more = f"; {', '.join(other.where for other in others)} are missing too" if others else ""
        raise InputError(f"reproduce {name}: {first.where}", first.found, first.expected + more)

    def run(self, item: Item, watch: Watch | None) -> Results:
        """Run the cells of an item and evaluate the maps it shows."""
        sources = item.sources().values()
        results = Results(self.root)
        results.data = {dataset: files for dataset in item.data if (files := self.find(dataset)) is not None}
        for name in dict.fromkeys(source.matrix for source in sources if not source.is_published):
            labels = {source.label for source in sources if source.matrix == name}
            matrix = self.matrix(name, labels)
            if matrix is not None:
                folder = self.root / "runs" / name
                run_benchmark(matrix, folder, self.jobs, watch)
                results.summaries[name] = summarise(matrix, folder, "")
                cells = [cell for cell in Plan(matrix, folder).untuned if cell.label == REFERENCE]
                results.settings.append(f"{name}: {describe_config(cells[0].config)}")
        for source in sources:
            for dataset in item.data if source.is_published else ():
                if dataset in results.data:
                    record = evaluate_maps(source.label, dataset, results.data[dataset], self.data, self.root)
                    if record is not None:
                        results.published[source.label, dataset] = record
        return results

    def matrix(self, name: str, labels: set[str]) -> Matrix | None:
        """Return the matrix of some rows on the data at hand; ``None`` without images to train on."""
        settings = load_settings(name)
        train = self.copy(settings.train, self.settings.train)
        if train is None:
            return None
        tests = {dataset: self.copy(dataset, self.settings.test) for dataset in settings.tests}
        cache = None if self.scale is Scale.full else self.root / "packed" / name
        present = {dataset: files for dataset, files in tests.items() if files is not None}
        weights = weights_file(settings, self.data)
        own = weights if self.scale is Scale.full and weights.is_file() else None
        return scaled_matrix(settings, self.scale, labels, train, present, cache, own)

    def copy(self, dataset: str, count: int | None) -> SetFiles | None:
        """Return a data set at the scale: the set itself, or a copy of fewer and smaller images."""
        files = self.find(dataset)
        if files is None or self.scale is not Scale.cpu:
            return files
        assert count is not None
        assert self.settings.side is not None
        return datasets.thin(files, dataset, self.root / "data", count, self.settings.side)

    @property
    def jobs(self) -> int:
        """Number of processes: small networks on a CPU are faster side by side, one core each."""
        return min(cores(), _MOST_JOBS) if self.scale is Scale.cpu else 1

    def missing(self, item: Item, results: Results) -> list[str]:
        """Return a line for every data set and every network's maps that the item shows and that are missing."""
        sources = item.sources().values()
        matrices = dict.fromkeys(source.matrix for source in sources if not source.is_published)
        names = [*(load_settings(matrix).train for matrix in matrices), *item.data]
        lines = [str(datasets.missing(name, self.data)) for name in dict.fromkeys(names) if self.find(name) is None]
        if datasets.TEXTURES in results.data:
            lines += datasets.missing_textures(results.data[datasets.TEXTURES], self.data)
        networks = dict.fromkeys(source.label for source in sources if source.is_published)
        present = {network for network, _ in results.published}
        absent = [network for network in networks if network not in present]
        return lines + ([missing_maps(absent, self.data)] if absent else [])

    def describe(self) -> str:
        """Return what the scale changes in the data."""
        if self.scale is Scale.full:
            return "the paper's setting"
        kind = "generated scenes" if self.scale is Scale.smoke else "evenly chosen images"
        scale = self.settings
        return (
            f"at most {scale.train} {kind} to train and validate on, {scale.test} of each test set, "
            f"none longer than {scale.side} pixels; published maps on whole sets"
        )


def _command(name: str, scale: Scale, data: Path, out: Path) -> str:
    return shlex.join(["densecal", "reproduce", name, "--scale", scale, "--data", str(data), "--out", str(out)])
