import math

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from densecal.data.augment import augment, warp

SIDE = 64


def ramp(count: int, side: int = SIDE) -> Tensor:
    """Images whose first two channels are the pixel's own x and y, from -1 to 1."""
    c = (2 * torch.arange(side, dtype=torch.float32) + 1) / side - 1
    y, x = torch.meshgrid(c, c, indexing="ij")
    return torch.stack((x, y, torch.ones_like(x))).repeat(count, 1, 1, 1)


def affine(kind: str, count: int = 4000, epoch: int = 0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Read each sample's affine map off the middle of an augmented ramp, where no edge is near."""
    side = 16  # the map is the same for every side, and small images are fast
    images, masks = ramp(count, side), torch.zeros(count, 1, side, side)
    moved, _ = augment(images, masks, torch.arange(count), epoch, seed, kind)  # type: ignore[arg-type]
    half, step = side // 2, 2.0 / side
    middle = moved[:, :2, half - 4 : half + 4, half - 4 : half + 4].double().numpy()
    by_x = (middle[:, :, :, 7] - middle[:, :, :, 0]).mean(axis=2) / (7 * step)
    by_y = (middle[:, :, 7, :] - middle[:, :, 0, :]).mean(axis=2) / (7 * step)
    return np.stack((by_x, by_y), axis=2), middle.mean(axis=(2, 3))


def unflipped(matrix: np.ndarray, shift: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which maps flip an axis (1 or -1), and the maps without the flip, which would hide what else the axes share."""
    sign = np.sign(matrix[:, axis, axis])
    matrix, shift = matrix.copy(), shift.copy()
    matrix[:, axis] *= sign[:, None]
    shift[:, axis] *= sign
    return sign, matrix, shift


def assert_uncorrelated(limit: float, *draws: np.ndarray) -> None:
    correlation = np.corrcoef(np.stack(draws))
    np.testing.assert_allclose(correlation, np.eye(len(draws)), atol=limit)


def test_none_returns_what_it_was_given() -> None:
    images, masks = torch.rand(2, 3, 8, 8), torch.rand(2, 1, 8, 8)
    assert augment(images, masks, torch.arange(2), 0, 0, "none") == (images, masks)


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(ValueError, match="'papers'; expected none, paper, code"):
        augment(torch.rand(1, 3, 8, 8), torch.rand(1, 1, 8, 8), torch.arange(1), 0, 0, "papers")  # type: ignore[arg-type]


def test_paper_flips_shifts_and_crops_within_the_stated_limits() -> None:
    matrix, shift = affine("paper")
    np.testing.assert_allclose(matrix[:, 0, 1], 0, atol=1e-4)
    np.testing.assert_allclose(matrix[:, 1, 0], 0, atol=1e-4)
    scale = matrix[:, 1, 1]
    np.testing.assert_allclose(np.abs(matrix[:, 0, 0]), scale, atol=1e-4)
    assert abs(np.mean(matrix[:, 0, 0] < 0) - 0.5) < 0.03
    assert 0.8 - 1e-4 < scale.min() < 0.801
    assert 0.999 < scale.max() < 1 + 1e-4
    assert abs(scale.mean() - 0.9) < 0.005
    # Translation by 0.1 of the side is 0.2 here; the crop of side s may lie anywhere in the translated image.
    limit = 0.2 + (1 - scale)[:, None]
    assert (np.abs(shift) <= limit + 1e-4).all()
    assert (np.abs(shift) > 0.9 * limit).any(axis=0).all()
    assert np.abs(shift.mean(axis=0)).max() < 0.01
    wide = shift[scale > 0.98]
    assert 0.19 < np.abs(wide).max() < 0.221


def test_paper_draws_flip_crop_and_both_offsets_independently() -> None:
    flip, matrix, shift = unflipped(*affine("paper"), axis=0)
    assert_uncorrelated(0.06, flip, matrix[:, 1, 1], shift[:, 0], shift[:, 1])
    # the crop's place within 1 - s and the translation within 0.2, s in [0.8, 1]: the variances of both add up
    by_crop, by_translation = 0.2**2 / 3 / 3, 0.2**2 / 3
    np.testing.assert_allclose(shift.var(axis=0), by_crop + by_translation, rtol=0.06)


def test_code_crops_about_the_centre_and_turns_a_fifth_by_whole_degrees() -> None:
    matrix, shift = affine("code")
    np.testing.assert_allclose(shift, 0, atol=1e-4)
    assert abs(np.mean(matrix[:, 0, 0] < 0) - 0.5) < 0.03
    matrix[:, 0] *= np.sign(matrix[:, 0, 0])[:, None]  # undo the flip
    width, height = np.hypot(*matrix[:, 0].T), np.hypot(*matrix[:, 1].T)
    for side in (width, height):
        removed = (1 - side) * 400
        np.testing.assert_allclose(removed, removed.round(), atol=0.03)
        assert set(removed.round().astype(int)) == set(range(1, 31))
    assert abs(np.corrcoef(width, height)[0, 1]) < 0.05
    degrees = np.degrees(np.arctan2(matrix[:, 1, 0], matrix[:, 1, 1]))
    np.testing.assert_allclose(degrees, degrees.round(), atol=0.02)
    turned = degrees.round().astype(int)
    assert set(turned) == set(range(-15, 15))
    assert abs(np.mean(turned != 0) - 0.2 * 29 / 30) < 0.02


def test_code_draws_flip_both_sides_and_the_turn_independently() -> None:
    flip, matrix, _ = unflipped(*affine("code"), axis=0)
    width, height = np.hypot(*matrix[:, 0].T), np.hypot(*matrix[:, 1].T)
    degrees = np.degrees(np.arctan2(matrix[:, 1, 0], matrix[:, 1, 1])).round()
    turned = degrees != 0
    assert_uncorrelated(0.06, flip, width, height, turned)
    assert_uncorrelated(0.12, flip[turned], width[turned], height[turned], degrees[turned])


def test_a_rotation_is_the_same_as_pillows() -> None:
    rng = np.random.default_rng(0)
    smooth = Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)).resize(
        (SIDE, SIDE), Image.Resampling.BICUBIC
    )
    images = torch.from_numpy(np.array(smooth)).permute(2, 0, 1)[None].float()
    angle = math.radians(10)
    matrix = torch.tensor([[[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]])
    moved, _ = warp(images, images[:, :1], matrix, torch.zeros(1, 2), "zeros")
    wanted = np.asarray(smooth.rotate(10, Image.Resampling.BILINEAR), dtype=float)
    c = np.arange(SIDE) + 0.5 - SIDE / 2
    inside = np.hypot(c[:, None], c) < 0.45 * SIDE  # where no corner turns in
    difference = np.abs(moved[0].permute(1, 2, 0).numpy() - wanted)[inside]
    assert difference.max() < 1.5, "Pillow rounds to whole levels"


def _sample_by_brute_force(data: np.ndarray, matrix: np.ndarray, shift: np.ndarray, padding: str) -> np.ndarray:
    """Brute force in float64: bilinear, pixel centres at half-integers."""
    height, width = data.shape
    out = np.zeros_like(data)

    def value(i: int, j: int) -> float:
        if padding == "reflection":
            i, j = (-1 - i if i < 0 else i), (-1 - j if j < 0 else j)
            i, j = min(i, 2 * height - 1 - i), min(j, 2 * width - 1 - j)
        return data[i, j] if 0 <= i < height and 0 <= j < width else 0.0

    for row in range(height):
        for column in range(width):
            offset = np.array([column + 0.5 - width / 2, row + 0.5 - height / 2])
            x, y = matrix @ offset + shift * [width / 2, height / 2] + [width / 2 - 0.5, height / 2 - 0.5]
            i, j = math.floor(y), math.floor(x)
            b, a = y - i, x - j
            out[row, column] = (1 - b) * ((1 - a) * value(i, j) + a * value(i, j + 1)) + b * (
                (1 - a) * value(i + 1, j) + a * value(i + 1, j + 1)
            )
    return out


@pytest.mark.parametrize("padding", ["reflection", "zeros"])
@pytest.mark.parametrize("shape", [(20, 20), (16, 24)])
def test_warping_equals_brute_force(padding: str, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    images = rng.random((3, 3, *shape))
    masks = rng.random((3, 1, *shape))
    matrix = np.eye(2) * rng.uniform(0.8, 1, (3, 1, 1)) + rng.uniform(-0.2, 0.2, (3, 2, 2))
    matrix[0, 0] *= -1
    shift = rng.uniform(-0.3, 0.3, (3, 2))
    to = torch.from_numpy
    moved = warp(to(images).float(), to(masks).float(), to(matrix), to(shift), padding)  # type: ignore[arg-type]
    for sample in range(3):
        for got, data in zip(moved, (images, masks), strict=True):
            for channel in range(data.shape[1]):
                wanted = _sample_by_brute_force(data[sample, channel], matrix[sample], shift[sample], padding)
                np.testing.assert_allclose(got[sample, channel].numpy(), wanted, atol=2e-5)


@pytest.mark.parametrize("side", [33, 96, 384])
def test_the_identity_changes_nothing(side: int) -> None:
    images, masks = torch.rand(2, 3, side, side), torch.rand(2, 1, side, side)
    labels = torch.randint(0, 11, (2, side, side))
    eye, zero = torch.eye(2).repeat(2, 1, 1), torch.zeros(2, 2)
    for target in (masks, labels):
        moved = warp(images, target, eye, zero, "reflection")
        torch.testing.assert_close(moved[0], images, rtol=0, atol=1e-6)
        torch.testing.assert_close(moved[1], target, rtol=0, atol=1e-6)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_shift_along_one_axis_alone_moves_image_and_mask(axis: int) -> None:
    images, masks = torch.rand(1, 3, 20, 20), torch.rand(1, 1, 20, 20)
    labels = torch.randint(0, 11, (1, 20, 20))
    shift = torch.zeros(1, 2)
    shift[0, axis] = 3 * 2 / 20  # three pixels, in half sides
    for target in (masks, labels):
        moved = warp(images, target, torch.eye(2)[None], shift, "zeros")
        for got, data in zip(moved, (images, target), strict=True):
            expected = data.narrow(-1 - axis, 3, 17)
            torch.testing.assert_close(got.narrow(-1 - axis, 0, 17), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["paper", "code", "icon"])
def test_image_and_foreground_mask_stay_together_up_to_the_edge(kind: str) -> None:
    images = torch.rand(16, 3, 40, 40)
    moved, masks = augment(images, images[:, :1].clone(), torch.arange(16), 1, 0, kind)  # type: ignore[arg-type]
    assert torch.equal(moved[:, :1], masks)
    assert not torch.equal(moved, images)
    assert masks.min() >= 0
    assert masks.max() <= 1


def test_a_binary_mask_takes_the_pixel_nearest_to_where_the_image_was_sampled() -> None:
    count, side = 200, 64
    numbers = torch.arange(side * side, dtype=torch.float32).view(1, 1, side, side).expand(count, -1, -1, -1)
    moved, found = augment(ramp(count, side), numbers, torch.arange(count), 0, 0, "edn")
    # the ramp tells where a pixel came from; within a pixel of the edge it is interpolated with its mirror image
    inner = (slice(None), slice(2, -2), slice(2, -2))
    x, y = ((moved[:, axis].double().numpy()[inner] + 1) * side / 2 - 0.5 for axis in (0, 1))
    # where the source lies within 0.01 of the middle between two pixels, either is right
    clear = (np.abs(x - np.floor(x) - 0.5) > 0.01) & (np.abs(y - np.floor(y) - 0.5) > 0.01)
    nearest = np.round(y) * side + np.round(x)
    np.testing.assert_array_equal(found[:, 0].numpy()[inner][clear], nearest[clear])
    assert clear.mean() > 0.9


def test_paper_shows_no_black_edges_and_code_leaves_corners_black() -> None:
    images, masks = torch.ones(200, 3, 40, 40), torch.ones(200, 1, 40, 40)
    paper, _ = augment(images, masks, torch.arange(200), 0, 0, "paper")
    torch.testing.assert_close(paper, images)
    code, code_masks = augment(images, masks, torch.arange(200), 0, 0, "code")
    black = (code[:, 0, [0, 0, -1, -1], [0, -1, 0, -1]] == 0).any(dim=1)
    assert 0.1 < black.float().mean() < 0.25
    assert torch.equal(code[:, :1], code_masks)


@pytest.mark.parametrize("ignore_index", [255, 11, -100])
def test_labels_come_from_the_nearest_pixel_and_are_void_beyond_the_edge(ignore_index: int) -> None:
    count = 64
    labels = torch.randint(0, 11, (count, SIDE, SIDE), generator=torch.Generator().manual_seed(0))
    labels[:, 5, 5] = ignore_index
    index = torch.arange(count)
    moved, got = augment(ramp(count), labels, index, 0, 0, "paper", ignore_index)
    assert got.dtype == torch.int64
    matrix, shift = affine("paper", count)
    c = (2 * np.arange(SIDE) + 1) / SIDE - 1
    checked = 0
    for n in range(count):
        u = (matrix[n, 0, 0] * c + shift[n, 0] + 1) * SIDE / 2 - 0.5
        v = (matrix[n, 1, 1] * c + shift[n, 1] + 1) * SIDE / 2 - 0.5
        # Where the source lies within 0.01 of the middle between two pixels, either is right.
        clear_u, clear_v = (np.abs(w - np.floor(w) - 0.5) > 0.01 for w in (u, v))
        column, row = np.round(u).astype(int), np.round(v).astype(int)
        inside = ((row >= 0) & (row < SIDE))[:, None] & ((column >= 0) & (column < SIDE))
        wanted = labels[n].numpy()[row.clip(0, SIDE - 1)][:, column.clip(0, SIDE - 1)]
        wanted = np.where(inside, wanted, ignore_index)
        sure = clear_v[:, None] & clear_u
        np.testing.assert_array_equal(got[n].numpy()[sure], wanted[sure])
        checked += int((~inside).sum())
    assert checked > 1000
    assert moved.abs().max() <= 1


def test_labels_beyond_the_edge_are_255_unless_told_otherwise() -> None:
    images, labels = torch.rand(16, 3, 32, 32), torch.randint(1, 11, (16, 32, 32))
    _, augmented = augment(images, labels, torch.arange(16), 0, 0, "paper")
    _, warped = warp(images, labels, torch.eye(2).repeat(16, 1, 1), torch.full((16, 2), 0.5), "zeros")
    for found in (augmented, warped):
        assert set(found.unique().tolist()) == {*range(1, 11), 255}


@pytest.mark.parametrize("kind", ["paper", "code"])
def test_a_draw_depends_on_seed_epoch_and_index_and_not_on_the_batch(kind: str) -> None:
    images, masks = torch.rand(12, 3, 24, 24), torch.rand(12, 1, 24, 24)
    index = torch.arange(100, 112)

    def run(rows: Tensor, epoch: int = 4, seed: int = 9) -> Tensor:
        return augment(images[rows], masks[rows], index[rows], epoch, seed, kind)[0]  # type: ignore[arg-type]

    whole, order = run(torch.arange(12)), torch.randperm(12)
    assert torch.equal(run(order), whole[order])
    assert torch.equal(run(torch.tensor([7])), whole[7:8])
    assert not torch.equal(run(torch.arange(12), epoch=5), whole)
    assert not torch.equal(run(torch.arange(12), seed=8), whole)


def test_grids_stay_float32_under_autocast() -> None:
    images, masks, index = torch.rand(4, 3, 96, 96), torch.rand(4, 1, 96, 96), torch.arange(4)
    expected = augment(images, masks, index, 0, 0, "paper")
    with torch.autocast("cpu", torch.bfloat16):
        got = augment(images, masks, index, 0, 0, "paper")
        half = augment(images.bfloat16(), masks, index, 0, 0, "paper")
    assert torch.equal(got[0], expected[0])
    assert torch.equal(got[1], expected[1])
    assert half[0].dtype == torch.bfloat16
    torch.testing.assert_close(half[0].float(), expected[0], atol=0.01, rtol=0)


@pytest.mark.parametrize("kind", ["paper", "code"])
@pytest.mark.parametrize("dense", [True, False])
def test_nothing_waits_for_a_value_on_the_device(kind: str, dense: bool) -> None:
    """Tensors on the meta device have no values: reading one, which would stall a GPU, raises."""
    masks = torch.empty(4, 1, 32, 32, device="meta")
    if not dense:
        masks = torch.empty(4, 32, 32, dtype=torch.int64, device="meta")
    index = torch.arange(4, device="meta")
    moved = augment(torch.empty(4, 3, 32, 32, device="meta"), masks, index, 0, 0, kind)  # type: ignore[arg-type]
    assert moved[0].shape == (4, 3, 32, 32)
    assert moved[1].shape == masks.shape
