"""`densecal data`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from densecal.cli.app import app
from densecal.cli.common import progress

data_app = typer.Typer(help="Generate and pack data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")


@data_app.command("scenes")
def data_scenes(
    out: Annotated[Path, typer.Argument(help="New folder for images/ and masks/.")],
    count: Annotated[int, typer.Option(min=1, help="Number of scenes.")] = 100,
    size: Annotated[int, typer.Option(min=16, max=4096, help="Side in pixels.")] = 96,
    seed: Annotated[int, typer.Option(min=0, help="Seed.")] = 0,
) -> None:
    """Generate textured scenes whose label probabilities are known.

    Example: `densecal data scenes scenes/ --count 200 --size 128`
    """
    from densecal.data.scenes import generate, write

    write(generate(count, size, seed), out)
    print(f"{out}: {count:,} scenes")


@data_app.command("pack")
def data_pack(
    images: Annotated[Path, typer.Argument(help="Folder of images, zip or list file.")],
    masks: Annotated[Path | None, typer.Argument(help="Folder of masks, where images is a folder.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the cache.")] = ...,  # type: ignore[assignment]
    size: Annotated[int, typer.Option(min=16, max=4096, help="Side in pixels.")] = 384,
    classes: Annotated[int, typer.Option(min=1, max=255, help="Number of classes; 1 for foreground masks.")] = 1,
    ignore_index: Annotated[int, typer.Option(min=0, max=255, help="Label of void pixels, for K classes.")] = 255,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; all cores unless given.")] = None,
) -> None:
    """Decode and resize a data set once, into memory-mapped files that training reads.

    Example: `densecal data pack DUTS-TR/images DUTS-TR/masks --size 384 --out cache/duts-384`
    """
    from densecal.data import open_source, pack

    source = open_source(images, masks)
    with progress("Packing") as report:
        packed = pack(source, source.names, size, out, classes, workers, report, ignore_index=ignore_index)
    for warning in packed.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(f"{out}: {len(packed):,} samples, {'rebuilt' if packed.rebuilt else 'up to date'}")
