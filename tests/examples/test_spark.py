"""examples/spark_evaluate.py writes the bytes of `densecal evaluate`, however Spark cuts the files."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.evaluation.test_folders import make_pair, to_levels
from tests.running import run

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install pyspark pandas pyarrow")

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark_evaluate.py"


@pytest.mark.slow
@pytest.mark.parametrize("rows", [3, 10000])
def test_spark_writes_the_bytes_of_one_call(tmp_path: Path, rows: int) -> None:
    for name in ("maps", "masks"):
        (tmp_path / name).mkdir()
    for i in range(50):
        p, y = make_pair(i, (20, 30))
        stem = f"im.{i:02} a"
        if i % 3 == 2:
            np.save(tmp_path / "maps" / f"{stem}.npy", p)
        else:
            Image.fromarray(to_levels(p, (np.uint8, np.uint16)[i % 3])).save(tmp_path / "maps" / f"{stem}.png")
        Image.fromarray(y).save(tmp_path / "masks" / f"{stem}.png")
    options = {"spark.ui.enabled": "false", "spark.master": "local[2]", "spark.driver.memory": "1g",
               "spark.sql.execution.arrow.maxRecordsPerBatch": rows, "spark.sql.shuffle.partitions": 4,
               "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}  # fmt: skip
    submit = " ".join(f"--conf {name}={value}" for name, value in options.items())
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_SUBMIT_ARGS": f"{submit} pyspark-shell",
                   "SPARK_LOCAL_IP": "127.0.0.1"}  # fmt: skip
    command = [sys.executable, EXAMPLE, tmp_path / "maps", tmp_path / "masks", tmp_path / "spark.json"]
    done = subprocess.run([*map(str, command)], env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    assert run("evaluate", tmp_path / "maps", tmp_path / "masks", "--json", tmp_path / "one.json")[0] == 0
    assert (tmp_path / "spark.json").read_bytes() == (tmp_path / "one.json").read_bytes()
