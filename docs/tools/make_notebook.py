"""Write docs/tutorial.ipynb, the notebook of docs/tutorial.md: `python docs/tools/make_notebook.py`."""

import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)


def notebook(page: str) -> dict[str, Any]:
    """Return a page as a notebook: its Python and shell blocks as cells of code, the text between as Markdown."""
    cells: list[dict[str, Any]] = []
    parts = BLOCK.split(page)
    for text, language, code in zip(parts[::3], [*parts[1::3], ""], [*parts[2::3], ""], strict=True):
        if text.strip():
            cells.append({"cell_type": "markdown", "metadata": {}, "source": lines(text)})
        if code:
            source = "".join(f"!{line}\n" for line in code.splitlines()) if language == "sh" else code
            blank = {"execution_count": None, "outputs": []}
            cells.append({"cell_type": "code", "metadata": {}, "source": lines(source), **blank})
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def lines(text: str) -> list[str]:
    """Return the lines as a notebook has them."""
    return text.strip("\n").splitlines(keepends=True)


if __name__ == "__main__":
    content = json.dumps(notebook((DOCS / "tutorial.md").read_text(encoding="utf-8")), indent=1, ensure_ascii=False)
    (DOCS / "tutorial.ipynb").write_text(content + "\n", encoding="utf-8")
