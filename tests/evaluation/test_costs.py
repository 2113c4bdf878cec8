"""Costs of acting in records: brute force over pixels, part files, and the report's costs from counts."""

import dataclasses
import json

import numpy as np
import pytest

from densecal.errors import InputError
from densecal.evaluation.folders import compute, evaluate, score_folder
from densecal.evaluation.partial import merge_partials, write_partial
from densecal.evaluation.record import Record
from densecal.evaluation.worker import Settings
from densecal.metrics.cost import ExpectedCost, Prices
from densecal.report.measure_sections import cost_rows, with_costs
from tests.metrics.test_regions import scene, write

PRICES = Prices(5.0, 1.0)


@pytest.fixture(scope="module", params=["float", "uint8", "uint16"])
def folders(request, tmp_path_factory):
    rng = np.random.default_rng(0)
    made = [scene(rng, (30, 44), radius) for radius in (0, 3, 5, 6, 7, 9)]
    masks, p = (np.stack(column) for column in zip(*made, strict=True))
    given = p
    if request.param != "float":
        top = np.iinfo(request.param).max
        given = np.rint(p * top).astype(request.param)
        p = given / top
    return *write(tmp_path_factory.mktemp("costs"), given, masks), p, masks


def cost(p, y, t, prices=PRICES):
    return (prices.miss * ((p <= t) & y).sum() + prices.false_alarm * ((p > t) & ~y).sum()) / y.size


def test_costs_of_foreground_maps(folders):
    maps, masks, p, y = folders
    record = evaluate(maps, masks, settings=Settings(prices=PRICES)).record
    (found,) = record.costs
    assert found.threshold == 1 / 6
    assert found.cost == pytest.approx(cost(p, y, 1 / 6), abs=1e-12)
    assert found.best_cost == pytest.approx(min(cost(p, y, t) for t in np.linspace(0, 1, 2001)), abs=2e-3)
    assert found.cost > found.best_cost  # the logits are twice too steep
    low, high = found.ci
    each = np.array([cost(a, b, 1 / 6) for a, b in zip(p, y, strict=True)])
    assert low < found.cost < high
    assert high - low > each.std(ddof=1) / np.sqrt(len(each))
    assert Record.from_json(record.to_json(), "a.json").costs == record.costs
    (from_counts,) = with_costs([dataclasses.replace(record, costs=())], PRICES)[0].costs
    assert from_counts.cost == pytest.approx(cost(p, y, 0.17), abs=1e-12)
    assert from_counts.best_cost >= found.best_cost - 1e-12
    assert from_counts.never == pytest.approx(found.never)
    assert isinstance(from_counts, ExpectedCost)
    assert f"{1000 * found.cost:.3f}" in cost_rows([record])[0]


def test_costs_of_classes(tmp_path):
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 3, (4, 12, 15)).astype(np.uint8)
    p = rng.dirichlet([0.5] * 3, labels.shape) * 0.6 + 0.4 * np.eye(3)[labels]
    labels[:, :2] = 255
    record = evaluate(
        *write(tmp_path, np.moveaxis(p, -1, 1), labels), settings=Settings(classes=3, prices=PRICES)
    ).record
    valid = labels != 255
    for k, found in enumerate(record.costs):
        assert found.cost == pytest.approx(cost(p[valid][:, k], labels[valid] == k, 1 / 6), abs=1e-12)
        assert found.ci[0] <= found.cost <= found.ci[1]


def test_parts_keep_prices_and_errors(folders, tmp_path):
    maps, masks, _, _ = folders
    settings = Settings(prices=PRICES)
    files = []
    for number, stems in enumerate((("03", "04", "05"), ("00", "01", "02"))):
        for kind, source in (("maps", maps), ("masks", masks)):
            (tmp_path / f"{kind}{number}").mkdir()
            for file in source.iterdir():
                if file.stem in stems:
                    (tmp_path / f"{kind}{number}" / file.name).write_bytes(file.read_bytes())
        part = score_folder(tmp_path / f"maps{number}", tmp_path / f"masks{number}", settings=settings)
        files.append(tmp_path / f"{number}.sketch")
        write_partial(files[-1], part)
    merged = compute(merge_partials(files, "maps", "data"), "a", "b").record
    whole = evaluate(maps, masks, name="maps", dataset="data", settings=settings).record
    assert json.dumps(merged.to_json()) == json.dumps(whole.to_json())
    plain = score_folder(tmp_path / "maps0", tmp_path / "masks0")
    write_partial(tmp_path / "plain.sketch", plain)
    with pytest.raises(InputError, match="prices"):
        merge_partials([files[1], tmp_path / "plain.sketch"])
