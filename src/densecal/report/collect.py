"""From the paths on the command line to a page: read, evaluate runs, gather examples, say what could not be had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from densecal.errors import InputError
from densecal.evaluation.folders import Evaluation, paired_differences
from densecal.report.gallery import Folders, folder_examples
from densecal.report.inputs import Inputs, read_inputs
from densecal.report.page import Page
from densecal.report.runs import Run, validate_run, with_extremes
from densecal.runtime.progress import Progress, silent


def collect(
    paths: Sequence[Path],
    folders: Folders | None = None,
    examples: int = 24,
    workers: int = 1,
    progress: Progress = silent,
) -> Page:
    """Gather everything that the page shows.

    Runs are evaluated on their validation images where checkpoint and images are there; where they are not, the page
    says so and shows the rest.

    Args:
        paths: Run folders, evaluation files and benchmark folders.
        folders: Maps, masks and images of the evaluations, for the gallery.
        examples: Images of the gallery, an evaluation.
        workers: Processes that read the maps.
        progress: Told how far it is.

    Raises:
        InputError: A path is nothing of that kind, or the folders do not fit the evaluations.
    """
    found = read_inputs(paths)
    page = Page(title="densecal report", records=found.records, paired=found.paired)
    if folders is not None:
        if not found.records:
            raise InputError(folders.predictions, "maps without an evaluation of them", "an evaluation file as well")
        page.examples += folder_examples(found.records, folders, examples, workers, progress)
    _add_runs(page, found, examples, progress)
    page.lead = [_lead(page)]
    if not folders and found.records and examples:
        page.notes.append(
            "For a gallery of the evaluations' most over-confident images, give --predictions, --masks and --images."
        )
    return page


def _add_runs(page: Page, found: Inputs, examples: int, progress: Progress) -> None:
    evaluations: list[Evaluation] = []
    names: dict[str, str] = {}
    for run in found.runs:
        try:
            validation = validate_run(run, examples, progress)
        except (InputError, ImportError) as error:
            page.notes.append(f"{run.name}: not evaluated on its validation images ({error}).")
        else:
            record = validation.evaluation.record
            # runs with other validation images are another data set, and are not compared
            suffix = f" ({len(names) + 1})" if names and validation.digest not in names else ""
            dataset = names.setdefault(validation.digest, record.dataset + suffix)
            evaluations.append(replace(validation.evaluation, record=replace(record, dataset=dataset)))
            page.examples += [replace(example, dataset=dataset) for example in validation.examples]
        page.runs.append(_illustrated(run, page.notes))
    page.runs += [_illustrated(run, page.notes) for run in found.logs]
    page.records = [*page.records, *(evaluation.record for evaluation in evaluations)]
    page.paired = [*page.paired, *paired_differences(evaluations)]


def _illustrated(run: Run, notes: list[str]) -> Run:
    try:
        return with_extremes(run)
    except (InputError, ImportError) as error:
        notes.append(f"{run.name}: no pictures of its training images ({error}).")
        return run


def _lead(page: Page) -> str:
    methods = len({record.name for record in page.records})
    datasets = len({record.dataset for record in page.records})
    parts = []
    if page.records:
        parts.append(f"{_counted(methods, 'method')} on {_counted(datasets, 'data set')}")
    if page.runs:
        parts.append(_counted(len(page.runs), "training run"))
    return f"{', '.join(parts)}. How far can the confidence of these models be believed?"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
