"""The page in a real browser: it shows what it was given, answers keys and pointer, and loads and sends nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from densecal.evaluation.folders import evaluate
from densecal.evaluation.record import Record
from densecal.evaluation.worker import Settings
from densecal.metrics.calibration import calibration_errors
from densecal.report.gallery import Example
from densecal.report.page import MOST_BYTES, Page, write_page
from densecal.report.pictures import mask, photo, unit_map
from tests.report.browser import CHROMIUM, Browser
from tests.report.material import COUNT, DATASET, SHY, SURE, run, small_page, with_figures

DASH = "\N{EN DASH}"
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: install it (apt install chromium) to test the page"),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page")


@pytest.fixture(scope="module")
def page(folder: Path) -> Page:
    page = small_page(folder)
    write_page(page, folder / "report.html")
    return page


@pytest.fixture
def opened(browser: Browser, folder: Path, page: Page) -> Browser:
    browser.open(folder / "report.html")
    return browser


def texts(browser: Browser, selector: str) -> list[str]:
    contents: list[str] = browser.run(
        f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent.trim())"
    )
    return contents


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False), (390, True)])
def test_the_page_opens_without_a_complaint_or_a_request(browser, folder, page, width, dark):
    browser.open(folder / "report.html", width, 844, dark)
    assert browser.complaints == []
    assert [url for url in browser.requests if not url.startswith("data:")] == [(folder / "report.html").as_uri()]
    assert browser.run("document.documentElement.scrollWidth <= window.innerWidth")
    assert browser.run("window.innerWidth") == width
    empty = "[...document.querySelectorAll('svg[role=group]')].filter(s => !s.querySelector('path, rect, circle'))"
    assert browser.run(f"{empty}.length") == 0
    assert browser.run("document.querySelectorAll('svg[role=group]').length") >= 16


def test_names_are_text_and_nothing_else(opened):
    assert opened.run("window.pwned") is None
    assert opened.run("document.querySelectorAll('main b, main i:not(.key i), main img[onerror]').length") == len(
        texts(opened, ".shot figcaption b")
    )
    assert texts(opened, "h1") == ["report of <i>everything</i>"]
    assert sorted(texts(opened, "#methods tbody th")) == [SHY, SURE]
    assert texts(opened, "#methods tbody td:nth-child(2)") == [DATASET] * 2
    assert SURE in " ".join(texts(opened, "#gallery-cards header span"))
    assert any("<img src=x onerror" in name for name in texts(opened, ".shot figcaption span"))
    assert any("<script>" in note for note in texts(opened, "#notes .warning"))


def test_the_policy_lets_no_other_script_run_and_nothing_be_fetched(browser, folder, page):
    browser.open(folder / "report.html")
    inject = (
        "(() => { const s = document.createElement('script'); s.textContent = 'window.pwned = 1'; "
        "document.body.append(s); return window.pwned ?? 'blocked'; })()"
    )
    assert browser.run(inject) == "blocked"
    assert browser.run("fetch('data:text/plain,x').then(() => 'sent', () => 'blocked')") == "blocked"
    image = "new Promise(r => { const i = new Image(); i.onload = i.onerror = e => r(e.type); i.src = 'report.html'; })"
    assert browser.run(image) == "error"
    browser.settle()
    assert all("Content Security Policy" in line for line in browser.complaints)
    # an HTML page is not an image, so that the error event alone does not prove that the policy blocked it
    for directive in ("script-src", "connect-src", "img-src"):
        assert any(directive in line for line in browser.complaints), directive


def test_the_table_sorts_by_click_and_by_key(opened, page):
    ece = {record.name: record.calibration["ece_ew"] for record in page.records}
    heads = texts(opened, "#methods thead th")
    column = heads.index("ECE") + 1
    button = f"#methods thead th:nth-child({column}) button"
    opened.point(button, click=True)
    assert texts(opened, "#methods tbody th") == sorted(ece, key=ece.get)
    assert opened.run(f"document.querySelector('{button}').parentElement.ariaSort") == "ascending"
    opened.press("Enter")  # the button has the focus
    assert texts(opened, "#methods tbody th") == sorted(ece, key=ece.get, reverse=True)
    assert opened.run(f"document.querySelector('{button}').parentElement.ariaSort") == "descending"
    opened.press("Tab")
    assert opened.run("document.activeElement.textContent") == "OE"
    opened.press("Enter")
    assert opened.run("document.querySelectorAll('#methods th[aria-sort]').length") == 1
    assert opened.run("document.activeElement.parentElement.ariaSort") == "ascending"
    opened.point("#methods thead th:nth-child(1) button", click=True)
    assert texts(opened, "#methods tbody th") == sorted(ece)


def test_the_best_is_marked_with_its_interval(opened, page):
    best = min(page.records, key=lambda record: record.calibration["ece_ew"])
    low, high = best.calibration.ci["ece_ew"]
    first = texts(opened, "#summary .fact dl > div")[0]
    assert first.startswith("ECE★ " + best.name)
    assert f"{100 * low:.2f} {DASH} {100 * high:.2f}" in first
    assert any(text.startswith("★") for text in texts(opened, "#forest svg[role=group] text"))


def test_the_diagram_of_the_summary_marks_all_that_tie(browser, folder, page):
    record = page.records[0]
    ece = {"a": 0.1, "b": 0.10004, "c": 0.2}
    tied = [with_figures(record, name, ece_ew=ece[name]) for name in ece]
    write_page(Page("ties", records=tied), folder / "ties.html")
    browser.open(folder / "ties.html")
    stars = [text for text in texts(browser, "#forest svg[role=group] text") if text.startswith("★")]
    assert stars == ["★ a", "★ b"]


def counts_at(folder: Path, method: str, threshold: float) -> tuple[int, int, int, int]:
    """Count true and false positives, false and true negatives, from the files."""
    total = np.zeros(4, int)
    for path in sorted((folder / "maps" / method).iterdir()):
        p = np.asarray(Image.open(path)) / 255 > threshold
        y = np.asarray(Image.open(folder / "masks" / path.name)) > 127
        total += [(p & y).sum(), (p & ~y).sum(), (~p & y).sum(), (~p & ~y).sum()]
    return tuple(int(n) for n in total)


def test_the_slider_moves_scores_and_counts(opened, folder):
    opened.run("document.getElementById('threshold-at').focus()")
    opened.press("ArrowRight", 13)
    assert texts(opened, "#threshold-value") == ["0.63"]
    for row, method in enumerate(("shy", "sure"), start=1):
        tp, fp, fn, tn = counts_at(folder, method, 0.63)
        precision, recall = tp / (tp + fp), tp / (tp + fn)
        f = 1.3 * precision * recall / (0.3 * precision + recall)
        shown = texts(opened, f"#threshold-rows tr:nth-child({row}) td")
        ratios = (precision, recall, f, tp / (tp + fp + fn), (tp + tn) / (tp + fp + fn + tn))
        assert shown == [f"{v:.3f}" for v in ratios] + [f"{n:,}" for n in (tp, fp, fn, tn)]
    tp, fp, fn, tn = counts_at(folder, "shy", 0.63)
    cells = [texts(opened, f"#confusion-{key} strong")[0] for key in ("tp", "fp", "fn", "tn")]
    assert cells == [f"{n:,}" for n in (tp, fp, fn, tn)]
    before = opened.run("document.querySelector('#f-curve .cursor').getAttribute('x1')")
    opened.press("End")
    assert texts(opened, "#threshold-value") == ["1.00"]
    assert texts(opened, "#threshold-rows tr:nth-child(1) td")[0] == DASH  # nothing is called foreground
    assert opened.run("document.querySelector('#f-curve .cursor').getAttribute('x1')") != before


def test_the_slider_follows_the_curves_of_the_record_too(opened, page):
    opened.point("#pooling label:nth-of-type(2) input", click=True)
    curves = page.records[0].curves
    t = int(255 * 0.5) + 1
    expected = [f"{getattr(curves, key)[t]:.3f}" for key in ("precision", "recall", "f_curve")]
    assert texts(opened, "#threshold-rows tr:nth-child(1) td")[:3] == expected


def test_diagrams_tell_their_values_to_pointer_and_keys(opened, page):
    curve = page.records[0].reliability
    filled = [i for i, n in enumerate(curve.count) if n]
    opened.point("#reliability-panels svg[role=group]", 0.97, 0.4)
    last = filled[-1]
    assert f"accuracy {100 * curve.accuracy[last]:.2f} %" in texts(opened, "#tip")[0]
    opened.run("document.querySelector('#reliability-panels svg[role=group]').focus()")
    opened.press("Home")
    opened.press("ArrowRight")
    second = filled[1]
    assert f"{curve.count[second]:,} pixels" in texts(opened, "#tip")[0]
    assert opened.run("document.getElementById('tip').getAttribute('aria-live')") == "polite"
    opened.run("document.querySelector('#reliability-panels details').open = true")
    opened.settle()
    rows = texts(opened, "#reliability-panels details tbody tr")
    assert len(rows) == len(filled)
    assert f"{100 * curve.accuracy[filled[0]]:.2f} %" in rows[0]


def test_a_temperature_moves_the_figures_as_it_would_on_the_maps(opened, page, folder):
    record = next(r for r in page.records if r.name == SURE)
    row = texts(opened, "#whatif-rows th").index(SURE)
    cells = texts(opened, f"#whatif-rows tr:nth-of-type({row + 1}) td")
    assert float(cells[0].split()[0]) == pytest.approx(100 * record.calibration["ece_ew"], abs=0.15)
    assert float(cells[3].split()[0]) == pytest.approx(100 * record.calibration["brier"], abs=0.05)
    opened.run(f"document.getElementById('whatif-of').value = {json.dumps(SURE)}")
    opened.run("document.getElementById('whatif-best').click()")
    opened.settle()
    moved = texts(opened, f"#whatif-rows tr:nth-of-type({row + 1}) td")
    temperature = float(texts(opened, "#whatif-value")[0])
    maps = np.stack([np.asarray(Image.open(folder / "maps/sure" / f"{i:04}.png")) for i in range(COUNT)]) / 255.0
    masks = np.stack([np.asarray(Image.open(folder / "masks" / f"{i:04}.png")) > 127 for i in range(COUNT)])
    inside = np.clip(maps, 0.25 / 255, 1 - 0.25 / 255)
    cooled = 1 / (1 + np.exp(-np.log(inside / (1 - inside)) / temperature))
    expected = calibration_errors(cooled, masks)
    assert float(moved[0].split()[0]) == pytest.approx(100 * expected.ece_ew, abs=0.3)
    assert float(moved[3].split()[0]) == pytest.approx(100 * expected.brier, abs=0.1)
    assert float(moved[0].split()[0]) < float(cells[0].split()[0])
    assert moved[5] == cells[5]  # F at 0.5
    opened.run(
        "(e => { e.value = 70; e.dispatchEvent(new Event('input')); })(document.getElementById('whatif-threshold'))"
    )
    assert texts(opened, f"#whatif-rows tr:nth-of-type({row + 1}) td")[5] != moved[5]
    assert opened.complaints == []


def test_methods_can_be_left_out_of_the_diagrams(opened):
    assert len(texts(opened, "#joint-panels figure > figcaption")) == 2
    opened.run("document.getElementById('pick').open = true")
    opened.point("#shown label:nth-of-type(1) input", click=True)
    assert [name.split("ECE")[0] for name in texts(opened, "#joint-panels figure > figcaption")] == [SURE]
    assert texts(opened, "#threshold-rows th") == [SURE]


def test_the_gallery_filters_and_sorts(opened, page):
    gap = {(e.method, e.name): e.confidence - e.accuracy for e in page.examples}
    worst = max(gap, key=gap.get)
    assert len(texts(opened, "#gallery-cards article")) == 24
    assert texts(opened, "#gallery-cards h3")[0] == worst[1]
    assert f"{100 * gap[worst]:.1f} points" in texts(opened, "#gallery-cards article")[0]
    opened.run("document.getElementById('gallery-more').click()")
    opened.settle()
    assert len(texts(opened, "#gallery-cards article")) == 48
    assert opened.run("document.activeElement === document.querySelectorAll('#gallery-cards article')[24]")
    set_value = (
        "(id, v) => { const e = document.getElementById(id); e.value = v; "
        "e.dispatchEvent(new Event('input', {bubbles: true})); }"
    )
    opened.run(f"({set_value})('gallery-method', {json.dumps(SHY)})")
    assert texts(opened, "#gallery-count") == [f"24 of {COUNT} shown, {2 * COUNT} in all"]
    assert {text.split(" · ")[0] for text in texts(opened, "#gallery-cards header span")} == {SHY}
    opened.run(f"({set_value})('gallery-name', '0007')")
    assert texts(opened, "#gallery-cards h3") == ["0007"]
    opened.run(f"({set_value})('gallery-name', '')")
    opened.run(f"({set_value})('gallery-method', '')")
    opened.run(f"({set_value})('gallery-order', 'name')")
    assert texts(opened, "#gallery-cards h3")[:3] == ["0000", "0000", "0001"]
    limit = np.ceil(100 * np.median(list(gap.values())))
    opened.run(f"({set_value})('gallery-gap', {limit})")
    left = sum(100 * value >= limit for value in gap.values())
    assert texts(opened, "#gallery-count")[0] == f"{min(24, left)} of {left} shown, {2 * COUNT} in all"


def test_the_pictures_of_a_card_are_the_files(opened, folder):
    opened.run("document.querySelectorAll('img').forEach(i => { i.loading = 'eager'; })")
    opened.run("Promise.all([...document.images].map(i => i.decode())).then(() => true)")
    assert texts(opened, "#gallery-cards article:first-child figcaption") == [
        "image", "mask", "prediction", "confidence", "entropy",
    ]  # fmt: skip
    name = texts(opened, "#gallery-cards h3")[0]
    pixels = (
        "(i => { const c = document.createElement('canvas'); c.width = i.naturalWidth; c.height = i.naturalHeight; "
        "const x = c.getContext('2d'); x.drawImage(i, 0, 0); "
        "return [...x.getImageData(0, 0, c.width, c.height).data].filter((_, k) => k % 4 === 0); })"
    )
    shown = opened.run(f"{pixels}(document.querySelectorAll('#gallery-cards article:first-child img')[1])")
    truth = np.asarray(Image.open(folder / "masks" / f"{name}.png"))
    assert np.array_equal(np.array(shown).reshape(truth.shape), truth)
    assert opened.run("[...document.images].every(i => i.naturalWidth > 0 && i.alt)")


def test_training_alpha_and_entropy_are_drawn(opened, page):
    captions = texts(opened, "#training-charts figcaption")
    assert captions[:3] == ["training loss", "validation ECE (%)", "validation accuracy (%)"]
    assert len(captions) == 4
    values = sorted(page.runs[0].alpha.values())
    shown = [float(text) for text in texts(opened, ".shot figcaption b")]
    assert shown == pytest.approx([*values[::-1][:8], *values[:8]], abs=1e-4)
    opened.run("document.querySelector('#alpha-charts details').open = true")
    opened.settle()
    counts = [int(text) for text in texts(opened, "#alpha-charts details td:nth-child(2)")]
    assert counts == np.histogram(values, 30)[0].tolist()
    assert len(texts(opened, "#ood-panels figure > figcaption")) == 2
    assert f"AUROC {page.records[0].ood[0].auroc:.3f}" in texts(opened, "#ood-panels figcaption")[0]


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_and_the_theme_can_be_changed(browser, folder, page, dark):
    browser.open(folder / "report.html", dark=dark)
    colour = "s => getComputedStyle(document.querySelector(s))"
    background = f"({colour})('#summary').backgroundColor"
    before = browser.run(background)
    for selector in ("#summary h2", "#summary .note", "td.best", "nav a"):
        ink = browser.run(f"({colour})('{selector}').color")
        assert contrast(ink, before) >= 4.5
    assert texts(browser, "#theme") == ["Light" if dark else "Dark"]
    browser.point("#theme", click=True)
    assert browser.run(background) != before
    assert texts(browser, "#theme") == ["Dark" if dark else "Light"]


def contrast(a: str, b: str) -> float:
    """Return WCAG's contrast of two CSS colours."""

    def luminance(text: str) -> float:
        channels = [int(n) / 255 for n in text[text.index("(") + 1 : -1].split(",")[:3]]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_every_control_can_be_reached_by_key(opened):
    opened.run("document.querySelectorAll('main details').forEach(d => { d.open = false; })")
    reach = "a[href], button, select, input, summary, svg[role=group]"
    wanted = opened.run(
        f"[...document.querySelectorAll('{reach}')].filter(e => e.checkVisibility() && !e.hidden).length"
    )
    seen = set()
    for _ in range(wanted + 40):
        opened.call("Input.dispatchKeyEvent", type="keyDown", key="Tab", code="Tab", windowsVirtualKeyCode=9)
        index = opened.run(
            f"(e => e.matches('{reach}') ? [...document.querySelectorAll('{reach}')].indexOf(e) : -1)"
            "(document.activeElement)"
        )
        if index == 0 and seen:
            break
        seen.add(index)
    radios = opened.run("document.querySelectorAll('input[type=radio]:not(:checked)').length")
    assert len(seen - {-1}) == wanted - radios  # the tab key reaches only the chosen radio button of a group


