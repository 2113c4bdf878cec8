"""3D networks that slide over volumes: maps are those of brute force and of MONAI, and lie where their volume lies."""

from __future__ import annotations

import itertools
import json

import nibabel
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from densecal.errors import InputError
from densecal.io.volume_files import Volume, read_volume
from densecal.models.factory import MULTIPLE as PADDED
from densecal.prediction.tiles import MULTIPLE, Tiling
from densecal.prediction.volume_input import VolumeInput, parse_volume_input
from densecal.prediction.volume_networks import module_network
from densecal.prediction.volumes import predict_volumes, volume_probabilities
from tests.onnx_files import conv_onnx
from tests.running import run

AFFINE = np.array([[-0.8, 0.1, 0, 10], [0.05, -0.9, 0, 20], [0, 0, 2.5, -30], [0, 0, 0, 1.0]])


class Far(nn.Module):
    """Sees its whole tile and where it lies in it, so every mistake of cutting and blending changes the map."""

    def __init__(self, classes: int = 3, channels: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.near, self.out = nn.Conv3d(channels, 4, 3, padding=1), nn.Conv3d(4, classes, 1)

    def forward(self, x):
        z = self.near(x).relu()
        return 3 * self.out(z - z.mean(dim=(2, 3, 4), keepdim=True) + torch.linspace(0, 1, x.shape[-1]))


def volume(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def save(path, values, affine=AFFINE):
    path.parent.mkdir(exist_ok=True)
    axes = (*range(1, 4), 0) if values.ndim == 4 else range(3)
    turned = np.transpose(values, axes)
    nibabel.save(nibabel.Nifti1Image(np.swapaxes(turned, 0, 2), affine), path)  # (Z, Y, X) is stored as (X, Y, Z)


def brute_force(values, tilings, function):
    """The weighted mean of all tiles in float64, voxel by voxel of every tile; weights are those of the axes."""
    lengths = values.shape[1:]
    total = weight_sum = 0.0
    cuts = [list(zip(t.starts(n), t.weights(n), strict=True)) for t, n in zip(tilings, lengths, strict=True)]
    for places in itertools.product(*cuts):
        ends = [start + t.tile for (start, _), t in zip(places, tilings, strict=True)]
        index = [np.minimum(np.arange(s, e), n - 1) for (s, _), e, n in zip(places, ends, lengths, strict=True)]
        p = function(values[(slice(None), *np.ix_(*index))]).astype(np.float64)
        a, b, c = (weight.astype(np.float64) for _, weight in places)
        w = a[:, None, None] * b[:, None] * c
        if not np.ndim(total):
            total = np.zeros((len(p), *(n + t.tile for n, t in zip(lengths, tilings, strict=True))))
            weight_sum = np.zeros(total.shape[1:])
        inside = tuple(slice(start, end) for (start, _), end in zip(places, ends, strict=True))
        total[(slice(None), *inside)] += w * p
        weight_sum[inside] += w
    inside = tuple(slice(n) for n in lengths)
    np.testing.assert_allclose(weight_sum[inside], 1, atol=1e-6)
    return total[(slice(None), *inside)] / weight_sum[inside]


@torch.inference_mode()
def softmax_of(model, tile):
    return model(torch.from_numpy(np.ascontiguousarray(tile))[None]).double().softmax(dim=1)[0].numpy()


# ------------------------------------------------------------------ tiles of three axes


@pytest.mark.parametrize("shape", [(13, 40, 21), (8, 12, 16), (3, 5, 30), (40, 8, 9)])
def test_a_map_is_the_weighted_mean_of_its_tiles(shape):
    model, values = Far(channels=2), volume(2, *shape)
    prepare = VolumeInput(tile=(8, 12, 16), activation="softmax")
    found = volume_probabilities(module_network(model, device="cpu"), Volume(values), prepare, batch=1)
    expected = brute_force(values, prepare.tilings(), lambda tile: softmax_of(model, tile))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=2e-6)


def test_the_number_of_tiles_at_a_time_changes_nothing(monkeypatch):
    values, prepare = volume(1, 20, 30, 25), VolumeInput(tile=(16, 16, 16), activation="softmax")
    network, maps = module_network(Far(), device="cpu"), []
    for voxels in (1, 16**3 * 3, 1 << 30):
        monkeypatch.setattr("densecal.prediction.volumes._BATCH_VOXELS", voxels)
        maps.append(volume_probabilities(network, Volume(values), prepare, batch=1))
    np.testing.assert_allclose(maps[1:], [maps[0]] * 2, atol=1e-6)


@settings(max_examples=25)
@given(st.integers(1, 100), st.integers(1, 60), st.booleans())
def test_weights_of_tiles_of_any_side_add_up_to_one(length, tile, without):
    tiling = Tiling.of_volume(tile, 0 if without else None)
    assert tile % tiling.multiple == 0
    starts, weights = tiling.starts(length), tiling.weights(length)
    assert all(start % tiling.multiple == 0 for start in starts)
    total = np.zeros(starts[-1] + tile)
    for start, weight in zip(starts, weights, strict=True):
        total[start : start + tile] += weight
    assert len(total) >= length
    np.testing.assert_allclose(total[:length], 1, atol=1e-6)
    assert tiling.padding(min(length, tile)) == tile - min(length, tile)


def test_tiles_start_where_networks_begin_to_halve():
    assert MULTIPLE == PADDED
    assert [Tiling.of_volume(tile).multiple for tile in (7, 28, 48, 96, 128, 192)] == [1, 2, 8, 16, 32, 32]
    assert [Tiling.of_volume(tile).overlap for tile in (1, 2, 7, 28, 96, 128)] == [0, 1, 1, 6, 16, 32]


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(32, 32, 32), (80, 32, 48), (48, 96, 32)])
def test_monai_slides_the_same_network_to_the_same_map(shape):
    """With our weights as its weight map; sides are such that both place their tiles alike."""
    inferers = pytest.importorskip("monai.inferers", reason="monai is not installed")
    model, values, tiling = Far(), volume(1, *shape), Tiling.of_volume(32, 16)  # sides are 32 + 16 n
    prepare = VolumeInput(tile=(32,) * 3, overlap=(16,) * 3, activation="softmax")
    assert tiling == prepare.tilings()[0]
    found = volume_probabilities(module_network(model, device="cpu"), Volume(values), prepare)
    profile = torch.from_numpy(tiling.weights(80)[1].clip(1e-9)).double()  # of a tile with neighbours on both sides
    with torch.inference_mode():
        expected = inferers.sliding_window_inference(
            torch.from_numpy(values)[None], 32, 4, lambda x: model(x).double().softmax(dim=1), overlap=0.5,
            roi_weight_map=profile[:, None, None] * profile[:, None] * profile,
        )[0]  # fmt: skip
    np.testing.assert_allclose(found, expected.numpy(), atol=2e-6)


