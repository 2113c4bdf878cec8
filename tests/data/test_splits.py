import hashlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from densecal.data.splits import split
from densecal.errors import InputError
from densecal.io.groups import Groups

NAMES = [f"image_{i}" for i in range(2000)]
unique_names = st.lists(st.text(min_size=1, max_size=8), min_size=40, max_size=80, unique=True)


def test_a_list_decides_in_any_order_and_with_suffixes(tmp_path: Path) -> None:
    path = tmp_path / "val.txt"
    path.write_text("c.d\n\na.png\r\nsome/where/b.JPG\n")
    train, validation = split(["e", "b", "a", "c.d", "c"], path)
    assert validation == ["a", "b", "c.d"]
    assert train == ["c", "e"]


def test_a_listed_name_with_a_suffix_is_first_looked_up_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "val.txt"
    path.write_text("a.png\nb.png\n")
    assert split(["a", "a.png", "b", "c"], path) == (["a", "c"], ["a.png", "b"])


def test_a_list_may_begin_with_a_byte_order_mark_and_hold_any_bytes_but_newlines(tmp_path: Path) -> None:
    strange = ["vertical\vtab", "line\u2028separator", b"latin-\xe9".decode("utf-8", "surrogateescape")]
    path = tmp_path / "val.txt"
    path.write_bytes(b"\xef\xbb\xbf" + "\n".join(["first", *strange]).encode("utf-8", "surrogateescape"))
    assert split(["first", "other", *strange], path) == (["other"], sorted(["first", *strange]))


def test_five_of_the_unknown_names_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "val.txt"
    path.write_text("\n".join("gfedcba"))
    with pytest.raises(InputError, match=r"6 names that are not in the data set \(b, c, d, e, f\)"):
        split(["a", "x"], path)


def test_listed_names_that_do_not_exist_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "val.txt"
    path.write_text("a\nx\ny\n")
    with pytest.raises(InputError, match=r"val\.txt: 2 names that are not in the data set \(x, y\)"):
        split(["a", "b"], path)
    with pytest.raises(InputError, match=r"nowhere\.txt"):
        split(["a", "b"], str(tmp_path / "nowhere.txt"))
    path.write_text("\n")
    with pytest.raises(InputError, match="no names"):
        split(["a", "b"], path)
    path.write_text("a\nb\n")
    with pytest.raises(InputError, match="left to train on"):
        split(["a", "b"], path)


@settings(max_examples=25)
@given(unique_names, st.integers(0, 5))
def test_a_ratio_puts_a_name_on_the_same_side_whatever_else_is_there(names: list[str], seed: int) -> None:
    train, validation = split(names, 0.5, seed)
    assert sorted(train + validation) == sorted(names)
    assert train == sorted(train)
    assert validation == sorted(validation)
    fewer = [name for i, name in enumerate(names) if i % 10]
    assert split(fewer, 0.5, seed)[1] == sorted(set(validation) & set(fewer))


def test_the_side_is_the_hash_of_seed_and_name() -> None:
    for seed in (0, 7):
        _, validation = split(NAMES, 0.25, seed)
        hashes = {n: int.from_bytes(hashlib.sha256(f"{seed}:{n}".encode()).digest(), "big") for n in NAMES}
        assert validation == sorted(n for n in NAMES if hashes[n] < 2**254)


def fraction(name: str, seed: int) -> float:
    """The hash of a seed and a name, as a number in [0, 1) of 48 bits."""
    data = str(seed).encode() + b":" + name.encode("utf-8", "surrogateescape")
    return int(hashlib.sha256(data).hexdigest()[:12], 16) / 2**48


def test_a_count_takes_the_names_with_the_smallest_hashes() -> None:
    names = [*NAMES[:20], b"latin-\xe9".decode("utf-8", "surrogateescape")]
    for seed in (0, 7):
        ranked = sorted(names, key=lambda name: fraction(name, seed))
        for count in (1, 2, 20):
            assert split(names, count, seed)[1] == sorted(ranked[:count])
    assert split(names, 5) == split(names, 5, seed=0)