def test_records_of_every_kind_are_drawn(browser, folder, page):
    rng = np.random.default_rng(0)
    (folder / "softmax").mkdir()
    (folder / "labels").mkdir()
    for i in range(3):
        np.save(folder / "softmax" / f"{i}.npy", rng.dirichlet(np.ones(3), (9, 9)).transpose(2, 0, 1))
        Image.fromarray(rng.integers(0, 3, (9, 9)).astype(np.uint8)).save(folder / "labels" / f"{i}.png")
    settings = Settings(classes=3, class_names=("road", "sky & <b>", "car"))
    several = evaluate(folder / "softmax", folder / "labels", settings=settings).record
    write_page(Page("classes", records=[several]), folder / "classes.html")
    browser.open(folder / "classes.html")
    assert browser.complaints == []
    assert "#threshold" not in browser.run("[...document.querySelectorAll('nav a')].map(a => a.hash)")
    tables = '#classes [aria-label="{}"] tbody th'
    assert texts(browser, tables.format("Table of classes")) == ["road", "sky & <b>", "car"]
    assert texts(browser, tables.format("Table of the most probable classes")) == ["2"]
    select = "document.getElementById('class')"
    browser.run(f"{select}.value = '1'; {select}.dispatchEvent(new Event('change'))")
    browser.settle()
    assert "probability of sky & <b>" in texts(browser, "#reliability-panels svg .label")
    assert browser.complaints == []
    content = page.records[0].to_json()
    kept = {key: value for key, value in content.items() if key not in ("schema", "thresholds", "settings", "ood")}
    old = Record.from_json(kept, "old.json")
    write_page(Page("old", records=[old, replace(several, dataset=DATASET)]), folder / "old.html")
    browser.open(folder / "old.html")
    browser.point("#pooling label:nth-of-type(2) input", click=True)
    shown = texts(browser, "#threshold-rows td")
    assert shown[2] == f"{old.curves.f_curve[128]:.3f}"
    assert shown[3:] == [DASH] * 6  # such a record has no counts of pixels
    browser.run("document.getElementById('pick').open = true")
    for i in (1, 2):  # nothing to show is no error
        browser.point(f"#shown label:nth-of-type({i}) input", click=True)
    assert browser.complaints == []