# ------------------------------------------------------------------ what a network is given


def test_values_are_clipped_and_normalised_channel_by_channel():
    x = np.stack([volume(6, 7, 8), 50 + 10 * volume(6, 7, 8, seed=1)]).astype(np.float64)
    v = x.astype(np.float32)

    def result(**keys):
        return parse_volume_input(keys, "a.yaml").values(v)

    np.testing.assert_allclose(result(clip=[-1, 1], mean=0.5, std=2), (x.clip(-1, 1) - 0.5) / 2, atol=1e-5)
    np.testing.assert_allclose(result(clip=[-160, 240], normalise="range"), (x + 160) / 400, atol=1e-5)
    low, high = (np.percentile(x, q, axis=(1, 2, 3), keepdims=True) for q in (5, 95))
    found = result(percentiles=[5, 95], normalise="range")
    np.testing.assert_allclose(found, (x.clip(low, high) - low) / (high - low), atol=1e-5)
    mean, std = x.mean(axis=(1, 2, 3), keepdims=True), x.std(axis=(1, 2, 3), keepdims=True)
    np.testing.assert_allclose(result(normalise="zscore"), (x - mean) / std, atol=1e-5)
    assert VolumeInput(normalise="zscore").values(np.ones((1, 2, 2, 2), np.float32)).tolist() == [[[[0] * 2] * 2] * 2]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"size": 3}, "size: unknown key; expected one of tile, overlap"),
        ({"tile": [96, 96]}, r"tile: \[96, 96\]; expected a whole number of voxels from 1, or a list of three"),
        ({"clip": [3, 1]}, "two numbers, the lower one first"),
        ({"percentiles": [1, 101]}, "from 0 to 100"),
        ({"clip": [0, 1], "percentiles": [1, 99]}, "clip: percentiles as well; expected one of them"),
        ({"normalise": "zscore", "mean": 3}, "normalise: mean as well"),
        ({"std": 0}, "std: 0; expected a number above 0"),
        ({"axes": "yxz"}, "axes: 'yxz'; expected one of zyx, xyz"),
        ({"activation": "relu"}, "one of none, sigmoid, softmax"),
        ("tile", "str; expected keys among"),
    ],
)
def test_keys_that_make_no_sense_are_refused(keys, words):
    with pytest.raises(InputError, match=words):
        parse_volume_input(keys, "a.yaml")


