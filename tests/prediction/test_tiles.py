"""Large images: tiles whose weights add up to 1, no seams, the same maps as without tiles, bounded memory."""

import json
import math
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import nn
from torch.nn.functional import interpolate

from densecal.errors import InputError
from densecal.models import build
from densecal.prediction.ensembles import load_ensemble, with_mc_dropout
from densecal.prediction.folder import predict
from densecal.prediction.predictor import Predictor, load_predictor
from densecal.prediction.tiles import Tiling
from densecal.training import checkpoint
from tests import forked
from tests.running import run
from tests.training.common import environment, small_config

SIDES = st.integers(1, 700)
TILINGS = st.tuples(st.sampled_from([64, 96, 128, 192]), st.sampled_from([0, 32, 64, 96])).filter(
    lambda pair: pair[1] <= pair[0] // 2
)


class Near(nn.Module):
    """Looks 11 pixels far, on a grid of 4: sees what its padding and the tiles' places do to it."""

    def __init__(self, classes=1):
        super().__init__()
        torch.manual_seed(0)
        self.fine, self.down = nn.Conv2d(3, 4, 5, padding=2), nn.Conv2d(4, 6, 4, stride=4)
        self.coarse, self.out = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6 + 4, classes, 1)

    def forward(self, x):
        fine = self.fine(x - 0.5).relu()
        coarse = self.coarse(self.down(fine).relu())
        return 4 * self.out(torch.cat([fine, interpolate(coarse, scale_factor=4, mode="nearest")], dim=1))


def predictor(model, classes=1, size=32):
    overrides = [f"data.size={size}"]
    config = small_config(*overrides)
    if classes > 1:
        config = config.model_copy(update={"data": config.data.model_copy(update={"classes": classes})})
    return Predictor(model.eval(), config, torch.device("cpu"))


