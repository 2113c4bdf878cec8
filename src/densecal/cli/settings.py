"""What `densecal train --settings` prints."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from densecal.cli.common import console


def print_settings(section: str | None) -> None:
    """Print every setting of `train`, or those of a section or a method.

    Raises:
        InputError: There is no such section.
    """
    from densecal.training.settings import reference

    out = console()
    for part in reference(section):
        out.print(f"\n[bold]{escape(part.name)}[/]: {escape(part.summary)}", highlight=False)
        if not part.settings:
            out.print("It has no options.")
            continue
        table = Table("setting", "default", "allowed", "meaning", show_lines=True)
        table.columns[0].no_wrap = True
        for setting in part.settings:
            table.add_row(*map(escape, (setting.key, setting.default or "required", setting.allowed, setting.meaning)))
        out.print(table)
