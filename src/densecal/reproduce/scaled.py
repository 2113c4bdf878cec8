"""The matrix of an item at a scale: the paper's settings, what the scale changes, and where the data is."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path

from densecal.benchmark.matrix import Matrix
from densecal.reproduce.datasets import SETS, SetFiles
from densecal.reproduce.items import MatrixSettings, Scale, load_scale
from densecal.training.config import Config, load_config

SEED = 0
PLACES = ("data.images", "data.masks", "data.cache")
"""Settings that are locations."""
WEIGHTS = "weights"
"""Place of an encoder's weights in the folder of data sets: ``weights/resnet50.safetensors``."""


def scaled_matrix(
    settings: MatrixSettings,
    scale: Scale,
    labels: Collection[str],
    train: SetFiles,
    tests: Mapping[str, SetFiles],
    cache: Path | None = None,
    weights: Path | None = None,
) -> Matrix:
    """Return the matrix of some rows.

    Args:
        settings: The matrix as the package has it.
        scale: How much is run.
        labels: The rows.
        train: Images to train and validate on.
        tests: The test sets at hand, by name.
        cache: Folder of the packed images, unless it is the user's.
        weights: File of the encoder's weights, in place of those that the settings name.
    """
    paths = [f"data.images={json.dumps(train.images)}", f"data.masks={json.dumps(train.masks)}"]
    paths += [f"data.cache={json.dumps(str(cache))}"] if cache else []
    paths += [f"model.weights={json.dumps(str(weights))}"] if weights else []
    return Matrix.model_validate(
        {
            "recipe": settings.recipe,
            "overrides": [*_overrides(settings, scale), *paths],
            "methods": settings.select(set(labels)),
            "seeds": [SEED],
            "datasets": [
                {"name": dataset, "images": files.images, "masks": files.masks, "ood": SETS[dataset].ood}
                for dataset, files in tests.items()
            ],
            "calibrators": settings.calibrators,
            "bins": settings.bins,
            "starts_from": settings.starts_from,
        }
    )


def weights_file(settings: MatrixSettings, data: Path) -> Path:
    """Return where the weights of a matrix's encoder belong in the folder of data sets, without the tag of its name."""
    encoder = load_config(settings.recipe, settings.overrides).model.encoder.partition(".")[0]
    return data / WEIGHTS / f"{encoder}.safetensors"


def describe_config(config: Config) -> str:
    """Return the setting of a training in one line."""
    optim, model, size = config.optim, config.model, config.data.size
    return (
        f"{model.arch} on {model.encoder} (weights: {model.weights or 'none'}), images of {size} x {size} pixels, "
        f"epochs {optim.epochs}, and as many more from there for adaptive methods, batch {optim.batch}, "
        f"{optim.optimizer} {optim.lr:g}, schedule {optim.schedule}, seed {config.engine.seed}"
    )


def _overrides(settings: MatrixSettings, scale: Scale) -> list[str]:
    own = {Scale.full: [], Scale.cpu: settings.cpu, Scale.smoke: settings.smoke}[scale]
    return [*settings.overrides, *load_scale(scale).overrides, *own]
