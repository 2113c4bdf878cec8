"""Training and validation names: by a list file, a ratio or a count, the same on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from densecal.data.published_lists import LISTS, published_list
from densecal.errors import InputError
from densecal.io.documents import read_lines
from densecal.io.groups import Groups
from densecal.io.suffixes import IMAGE_SUFFIXES


def split(
    names: Sequence[str], validation: str | Path | float, seed: int = 0, groups: Groups | None = None
) -> tuple[list[str], list[str]]:
    """Divide names into a training and a validation part.

    Args:
        names: Unique sample names.
        validation: A list file with one name per line (a suffix such as ``.jpg`` is allowed); or one of
            ``published_lists.LISTS``, the paper's own; or a float in [0, 1), the probability with which a name goes to
            validation; or an int, the number of names.
        seed: Chooses the names for a ratio or a count. With a ratio, the part of a name depends only on
            the seed and the name, so adding or removing files moves no other name. With a count, it depends on the
            rank of the name.
        groups: Groups that stay together. A ratio is then the probability with which a group goes to validation, a
            count the smallest number of images: whole groups are held out until it is reached.

    Returns:
        ``(train, validation)``, both sorted; the id of a training sample is its position in ``train``.

    Raises:
        InputError: The list contains an unknown name or divides a group, or a part would be empty.
    """
    if len(set(names)) != len(names):
        raise ValueError("names: a name occurs twice; expected unique names")
    if isinstance(validation, bool):
        raise TypeError("validation: got a bool; expected a list file, a ratio or a count")
    group = dict(zip(names, names if groups is None else groups.of(names), strict=True))
    if isinstance(validation, str | Path):
        chosen = _read_list(names, Path(validation))
        _check_whole(group, chosen, Path(validation))
    elif isinstance(validation, int):
        if not 0 <= validation < len(names):
            raise InputError("validation", f"{validation} of {len(names)} images", f"0 to {len(names) - 1}")
        chosen = _first_groups(group, validation, seed)
    else:
        if not 0.0 <= validation < 1.0:
            raise InputError("validation", f"the ratio {validation}", "a ratio in [0, 1), or a whole number of images")
        chosen = {name for name in names if _fraction(group[name], seed) < validation}
        if validation > 0 and not chosen:
            raise InputError(
                "validation", f"no name of {len(names)} at ratio {validation}", "a count for so few images"
            )
    if len(chosen) == len(names):
        alone = f", in {len(set(group.values()))} groups" if groups is not None else ""
        raise InputError("validation", f"every image{alone}", "at least one image left to train on")
    return sorted(set(names) - chosen), sorted(chosen)


def _first_groups(group: dict[str, str], count: int, seed: int) -> set[str]:
    """Return the names of whole groups, in the order of their draws, until there are enough."""
    chosen: set[str] = set()
    members: dict[str, list[str]] = {}
    for name, its_group in group.items():
        members.setdefault(its_group, []).append(name)
    for its_group in sorted(members, key=lambda name: (_fraction(name, seed), name)):
        if len(chosen) >= count:
            break
        chosen.update(members[its_group])
    return chosen


def _check_whole(group: dict[str, str], chosen: set[str], path: Path) -> None:
    """Refuse a list that holds out only some images of a group."""
    divided = {group[name] for name in chosen} & {group[name] for name in group.keys() - chosen}
    if divided:
        raise InputError(path, f"some images of the group {min(divided)!r} but not all", "whole groups")


def _fraction(name: str, seed: int) -> float:
    """Return a number in [0, 1) that is a function of the seed and the name."""
    digest = hashlib.sha256(f"{seed}:{name}".encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:6], "big") / 2.0**48


def _read_list(names: Sequence[str], path: Path) -> set[str]:
    known = set(names)
    is_published = str(path) in LISTS
    lines = list(published_list(str(path))) if is_published else read_lines(path, "a list of validation names")
    chosen = {line if line in known else _without_suffix(line) for line in lines}
    if not chosen:
        raise InputError(path, "no names", "one validation name per line")
    unknown = sorted(chosen - known)
    if unknown:
        raise InputError(
            path,
            f"{len(unknown)} names that are not in the data set ({', '.join(unknown[:5])})",
            "the whole of DUTS-TR, or another data.validation" if is_published else "names of images",
        )
    return chosen


def _without_suffix(line: str) -> str:
    return Path(line).stem if line.lower().endswith(IMAGE_SUFFIXES) else line