def test_a_ratio_leaves_out_the_name_whose_hash_it_is() -> None:
    ratio = fraction("image_3", 0)
    assert "image_3" in split(NAMES, ratio)[0]
    assert "image_3" in split(NAMES, ratio + 2**-48)[1]


def test_a_ratio_is_met_roughly_and_a_count_exactly() -> None:
    assert abs(len(split(NAMES, 0.2)[1]) - 400) < 80
    assert len(split(NAMES, 123)[1]) == 123
    assert split(NAMES, 100, seed=1)[1] != split(NAMES, 100, seed=2)[1]
    assert set(split(NAMES, 100)[1]) < set(split(NAMES, 101)[1])
    assert split(NAMES[::-1], 100) == split(NAMES, 100)


def test_the_validation_part_may_be_empty_on_request_and_the_training_part_may_not() -> None:
    assert split(NAMES, 0) == (sorted(NAMES), [])
    assert split(NAMES, 0.0)[1] == []
    for bad in (1.0, -0.1, len(NAMES), -1, float("nan")):
        with pytest.raises(InputError, match="validation"):
            split(NAMES, bad)
    with pytest.raises(InputError, match="2000 of 2000 images; expected 0 to 1999"):
        split(NAMES, 2000)
    with pytest.raises(InputError, match=r"the ratio 1\.0; expected a ratio in \[0, 1\)"):
        split(NAMES, 1.0)
    with pytest.raises(InputError, match="a count"):
        split(["a", "b"], 1e-9)
    with pytest.raises(ValueError, match="twice"):
        split(["a", "a", "b"], 1)
    with pytest.raises(TypeError, match="bool"):
        split(NAMES, True)


# ------------------------------------------------------------------ groups

FRAMES = [f"video{v:02}_{i}" for v in range(40) for i in range(1 + v % 5)]
VIDEOS = Groups(r"video\d+")


def videos(names: list[str]) -> set[str]:
    return set(VIDEOS.of(names))


@pytest.mark.parametrize("validation", [0.25, 7, 30])
def test_a_group_is_on_one_side(validation: float) -> None:
    train, held_out = split(FRAMES, validation, groups=VIDEOS)
    assert sorted(train + held_out) == sorted(FRAMES)
    assert not videos(train) & videos(held_out)
    assert videos(split(FRAMES, validation)[0]) & videos(split(FRAMES, validation)[1])  # unlike without groups


@pytest.mark.parametrize("count", [1, 7, 30, 60])
def test_a_count_is_the_least_number_of_images_of_whole_groups(count: int) -> None:
    _, held_out = split(FRAMES, count, groups=VIDEOS)
    assert count <= len(held_out) < count + 5


def test_the_side_of_a_group_depends_on_its_name_alone() -> None:
    _, held_out = split(FRAMES, 0.25, groups=VIDEOS)
    _, of_fewer = split([name for name in FRAMES if name.endswith("_0")], 0.25, groups=VIDEOS)
    assert videos(held_out) == videos(of_fewer)


def test_a_list_that_divides_a_group_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "val.txt"
    path.write_text("video04_0\nvideo04_1\n")
    with pytest.raises(
        InputError, match=r"val\.txt: some images of the group 'video04' but not all; expected whole gro"
    ):
        split(FRAMES, path, groups=VIDEOS)
    path.write_text("".join(f"video04_{i}\n" for i in range(5)))
    assert videos(split(FRAMES, path, groups=VIDEOS)[1]) == {"video04"}


def test_groups_must_leave_images_on_both_sides() -> None:
    with pytest.raises(InputError, match="every image, in 1 groups; expected at least one image left to train on"):
        split(["a1", "a2"], 1, groups=Groups("a"))
    with pytest.raises(InputError, match="no group for 'b'"):
        split(["a1", "b"], 1, groups=Groups("a"))
