from pathlib import Path

import numpy as np
import pytest

from densecal.data.scenes import Scenes, generate, write
from densecal.data.sources import open_source
from densecal.errors import InputError


@pytest.fixture(scope="module")
def many() -> Scenes:
    return generate(1200, size=32, seed=3, softness=1.0)


def ece(scenes: Scenes, bins: int = 10) -> float:
    """Gap between probability and drawn labels over equal-width bins, in float64."""
    p, y = scenes.probability.astype(np.float64).ravel(), (scenes.masks > 0).ravel()
    bin_of = np.minimum((p * bins).astype(int), bins - 1)
    return float(sum(abs((p - y)[bin_of == b].sum()) for b in range(bins)) / p.size)


def test_drawn_labels_match_the_probability_better_the_more_there_are(many: Scenes) -> None:
    errors = [np.mean([ece(_part(many, i, i + n)) for i in range(0, 1200 - n + 1, n)]) for n in (20, 150, 1200)]
    assert errors[2] < 0.005
    assert errors[0] > 2 * errors[1] > 3 * errors[2]


def test_the_share_of_foreground_is_the_mean_probability_in_every_bin(many: Scenes) -> None:
    y = many.masks > 0
    for low, high in [(0.02, 0.2), (0.2, 0.5), (0.5, 0.8), (0.8, 0.98)]:
        band = (many.probability > low) & (many.probability < high)
        assert band.sum() > 5000
        assert abs(y[band].mean() - many.probability[band].mean()) < 0.03


def test_probability_is_not_the_mask(many: Scenes) -> None:
    p, y = many.probability.astype(np.float64), many.masks > 0
    accuracy = np.mean((p > 0.5) == y)
    assert abs(accuracy - np.maximum(p, 1 - p).mean()) < 0.005
    assert accuracy < 0.98
    # Labels of neighbours go together: far fewer changes along rows than independent draws would give.
    changes = np.mean(y[:, :, 1:] != y[:, :, :-1])
    independent = np.mean(p[:, :, 1:] * (1 - p[:, :, :-1]) + p[:, :, :-1] * (1 - p[:, :, 1:]))
    assert changes < 0.6 * independent


def test_scenes_are_a_function_of_seed_and_position() -> None:
    a, b, c = generate(6, 32, seed=1), generate(3, 32, seed=1), generate(3, 32, seed=2)
    for kind in ("images", "masks", "probability"):
        np.testing.assert_array_equal(getattr(a, kind)[:3], getattr(b, kind))
        assert not np.array_equal(getattr(b, kind), getattr(c, kind))
    assert (a.images.dtype, a.masks.dtype, a.probability.dtype) == (np.uint8, np.uint8, np.float32)
    assert set(np.unique(a.masks)) == {0, 255}
    assert a.images.shape == (6, 32, 32, 3)


def test_without_softness_and_doubtful_objects_nothing_is_uncertain() -> None:
    scenes = generate(30, 32, seed=0, softness=0.0, doubtful=0.0)
    np.testing.assert_array_equal(scenes.probability, scenes.masks / 255.0)


def test_softness_widens_the_uncertain_border_in_proportion() -> None:
    uncertain = []
    for softness in (0.5, 1.0, 2.0):
        p = generate(60, 96, seed=0, softness=softness, doubtful=0.0).probability
        uncertain.append(np.mean((p > 0.1) & (p < 0.9)))
    assert uncertain[1] / uncertain[0] == pytest.approx(2.0, rel=0.15)
    assert uncertain[2] / uncertain[1] == pytest.approx(2.0, rel=0.15)


def test_doubtful_objects_come_as_often_as_asked_with_chances_from_a_fifth_to_four_fifths() -> None:
    for doubtful in (0.3, 1.0):
        p = generate(300, 32, seed=0, softness=0.0, doubtful=doubtful).probability
        between = ((p > 0) & (p < 1)).any(axis=(1, 2))
        # A few doubtful objects hide behind sure ones.
        assert doubtful * 0.8 < between.mean() < doubtful + 0.08
        assert 0.2 <= p[(p > 0) & (p < 1)].min() < 0.25
        assert 0.75 < p[(p > 0) & (p < 1)].max() <= 0.8


def test_noise_is_what_it_says_and_moves_no_label() -> None:
    quiet, loud = generate(20, 48, seed=0, noise=0.0), generate(20, 48, seed=0, noise=0.1)
    np.testing.assert_array_equal(quiet.probability, loud.probability)
    np.testing.assert_array_equal(quiet.masks, loud.masks)
    inside = (quiet.images > 80) & (quiet.images < 175)  # away from the ends of the range
    difference = (loud.images.astype(float) - quiet.images)[inside] / 255
    assert difference.std() == pytest.approx(0.1, rel=0.05)


def test_objects_stand_out_from_the_ground_the_more_the_surer_they_are() -> None:
    scenes = generate(150, 48, seed=5, softness=0.0, doubtful=1.0, noise=0.0)
    gaps: dict[bool, list[float]] = {True: [], False: []}
    for image, p in zip(scenes.images / 255.0, scenes.probability, strict=True):
        ground = image[p == 0].mean(axis=0)
        for sure in (True, False):
            where = (p == 1) if sure else (p > 0) & (p < 0.4)
            if where.sum() > 20:
                gaps[sure].append(float(np.linalg.norm(image[where].mean(axis=0) - ground)))
    assert np.mean(gaps[True]) > 2 * np.mean(gaps[False])


def test_written_scenes_are_a_source(tmp_path: Path) -> None:
    scenes = generate(3, 32, seed=0)
    write(scenes, tmp_path / "new" / "scenes")
    source = open_source(tmp_path / "new" / "scenes")
    assert source.names == ["00000", "00001", "00002"]
    for i, name in enumerate(source.names):
        np.testing.assert_array_equal(source.image(name), scenes.images[i])
        np.testing.assert_array_equal(source.mask(name), scenes.masks[i])
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["scenes"]


def test_writing_never_touches_a_folder_with_something_in_it(tmp_path: Path) -> None:
    (tmp_path / "keep.txt").write_text("mine")
    with pytest.raises(InputError, match="not empty"):
        write(generate(1, 32), tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["keep.txt"]


@pytest.mark.parametrize(
    "bad", [{"count": 0}, {"size": 8}, {"seed": -1}, {"softness": -1.0}, {"doubtful": 1.5}, {"noise": -0.1}]
)
def test_impossible_parameters_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        generate(**{"count": 1, "size": 32, **bad})


def _part(scenes: Scenes, start: int, stop: int) -> Scenes:
    return Scenes(scenes.images[start:stop], scenes.masks[start:stop], scenes.probability[start:stop])
