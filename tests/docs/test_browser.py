"""The site, opened from the disk in a real browser: typing finds pages, and nothing is fetched from elsewhere."""

import json
import subprocess
import sys
import time

import pytest

from tests.docs.test_site import ROOT
from tests.report.browser import CHROMIUM, Browser

PAGES = ("index.html", "published.html", "howto/downloaded-model.html", "choosing.html", "results.html")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: install it (apt install chromium) to test the site"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--config-file", "mkdocs.yml", "--site-dir", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


def wait_for(browser, expression):
    """Return the value of an expression once it is true."""
    end = time.monotonic() + 60
    while not (value := browser.run(expression)):
        assert time.monotonic() < end, expression
        time.sleep(0.05)
    return value


def show(browser, page, width, scheme="light"):
    browser.complaints.clear()
    browser.requests.clear()
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.call("Emulation.setDeviceMetricsOverride", **size)
    browser.call("Page.navigate", url=page.as_uri())
    wait_for(browser, f"location.href.startsWith({json.dumps(page.as_uri())}) && document.readyState === 'complete'")


@pytest.mark.parametrize(("page", "width"), [("index.html", 1280), ("howto/downloaded-model.html", 390)])
def test_typing_in_the_search_finds_pages(browser, site, page, width):
    show(browser, site / page, width)
    browser.point("label[for=__search]" if width < 960 else "input.md-search__input", click=True)
    wait_for(browser, "document.activeElement.matches('input.md-search__input')")
    for letter in "isotonic":
        browser.press(letter)
    links = "[...document.querySelectorAll('.md-search-result__item a')].map(link => link.href)"
    wait_for(browser, f"{links}.length > 2")
    assert "matching" in browser.run("document.querySelector('.md-search-result__meta').textContent")
    found = {link.split("?")[0].split("#")[0] for link in browser.run(links)}
    assert (site / "calibrators.html").as_uri() in found
    assert all((site / link.removeprefix(f"{site.as_uri()}/")).is_file() for link in found)
    for letter in "xyz":
        browser.press(letter)
    wait_for(browser, "document.querySelector('.md-search-result__meta').textContent.includes('No matching')")
    assert browser.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_fit_show_every_picture_and_need_no_network(browser, site, width, scheme):
    show(browser, site / PAGES[0], width, scheme)
    browser.run("localStorage.clear()")  # the page remembers the scheme of the first visit
    for page in PAGES:
        show(browser, site / page, width, scheme)
        assert browser.run("document.documentElement.scrollWidth") <= width, page
        assert browser.run("[...document.images].every(image => image.naturalWidth > 0)"), page
        assert browser.run("document.body.dataset.mdColorScheme") == {"light": "default", "dark": "slate"}[scheme]
        assert browser.complaints == []
        assert all(url.startswith(("file:", "data:")) for url in browser.requests), page
