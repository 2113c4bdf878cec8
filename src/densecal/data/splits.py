"""Training and validation names: by a list file, a ratio or a count, the same on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from densecal.errors import InputError
from densecal.io.documents import read_lines
from densecal.io.images import IMAGE_SUFFIXES


def split(names: Sequence[str], validation: str | Path | float, seed: int = 0) -> tuple[list[str], list[str]]:
    """Divide names into a training and a validation part.

    Args:
        names: Unique sample names.
        validation: A list file with one name per line (a suffix such as ``.jpg`` is allowed); or a float in
            [0, 1), the probability with which a name goes to validation; or an int, the number of names.
        seed: Chooses the names for a ratio or a count. With a ratio the side of a name depends on the seed
            and the name alone, so adding or removing files moves no other name; with a count it depends on its rank.

    Returns:
        ``(train, validation)``, both sorted; the id of a training sample is its position in ``train``.

    Raises:
        InputError: The list names something unknown, or a part is empty that must not be.
    """
    if len(set(names)) != len(names):
        raise ValueError("names: found a name twice; expected unique names")
    if isinstance(validation, bool):
        raise TypeError("validation: found a bool; expected a list file, a ratio or a count")
    if isinstance(validation, str | Path):
        chosen = _read_list(names, Path(validation))
    elif isinstance(validation, int):
        if not 0 <= validation < len(names):
            raise InputError("validation", f"{validation} of {len(names)} images", f"0 to {len(names) - 1}")
        chosen = set(sorted(names, key=lambda name: (_fraction(name, seed), name))[:validation])
    else:
        if not 0.0 <= validation < 1.0:
            raise InputError("validation", f"the ratio {validation}", "a ratio in [0, 1), or a whole number of images")
        chosen = {name for name in names if _fraction(name, seed) < validation}
        if validation > 0 and not chosen:
            raise InputError(
                "validation", f"no name of {len(names)} at ratio {validation}", "a count for so few images"
            )
    if len(chosen) == len(names):
        raise InputError("validation", "every image", "at least one image left to train on")
    return sorted(set(names) - chosen), sorted(chosen)


def _fraction(name: str, seed: int) -> float:
    """Return a number in [0, 1) that is a function of the seed and the name."""
    digest = hashlib.sha256(f"{seed}:{name}".encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:6], "big") / 2.0**48


def _read_list(names: Sequence[str], path: Path) -> set[str]:
    known = set(names)
    lines = read_lines(path, "a list of validation names")
    listed = {line if line in known else _without_suffix(line) for line in lines}
    if not listed:
        raise InputError(path, "no names", "one validation name per line")
    unknown = sorted(listed - known)
    if unknown:
        raise InputError(
            path,
            f"{len(unknown)} names that are not in the data set ({', '.join(unknown[:5])})",
            "names of images",
        )
    return listed


def _without_suffix(line: str) -> str:
    return Path(line).stem if line.lower().endswith(IMAGE_SUFFIXES) else line
