"""The application that every command registers itself with."""

from __future__ import annotations

from typing import Annotated

import typer

from densecal import __version__

app = typer.Typer(
    name="densecal",
    help="Segmentation models whose confidence can be believed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _version(asked: bool) -> None:
    if asked:
        print(f"densecal {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass
