"""Groups of similar images (same patient, video or scene), from a file of names or by a pattern in the name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from densecal.errors import InputError
from densecal.io.documents import read_lines
from densecal.io.suffixes import MASK_SUFFIXES, stem_of

_FILE_SUFFIXES = (".csv", ".tsv", ".txt")


@dataclass(frozen=True)
class Groups:
    """Which group an image belongs to.

    Args:
        option: A file with a line ``name,group`` per image (or tab-separated; ``#`` starts a comment; a first line
            ``name,group`` is a heading; names may have a suffix such as ``.png``), or else a regular expression that
            is searched for in the name. Its first capture group, or the whole match, is the image's group.
        key: The option or setting, for messages.
    """

    option: str
    key: str = "--groups"
    _listed: dict[str, str] | None = field(init=False, repr=False, compare=False)
    _pattern: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        path = Path(self.option)
        is_file = path.suffix.lower() in _FILE_SUFFIXES or path.is_file()
        object.__setattr__(self, "_listed", _read_groups(path) if is_file else None)
        if is_file:
            return
        try:
            object.__setattr__(self, "_pattern", re.compile(self.option))
        except (re.error, OverflowError, RecursionError) as error:
            raise InputError(self.key, f"{self.option!r} ({error})", "a file or a regular expression") from None

    def of(self, names: Sequence[str]) -> list[str]:
        """Return the group of every image.

        Raises:
            InputError: An image has none.
        """
        groups = [self._group(name) for name in names]
        missing = [name for name, group in zip(names, groups, strict=True) if not group]
        if missing:
            shown = f"no group for {missing[0]!r}" + (f" ({len(missing)} images have none)" if missing[1:] else "")
            if self._listed is not None:
                raise InputError(self.option, shown, "a line NAME,GROUP for every image")
            raise InputError(self.key, shown, f"names that match {self.option!r}")
        return [group for group in groups if group is not None]

    def _group(self, name: str) -> str | None:
        if self._listed is not None:
            return self._listed.get(name)
        match = self._pattern.search(name)
        return None if match is None else match.group(1 if self._pattern.groups else 0)


def _read_groups(path: Path) -> dict[str, str]:
    """Read a file of groups; names without their suffix."""
    expected = "lines NAME,GROUP"
    groups: dict[str, str] = {}
    lines = [line for line in read_lines(path, expected) if not line.startswith("#")]
    for number, line in enumerate(lines):
        name, _, group = (part.strip() for part in line.partition("\t" if "\t" in line else ","))
        if number == 0 and (name.lower(), group.lower()) == ("name", "group"):
            continue
        if not (name and group):
            raise InputError(path, f"the line {line!r}", expected)
        stem = stem_of(Path(name)) if name.lower().endswith(MASK_SUFFIXES) else name
        if groups.setdefault(stem, group) != group:
            raise InputError(path, f"{stem!r} in the groups {groups[stem]!r} and {group!r}", "one group per name")
    if not groups:
        raise InputError(path, "no names", expected)
    return groups
