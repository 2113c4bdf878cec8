"""Meters under attack: bad values, threads, interruptions and thousands of maps leave the counts right."""

import copy
import pickle
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image

from densecal.metrics import CalibrationMeter, ConfusionMeter, SegmentationMeter
from densecal.metrics import sketch as sketch_module
from densecal.metrics.inputs import is_invalid
from densecal.metrics.sketch import Sketch
from tests.adversarial.common import assert_one_line, densecal

INF, NAN = float("inf"), float("nan")


def class_maps(seed=0, classes=4, images=2):
    random = torch.Generator().manual_seed(seed)
    z = torch.randn(images, classes, 5, 6, generator=random) * 3
    return z, torch.randint(classes, (images, 5, 6), generator=random)


def text(meter):
    """Return every figure of a meter as text, so that NaN equals NaN."""
    return str(meter.compute().as_dict())


# ------------------------------------------------------------------ bad values

BAD_LOGITS = {
    "a NaN": (slice(2, 3), NAN),
    "a +inf": (slice(2, 3), INF),
    "+inf in every class": (slice(None), INF),
    "-inf in every class": (slice(None), -INF),
}
"""Classes of one pixel, and their logit."""


@pytest.mark.parametrize("kind", BAD_LOGITS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_logits_without_a_softmax_are_refused_and_the_meter_stays_usable(kind, dtype):
    meter = CalibrationMeter(num_classes=4)
    z, y = class_maps()
    meter.update(logits=z, masks=y)
    before = text(meter)
    bad = z.to(dtype)
    classes, value = BAD_LOGITS[kind]
    bad[1, classes, 4, 5] = value
    with pytest.raises(ValueError, match=r"logits that are NaN, \+inf, or -inf in every class; expected a finite"):
        meter.update(logits=bad, masks=y)
    assert text(meter) == before
    y[1] = 255  # void pixels may hold anything
    meter.update(logits=bad, masks=y)
    assert meter.compute().pixels == 90


def test_infinite_logits_that_mean_0_or_1_are_counted():
    z, y = class_maps()
    z[0, 1, 0, 0] = -INF
    meter = CalibrationMeter(num_classes=4)
    meter.update(logits=z, masks=y)
    assert np.isfinite(meter.compute().ece_ew)
    for options in ({}, {"num_classes": 2, "multilabel": True}):
        meter = CalibrationMeter(**options)
        pixels = torch.tensor([[INF, -INF], [INF, 0.0]]) if options else torch.tensor([INF, -INF, 0.0])
        meter.update(logits=pixels, masks=torch.zeros_like(pixels, dtype=torch.int64))
        assert np.isfinite(meter.compute().nll)


@pytest.mark.parametrize("bad", ["+inf", "-inf in every class", "a sum of 1.5", "a probability of 1.5", "NaN"])
@pytest.mark.parametrize("void", [False, True])
def test_bad_pixels_on_an_accelerator_are_counted(bad, void):
    z, _ = class_maps()
    values = z if "inf" in bad else z.softmax(1)
    pixel = values[1, :, 3, 4]
    if bad == "+inf":
        pixel[2] = INF
    elif bad == "-inf in every class":
        pixel.fill_(-INF)
    elif bad == "a sum of 1.5":
        pixel.fill_(0.375)
    else:
        pixel[0] = NAN if bad == "NaN" else 1.5
    valid = torch.ones(2, 30, dtype=torch.bool)
    valid[1, 3 * 6 + 4] = not void
    p = Sketch(num_classes=4)._to_probabilities(values.flatten(2).double(), "inf" in bad)
    assert is_invalid(p, valid, sums="inf" not in bad).nonzero().tolist() == [[1, 3 * 6 + 4]] * (not void)


@pytest.mark.parametrize("logits", [False, True])
def test_an_update_on_an_accelerator_does_not_wait_for_it(logits, monkeypatch):
    """Tensors on the meta device hold no data, so that reading any of it is an error, as waiting is elsewhere."""
    monkeypatch.setattr(Sketch, "_count", lambda *_: None)  # `torch.bincount` does not run there
    sketch = Sketch(num_classes=4)
    values, labels = torch.empty(2, 4, 30, device="meta"), torch.empty(2, 30, dtype=torch.int64, device="meta")
    sketch.update(values, labels, labels != 255, None, logits)
    assert len(sketch.rows) == 2
    assert sketch._counted.device["invalid"].device.type == "meta"
    sketch.merge(sketch.copy())
    assert len(sketch.rows) == 4


@pytest.mark.parametrize("excess", [0.03, -0.03, 0.5])
def test_class_probabilities_that_do_not_sum_to_one_are_refused_as_by_the_command(excess, tmp_path):
    z, y = class_maps(images=1)
    p = z.double().softmax(1)
    p[0, :, 2, 2] = 0.25 + excess / 4
    meter = CalibrationMeter(num_classes=4)
    message = f"class probabilities that miss a sum of 1 by {abs(excess):.3g}; expected softmax probabilities"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        meter.update(p, y)
    for folder in ("maps", "masks"):
        (tmp_path / folder).mkdir()
    np.save(tmp_path / "maps" / "0.npy", p[0].numpy())
    Image.fromarray(y[0].numpy().astype(np.uint8)).save(tmp_path / "masks" / "0.png")
    result = densecal(tmp_path, "evaluate", "maps", "masks", "--classes", "4", "--ignore-index", "255")
    assert_one_line(result, "0.npy", message)
    y[0, 2, 2] = 255  # void pixels may hold anything
    meter.update(p, y)
    CalibrationMeter(num_classes=4, multilabel=True).update(p, torch.zeros_like(p))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("classes", [2, 19, 150])
def test_rounded_class_probabilities_are_accepted(dtype, classes):
    z, y = class_maps(classes=classes)
    meter = CalibrationMeter(num_classes=classes)
    meter.update(z.softmax(1).to(dtype), y)
    meter.update(z.softmax(1) * 0.981, y)
    assert meter.compute().pixels == 120


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("classes", [1, 4])
def test_an_update_that_is_interrupted_changes_nothing(error, classes, monkeypatch):
    monkeypatch.setattr(sketch_module, "_CHUNK", 30)
    z, y = class_maps(classes=classes, images=4)
    meter = CalibrationMeter(num_classes=classes)
    meter.update(logits=z, masks=y)
    before = text(meter)
    count, calls = Sketch._count_group, []

    def interrupted(self, *arguments):
        calls.append(1)
        if len(calls) == 3:
            raise error
        return count(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Sketch, "_count_group", interrupted)
        with pytest.raises(error):
            meter.update(logits=z, masks=y)
    assert text(meter) == before
    meter.update(logits=z, masks=y)
    assert meter.compute().pixels == 240


# ------------------------------------------------------------------ threads

THREADS, ROUNDS = 6, 12


def meters():
    """Return one meter of every kind, with a call that counts a batch."""
    z, y = class_maps()
    p = z[:, 0].sigmoid()
    levels, mask = (p[0] * 255).byte().numpy(), y[0].numpy() > 1
    return {
        "float maps": (CalibrationMeter(), lambda m: m.update(p, y > 1)),
        "integer maps": (CalibrationMeter(), lambda m: m.update(levels, mask)),
        "classes": (CalibrationMeter(num_classes=4), lambda m: m.update(logits=z, masks=y)),
        "segmentation": (SegmentationMeter(), lambda m: m.update(levels, mask)),
        "confusion": (ConfusionMeter(4), lambda m: m.update(y.numpy(), y.numpy())),
    }


def scalars(figures):
    return {name: value for name, value in figures.items() if not isinstance(value, dict | list)}


@pytest.fixture
def frequent_switches():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def in_threads(work):
    start = threading.Barrier(THREADS)

    def run(thread):
        start.wait()
        for _ in range(ROUNDS):
            work(thread)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(run, range(THREADS)))