def test_a_network_of_xyz_sees_the_axes_of_nibabel(tmp_path):
    values = volume(9, 10, 20)  # (Z, Y, X)
    save(tmp_path / "scan.nii.gz", values)
    np.save(tmp_path / "scan.npy", values)
    seen, prepare = [], VolumeInput(tile=(20, 10, 9), axes="xyz", activation="sigmoid")

    def network(x):
        seen.append(x.numpy()[0, 0])
        return x

    for suffix, expected in (("nii.gz", values.T), ("npy", values)):
        stored = read_volume(tmp_path / f"scan.{suffix}", 10**6)
        own = prepare if suffix == "nii.gz" else VolumeInput(tile=values.shape, axes="xyz", activation="sigmoid")
        p = volume_probabilities(module_network(network, device="cpu"), stored, own)
        np.testing.assert_array_equal(seen[-1], expected)
        np.testing.assert_allclose(p[0], 1 / (1 + np.exp(-values)), atol=1e-6)


@pytest.mark.parametrize(
    ("result", "output", "words"),
    [
        (lambda x: x[..., :4], 0, r"an output of shape \(.*, 4\); expected \(B, K, D, H, W\) of the size of the input"),
        (lambda x: (x, x), 2, "2 outputs; expected an output 2"),
        (lambda x: {"logits": x}, "maps", "outputs logits; expected an output 'maps'"),
        (lambda x: {"logits": None}, 0, "an output of type NoneType; expected a tensor"),
        (lambda x: x - 9, 0, "values from .* in the output for the volume; expected probabilities, or activation:"),
        (lambda x: x * np.nan, 0, "NaN or infinite values in the output"),
        (lambda x: x.reshape(3, 7), 0, r"shape '\[3, 7\]' is invalid.*expected a network that takes tiles of shape"),
    ],
)
def test_outputs_that_are_no_maps_are_refused(result, output, words):
    prepare = VolumeInput(tile=(8, 8, 8), output=output)
    with pytest.raises(InputError, match=words):
        volume_probabilities(module_network(result, output, "cpu"), Volume(volume(1, 8, 8, 8)), prepare)


# ------------------------------------------------------------------ the command


def conv_torch(path):
    """The same for PyTorch: TorchScript, or a program of `torch.export` with a free batch and fixed sides."""
    model = nn.Conv3d(1, 3, 1, bias=False)
    model.weight.data[:] = torch.tensor([1.0, -2.0, 0.5]).reshape(3, 1, 1, 1, 1)
    if path.suffix == ".pt":
        torch.jit.save(torch.jit.trace(model, torch.zeros(1, 1, 4, 4, 4)), path)
    else:
        batch = {0: torch.export.Dim("batch")}
        torch.export.save(torch.export.export(model, (torch.zeros(2, 1, 16, 16, 16),), dynamic_shapes=[batch]), path)


