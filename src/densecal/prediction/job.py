"""Predicting a folder on an engine: every process opens the model once, and writes the maps of its batches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

from densecal.data import Source, open_source
from densecal.io import MAX_PIXELS
from densecal.io.atomic import remove_unfinished
from densecal.io.map_files import map_targets
from densecal.prediction.folder import Maps, check_format, check_maps, cut_batches, write_batches
from densecal.runtime.engine import Engine
from densecal.runtime.progress import Progress, silent

BATCHES = 4
"""Batches per call of the engine."""


@dataclass(frozen=True)
class Job:
    """Everything that a process needs to know to predict images; see `densecal predict` for the options.

    Attributes:
        models: One ONNX file, or run and checkpoint folders whose probabilities are averaged.
        images: Folder of images, one image, a zip with ``images/``, or a list file.
        out: Folder for the maps.
    """

    models: tuple[Path, ...]
    images: Path
    out: Path
    format: str | None = None
    uncertainty: bool = False
    batch: int = 8
    device: str = "auto"
    preprocess: str | None = None
    mc_dropout: int | None = None
    tile: int | None = None
    overlap: int | None = None
    like_onnx: bool = False
    max_pixels: int = MAX_PIXELS

    def open(self) -> tuple[Maps, int]:
        """Load the model: a function from images to maps, and the number of classes."""
        from densecal.prediction.onnx_model import is_onnx, load_onnx

        if is_onnx(self.models[0]):
            network = load_onnx(self.models[0], self.preprocess, self.device)
            return network.chunks, network.classes
        from densecal.prediction.ensembles import load_ensemble, with_mc_dropout
        from densecal.prediction.tiles import Tiling

        predictor = load_ensemble(self.models, self.device)
        if self.mc_dropout:
            predictor = with_mc_dropout(predictor, self.mc_dropout)
        classes = predictor.config.data.classes
        if self.tile is None:
            return partial(predictor.chunks, like_onnx=self.like_onnx), classes
        tiling = Tiling.of(self.tile, self.overlap)
        return partial(predictor.tiled_chunks, tiling=tiling, batch=self.batch), classes


def predict_on(
    engine: Engine, job: Job, progress: Progress = silent, reads: Iterable[Path] = (), force: bool = False
) -> int:
    """Write the map of every image of a job, and return their number.

    Args:
        engine: Where the work is done. All its processes see the files of the job.
        job: What to predict.
        progress: Receives the number of maps written.
        reads: Further files that must not be written over, such as those of the model.
        force: Also replace files that no earlier prediction wrote, but never an image.
    """
    classes = replace(job, device="cpu").open()[1]
    format = check_format(job.format, classes)
    source = open_source(job.images)
    check_maps(source, job.images, job.out, format, job.uncertainty, reads, force)
    batches = cut_batches(source.names, job.batch)
    job, done = replace(job, format=format), 0
    calls = ((job, batches[first : first + BATCHES]) for first in range(0, len(batches), BATCHES))
    for count in engine.map(_predict_batches, calls, gpu=job.device != "cpu"):
        done += count
        progress("Predicting", done, len(source.names))
    for folder in (job.out, job.out / "confidence", job.out / "entropy"):
        kinds = ["npy" if format == "npy" else "png"]
        remove_unfinished(folder, {target.name for target, _ in map_targets(folder, source.names, kinds)})
    return done


def _predict_batches(job: Job, batches: list[list[str]]) -> int:
    """Write the maps of some batches; a second call writes the same files."""
    maps, source = _open_once(job)
    assert job.format is not None
    return write_batches(
        maps, source, batches, job.out, job.format, uncertainty=job.uncertainty, max_pixels=job.max_pixels
    )


@lru_cache(maxsize=1)
def _open_once(job: Job) -> tuple[Maps, Source]:
    """Open the model of a job once per process."""
    return job.open()[0], open_source(job.images)