@pytest.mark.parametrize("kind", meters())
def test_threads_that_share_a_meter_lose_no_count(kind, frequent_switches):
    shared, count = meters()[kind]
    alone, _ = meters()[kind]
    in_threads(lambda _: count(shared))
    for _ in range(THREADS * ROUNDS):
        count(alone)
    actual, expected = (scalars(meter.compute().as_dict()) for meter in (shared, alone))
    assert actual == pytest.approx(expected, rel=1e-12, abs=1e-12, nan_ok=True)
    if isinstance(shared, CalibrationMeter):
        assert shared.compute().pixels == alone.compute().pixels


@pytest.mark.parametrize("kind", ["float maps", "integer maps", "segmentation"])
def test_threads_may_count_merge_copy_and_compute_at_once(kind, frequent_switches):
    shared, count = meters()[kind]
    other, _ = meters()[kind]
    count(shared), count(other)

    def work(thread):
        if thread == 0:
            shared.compute()
        elif thread == 1:
            copy.deepcopy(shared).compute()
        elif thread == 2:
            pickle.loads(pickle.dumps(shared)).compute()
        elif thread == 3:
            shared.merge(other)
        elif thread == 4:
            type(other)().merge(shared)
        else:
            count(shared)

    in_threads(work)
    total = 1 + ROUNDS * (THREADS - 4)
    if kind == "segmentation":
        assert shared.state_dict()["images"].tolist() == [total, total]
    else:
        assert shared.compute().images == total * (2 if kind == "float maps" else 1)


def test_meters_that_are_merged_into_each_other_do_not_wait_for_each_other():
    a, b = CalibrationMeter(), CalibrationMeter()
    for meter in (a, b):
        meter.update([0.75], [1])
    threads = [
        threading.Thread(target=lambda x=x, y=y: [x.merge(y) for _ in range(5)], daemon=True)
        for x, y in ((a, b), (b, a))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)
    assert not any(thread.is_alive() for thread in threads)
    assert a.compute().pixels > 5


@pytest.mark.parametrize("kind", meters())
def test_a_copy_and_a_pickle_count_on_their_own(kind):
    meter, count = meters()[kind]
    count(meter)
    before = str(meter.compute().as_dict())
    for same in (copy.copy(meter), copy.deepcopy(meter), pickle.loads(pickle.dumps(meter))):
        assert str(same.compute().as_dict()) == before
        count(same)
        with_lock = threading.Thread(target=count, args=(same,))
        with_lock.start()
        with_lock.join(200)
        assert not with_lock.is_alive()
        assert str(meter.compute().as_dict()) == before


# ------------------------------------------------------------------ memory

GROWTH = """
import gc, resource, torch
from densecal.metrics import CalibrationMeter
torch.set_num_threads(1)
meter = CalibrationMeter(boundary=False)
p = torch.rand(1, 150, 200, generator=torch.Generator().manual_seed(0))
def resident(maps):
    for _ in range(maps):
        meter.update(p, p > 0.5)
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
print(-resident(40) + resident(800))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_with_the_number_of_float_maps():
    """Version 0.1 took 370 KB more per map, because a small tensor per map fragmented the heap.

    The allocator takes and returns some 10 MB now and then, so enough maps are counted for a leak to stand out.
    """
    out = subprocess.run([sys.executable, "-c", GROWTH], check=True, capture_output=True, text=True)
    assert int(out.stdout) < 40_000 * 800