def expected_map(values):
    z = np.array([1.0, -2.0, 0.5]).reshape(3, 1, 1, 1) * values.astype(np.float64)
    e = np.exp(z - z.max(axis=0))
    return e / e.sum(axis=0)


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
@pytest.mark.parametrize("model", ["free.onnx", "fixed.onnx", "net.pt", "fixed.pt2"])
def test_predict_writes_maps_that_evaluate_takes(tmp_path, model):
    values = {name: volume(9, 21, 30, seed=seed) for seed, name in enumerate(("a", "b"))}
    for name, one in values.items():
        save(tmp_path / "scans" / f"{name}.nii.gz", one)
        save(tmp_path / "labels" / f"{name}.nii.gz", expected_map(one).argmax(axis=0).astype(np.uint8))
    if ".pt" in model:
        conv_torch(tmp_path / model)
    else:
        conv_onnx(tmp_path / model, *((16, 2) if "fixed" in model else ()))
    (tmp_path / "ct.yaml").write_text("activation: softmax\naxes: xyz\n" + "tile: 16\n" * ("fixed" not in model))
    out, steps = tmp_path / "maps", tmp_path / "ct.yaml"
    code, said, error = run(
        "predict", tmp_path / model, tmp_path / "scans", "--preprocess", steps, "--out", out, "--device", "cpu",
        "--uncertainty",
    )  # fmt: skip
    assert (code, error) == (0, "")
    assert "2 maps" in said
    for name, one in values.items():
        image = nibabel.load(out / f"{name}.nii.gz")
        np.testing.assert_allclose(image.affine, AFFINE, atol=1e-6)
        p = np.moveaxis(np.asarray(image.dataobj), 3, 0).transpose(0, 3, 2, 1)
        np.testing.assert_allclose(p, expected_map(one), atol=2e-6)
        confidence = np.asarray(nibabel.load(out / "confidence" / f"{name}.nii.gz").dataobj).T
        np.testing.assert_allclose(confidence, p.max(axis=0), atol=1e-6)
    scores = tmp_path / "scores.json"
    assert run("evaluate", out, tmp_path / "labels", "--classes", 3, "--json", scores, "--workers", 1)[0] == 0
    assert json.loads(scores.read_text())["calibration"]["accuracy"] == pytest.approx(1, abs=1e-3)
    again = ("predict", tmp_path / model, tmp_path / "scans", "--preprocess", steps, "--out", out, "--format", "npy")
    assert run(*again)[0] == 0
    np.testing.assert_allclose(np.load(out / "a.npy"), expected_map(values["a"]), atol=2e-6)


@pytest.mark.parametrize("suffix", ["mha", "nrrd", "npy"])
def test_other_formats_keep_their_place_too(tmp_path, suffix):
    sitk = None if suffix == "npy" else pytest.importorskip("SimpleITK", reason="SimpleITK is not installed")
    values = volume(2, 9, 12, 14)
    (tmp_path / "scans").mkdir()
    path = tmp_path / "scans" / f"a.{suffix}"
    if suffix == "npy":
        np.save(path, values)
    else:
        image = sitk.GetImageFromArray(np.moveaxis(values, 0, -1), isVector=True)
        image.SetSpacing((0.8, 0.9, 2.5))
        image.SetOrigin((1.0, 2.0, 3.0))
        sitk.WriteImage(image, str(path))
    prepare = VolumeInput(tile=(8, 8, 8), activation="sigmoid")
    assert predict_volumes(lambda x: x[:, :1], path, tmp_path / "maps", prepare, device="cpu") == 1
    target = tmp_path / "maps" / f"a.{suffix}"
    if suffix == "npy":
        found = np.load(target)
    else:
        written = sitk.ReadImage(str(target))
        assert written.GetSpacing() == pytest.approx((0.8, 0.9, 2.5))
        assert written.GetOrigin() == pytest.approx((1.0, 2.0, 3.0))
        found = sitk.GetArrayFromImage(written)
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-values[0])), atol=1e-6)


