"""The commands behind a benchmark, as Markdown: what made the tables, every figure and every row."""

from __future__ import annotations

from pathlib import Path

from densecal.benchmark.summary import Summary


def commands_text(summary: Summary, figures: list[Path]) -> str:
    """Return which command made which file and which row.

    Args:
        summary: The benchmark.
        figures: The figures that were drawn.
    """
    files = ["table.md", "table.tex", "table.csv", "results.json", *(f"figures/{path.name}" for path in figures)]
    parts = [
        "<!-- densecal benchmark -->\n# Commands",
        "The whole benchmark; run again, it does only what is missing or changed:",
        f"```\n{summary.command}\n```",
        "The tables and figures alone, from the result files:",
        f"```\n{summary.command} --tables-only\n```",
        "It writes " + ", ".join(f"`{name}`" for name in files) + ".",
        "Every row is the mean over seeds of these trainings, each evaluated on every data set:",
    ]
    parts += [f"{key}\n\n```\n{command}\n```" for key, command in summary.commands.items()]
    if summary.notes:
        parts.append("Warnings of the trainings:")
        parts.append("\n".join(f"* {note} ({'; '.join(keys)})" for note, keys in summary.notes.items()))
    return "\n\n".join(parts) + "\n"
