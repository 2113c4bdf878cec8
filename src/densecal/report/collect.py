"""Turn the paths on the command line into a page: read, evaluate runs, gather examples, note what is missing."""

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

    A run is evaluated on its validation images. Where its checkpoint or the images are missing, the page says so and
    shows the rest.

    Args:
        paths: Run folders, evaluation files and benchmark folders.
        folders: Maps, masks and images of the evaluations, for the gallery.
        examples: Images per evaluation in the gallery.
        workers: Processes that read the maps.
        progress: Called at every step.

    Raises:
        InputError: A path holds nothing of that kind, or the folders do not fit the evaluations.
    """
    inputs = read_inputs(paths)
    page = Page(title="densecal report", records=inputs.records, paired=inputs.paired)
    if folders is not None:
        if not inputs.records:
            raise InputError(folders.predictions, "maps without an evaluation of them", "an evaluation file as well")
        page.examples += folder_examples(inputs.records, folders, examples, workers, progress)
    _add_runs(page, inputs, examples, progress)
    page.lead = [_lead(page)]
    if not folders and inputs.records and examples:
        page.notes.append(
            "For a gallery of the evaluations' most over-confident images, give --predictions, --masks and --images."
        )
    return page


def _add_runs(page: Page, inputs: Inputs, examples: int, progress: Progress) -> None:
    evaluations: list[Evaluation] = []
    datasets: dict[str, str] = {}
    for run in inputs.runs:
        try:
            validation = validate_run(run, examples, progress)
        except (InputError, ImportError) as error:
            page.notes.append(f"{run.name}: not evaluated on its validation images ({error}).")
        else:
            record = validation.evaluation.record
            # runs are compared only where they have the same validation images
            suffix = f" ({len(datasets) + 1})" if datasets and validation.digest not in datasets else ""
            dataset = datasets.setdefault(validation.digest, record.dataset + suffix)
            evaluations.append(replace(validation.evaluation, record=replace(record, dataset=dataset)))
            page.examples += [replace(example, dataset=dataset) for example in validation.examples]
        page.runs.append(_with_pictures(run, page.notes))
    page.runs += [_with_pictures(run, page.notes) for run in inputs.logs]
    page.records = [*page.records, *(evaluation.record for evaluation in evaluations)]
    page.paired = [*page.paired, *paired_differences(evaluations)]


def _with_pictures(run: Run, notes: list[str]) -> Run:
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
        parts.append(f"{_count_text(methods, 'method')} on {_count_text(datasets, 'data set')}")
    if page.runs:
        parts.append(_count_text(len(page.runs), "training run"))
    return f"{', '.join(parts)}. How far can the confidence of these models be believed?"


def _count_text(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