def picture(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def whole(model, image):
    """The network on the whole image, padded as ``SegmentationModel`` pads it."""
    height, width = image.shape[:2]
    padded = np.pad(image, [(0, -height % 32), (0, -width % 32), (0, 0)], mode="edge")
    with torch.no_grad():
        z = model(torch.from_numpy(padded).permute(2, 0, 1)[None].float() / 255)[0, :, :height, :width]
    return (z.sigmoid() if len(z) == 1 else z.softmax(dim=0)).numpy()


def tiled(model, image, tiling, batch=3, classes=1):
    (chunks,) = predictor(model, classes).tiled_chunks([image], tiling, batch)
    return np.concatenate(list(chunks), axis=1)


# ------------------------------------------------------------------ cutting


@given(SIDES, TILINGS)
def test_weights_add_up_to_one_everywhere(length, sides):
    tiling = Tiling.of(*sides)
    starts, weights = tiling.starts(length), tiling.weights(length)
    total = np.zeros(starts[-1] + tiling.tile)
    for start, weight in zip(starts, weights, strict=True):
        total[start : start + tiling.tile] += weight
        assert weight.min() >= 0
    np.testing.assert_allclose(total[:length], 1, atol=1e-6)


@given(SIDES, TILINGS)
def test_tiles_cover_the_side_and_share_the_overlap(length, sides):
    tiling = Tiling.of(*sides)
    starts = tiling.starts(length)
    assert starts[0] == 0
    assert all(start % 32 == 0 for start in starts)
    assert all(tiling.overlap <= a + tiling.tile - b < tiling.tile for a, b in pairwise(starts))
    assert starts[-1] + tiling.tile >= length
    assert len(starts) == 1 or starts[-1] + tiling.tile < length + 32


@given(SIDES, TILINGS)
def test_tiles_have_no_weight_near_inner_edges_and_weights_rise_smoothly(length, sides):
    tiling = Tiling.of(*sides)
    margin, weights = tiling.overlap // 4, tiling.weights(length)
    for i, weight in enumerate(weights):
        assert i == 0 or not weight[:margin].any()
        assert i == len(weights) - 1 or not weight[tiling.tile - margin :].any()
        if tiling.overlap and len(weights) > 1:
            assert np.abs(np.diff(weight)).max() <= np.pi / 2 / (tiling.overlap - 2 * margin) + 1e-6


def brute_force_weights(tiling, starts):
    """In float64, from the distances of pixel centres to the edges of tiles that have a neighbour there."""
    quarter = tiling.overlap / 4

    def rise(distance):
        share = np.clip((distance - quarter) / (tiling.overlap - 2 * quarter), 0, 1) if tiling.overlap else 1.0
        return np.sin(np.pi / 2 * share) ** 2

    raw = np.zeros((len(starts), starts[-1] + tiling.tile))
    for i, start in enumerate(starts):
        for x in range(tiling.tile):
            from_start = rise(x + 0.5) if i > 0 else 1.0
            from_end = rise(tiling.tile - x - 0.5) if i < len(starts) - 1 else 1.0
            raw[i, start + x] = from_start * from_end
    return [(raw[i] / raw.sum(axis=0))[start : start + tiling.tile] for i, start in enumerate(starts)]


@pytest.mark.parametrize(
    ("tile", "overlap", "length"),
    [(64, 32, 96), (64, 32, 64), (64, 32, 97), (64, 0, 200), (96, 32, 161), (128, 64, 300), (192, 96, 500)],
)
def test_weights_are_half_a_cosine_of_the_distance_to_the_inner_edges(tile, overlap, length):
    tiling = Tiling.of(tile, overlap)
    expected = brute_force_weights(tiling, tiling.starts(length))
    np.testing.assert_allclose(tiling.weights(length), expected, atol=1e-7)


def test_two_tiles_share_the_middle_of_their_overlap_pixel_by_pixel():
    first, second = Tiling(64, 32).weights(96)
    # eight pixels without weight, then sixteen whose centres lie at odd multiples of pi / 64
    rise = [math.sin((2 * k + 1) * math.pi / 64) ** 2 for k in range(16)]
    np.testing.assert_allclose(second, [0] * 8 + rise + [1] * 40, atol=1e-7)
    np.testing.assert_allclose(first, second[::-1], atol=1e-7)


@pytest.mark.parametrize(
    ("length", "starts"), [(64, [0]), (65, [0, 32]), (96, [0, 32]), (97, [0, 32, 64]), (128, [0, 32, 64])]
)
def test_tiles_start_as_far_apart_as_the_overlap_allows(length, starts):
    assert Tiling(64, 32).starts(length) == starts


def test_a_large_tile_moves_by_all_but_the_overlap():
    assert Tiling(128, 32).starts(320) == [0, 96, 192]
    assert Tiling(128, 32).starts(321) == [0, 96, 192, 224]


@pytest.mark.parametrize(
    ("tile", "overlap", "match"),
    [(100, None, "--tile: 100"), (32, None, "--tile"), (0, 0, "--tile"), (128, 96, "--overlap: 96"), (128, 40, "40"),
     (128, -32, "-32")],
)  # fmt: skip
def test_sides_that_do_not_fit_are_refused(tile, overlap, match):
    with pytest.raises(InputError, match=match):
        Tiling.of(tile, overlap)


def test_the_overlap_is_a_quarter_and_at_least_32_unless_given():
    assert Tiling.of(512) == Tiling(512, 128)
    assert [Tiling.of(tile).overlap for tile in (64, 96, 256)] == [32, 32, 64]


# ------------------------------------------------------------------ blending


@pytest.mark.parametrize("size", [(200, 333), (64, 64), (40, 500), (129, 128), (500, 97)])
@pytest.mark.parametrize("classes", [1, 3])
def test_a_network_with_a_small_field_of_view_gives_the_same_map_as_for_the_whole_image(size, classes):
    model, image = Near(classes), picture(*size)
    found = tiled(model, image, Tiling.of(128, 64), classes=classes)
    assert found.shape == (classes, *size)
    np.testing.assert_allclose(found, whole(model, image), atol=2e-6)


def test_without_overlap_there_are_seams():
    model, image = Near(), picture(200, 200)
    assert np.abs(tiled(model, image, Tiling.of(128, 0)) - whole(model, image)).max() > 1e-3


@pytest.mark.parametrize("batch", [1, 100])
def test_the_number_of_tiles_at_a_time_changes_nothing(batch):
    model, image, tiling = Near(), picture(200, 300), Tiling.of(96, 32)
    np.testing.assert_allclose(tiled(model, image, tiling, batch), tiled(model, image, tiling, 3), atol=1e-6)


def test_blending_is_the_weighted_mean_of_the_tiles():
    """Brute force with a network that knows no place: a tile's probability is its own mean brightness."""

    class Mean(nn.Module):
        def forward(self, x):
            return x.mean(dim=(1, 2, 3), keepdim=True).logit().expand(-1, 1, *x.shape[2:])

    image, tiling = picture(150, 210), Tiling.of(96, 32)
    expected, weight_sum = np.zeros((2, 150, 210))
    for top, by_row in zip(tiling.starts(150), tiling.weights(150), strict=True):
        for left, by_column in zip(tiling.starts(210), tiling.weights(210), strict=True):
            cut = image[top : top + 96, left : left + 96]
            cut = np.pad(cut, [(0, -cut.shape[0] % 32), (0, -cut.shape[1] % 32), (0, 0)], mode="edge")
            for y in range(min(96, 150 - top)):
                for x in range(min(96, 210 - left)):
                    weight = float(by_row[y]) * float(by_column[x])
                    expected[top + y, left + x] += weight * cut.mean() / 255
                    weight_sum[top + y, left + x] += weight
    np.testing.assert_allclose(weight_sum, 1, atol=1e-6)
    np.testing.assert_allclose(tiled(Mean(), image, tiling)[0], expected, atol=1e-5)


# ------------------------------------------------------------------ chunks of resized images


@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.parametrize("size", [(70, 45), (20, 300), (301, 9)])
def test_chunks_are_the_map_whatever_their_number(classes, size, monkeypatch):
    one = predictor(Near(classes), classes, 64)
    image = picture(*size)
    expected = one.probabilities([image])[0].numpy().reshape(classes, *size)
    for values in (1 << 22, 5000, 1):
        monkeypatch.setattr("densecal.prediction.predictor._CHUNK_VALUES", values)
        (chunks,) = one.chunks([image])
        parts = list(chunks)
        np.testing.assert_allclose(np.concatenate(parts, axis=1), expected, atol=1e-5)
    assert len(parts) == size[0]


def test_large_images_come_a_few_at_a_time_and_a_note_says_that_they_were_resized(tmp_path, monkeypatch):
    (tmp_path / "images").mkdir()
    for i in range(5):
        Image.fromarray(picture(50, 40, i)).save(tmp_path / "images" / f"{i}.png")
    one, seen = predictor(Near(), size=64), []
    for module in ("predictor", "batches"):
        monkeypatch.setattr(f"densecal.prediction.{module}.LARGE_PIXELS", 1999)
    network = one.model.forward
    monkeypatch.setattr(one.model, "forward", lambda x: seen.append(len(x)) or network(x))
    with pytest.warns(UserWarning, match=r"more than 1,999 pixels were resized to 64 x 64.*--tile"):
        assert predict(one, tmp_path / "images", tmp_path / "maps") == 5
    assert seen == [1] * 5
    assert len(list((tmp_path / "maps").iterdir())) == 5


# ------------------------------------------------------------------ the command


@pytest.fixture
def runs(tmp_path):
    """Two untrained runs with dropout, and a photograph of 150 x 200."""
    paths = []
    for seed in range(2):
        config = small_config("model.options.dropout=0.3")
        torch.manual_seed(seed)
        model = build(config.model.arch, config.model.encoder, None, 1, **config.model.options)
        meta = {"epoch": config.total_epochs, "best": 1.0, "config": config.model_dump(mode="json")}
        checkpoint.save(tmp_path / f"{seed}" / "checkpoints" / "last", model.state_dict(), {}, {}, meta)
        paths.append(tmp_path / f"{seed}")
    (tmp_path / "photos").mkdir()
    Image.fromarray(picture(150, 200)).save(tmp_path / "photos" / "a.b.png")
    return paths


def test_predict_reads_the_weights_of_a_run_and_no_state_of_its_training(runs, tmp_path):
    for out in ("before", "after"):
        assert run("predict", runs[0], tmp_path / "photos", "--out", tmp_path / out, "--device", "cpu")[::2] == (0, "")
        for name in (checkpoint.METHOD, checkpoint.OPTIMIZER):
            (runs[0] / "checkpoints" / "last" / name).unlink(missing_ok=True)
    before, after = ((tmp_path / out / "a.b.png").read_bytes() for out in ("before", "after"))
    assert before == after


@pytest.mark.parametrize("kind", ["plain", "ensemble", "mc-dropout"])
def test_predict_in_tiles(runs, tmp_path, kind):
    options = {"plain": [], "ensemble": ["--ensemble", runs[1]], "mc-dropout": ["--mc-dropout", 2]}[kind]
    out = tmp_path / "maps"
    shared = ("predict", runs[0], tmp_path / "photos", "--out", out, "--tile", 64, "--overlap", 32, "--device", "cpu")
    assert run(*shared, "--format", "npy", "--uncertainty", *options)[::2] == (0, "")
    p = np.load(out / "a.b.npy")
    assert (p.shape, p.dtype) == ((150, 200), np.float32)
    loaded = load_ensemble(runs, "cpu") if kind == "ensemble" else load_predictor(runs[0], "cpu")
    if kind == "mc-dropout":
        loaded = with_mc_dropout(loaded, 2)
    (chunks,) = loaded.tiled_chunks([picture(150, 200)], Tiling.of(64, 32), 8)
    np.testing.assert_allclose(p, np.concatenate(list(chunks), axis=1)[0], atol=1e-6)
    np.testing.assert_allclose(np.load(out / "confidence" / "a.b.npy"), np.maximum(p, 1 - p), atol=1e-6)
    q = p.astype(np.float64)
    h = -(q * np.log2(q) + (1 - q) * np.log2(1 - q))
    np.testing.assert_allclose(np.load(out / "entropy" / "a.b.npy"), h, atol=1e-6)
    assert run(*shared, *options)[::2] == (0, "")
    levels = np.asarray(Image.open(out / "a.b.png"))
    np.testing.assert_array_equal(levels, np.rint(q * 65535))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (["--tile", 100], "--tile: 100; expected a multiple of 32"),
        (["--tile", 64, "--overlap", 64], "--overlap: 64; expected a multiple of 32 from 0 to half of --tile 64"),
        (["--overlap", 32], "--overlap: 32; expected --tile as well"),
        (
            ["--max-pixels", 20000],
            "200 x 150 pixels; expected at most 20,000 pixels (raise the limit with --max-pixels",
        ),
    ],
)
def test_errors_about_impossible_options_take_one_line(runs, tmp_path, options, match):
    code, _, error = run("predict", runs[0], tmp_path / "photos", "--out", tmp_path / "maps", *options)
    assert code == 2
    assert match in error
    assert error.count("\n") == 1


def test_an_error_about_a_network_of_one_size_names_the_size(tmp_path):
    class Fixed(nn.Module):
        def forward(self, x):
            assert x.shape[-1] == 64, "input size must be 64"
            return x[:, :1]

    (tmp_path / "images").mkdir()
    Image.fromarray(picture(150, 200)).save(tmp_path / "images" / "a.png")
    with pytest.raises(InputError, match=r"--tile: 128 \(input size must be 64.*\); expected .* such as 64"):
        predict(predictor(Fixed(), size=64), tmp_path / "images", tmp_path / "maps", tiling=Tiling.of(128))


# ------------------------------------------------------------------ memory

MEASURED = """
import json, resource, sys, warnings
from pathlib import Path
import torch
from densecal.prediction.folder import predict
from densecal.prediction.tiles import Tiling
from tests.prediction.test_tiles import CASES, Bright, predictor
torch.set_num_threads(1)
warnings.simplefilter("ignore")
folder, peaks = Path(sys.argv[1]), []
for name in ("small", "large"):
    for classes, tile, format in CASES:
        options = {"tiling": Tiling.of(tile) if tile else None, "format": format, "uncertainty": True}
        out = folder / f"{name}-{classes}-{tile}"
        predict(predictor(Bright(classes), classes), folder / name, out, **options)
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(json.dumps(peaks))
"""


