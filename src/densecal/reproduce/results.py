"""The results behind an item: summaries of benchmarks and records of published maps."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path

from densecal.benchmark.plan import Plan
from densecal.benchmark.summary import Row, Summary, spread
from densecal.data import open_source
from densecal.evaluation.record import Record
from densecal.prediction.predictor import Predictor, load_predictor
from densecal.reproduce.comparison import Heading
from densecal.reproduce.datasets import SetFiles
from densecal.reproduce.items import Source
from densecal.training.samples import open_parts

_WARM_UP, _TIMED = 3, 30
"""Images predicted before the clock starts, and while it runs."""


class Results:
    """The results behind an item.

    Args:
        root: Folder of the scale.

    Attributes:
        data: Data sets of its columns that are present.
        summaries: Benchmarks by the name of their matrix.
        published: Records by network and data set.
        settings: The setting of every matrix, one line each.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.data: dict[str, SetFiles] = {}
        self.summaries: dict[str, Summary] = {}
        self.published: dict[tuple[str, str], Record] = {}
        self.settings: list[str] = []

    def row(self, source: Source, dataset: str) -> Row | None:
        """Return the row of a benchmark."""
        key = (source.label, source.calibrator, dataset)
        rows = self.summaries[source.matrix].rows if source.matrix in self.summaries else []
        return next((row for row in rows if (row.label, row.calibrator, row.dataset) == key), None)

    def record(self, title: str, source: Source, dataset: str) -> Record | None:
        """Return the record of a row of the item, under the title of that row."""
        if source.is_published:
            return self.published.get((source.label, dataset))
        row = self.row(source, dataset)
        return None if row is None else replace(next(iter(row.records.values())), name=title)

    def value(self, source: Source, column: Heading) -> float:
        """Return the figure of a row; NaN where there is none."""
        section, key = column.figure.section, column.figure.key
        if section == "time":
            return self._hours(source) if key == "hours" else self._images_per_second(source)
        if source.is_published:
            record = self.published.get((source.label, column.dataset))
            return math.nan if record is None or column.bins else record.figure(section, key)
        row = self.row(source, column.dataset)
        return math.nan if row is None else spread(row.values(section, key, column.bins).values())[0]

    def predictor(self, source: Source) -> Predictor | None:
        """Load the trained model of a row, if there is one."""
        if source.matrix not in self.summaries:
            return None
        cells = Plan(self.summaries[source.matrix].matrix, self.root / "runs" / source.matrix).untuned
        run = next(cell.run for cell in cells if cell.label == source.label)
        return load_predictor(run) if (run / "checkpoints").is_dir() else None

    def _hours(self, source: Source) -> float:
        """Return the time of the training steps, without validation: resuming does not change it."""
        predictor = self.predictor(source)
        if predictor is None:
            return math.nan
        images = len(open_parts(predictor.config.data)[0].names)
        (log,) = self.summaries[source.matrix].logs[source.label].values()
        return float(sum(images / line["images_per_second"] for line in log)) / 3600

    def _images_per_second(self, source: Source) -> float:
        """Time predictions of single images of the test sets, at their own size."""
        predictor = self.predictor(source)
        if predictor is None or not self.data:
            return math.nan
        files = next(iter(self.data.values()))
        images = open_source(files.images, files.masks)
        pictures = [images.image(name) for name in images.names[: _WARM_UP + _TIMED]]
        for picture in pictures[:_WARM_UP]:
            predictor.logits([picture])
        start = time.perf_counter()
        for picture in pictures:
            predictor.logits([picture])[0].sum().item()
        return len(pictures) / (time.perf_counter() - start)
