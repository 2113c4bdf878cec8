"""Large maps in chunks of rows: the same figures whatever the chunks, in bounded memory."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.ndimage import gaussian_filter

from densecal.io.row_chunks import row_chunks
from densecal.metrics import CalibrationMeter, SegmentationMeter
from densecal.metrics.min_max import stretch_map
from densecal.metrics.segmentation import count_levels
from tests.training.common import environment

BYTES_PER_PIXEL = 40
SIDE = 4096


def pair(seed, height, width, kind):
    rng = np.random.default_rng(seed)
    z = gaussian_filter(rng.normal(size=(height, width)), 2) * 12
    p = 1 / (1 + np.exp(-z - 0.3))
    prediction = p.astype(np.float32) if kind == "float" else np.rint(p * np.iinfo(kind).max).astype(kind)
    return prediction, z + rng.normal(size=z.shape) * 0.3 > 0


@given(st.lists(st.integers(1, 40), min_size=1, max_size=3), st.integers(1, 200))
def test_chunks_are_all_rows_in_order(shape, limit):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("densecal.io.row_chunks.CHUNK", limit)
        chunks = list(row_chunks(tuple(shape)))
    rows = [row for chunk in chunks for row in range(chunk.start, chunk.stop)]
    assert rows == list(range(shape[0]))
    pixels = int(np.prod(shape[1:]))
    assert all((chunk.stop - chunk.start) * pixels <= max(limit, pixels) for chunk in chunks)


@pytest.mark.parametrize("kind", ["uint8", "uint16", "float"])
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 1000), height=st.integers(2, 60), width=st.integers(2, 40), limit=st.integers(1, 400))
def test_segmentation_scores_do_not_depend_on_the_chunks(kind, seed, height, width, limit):
    prediction, mask = pair(seed, height, width, kind)
    results = []
    for size in (1 << 20, limit):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("densecal.io.row_chunks.CHUNK", size)
            meter = SegmentationMeter()
            meter.update(prediction, mask)
            scores = meter.compute()
            results.append([*scores.as_dict().values(), *scores.f_curve, *scores.e_curve, *stretch_map(prediction)[0]])
            if kind != "float":
                zones = np.arange(height)[:, None] % 3 + np.zeros((1, width), int)
                results[-1] += count_levels(prediction, mask, zones, 3).ravel().tolist()
    np.testing.assert_allclose(results[1], results[0], atol=1e-12)


def test_a_map_is_not_changed_by_scoring_it():
    prediction, mask = pair(0, 30, 30, "float")
    prediction = prediction.astype(np.float64)
    before = prediction.copy()
    SegmentationMeter().update(prediction, mask)
    np.testing.assert_array_equal(prediction, before)


@pytest.mark.parametrize("classes", [1, 4])
@pytest.mark.parametrize("logits", [False, True])
def test_calibration_figures_do_not_depend_on_the_chunks(classes, logits, monkeypatch):
    torch.manual_seed(0)
    z = 3 * torch.randn(2, classes, 23, 31)
    p = (z.sigmoid() if classes == 1 else z.softmax(dim=1)) if not logits else None
    masks = torch.randint(0, max(classes, 2), (2, 23, 31))
    masks[:, :3] = 9
    results = []
    # bytes and int64 are the same labels
    for chunk, labels in ((1 << 21, masks), (97, masks), (500, masks.to(torch.uint8))):
        monkeypatch.setattr("densecal.metrics.sketch._CHUNK", chunk)
        meter = CalibrationMeter(num_classes=classes, ignore_index=9)
        meter.update(p, labels, **({"logits": z} if logits else {}))
        results.append({k: v for k, v in meter.compute().as_dict().items() if k != "ci"})
    assert results[1] == pytest.approx(results[0], abs=1e-12, nan_ok=True)
    assert results[2] == pytest.approx(results[0], abs=1e-12, nan_ok=True)


def test_the_void_label_may_be_outside_the_range_of_a_byte():
    p = torch.tensor([[0.9, 0.2, 0.4]])
    labels = torch.tensor([[1, 0, 1]], dtype=torch.uint8)
    meter = CalibrationMeter(ignore_index=-255, boundary=False)  # 1 as a byte
    meter.update(p, labels)
    assert meter.compute().pixels == 3


# ------------------------------------------------------------------ memory

MEASURED = """
import json, resource, sys
from pathlib import Path
import torch
from densecal.evaluation.folders import evaluate
from densecal.evaluation.worker import Settings
torch.set_num_threads(1)
folder, peaks = Path(sys.argv[1]), {}
for size in ("small", "large"):
    for kind in ("uint8", "uint16", "float", "classes"):
        several = kind == "classes"
        for full in (False, True):
            settings = Settings(full=full, classes=3 if several else None, ignore_index=3 if several else None)
            masks = "labels" if several else "masks"
            evaluate(folder / f"{kind}-{size}", folder / f"{masks}-{size}", settings=settings)
            peaks[f"{kind} {full}"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if size == "small":
        baseline = max(peaks.values())
print(json.dumps({kind: peak - baseline for kind, peak in peaks.items()}))
"""


@pytest.mark.slow
def test_peak_memory_for_maps_of_4096_x_4096(tmp_path):
    for size, side in (("small", 64), ("large", SIDE)):
        z = (np.sin(np.arange(side) / 60)[:, None] + np.cos(np.arange(side) / 45)[None]).astype(np.float32)
        p = 1 / (1 + np.exp(-3 * z))
        labels = np.digitize(z, [-0.5, 0.5]).astype(np.uint8)
        images = {
            "uint8": np.rint(p * 255).astype(np.uint8), "uint16": np.rint(p * 65535).astype(np.uint16),
            "masks": (z > 0.1) * np.uint8(255), "labels": labels,
        }  # fmt: skip
        for name in (*images, "float", "classes"):
            (tmp_path / f"{name}-{size}").mkdir()
        for name, image in images.items():
            Image.fromarray(image).save(tmp_path / f"{name}-{size}" / "a.png", compress_level=1)
        np.save(tmp_path / f"float-{size}" / "a.npy", p)
        np.save(tmp_path / f"classes-{size}" / "a.npy", np.stack([0.5 * p, 0.5 * p, 1 - p]))
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(tmp_path)], env=environment(), capture_output=True, text=True, check=True
    )
    for kind, above in json.loads(done.stdout).items():
        assert above * 1024 / SIDE**2 < BYTES_PER_PIXEL, f"{kind}: {above * 1024 / SIDE**2:.1f} bytes per pixel"
