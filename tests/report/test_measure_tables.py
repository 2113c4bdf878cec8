"""Tables of regions and classes: every figure of a record is shown, on the terminal and on the page."""

import csv
import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from densecal.evaluation.record import Record, TopKCurve
from densecal.metrics.regions import DIFFICULTIES, NO_OBJECT, SIZES, ZONES
from densecal.report import measure_sections
from densecal.report.cases import AVERAGES
from densecal.report.measure_tables import REGIONS, calibrated_line, measure_tables
from densecal.report.page import Page, page_text
from densecal.report.tables import csv_text, decomposition_table, figure_table, interval_table, latex_text
from tests.metrics.test_regions import scene, write


@pytest.fixture(scope="module")
def record(tmp_path_factory) -> Record:
    from densecal.evaluation.folders import evaluate

    rng = np.random.default_rng(0)
    masks, p = zip(*(scene(rng, (40, 60), radius) for radius in (0, 3, 4, 6, 7, 9, 10, 12)), strict=True)
    return evaluate(*write(tmp_path_factory.mktemp("scenes"), np.stack(p), np.stack(masks))).record


def text_of(*tables):
    console = Console(file=io.StringIO(), width=250)
    console.print(*tables)
    return console.file.getvalue()


def test_every_region_has_a_title_and_a_row(record):
    assert set(REGIONS) == {*ZONES, *SIZES, *DIFFICULTIES, NO_OBJECT}
    text = text_of(*measure_tables([record]))
    for region in record.regions:
        title = REGIONS[region.name].format(unit="px")
        line = next(line for line in text.splitlines() if title in line)
        assert f"{100 * region.figures['ece_ew']:.2f}" in line
        if region.images > 1:
            assert " to ".join(f"{100 * end:.2f}" for end in region.ci["ece_ew"]) in line


def test_csv_and_latex_have_the_new_figures(record):
    head, line = csv_text([record]).splitlines()
    row = dict(zip(head.split(","), line.split(","), strict=True))
    small = next(region for region in record.regions if region.name == "small_objects")
    assert float(row["small_objects_ece_ew"]) == pytest.approx(small.figures["ece_ew"], rel=1e-9)
    assert float(row["small_objects_ece_ew_high"]) == pytest.approx(small.ci["ece_ew"][1], rel=1e-9)
    assert float(row["smece_exact"]) == pytest.approx(record.calibration["smece_exact"], rel=1e-9)
    shown = f"{100 * record.calibration['brier_refinement']:.2f}"
    assert shown in latex_text([record])
    assert shown in text_of(decomposition_table([record]))


def test_tables_of_several_methods_have_the_intervals_of_the_ece_and_of_the_masks(record):
    other = replace(record, name="other")
    shown, latex = text_of(interval_table([record, other])), latex_text([record, other]).split("% 95 % intervals")[1]
    low, high = (f"{100 * end:.2f}" for end in record.calibration.ci["ece_ew"])
    assert f"{low} to {high}" in shown
    row = next(line for line in latex.splitlines() if " & other & " in line)
    assert row.split(" & ")[2] == rf"{100 * record.calibration['ece_ew']:.2f} {{\scriptsize({low}--{high})}}"
    for key in ("dice_image_mean", "iou_image_mean"):
        low, high = (f"{end:.3f}" for end in record.segmentation_ci[key])
        assert shown.count(f"{low} to {high}") == 2
        assert latex.count(rf"{record.segmentation[key]:.3f} {{\scriptsize({low}--{high})}}") == 2


def test_records_without_intervals_have_no_table_of_them(record):
    bare = replace(record, calibration=replace(record.calibration, ci={}), segmentation_ci=None)
    assert interval_table([bare]) is None
    assert "intervals" not in latex_text([bare])
    mixed = text_of(interval_table([record, replace(bare, name="bare")]))
    row = next(line for line in mixed.splitlines() if "bare" in line)
    assert f"{100 * record.calibration['ece_ew']:.2f}" in row
    assert mixed.count(" to ".join(f"{end:.3f}" for end in record.segmentation_ci["dice_image_mean"])) == 1


def test_the_most_probable_classes_are_on_the_terminal_the_page_and_in_the_csv(record):
    curves = tuple(TopKCurve((9,), (0.9,), (0.8,), k, 0.8 + k / 100, 0.9 + k / 100, k / 100, 0.01) for k in (2, 3))
    several = replace(record, reliability=replace(record.reliability, top_k=curves))
    cells = ["3", "83.00", "93.00", "3.00", "1.00"]
    terminal = text_of(*measure_tables([several]))
    line = next(line for line in terminal.splitlines() if "83.00" in line)
    assert re.findall(r"[\d.]+", line) == cells
    assert measure_sections.top_k_rows([several])[1] == ["3", several.name, several.dataset, *cells[1:]]
    (row,) = csv.DictReader(io.StringIO(csv_text([several])))
    assert [float(row[f"top_2_{key}"]) for key in ("hit_rate", "probability", "ece")] == [0.82, 0.92, 0.02]
    assert "k most probable" not in text_of(*measure_tables([record]))


def test_what_a_calibrated_model_would_show_is_said(record):
    found = record.reliability.consistency
    assert found.p_value < 0.05  # the logits are twice too steep
    assert f"p = {found.p_value:.3f}" in calibrated_line(record)
    assert f"{100 * found.ece:.2f} %" in calibrated_line(record)


def test_the_page_shows_regions_and_smooth_diagrams(record):
    text = page_text(Page("page", records=[record]))
    rows = measure_sections.region_rows([record])
    assert len(re.findall(r"<tr>", text[text.index('id="regions"') : text.index('id="cases"')])) == len(rows) + 1
    assert re.findall(r'name="kind" value="(\w+)"', text) == ["all", "smooth", "foreground", "smooth_foreground"]
    assert '"bandwidth":' in text
    assert '"low":[' in text


def test_distances_of_volumes_are_in_millimetres_and_sizes_in_voxels(record):
    volumes = replace(record, cases=replace(record.cases, unit="ml"))
    text = text_of(*measure_tables([volumes]), figure_table(volumes))
    assert "within 5 mm of a boundary" in text
    assert "farther than 15 mm" in text
    assert "voxels each)" in text
    assert " px" not in text
    assert "within 5 voxels" in text_of(figure_table(replace(record, cases=replace(record.cases, unit="voxels"))))
    assert " mm" not in text_of(*measure_tables([record]), figure_table(record))
    rows = [row[0] for row in measure_sections.region_rows([volumes])]
    assert "5-15 mm from a boundary" in rows


def test_the_page_shows_which_cases_fail(record):
    trust = record.cases.trust
    text = page_text(Page("page", records=[record]))
    section = text[text.index('id="cases"') : text.index('id="joint"')]
    for name, curve in trust.by.items():
        row = next(row for row in re.findall(r"<tr>.*?</tr>", section, re.DOTALL) if AVERAGES[name] in row)
        shown = (curve.aurc, *curve.ci, trust.risk, trust.best)
        assert [f"{value:.4f}" for value in shown] == re.findall(r"\d\.\d{4}", row)[:5]
        assert f"{curve.curve[9]:.4f}" in row  # of 20 points
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text)[1])
    assert set(data["records"][0]["trust"]["by"]) == {AVERAGES[name] for name in trust.by}
    without = page_text(Page("page", records=[replace(record, cases=None)]))
    assert 'id="cases"' not in without
