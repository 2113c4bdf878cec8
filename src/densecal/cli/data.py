"""`densecal data`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from densecal.cli.app import app
from densecal.cli.common import Force, check_targets, console, print_line, print_note, progress_bar
from densecal.cli.map_options import IgnoreIndex
from densecal.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from densecal.data.check import Report

_MOST_PRINTED = 20
"""Findings printed per kind; the JSON has them all."""

data_app = typer.Typer(help="Check, generate and pack data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")


@data_app.command("check")
def data_check(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Folder, zip files or list file of a data set, or its folder of images and its folder of masks."
        ),
    ],
    against: Annotated[
        list[Path] | None,
        typer.Option(help="Another data set, which should share no image with this one; may be repeated."),
    ] = None,
    classes: Annotated[
        int | None, typer.Option(min=1, max=255, help="K for label maps. Default: that of a published set, else 1.")
    ] = None,
    ignore_index: IgnoreIndex = None,
    json: Annotated[Path | None, typer.Option(help="Write every finding as JSON.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Number of processes. Default: all cores.")] = None,
    force: Force = False,
) -> None:
    """Report file by file what is missing or wrong in a data set. The exit code is 1 if anything is.

    Published sets are recognised by their folders (docs/data.md lists them), and their number of images is checked
    too. Copies are identical (equal pixels) or near-identical (another size, encoding, brightness, or a crop). Similar
    images, such as neighbours in a video, are listed too but are not wrong. Constant borders are ignored.

    Examples:

    * `densecal data check DUTS-TR --against DUTS-TE --against ECSSD --json duts.json`

    * `densecal data check photos/ masks/`

    * `densecal data check CamVid/train`
    """
    from densecal.data.check import check
    from densecal.data.sources import find_files
    from densecal.io.atomic import write_json
    from densecal.io.outputs import check_outputs

    zips = all(path.suffix.lower() == ".zip" for path in paths)
    if not zips and len(paths) > 2:
        raise InputError(paths[2], "a third path", "a folder of images and a folder of masks, or only zip files")
    check_targets(json)
    images, masks = (paths, None) if zips else (paths[0], paths[1] if len(paths) > 1 else None)
    sets = [find_files(images, masks), *(find_files(other) for other in against or ())]
    check_outputs("data check", [(json, "json")], (file for files in sets for file in files.files()), force)
    with progress_bar() as report:
        result = check(images, masks, against or (), classes, ignore_index, workers, report)
    _print_report(result, console(json))
    if json:
        write_json(json, {"densecal": "data check"} | result.as_dict())
    if not result.fine:
        raise typer.Exit(1)


def _print_report(report: Report, out: Console) -> None:
    """Print a table of the findings, then the files."""
    from rich.table import Table

    from densecal.data.check import KINDS, NOTES
    from densecal.report.tables import terminal_text

    files = report.files
    about = f"{files.where}: {len(files.images):,} images, {len(files.masks):,} masks"
    known = f"{files.layout.name}, {files.layout.home}" if files.layout else "not a known published set"
    out.print(terminal_text(f"{about} ({known})"), soft_wrap=True, highlight=False)
    for other in report.against:
        out.print(
            terminal_text(f"against {other.where}: {len(other.images):,} images"), soft_wrap=True, highlight=False
        )
    table = Table("", "found", "")
    for kind in report.by_kind():
        table.add_row(KINDS[kind], report.count(kind), "worth knowing" if kind in NOTES else "wrong")
    if report.findings:
        out.print(table)
    for kind, findings in report.by_kind().items():
        out.print(f"\n{KINDS[kind]}:", highlight=False)
        for finding in findings[:_MOST_PRINTED]:
            line = "  " + " = ".join(finding.files) + (f": {finding.detail}" if finding.detail else "")
            out.print(terminal_text(line), soft_wrap=True, highlight=False)
        if len(findings) > _MOST_PRINTED:
            out.print(f"  and {len(findings) - _MOST_PRINTED:,} more, which --json lists", highlight=False)
    unchecked = "" if files.masks else "; no masks were given, so only the images were checked"
    out.print(f"{'nothing' if report.fine else 'something'} is wrong{unchecked}", soft_wrap=True, highlight=False)


@data_app.command("scenes")
def data_scenes(
    out: Annotated[Path, typer.Argument(help="New folder for images/ and masks/.")],
    count: Annotated[int, typer.Option(min=1, help="Number of scenes.")] = 100,
    size: Annotated[int, typer.Option(min=16, max=4096, help="Side in pixels.")] = 96,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the scenes.")] = 0,
) -> None:
    """Generate textured scenes whose label probabilities are known.

    Example: `densecal data scenes scenes/ --count 200 --size 128`
    """
    from densecal.data.scenes import generate, write

    with progress_bar() as report:
        write(generate(count, size, seed, progress=report), out, report)
    print_line(f"{out}: {count:,} scenes")


@data_app.command("pack")
def data_pack(
    images: Annotated[Path, typer.Argument(help="Folder of images or of a data set, zip or list file.")],
    masks: Annotated[Path | None, typer.Argument(help="Folder of masks, where IMAGES is a folder of images.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the cache.")] = ...,  # type: ignore[assignment]
    size: Annotated[int, typer.Option(min=16, max=4096, help="Side in pixels.")] = 384,
    classes: Annotated[int, typer.Option(min=1, max=255, help="K for label maps; 1 for foreground masks.")] = 1,
    ignore_index: Annotated[int, typer.Option(min=0, max=255, help="Mask value of void pixels, for K classes.")] = 255,
    workers: Annotated[int | None, typer.Option(min=1, help="Number of processes. Default: all cores.")] = None,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Read all of an existing cache, not only a sample, and rebuild a damaged one."),
    ] = False,
) -> None:
    """Decode and resize a data set once, and write memory-mapped files that training reads.

    A cache that is damaged, or older than its data set, is rebuilt, with a line that says so.

    Examples:

    * `densecal data pack DUTS-TR/images DUTS-TR/masks --size 384 --out cache/duts-384`

    * `densecal data pack DUTS-TR/images DUTS-TR/masks --size 384 --out cache/duts-384 --verify`
    """
    from densecal.data import open_source, pack

    source = open_source(images, masks)
    with progress_bar() as report:
        packed = pack(source, source.names, size, out, classes, workers, report, verify, ignore_index)
    for warning in packed.warnings:
        print_note(f"warning: {warning}")
    print_line(f"{out}: {len(packed):,} samples, {'packed' if packed.rebuilt else 'up to date'}")
