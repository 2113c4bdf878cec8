"""The page on the paper has a row for every item."""

import re
from pathlib import Path

from densecal.reproduce import load_items

PAGE = (Path(__file__).parents[2] / "docs" / "paper.md").read_text(encoding="utf-8")


def test_the_page_has_a_row_for_every_item_in_order():
    assert re.findall(r"^\| `([\w-]+)` \| (?!the paper's|the same rows|generated)", PAGE, re.MULTILINE) == list(
        load_items()
    )
