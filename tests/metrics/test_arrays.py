"""Arrays of any library give the same counts, to the bit; and tensors on an accelerator the counts of NumPy."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from densecal.metrics import CalibrationMeter, calibration
from densecal.metrics import sketch as sketch_module
from densecal.metrics.arrays import as_array

KINDS = {"binary": {}, "softmax": {"num_classes": 3}, "multilabel": {"num_classes": 3, "multilabel": True}}


class DLPackArray:
    """An array of an unknown library with the DLPack protocol alone, such as JAX's or CuPy's."""

    def __init__(self, values, device=1):
        self.values, self.device = values, device

    def __dlpack__(self, **options):
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.device, 0


class NumPyProtocolArray:
    """An array of an unknown library that NumPy can convert, such as TensorFlow's or Dask's."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return self.values


OTHERS = {
    "torch": torch.from_numpy,
    "torch with a gradient": lambda a: torch.from_numpy(a).requires_grad_(a.dtype.kind == "f"),
    "DLPack": DLPackArray,
    "__array__": NumPyProtocolArray,
    "strided": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
}


def maps(seed, kind, dtype="float32", shape=(2, 9, 11), void=None):
    """Return probabilities and masks of a kind; some values lie on edges of bins, at the ends and beside them."""
    rng = np.random.default_rng(seed)
    batch, *size = shape
    if kind == "softmax":
        p = rng.dirichlet([0.3, 1, 0.2], shape).transpose(0, 3, 1, 2)
        y = rng.integers(0, 3, shape)
    else:
        p = 1 / (1 + np.exp(-8 * rng.normal(size=(batch, 1 if kind == "binary" else 3, *size))))
        edges = rng.choice([0.0, 1.0, 0.5, 0.1, 0.9, 2.0**-30, 1 - 2.0**-20], p.shape)
        p = np.where(rng.random(p.shape) < 0.2, edges, p)
        y = (rng.random(p.shape) < p).astype(np.int64)
    if void is not None:
        y[rng.random(y.shape) < 0.2] = void
    return p.astype(dtype), y


def content(p, y, kind="binary", void=None, logits=False):
    meter = CalibrationMeter(ignore_index=void, **KINDS[kind])
    meter.update(**({"logits": p} if logits else {"probabilities": p}), masks=y)
    return meter.sketch.to_bytes()


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from(sorted(KINDS)),
    st.sampled_from(["float16", "float32", "float64"]),
    st.sampled_from([None, 9]),
    st.sampled_from(["int64", "uint8", "int32"]),
)
def test_probabilities_of_every_library_are_counted_to_the_bit(seed, kind, dtype, void, labels):
    p, y = maps(seed, kind, dtype, void=void)
    y = y.astype(labels)
    expected = content(p, y, kind, void)
    for name, convert in OTHERS.items():
        assert content(convert(p), convert(y), kind, void) == expected, name


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_levels_of_every_library_are_counted_to_the_bit(dtype):
    p, y = maps(0, "binary", "float64")
    levels = np.rint(p * np.iinfo(dtype).max).astype(dtype)
    for mask in (y, y.astype(np.float32), y.astype(bool)):
        expected = content(levels, y)
        for name, convert in OTHERS.items():
            assert content(convert(levels), convert(mask), "binary") == expected, name


def test_bfloat16_counts_at_its_exact_value():
    p, y = maps(0, "binary")
    rounded = torch.from_numpy(p).bfloat16()
    assert content(rounded, y) == content(rounded.float().numpy(), y)


@pytest.fixture
def tensors_stay(monkeypatch):
    """Let PyTorch count every tensor, as it does those on an accelerator."""
    monkeypatch.setattr(calibration, "as_array", lambda values: values)