class Bright(nn.Module):
    """A network that costs no time."""

    def __init__(self, classes):
        super().__init__()
        self.classes = classes

    def forward(self, x):
        return x[:, :1].repeat(1, self.classes, 1, 1)


CASES = [(1, 512, "png16"), (1, 0, "npy"), (4, 512, "npy")]


def test_peak_memory_for_images_of_4096_x_4096(tmp_path):
    for name, side in (("small", 64), ("large", 4096)):
        (tmp_path / name).mkdir()
        Image.new("RGB", (side, side), (90, 120, 200)).save(tmp_path / name / "a.png")
    arguments = [sys.executable, "-c", MEASURED, str(tmp_path)]
    done = forked.run(arguments, env=environment())  # imports have no part in the peak
    assert done.returncode == 0, done.stderr
    peaks = json.loads(done.stdout)
    above = [(peak - peaks[len(CASES) - 1]) / 1024 for peak in peaks[len(CASES) :]]
    assert max(above) < 600, above
    for classes, tile, format in CASES:
        suffix = "npy" if format == "npy" else "png"
        for plane in ("confidence", "entropy", "."):
            path = tmp_path / f"large-{classes}-{tile}" / plane / f"a.{suffix}"
            shape = np.load(path, mmap_mode="r").shape if suffix == "npy" else Image.open(path).size
            assert shape[-2:] == (4096, 4096)
