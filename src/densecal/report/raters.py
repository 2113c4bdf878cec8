"""The table of a method against several raters."""

from __future__ import annotations

from rich.table import Table

from densecal.evaluation.raters import RaterFigures
from densecal.report.tables import percent, terminal_text


def rater_table(figures: RaterFigures) -> Table:
    """Return every figure with its interval."""
    table = Table(title=f"{figures.images:,} images, {len(figures.raters)} raters", title_justify="left")
    for heading in ("figure", "value", "95 % interval", ""):
        table.add_column(heading)
    ends = " to ".join(map(percent, figures.ece_mean_vote_ci))
    table.add_row("ece_mean_vote", f"{percent(figures.ece_mean_vote)} %", ends, "against the share of raters")
    for name, ece in zip(figures.raters, figures.ece_raters, strict=True):
        table.add_row("ece", f"{percent(ece)} %", "", terminal_text(f"against {name}"))
    for scores in figures.classes:
        ends = " to ".join(f"{end:.4g}" for end in scores.crps_ci)
        table.add_row(f"crps_{scores.label}", f"{scores.crps:.4g}", ends, f"of the volume, {figures.unit}")
        table.add_row(f"dice_{scores.label}", f"{scores.dice:.4f}", "", "with the raters, mean")
        table.add_row(
            f"agreement_{scores.label}", f"{scores.agreement:.4f}", "", "Dice of every two raters: the ceiling"
        )
    return table
