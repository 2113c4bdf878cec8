"""The metric says what the meter says, whatever torchmetrics does with it: batches, copies, collections, processes."""

import itertools
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAccuracy

from densecal.integrations.torchmetrics import FIGURES, CalibrationMetric
from densecal.metrics import CalibrationMeter
from densecal.metrics import sketch as sketch_module
from tests import forked

Batches = list[tuple[Tensor, Tensor]]
FEW = 400
"""A limit that two batches or three exceed, for the number of pixels up to which a meter keeps them one by one."""


def binary(seed: int = 0, batches: int = 5) -> Batches:
    generator = torch.Generator().manual_seed(seed)
    maps = torch.rand(batches, 3, 1, 12, 10, generator=generator)
    masks = torch.rand(maps.shape, generator=generator) < maps**2
    return list(zip(maps, masks.long(), strict=True))


def levels() -> Batches:
    return [((maps * 255).round().to(torch.uint8), masks) for maps, masks in binary()]


def classes() -> Batches:
    generator = torch.Generator().manual_seed(1)
    maps = torch.randn(5, 2, 4, 9, 7, generator=generator).softmax(dim=2)
    masks = torch.randint(0, 4, (5, 2, 9, 7), generator=generator)
    masks[:, :, 0] = 255
    return list(zip(maps, masks, strict=True))


def channels() -> Batches:
    generator = torch.Generator().manual_seed(2)
    maps = torch.rand(5, 2, 3, 10, 10, generator=generator)
    return list(zip(maps, (maps > 0.6).long(), strict=True))


CASES: dict[str, tuple[Callable[[], Batches], dict]] = {
    "binary": (binary, {"bins": 7}),
    "levels": (levels, {}),
    "classes": (classes, {"num_classes": 4}),
    "channels": (channels, {"num_classes": 3, "multilabel": True, "boundary": False}),
}


@pytest.fixture(params=["pixels kept", "pixels summarised"])
def _memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "pixels summarised":
        monkeypatch.setattr(sketch_module, "EXACT_PIXELS", FEW)


def measured(batches: Batches, options: dict) -> dict[str, float]:
    meter = CalibrationMeter(**options)
    for maps, masks in batches:
        meter.update(maps, masks)
    result = meter.compute()
    return {name: float(getattr(result, name)) for name in FIGURES}


def updated(batches: Batches, options: dict) -> CalibrationMetric:
    metric = CalibrationMetric(**options)
    for maps, masks in batches:
        metric.update(maps, masks)
    return metric


def same(found: dict[str, Tensor], expected: dict[str, float], tolerance: float = 0.0) -> bool:
    figures = {name: value.item() for name, value in found.items()}
    return figures == pytest.approx(expected, abs=tolerance, rel=0, nan_ok=True)


@pytest.mark.usefixtures("_memory")
@pytest.mark.parametrize("case", CASES)
def test_updates_give_the_figures_of_the_meter(case: str):
    make, options = CASES[case]
    assert same(updated(make(), options).compute(), measured(make(), options))


@pytest.mark.usefixtures("_memory")
@pytest.mark.parametrize("case", CASES)
def test_forward_gives_the_figures_of_the_batch_and_adds_it(case: str):
    make, options = CASES[case]
    metric = CalibrationMetric(**options)
    for batch in make():
        assert same(metric(*batch), measured([batch], options))
    assert same(metric.compute(), measured(make(), options), 1e-12)


def test_forward_does_not_keep_the_pixels_of_every_batch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sketch_module, "EXACT_PIXELS", FEW)
    metric = CalibrationMetric()
    for batch in binary():
        metric(*batch)
        assert sum(len(part) for part in metric.raw_values) <= FEW


def test_a_figure_by_name_is_a_scalar_and_logits_are_taken():
    batches = binary()
    metric = CalibrationMetric("ece_em", logits=True)
    for maps, masks in batches:
        metric.update(maps.double().logit(), masks)
    assert metric.compute().shape == ()
    assert metric.compute().item() == pytest.approx(measured(batches, {})["ece_em"], abs=1e-12)


def test_an_unknown_figure_is_named():
    with pytest.raises(ValueError, match="found 'ece'; expected one of ece_ew"):
        CalibrationMetric("ece")