@pytest.mark.parametrize("limit", [1 << 20, 100])
@pytest.mark.parametrize("logits", [False, True])
@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("void", [None, 9])
def test_tensors_on_an_accelerator_are_counted_as_by_numpy(kind, logits, void, limit, tensors_stay, monkeypatch):
    """The same integers for probabilities, and sums of probabilities within 1e-12 for logits."""
    monkeypatch.setattr(sketch_module, "EXACT_PIXELS", limit)
    p, y = maps(1, kind, "float64", void=void)
    if logits:
        p = np.log(np.clip(p, 1e-30, 1)) if kind == "softmax" else 5 * np.random.default_rng(0).normal(size=p.shape)
    here, there = (CalibrationMeter(ignore_index=void, **KINDS[kind]) for _ in "12")
    for _ in range(2):
        for meter, values in ((here, p), (there, torch.from_numpy(p))):
            meter.update(**({"logits": values} if logits else {"probabilities": values}), masks=y)
    assert there.sketch._counted.device
    assert there.sketch.is_binned == here.sketch.is_binned == (limit == 100)
    state, expected = there.state_dict(), here.state_dict()
    assert state.keys() == expected.keys()
    for name, table in state.items():
        if name == "rows":
            np.testing.assert_allclose(table, expected[name], rtol=1e-12, atol=1e-12)
        elif not logits:
            np.testing.assert_array_equal(table, expected[name])
    figures, wanted = (meter.compute().scalars() for meter in (there, here))
    assert figures == pytest.approx(wanted, rel=1e-12, abs=1e-12, nan_ok=True)


def test_a_meter_counts_maps_in_memory_and_on_an_accelerator_together(tensors_stay):
    both, alone = CalibrationMeter(), CalibrationMeter()
    for seed in range(4):
        p, y = maps(seed, "binary", "float64")
        alone.update(p, y)
        both.update(torch.from_numpy(p) if seed % 2 else p, y)
    copied = CalibrationMeter()
    copied.merge(both)
    assert both.sketch._counted.device  # to merge is not to wait
    for meter in (both, copied):
        assert np.array_equal(meter.state_dict()["top"], alone.state_dict()["top"])
        np.testing.assert_allclose(meter.sketch.image_rows(), alone.sketch.image_rows(), rtol=1e-12, atol=1e-12)
    assert not both.sketch._counted.device


def test_an_array_on_an_accelerator_goes_to_torch_without_a_copy(monkeypatch):
    """CuPy's arrays and JAX's on a GPU have the DLPack protocol."""
    given, seen = DLPackArray(np.ones(3), device=2), []
    monkeypatch.setattr(torch, "from_dlpack", lambda values: seen.append(values) or torch.ones(3))
    as_array(given)
    assert seen == [given]


def test_arrays_share_their_memory():
    values = np.random.default_rng(0).random(5)
    for same in (values, torch.from_numpy(values), DLPackArray(values), NumPyProtocolArray(values)):
        assert np.shares_memory(as_array(same), values)


def test_what_is_no_number_is_refused():
    with pytest.raises(TypeError, match="expected an array of numbers"):
        CalibrationMeter().update(["a", "b"], [0, 1])


def test_jax_on_the_cpu_is_counted_to_the_bit():
    jnp = pytest.importorskip("jax.numpy", reason="JAX is not installed")
    for kind in KINDS:
        p, y = maps(2, kind)
        for values, same in ((p, jnp.asarray(p)), (p.astype(np.float16), jnp.asarray(p, jnp.float16))):
            assert content(same, jnp.asarray(y, np.uint8), kind) == content(values, y.astype(np.uint8), kind)
        rounded = torch.from_numpy(p).bfloat16()
        if kind != "softmax":
            assert content(jnp.asarray(p, jnp.bfloat16), y, kind) == content(rounded, y, kind)
    levels = np.rint(maps(0, "binary")[0] * 255).astype(np.uint8)
    assert content(jnp.asarray(levels), jnp.asarray(y[:, :1] > 0)) == content(levels, y[:, :1] > 0)


def test_counting_does_not_import_torch():
    code = (
        "import sys, numpy as np; sys.modules['torch'] = None\n"
        "from densecal import calibration_errors\n"
        "p = np.random.default_rng(0).dirichlet([1, 1, 1], 50)\n"
        "calibration_errors(p, p.argmax(1), num_classes=3), calibration_errors(p[:, 0], p[:, 1] > 0.5).as_dict()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
