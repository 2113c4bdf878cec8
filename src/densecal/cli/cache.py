"""`densecal cache`."""

from __future__ import annotations

import typer

from densecal.cli.app import app
from densecal.cli.common import console, print_line

cache_app = typer.Typer(help="Show or clear the packed images that `train` keeps.", no_args_is_help=True)
app.add_typer(cache_app, name="cache")


@cache_app.command("show")
def cache_show() -> None:
    """List the caches of packed images, with their folders and sizes.

    Example: `densecal cache show`
    """
    from rich.table import Table

    from densecal.data.caches import cache_root, list_caches
    from densecal.report.tables import terminal_text

    caches = list_caches()
    if caches:
        table = Table("folder", "samples", "side", "size", "last used")
        for cache in caches:
            used = f"{cache.last_used:%Y-%m-%d %H:%M}"
            table.add_row(
                terminal_text(cache.folder.name),
                f"{cache.samples:,}",
                f"{cache.side}",
                f"{cache.bytes / 1e6:,.1f} MB",
                used,
            )
        console().print(table)
    total = sum(cache.bytes for cache in caches)
    print_line(f"{cache_root()}: {len(caches)} caches, {total / 1e6:,.1f} MB; densecal cache clear removes them")


@cache_app.command("clear")
def cache_clear() -> None:
    """Remove the caches of packed images. The next training packs its images again.

    Caches that `data.cache` or `densecal data pack` put elsewhere stay. Do not clear while a training runs.

    Example: `densecal cache clear`
    """
    from densecal.data.caches import cache_root, clear_caches

    removed = clear_caches()
    freed = sum(cache.bytes for cache in removed)
    print_line(f"{cache_root()}: {len(removed)} caches removed, {freed / 1e6:,.1f} MB")
