"""Evaluate maps with Spark: the files are read by Spark, scored where they are, and their sums merged in a tree.

    pip install pyspark pandas pyarrow
    python examples/spark_evaluate.py MAPS MASKS scores.json

`scores.json` has the bytes that `densecal evaluate MAPS MASKS --json scores.json` writes: sums are exact, so neither
the partitions nor their order change anything. Every node needs densecal; only the driver writes.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession, functions

from densecal.data.pairs import dataset_name
from densecal.evaluation.folders import compute, score_all
from densecal.evaluation.partial import Partial, merge_partials, pack_partial
from densecal.evaluation.record import to_file
from densecal.evaluation.worker import Settings
from densecal.io.atomic import write_json
from densecal.io.pairs import Pair
from densecal.runtime.progress import silent


def files(spark: SparkSession, folder: str, name: str) -> DataFrame:
    """Return the files of a folder by stem: suffix and content."""
    table = spark.read.format("binaryFile").load(folder)
    file = functions.element_at(functions.split("path", "/"), -1)
    stem, suffix = (
        functions.regexp_extract(file, r"^(.*?)(\.[^.]*)?$", 1),
        functions.regexp_extract(file, r"(\.[^.]*)$", 1),
    )
    return table.select(stem.alias("stem"), suffix.alias(f"{name}_suffix"), functions.col("content").alias(name))


def score(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Return the sums of the pairs of a batch, as the content of a `.sketch` file."""
    for batch in batches:
        with tempfile.TemporaryDirectory() as folder:
            pairs = [write_pair(Path(folder), row) for row in batch.itertuples()]
            total, _ = score_all(sorted(pairs, key=lambda pair: pair.stem), Settings(), 1, False, silent)
        yield pd.DataFrame({"part": [pack_partial(Partial("", "", total, ()))]})


def write_pair(folder: Path, row: Any) -> Pair:
    """Write a map and its mask into a folder."""
    map_file, mask_file = (folder / name / f"{row.stem}{suffix}"
                           for name, suffix in (("map", row.map_suffix), ("mask", row.mask_suffix)))  # fmt: skip
    for file, content in ((map_file, row.map), (mask_file, row.mask)):
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)
    return Pair(row.stem, map_file, mask_file)


def merge(a: bytes, b: bytes) -> bytes:
    """Return the sums of two parts."""
    return pack_partial(merge_all([a, b]))


def merge_all(parts: list[bytes]) -> Partial:
    """Return the sums of parts, as an object."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.sketch" for number in range(len(parts))]
        for path, content in zip(paths, parts, strict=True):
            path.write_bytes(content)
        return merge_partials(paths)


def main(maps: str, masks: str, out: str) -> None:
    """Evaluate a folder of maps against a folder of masks."""
    spark = SparkSession.builder.appName("densecal").getOrCreate()
    pairs = files(spark, maps, "map").join(files(spark, masks, "mask"), "stem")
    parts = pairs.mapInPandas(score, "part binary").rdd.map(lambda row: bytes(row.part))
    whole = merge_all([parts.treeReduce(merge)])
    named = Partial(PurePosixPath(maps).name, dataset_name(Path(masks)), whole.total, whole.skipped)
    write_json(Path(out), {"densecal": "evaluate"} | to_file([compute(named, maps, masks).record]))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:4])