@pytest.mark.parametrize("place", ["(0,0,0) (0,1,0) (0,0,1)", "(nan,0,0) (0,1,0) (0,0,1)", "(1,0) (0,1) (1,1)"])
def test_a_volume_without_a_place_in_the_world_is_refused(tmp_path, place):
    head = f"NRRD0004\ntype: uint8\ndimension: 3\nsizes: 4 4 4\nencoding: raw\nspace directions: {place}\n\n"
    (tmp_path / "a.nrrd").write_bytes(head.encode() + bytes(64))
    with pytest.raises(InputError, match=r"a\.nrrd: voxels without a place in the world"):
        predict_volumes(lambda x: x, tmp_path / "a.nrrd", tmp_path / "maps", VolumeInput(tile=(4, 4, 4)), device="cpu")


def test_errors_take_one_line(tmp_path):
    save(tmp_path / "scans" / "a.nii", volume(9, 10, 11))
    save(tmp_path / "pairs" / "a.nii", volume(2, 9, 10, 11))
    for suffix in ("pt", "pt2"):
        (tmp_path / f"damaged.{suffix}").write_bytes(b"weights")
        torch.save(torch.nn.Conv3d(1, 2, 3).state_dict(), tmp_path / f"weights.{suffix}")
    (tmp_path / "run").mkdir()
    conv_onnx(tmp_path / "net.onnx")
    conv_onnx(tmp_path / "fixed.onnx", 16)
    (tmp_path / "softmax.yaml").write_text("activation: softmax\n")

    def error(model, *options, scans="scans"):
        code, _, text = run("predict", tmp_path / model, tmp_path / scans, "--out", tmp_path / "maps", *options)
        assert code == 2
        assert text.count("\n") == 1
        return text

    assert "--tile: none; expected the side in voxels" in error("net.onnx")
    assert "--tile: 8 x 8 x 8; expected 16 x 16 x 16, which the network takes" in error("fixed.onnx", "--tile", 8)
    assert "--overlap: 5; expected a multiple of 4 from 0 to half of --tile 8" in error(
        "net.onnx", "--tile", 8, "--overlap", 5
    )
    assert "activation: sigmoid or softmax in --preprocess" in error("net.onnx", "--tile", 8)
    for name in ("weights.pt", "weights.pt2"):
        assert f"{name}: no network (" in error(name, "--tile", 8)
    for name in ("damaged.pt", "damaged.pt2"):
        assert f"{name}: unreadable (" in error(name, "--tile", 8)
    assert "volumes to predict; expected a file of ONNX (.onnx), torch.export (.pt2)" in error("run", "--tile", 8)
    assert "--ensemble: with volumes" in error("net.onnx", "--tile", 8, "--ensemble", tmp_path / "run")
    assert "--format: png16; expected npy" in error("net.onnx", "--tile", 8, "--format", "png16")
    assert "990 values; expected at most 900" in error("net.onnx", "--tile", 8, "--max-pixels", 900)
    assert "volumes of 2 channels; expected 1, as the network has" in error("net.onnx", "--tile", 8, scans="pairs")
    assert "a folder that this command reads" in error("net.onnx", "--tile", 8, "--out", tmp_path / "scans")
    for side in (2000, 10**9):
        assert f"--tile: {side} x {side} x {side}; expected at most 268,435,456 voxels" in error(
            "net.onnx", "--tile", side
        )
    (tmp_path / "sigmoid.yaml").write_text("activation: sigmoid\ntile: 8\n")
    assert "--uncertainty: 3 sigmoids per voxel" in error(
        "net.onnx", "--uncertainty", "--preprocess", tmp_path / "sigmoid.yaml"
    )
    assert not (tmp_path / "maps").exists()
    (tmp_path / "empty").mkdir()
    assert "no volumes; expected volumes for a file of PyTorch" in error("weights.pt", scans="empty")
