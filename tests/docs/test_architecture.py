"""The page on the architecture: its files exist, its walks go one way, and the published schema is that of the code."""

import json
import re
import tomllib
from itertools import groupby
from pathlib import Path

import pytest

from densecal.evaluation.schema import record_schema

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
WALKS = dict(re.findall(r"### `densecal (\w+)[^\n]*\n\n(.*?)\n\n(?=##)", PAGE, flags=re.DOTALL))


def layers() -> list[set[str]]:
    """Rooms by layer of the import contract, from the right to the left."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = [contract for contract in contracts if contract["type"] == "layers"]
    return [set(re.findall(r"\w+", layer)) for layer in contract["layers"]]


def test_there_is_a_walk_for_every_main_command():
    assert list(WALKS) == ["evaluate", "train", "predict", "calibrate", "benchmark", "reproduce"]


@pytest.mark.parametrize("command", WALKS)
def test_a_walk_goes_from_right_to_left_and_enters_a_room_once(command):
    files = re.findall(r"`(\w+/\w+\.py)`", WALKS[command])
    assert len(files) >= 5
    assert [file for file in files if not (ROOT / "src" / "densecal" / file).is_file()] == []
    rooms = [room for room, _ in groupby(file.split("/")[0] for file in files)]
    order = [next(i for i, layer in enumerate(layers()) if room in layer) for room in rooms]
    assert order == sorted(order), rooms
    assert len(set(rooms)) == len(rooms), rooms


def test_the_table_of_rooms_has_every_room_in_the_order_of_the_contract():
    table = PAGE.split("## The rooms")[1].split("##")[0]
    rows = [
        re.findall(r"`(\w+)(?:/|\.py)`", line.split("|")[1]) for line in table.splitlines() if line.startswith("| `")
    ]
    assert [set(row) for row in rows] == layers()[::-1]


def test_the_published_schema_is_that_of_the_code():
    published = json.loads((ROOT / "docs" / "record.schema.json").read_text(encoding="utf-8"))
    assert published == record_schema(), "run `python -m densecal.evaluation.schema > docs/record.schema.json`"