def test_of_many_methods_those_shown_first_look_different(browser, folder, page):
    record = page.records[0]
    records = []
    for i in range(20):
        name = f"method {i} of a long name, seed {i}"
        records.append(with_figures(record, name, ece_ew=0.2 - 0.01 * (7 * i % 20)))
    write_page(Page("many", records=records), folder / "many.html")
    for width in (1280, 390):
        browser.open(folder / "many.html", width)
        assert browser.complaints == []
        assert browser.run("document.documentElement.scrollWidth <= window.innerWidth")
        keys = "[...document.querySelectorAll('#f-curve .legend line, #f-curve .key line')]"
        styles = browser.run(f"{keys}.map(l => l.getAttribute('class') + '|' + l.getAttribute('stroke-dasharray'))")
        assert len(styles) == 8
        assert len({style.split("|")[0] for style in styles}) == 8
        shown = {record.name for record in sorted(records, key=lambda r: r.calibration["ece_ew"])[:8]}
        assert set(texts(browser, "#threshold-rows th")) == shown
        assert {name.split(":")[0] for name in texts(browser, "#ood-panels figcaption > span")} == shown
        # a long name leaves room for the figures
        wide = "document.querySelector('#threshold-rows th').offsetWidth"
        assert browser.run(f"{wide} < 0.5 * window.innerWidth")


