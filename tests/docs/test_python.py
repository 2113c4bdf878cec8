"""The Python of README.md and docs runs as it is printed, and prints the figures that the page beside it tells."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from densecal.metrics import sketch

ROOT = Path(__file__).parents[2]
ELSEWHERE = {
    "tutorial.md": "test_tutorial.py",
    "adding-a-model.md": "test_adding_a_model.py",
    "integrations.md": "test_integrations.py",
}
"""Pages whose code has tests of its own."""


def pages() -> list[Path]:
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in found if page.name not in ELSEWHERE]


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


BLOCKS = [
    pytest.param(block, id=f"{page.name}-{number}", marks=[pytest.mark.slow] if "2**25" in block else [])
    for page in pages()
    for number, block in enumerate(blocks(page))
]


def around() -> dict[str, Any]:
    """What the snippets take for granted: a small model, images with their masks and numbers, an optimizer."""
    torch.manual_seed(0)
    images = torch.rand(8, 3, 16, 16)
    masks = (images.mean(1, keepdim=True) + 0.2 * torch.randn(8, 1, 16, 16) > 0.5).float()
    index = torch.arange(8)
    model = nn.Conv2d(3, 1, 1)
    with torch.no_grad():  # right more often than wrong
        model.weight.fill_(4.0)
        model.bias.fill_(-6.0)

    def validate(model: nn.Module) -> SimpleNamespace:
        return SimpleNamespace(accuracy=float(((model(images) > 0) == (masks > 0.5)).float().mean()))

    def parts(*columns: Tensor) -> list[tuple[Tensor, ...]]:
        return list(zip(*(column.split(4) for column in columns), strict=True))

    paired = parts(images, masks)
    return {
        "model": model, "optimizer": torch.optim.SGD(model.parameters(), 0.1), "dataset": list(index), "epochs": 2,
        "loader": parts(images, masks, index), "validation": parts(images, masks, index), "validate": validate,
        "batches": parts(model(images).detach(), masks), "logits": model(images).detach(), "pairs": paired,
    }  # fmt: skip


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    monkeypatch.setattr(sketch, "EXACT_PIXELS", sketch.EXACT_PIXELS)  # a snippet changes it
    rng = np.random.default_rng(0)
    for folder in ("maps", "masks"):
        Path(folder).mkdir()
        for i in range(3):
            Image.fromarray(rng.integers(0, 256, (16, 16), dtype=np.uint8)).save(f"{folder}/{i}.png")
    package = Path("package/dist")  # a published network in pieces
    package.mkdir(parents=True)
    for piece in ("b2", "a1"):
        (package / piece).write_text(piece)
    pieces = [{"hash": "b2"}, {"hash": "a1"}]
    (package / "resources.json").write_text(json.dumps({"/models/medium": {"chunks": pieces}}))


@functools.cache
def printed(block: str) -> str:
    names = around()
    if "for images, masks in loader" in block:
        names["loader"] = names["pairs"]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(block, "a page's code", "exec"), names)
    return out.getvalue()


@pytest.mark.parametrize("block", BLOCKS)
def test_runs_as_printed(block: str) -> None:
    printed(block)


def test_the_pieces_of_a_published_network_are_joined_in_their_order() -> None:
    (block,) = (text for text in blocks(ROOT / "docs/published.md") if "resources.json" in text)
    exec(compile(block, "a page's code", "exec"), {})
    assert Path("isnet.onnx").read_text() == "b2a1"


def test_there_is_code_on_many_pages() -> None:
    assert len({block.id.split("-")[0] for block in BLOCKS}) > 5


def test_identities_of_the_method_hold_to_rounding() -> None:
    (block,) = (text for text in blocks(ROOT / "docs/method.md") if "binary_cross_entropy" in text)
    values = [float(value) for value in re.findall(r"tensor\((\S+?),", printed(block))]
    assert len(values) == 3
    assert max(map(abs, values)) < 1e-15


def test_alpha_moves_as_the_table_of_the_method_says() -> None:
    page = (ROOT / "docs/method.md").read_text(encoding="utf-8")
    (block,) = (text for text in blocks(ROOT / "docs/method.md") if "range(2000)" in text)
    lines = [line for line in printed(block).splitlines() if "[" in line]
    shown = [[float(v) for v in re.search(r"\[(.*)\]", line)[1].split(",")] for line in lines]
    for visit in range(4, 11):
        row = re.search(rf"^\| {visit} \| (.*) \|$", page, flags=re.MULTILINE)[1]
        assert [float(cell) for cell in row.split(" | ")] == [alpha[visit - 1] for alpha in shown]
    means = re.search(r"^\| mean of visits 1001-2000 \| (.*) \|$", page, flags=re.MULTILINE)[1]
    assert [float(cell) for cell in means.split(" | ")] == [float(line.split()[-1]) for line in lines]


def test_figures_of_the_metrics_page_are_what_its_code_prints() -> None:
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    fine, intervals = blocks(ROOT / "docs/metrics.md")[:2]
    differences = [float(line.split()[1]) for line in printed(fine).splitlines()]
    told = re.search(r"prints differences of ([\d.e, \-]+) and ([\d.e\-]+):", page)
    assert differences == pytest.approx([float(v) for v in [*told[1].split(","), told[2]]], rel=0.05)
    numbers = [float(v) for v in re.findall(r"\d\.\d+", printed(intervals))]
    told = re.search(r"It prints (\S+) with \((\S+), (\S+)\), and \((\S+), (\S+)\)", page)
    assert [round(v, 4) for v in numbers] == [float(v) for v in told.groups()]


@pytest.mark.slow
def test_rows_against_other_libraries_are_what_the_code_prints() -> None:
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    calibration, segmentation = blocks(ROOT / "docs/metrics.md")[2:]
    rows = {letter: re.search(rf"^\| {letter} \|.*$", page, flags=re.MULTILINE)[0] for letter in "ABCDEFGHI"}
    theirs_ours = [line.split() for line in printed(calibration).splitlines()]
    for letter, (theirs, ece, foreground) in zip("ABCDE", theirs_ours, strict=True):
        assert f"| ECE {theirs} |" in rows[letter]
        assert ece in rows[letter]
        assert foreground == ece or f"`ece_foreground` {foreground}" in rows[letter]
    raw, *both, corner = printed(segmentation).splitlines()
    assert "{'mae': np.float64(0.0)}" in raw
    assert "'mae': 0.0, 'iou': 0.0" in raw
    assert "| MAE 0.0 | `mae` 0.0 |" in rows["F"]
    assert "'binary': np.float64(1.0)" in raw
    assert "| IoU 1.0 | `iou` 0.0 |" in rows["G"]
    assert [round(float(line), 9) for line in both] == [0.4, 0.0]
    assert "`ece_ew` 0.4 raw, 0.0 after min-max" in rows["H"]
    assert "{'sm': np.float64(nan)}" in corner
    s_measure = float(re.search(r"'s_measure': ([\d.]+)", corner)[1])
    assert f"| S NaN | `s_measure` {s_measure:.4f} |" in rows["I"]
