"""The page of published models: its tables and pictures are those of the kept figures, and its downloads work."""

import importlib.util
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.running import run

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/published.md"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("make_published", ROOT / "docs/tools/make_published.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_holds_the_kept_figures(tool):
    text = PAGE.read_text(encoding="utf-8")
    assert {match[2] for match in tool.BLOCK.finditer(text)} == set(tool.blocks())
    assert tool.page(text) == text


@pytest.mark.parametrize("name", ["u2netp", "isnet"])
def test_the_pictures_are_drawn_from_the_kept_figures(tool, name):
    drawn = tool.figure(name)
    assert tool.NAMES[name] in drawn.get_suptitle()
    assert f"images/published-{name}.png" in PAGE.read_text(encoding="utf-8")
    values = [text.get_text() for text in drawn.axes[1].texts]
    rows = tool.json.loads(tool.RESULTS.read_text(encoding="utf-8"))[f"{name}-halves"]["rows"]
    assert values == [f"{100 * row['figures']['ece_ew']:.2f} %" for row in reversed(rows)]


def test_the_errors_of_the_readme_are_those_of_the_pages():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.*?) \| ([\d.]+) \| ([\d.]+) \| .*\|$", readme, flags=re.MULTILINE)
    assert len(rows) == 5
    pages = [PAGE.read_text(encoding="utf-8")]
    pages += [(ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("results.md", "choosing.md")]
    for name, *figures in rows:
        for figure in figures:
            assert any(re.search(rf"(?<![\d.]){re.escape(figure)}(?!\d)", page) for page in pages), (name, figure)


@pytest.mark.network
@pytest.mark.slow
def test_the_commands_of_the_page_fetch_and_run_the_networks(tmp_path, monkeypatch):
    if shutil.which("npm") is None:
        pytest.skip("no npm here")
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    commands = re.findall(r"^(?:npm|tar) .*$", text, flags=re.MULTILINE)
    assert len(commands) == 4
    for command in commands:
        done = subprocess.run(shlex.split(command), capture_output=True, text=True, timeout=120)
        if done.returncode:
            pytest.skip(f"npm cannot reach its registry: {done.stderr.strip()[-200:]}")
    y, x = np.mgrid[:120, :160]
    disc = (x - 80) ** 2 + (y - 60) ** 2 < 40**2
    (tmp_path / "photos").mkdir()
    Image.fromarray(np.where(disc[..., None], (200, 40, 30), (110, 130, 120)).astype(np.uint8)).save("photos/disc.png")
    code_blocks = re.findall(r"^```python\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    (join,) = (block for block in code_blocks if "resources.json" in block)
    exec(compile(join, "the page's code", "exec"), {})
    for network, preset in (("u2netp.onnx", "u2net"), ("isnet.onnx", "isnet")):
        code, _, errors = run("predict", network, "photos", "--preprocess", preset, "--out", preset)
        assert code == 0, errors
        p = np.asarray(Image.open(f"{preset}/disc.png")) / 65535
        assert p[disc].mean() > 0.95
        assert p[~disc].mean() < 0.05
