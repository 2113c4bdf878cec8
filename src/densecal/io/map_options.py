"""How maps and masks are stored, where their files do not specify it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from densecal.errors import InputError
from densecal.io.relabel import Relabel


@dataclass(frozen=True)
class Channel:
    """One channel of maps that hold a probability for each of several regions, or of masks of several raters.

    Attributes:
        index: Its index.
        of: Number of channels.
    """

    index: int
    of: int


@dataclass(frozen=True)
class MapOptions:
    """How maps are stored, where their files do not specify it.

    Attributes:
        logits: Values are logits, of which the sigmoid or softmax is scored.
        channels_last: Arrays of K classes are (H, W, K) and not (K, H, W).
        key: Name of the array in archives of several.
        max_value: The value that means probability 1; ``None`` for 1 in floats and the highest level of 8 or 16 bits.
        strip_suffix: Ends of file stems that are left out when maps and masks are matched.
        normalise: Scores of K classes are divided by their sum.
        axes: Order of the axes of space in arrays of volumes, ``zyx`` or ``xyz``, where the format does not specify it.
        layout: The tools that laid out the folders, separated by commas, or ``auto``, or ``plain`` for none.
        multilabel: Maps hold K probabilities per pixel, one for each of K regions.
        region: The name of the region to read, of several.
        channel: The channel of that region, set by layouts.
        rater: The rater whose mask is read from files that hold the masks of several.
        relabel: The meaning of the labels in masks, set by layouts.
    """

    logits: bool = False
    channels_last: bool = False
    key: str | None = None
    max_value: float | None = None
    strip_suffix: tuple[str, ...] = ()
    normalise: bool = False
    axes: str | None = None
    layout: str = "auto"
    multilabel: bool = False
    region: str | None = None
    channel: Channel | None = None
    relabel: Relabel | None = None
    rater: Channel | None = None

    def __post_init__(self) -> None:
        if self.max_value is not None and not (math.isfinite(self.max_value) and self.max_value > 0):
            raise InputError("--max-value", f"{self.max_value:g}", "a number above 0")
        if self.logits and self.max_value is not None:
            raise InputError("--max-value", "--logits as well", "one of them: logits have no highest value")
        if self.normalise and (self.logits or self.max_value is not None):
            raise InputError("--normalise", "--logits or --max-value as well", "one of them")
        if self.axes not in (None, "zyx", "xyz"):
            raise InputError("--axes", repr(self.axes), "zyx or xyz")


AS_STORED = MapOptions()