def test_copies_live_their_own_lives():
    first, second = binary()[:2], binary(seed=9)
    metric = updated(first, {})
    for copy in (metric.clone(), pickle.loads(pickle.dumps(metric))):
        copy.update(*second[0])
        assert same(copy.compute(), measured([*first, second[0]], {}))
    assert same(metric.compute(), measured(first, {}))
    metric.reset()
    metric.update(*second[0])
    assert same(metric.compute(), measured(second[:1], {}))


def test_saved_states_are_restored():
    metric = updated(binary(), {})
    metric.persistent(True)
    restored = CalibrationMetric()
    restored.persistent(True)
    restored.load_state_dict(metric.state_dict())
    restored.update(*binary(seed=9)[0])
    assert same(restored.compute(), measured([*binary(), binary(seed=9)[0]], {}))


def test_metrics_merge():
    metric = updated(binary(), {})
    metric.merge_state(updated(binary(seed=9), {}))
    assert same(metric.compute(), measured(binary() + binary(seed=9), {}), 1e-12)


def test_a_collection_counts_once_for_all_figures():
    batches = binary()
    collection = MetricCollection(
        {"ece": CalibrationMetric("ece_ew"), "all": CalibrationMetric(), "accuracy of others": BinaryAccuracy()}
    )
    for batch in batches:
        collection.update(*batch)
    found, expected = collection.compute(), measured(batches, {})
    assert sorted(map(sorted, collection.compute_groups.values())) == [["accuracy of others"], ["all", "ece"]]
    assert found["ece"].item() == expected["ece_ew"]
    assert found["accuracy of others"].item() == pytest.approx(expected["accuracy"], abs=1e-6)
    assert {name: found[name].item() for name in FIGURES} == pytest.approx(expected, abs=0, rel=0, nan_ok=True)


def test_a_collection_keeps_settings_apart_that_one_batch_does_not():
    maps, masks = binary()[0]
    collection = MetricCollection({"void": CalibrationMetric("accuracy", ignore_index=0), "all": CalibrationMetric()})
    collection.update(maps, torch.ones_like(masks))
    collection.update(maps, masks)
    found = collection.compute()
    expected = [(maps, torch.ones_like(masks)), (maps, masks)]
    assert found["void"].item() == measured(expected, {"ignore_index": 0})["accuracy"]
    assert found["accuracy"].item() == measured(expected, {})["accuracy"]


# ------------------------------------------------------------------ processes

# batches of the two processes, and the limit: both keep pixels, none does alone but the whole, one does and one not
SPLITS = {
    "one without data": ([(), (0, 1, 2, 3, 4)], sketch_module.EXACT_PIXELS),
    "alike": ([(0, 2), (1,)], FEW),
    "one large": ([(0,), (1, 2, 3, 4)], FEW),
}


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    found = {}
    for case, split in itertools.product(CASES, SPLITS):
        (make, options), (parts, sketch_module.EXACT_PIXELS) = CASES[case], SPLITS[split]
        batches = make()
        collection = MetricCollection({"all": CalibrationMetric(**options)})
        for i in parts[rank]:
            collection.update(*batches[i])
        with warnings.catch_warnings(action="ignore"):
            figures = collection.compute()
            # combining is undone: an update goes on from what this process has
            collection.update(*batches[0])
            figures["accuracy after one more"] = collection.compute()["accuracy"]
        found[case, split] = {name: value.item() for name, value in figures.items()}
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_agree_with_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    forked.run_ranks("tests.integrations.test_torchmetrics", tmp_path)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    for key in itertools.product(CASES, SPLITS):
        (make, options), (parts, limit) = CASES[key[0]], SPLITS[key[1]]
        monkeypatch.setattr(sketch_module, "EXACT_PIXELS", limit)
        batches = make()
        whole = [batches[i] for part in parts for i in part]
        expected = measured(whole, options)
        expected["accuracy after one more"] = measured([*whole, *[batches[0]] * 2], options)["accuracy"]
        assert first[key] == pytest.approx(second[key], abs=0, rel=0, nan_ok=True)
        assert first[key] == pytest.approx(expected, abs=1e-12, rel=0, nan_ok=True), key
        # what comes from integer tables is the same to the bit
        for name in ("ece_ew", "oe_ew", "mce", "sce"):
            assert first[key][name] == expected[name]
