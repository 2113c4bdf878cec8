"""The options of commands that read maps: how maps are stored, where their files do not say it."""

from __future__ import annotations

from typing import Annotated

import typer

from densecal.io.map_options import MapOptions

Logits = Annotated[bool, typer.Option("--logits", help="Maps hold logits; their sigmoid or softmax is used.")]
ChannelsLast = Annotated[bool, typer.Option("--channels-last", help="Arrays of K classes are (H, W, K).")]
Key = Annotated[str | None, typer.Option(help="Name of the array in files that hold several.")]
StripSuffix = Annotated[
    list[str] | None,
    typer.Option(help="End of names, before .png etc., left out when maps and masks are matched; may be repeated."),
]
MaxValue = Annotated[float | None, typer.Option(help="Value that means probability 1, such as 100.")]
Normalise = Annotated[bool, typer.Option("--normalise", help="Divide class scores by their sum (Mask2Former).")]
Axes = Annotated[
    str | None, typer.Option(metavar="zyx|xyz", help="Axes of .npy volumes: zyx (SimpleITK) or xyz (nibabel).")
]
Format = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="auto|plain|NAME",
        help="Whose files these are: nnunet, monai, transformers, ... (docs/formats.md). plain: match stems alone.",
    ),
]
Multilabel = Annotated[
    bool, typer.Option("--multilabel", help="Maps hold K sigmoids per pixel; masks have a channel for each.")
]
RegionName = Annotated[str | None, typer.Option("--region", metavar="NAME", help="One region of multi-label maps.")]


def map_options(
    logits: bool,
    channels_last: bool,
    key: str | None,
    max_value: float | None,
    strip_suffix: list[str] | None,
    normalise: bool = False,
    axes: str | None = None,
    layout: str = "auto",
    multilabel: bool = False,
    region: str | None = None,
) -> MapOptions:
    """Return the options as readers take them."""
    strip = tuple(strip_suffix or ())
    return MapOptions(logits, channels_last, key, max_value, strip, normalise, axes, layout, multilabel, region)
