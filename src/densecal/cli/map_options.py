"""The options of commands that read maps: how maps are stored, where their files do not specify it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from densecal.io.map_options import MapOptions

Classes = Annotated[int | None, typer.Option(min=1, max=255, help="K for maps of K softmax classes.")]
IgnoreIndex = Annotated[int | None, typer.Option(min=0, max=255, help="Mask value of void pixels.")]


def _map_options(
    logits: Annotated[
        bool, typer.Option("--logits", help="Maps hold logits; their sigmoid or softmax is used.")
    ] = False,
    channels_last: Annotated[bool, typer.Option("--channels-last", help="Arrays of K classes are (H, W, K).")] = False,
    key: Annotated[str | None, typer.Option(help="Name of the array in files that hold several.")] = None,
    max_value: Annotated[float | None, typer.Option(help="Value that means probability 1, such as 100.")] = None,
    strip_suffix: Annotated[
        list[str] | None,
        typer.Option(help="Ending of names, before .png etc., ignored when matching maps and masks; may be repeated."),
    ] = None,
    normalise: Annotated[
        bool, typer.Option("--normalise", help="Divide class scores by their sum (Mask2Former).")
    ] = False,
    axes: Annotated[
        str | None, typer.Option(metavar="zyx|xyz", help="Axes of .npy volumes: zyx (SimpleITK) or xyz (nibabel).")
    ] = None,
    layout: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="auto|plain|NAME",
            help="Tool that wrote the files: nnunet, monai, transformers, ... (docs/formats.md). plain: match stems.",
        ),
    ] = "auto",
    multilabel: Annotated[
        bool, typer.Option("--multilabel", help="Maps hold K sigmoids per pixel; masks have a channel for each.")
    ] = False,
    region: Annotated[
        str | None, typer.Option("--region", metavar="NAME", help="One region of multi-label maps.")
    ] = None,
) -> MapOptions:
    """Declare the options, and return them for readers."""
    strip = tuple(strip_suffix or ())
    return MapOptions(logits, channels_last, key, max_value, strip, normalise, axes, layout, multilabel, region)


def with_map_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command these options in place of its parameter ``maps``, which then holds their values."""
    options = inspect.signature(_map_options, eval_str=True).parameters

    @wraps(command)
    def run(**arguments: Any) -> None:  # Any: a parameter of whatever kind the command declares
        maps = _map_options(**{name: arguments.pop(name) for name in options})
        command(**arguments, maps=maps)

    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        parameters += options.values() if parameter.name == "maps" else [parameter]
    keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    run.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in keywords}
    return run
