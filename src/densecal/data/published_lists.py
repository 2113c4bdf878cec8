"""The lists of names that the paper's authors publish with their code (Carlisle-Liu/ASLP), without suffixes."""

from __future__ import annotations

from functools import cache
from importlib import resources

VALIDATION = "duts-tr-validation"
"""The 1,000 images of DUTS-TR that validate; the other 9,553 train."""
TEXTURES = "dtd-textures"
"""The 500 images of DTD without a salient object."""
LISTS = (VALIDATION, TEXTURES)


@cache
def published_list(name: str) -> tuple[str, ...]:
    """Return the names of one of ``LISTS``, sorted.

    Examples:
        >>> len(published_list("duts-tr-validation")), published_list("dtd-textures")[0]
        (1000, 'blotchy_0009')
    """
    file = resources.files("densecal") / "data" / "lists" / f"{name}.txt"
    return tuple(file.read_text(encoding="utf-8").split())