@pytest.mark.slow  # has a time limit, which a busy machine exceeds
def test_a_thousand_images_stay_small_and_open_fast(browser, folder, page):
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:100, :100] / 100
    examples = []
    for i in range(1000):
        cx, cy, radius = rng.uniform(0.2, 0.8, 3)
        distance = radius / 2 - np.hypot(x - cx, y - cy)
        noise = rng.normal(0, 12, (100, 100, 1)) + 60 * np.sin(9 * distance)[:, :, None] + rng.uniform(40, 200, 3)
        p = 1 / (1 + np.exp(-distance * rng.uniform(5, 60)))
        pictures = {
            "image": photo(noise.clip(0, 255).astype(np.uint8)),
            "mask": mask(distance > 0),
            "prediction": unit_map("probability", p),
            "confidence": unit_map("confidence", 2 * np.abs(p - 0.5)),
            "entropy": unit_map("entropy", 1 - 2 * np.abs(p - 0.5)),
        }
        confidence, accuracy = rng.uniform(0.7, 1, 2)
        examples.append(Example("one", "many", f"image {i}", confidence, accuracy, float(rng.random()), pictures))
    cells = np.unique(rng.integers(50, 100, (1000, 2)), axis=0, return_counts=True)
    counts = tuple((int(a), int(b), int(n)) for (a, b), n in zip(*cells, strict=True))
    record = replace(page.records[0], images=1000, joint=replace(page.records[0].joint, counts=counts))
    large = Page("large", [], [record], runs=[run("one", 1000)], examples=examples)
    size = write_page(large, folder / "large.html")
    assert size < MOST_BYTES
    assert size == (folder / "large.html").stat().st_size
    browser.open(folder / "large.html")
    timing = browser.run("(t => [t.domComplete, performance.now()])(performance.getEntriesByType('navigation')[0])")
    print(f"1,000 images: {size / 1e6:.2f} MB, complete after {timing[0]:.0f} ms, drawn within {timing[1]:.0f} ms")
    assert timing[0] < 2000
    assert browser.complaints == []
    assert texts(browser, "#gallery-count") == ["24 of 1000 shown, 1000 in all"]
