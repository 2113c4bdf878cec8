"""The page has no violation that axe-core finds, light and dark, on a desk and on a phone."""

import shutil
import subprocess
import tarfile

import pytest

from densecal.report.page import write_page
from tests.report.browser import CHROMIUM, Browser
from tests.report.material import small_page

AXE = "axe-core@4.14.0"
RUN = (
    "axe.run(document, {resultTypes: ['violations']}).then(result => "
    "result.violations.map(v => `${v.id}: ${v.nodes[0].html.slice(0, 200)}`))"
)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: install it (apt install chromium) to test the page"),
    pytest.mark.skipif(shutil.which("npm") is None, reason="no npm here, which fetches axe-core"),
]


@pytest.fixture(scope="module")
def axe(tmp_path_factory):
    folder = tmp_path_factory.mktemp("axe")
    done = subprocess.run(["npm", "pack", AXE], cwd=folder, capture_output=True, text=True, timeout=120)
    if done.returncode:
        pytest.skip(f"npm cannot reach its registry: {done.stderr.strip()[-200:]}")
    with tarfile.open(next(folder.glob("*.tgz"))) as archive:
        return archive.extractfile("package/axe.min.js").read().decode()


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    write_page(small_page(folder), folder / "report.html")
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser, folder / "report.html"
    browser.close()


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_no_violation(axe, opened, width, dark):
    browser, page = opened
    browser.open(page, width, 844, dark, timeout=90)
    browser.call("Runtime.evaluate", expression=axe)
    assert browser.run(RUN) == []
    broken = "document.querySelector('#whatif-at').removeAttribute('id')"  # a slider without its label
    browser.run(broken)
    assert any(violation.startswith("label") for violation in browser.run(RUN))
