"""Runs and calibrators on the Hugging Face Hub, with a model card that shows how well they are calibrated."""

from __future__ import annotations

import math
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

from densecal import __version__
from densecal.errors import InputError
from densecal.evaluation.record import Record, known_interval
from densecal.io.atomic import write_json
from densecal.io.documents import read_json
from densecal.io.run_files import CALIBRATOR_FILES
from densecal.posthoc.base import Calibrator
from densecal.posthoc.storage import load, save
from densecal.report.advice import all_advice
from densecal.report.figures import reliability_figure
from densecal.runtime.extras import require

require("densecal.integrations.huggingface", "huggingface_hub")
from huggingface_hub import EvalResult, ModelCard, ModelCardData, ModelHubMixin, snapshot_download  # noqa: E402

RECORD = "evaluation.json"
"""The evaluation that the card shows, as `densecal evaluate --json` writes it."""
PICTURE = "reliability.png"
_FILES = ["*.json", "*.yaml", "*.jsonl", "*.safetensors", "*.pt", "*.png", "README.md"]
"""The files that are downloaded. All are read without running code from them."""
_SHOWN = {
    "ece_ew": ("ECE", "expected calibration error, bins of equal width"),
    "oe_ew": ("OE", "its part where confidence exceeds accuracy"),
    "brier": ("Brier score", "mean squared error of the probabilities"),
    "accuracy": ("accuracy", "share of pixels that are correct"),
    "mean_confidence": ("mean confidence", "of the answer given"),
}
_TASK = "image-segmentation"


class _OnHub(ModelHubMixin):
    """The evaluation, the card and the download, which runs and calibrators share."""

    title: ClassVar[str]
    usage: ClassVar[str]

    def __init__(self, record: Record | None = None) -> None:
        self.record = record
        self._hub_mixin_config = None  # the mixin would publish the arguments, which are paths of this machine

    def _save_record(self, folder: Path) -> None:
        if self.record is None:
            return
        write_json(folder / RECORD, self.record.to_json())
        reliability_figure([self.record]).savefig(folder / PICTURE, dpi=110)

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        """Return the card: the figures as `model-index`, as a table with intervals, and the reliability diagram."""
        data = ModelCardData(
            library_name="densecal",
            tags=["calibration", "segmentation", "uncertainty"],
            pipeline_tag=_TASK,
            model_name=self.title,
            eval_results=None if self.record is None else _results(self.record),
        )
        return ModelCard(f"---\n{data.to_yaml()}\n---\n\n{_body(self.title, self.usage, self.record)}")


class HubCalibrator(_OnHub):
    """A calibrator that can be pushed to the Hub and loaded from it.

    Args:
        calibrator: The calibrator.
        record: An evaluation of maps that it has calibrated, for the card.

    Attributes:
        calibrator: The calibrator.
    """

    title = "densecal calibrator"
    usage = (
        "from densecal.integrations.huggingface import HubCalibrator\n\n"
        'calibrator = HubCalibrator.from_pretrained("REPOSITORY").calibrator\nprobabilities = calibrator(logits)'
    )

    def __init__(self, calibrator: Calibrator, record: Record | None = None) -> None:
        super().__init__(record)
        self.calibrator = calibrator

    def _save_pretrained(self, save_directory: Path) -> None:
        save(self.calibrator, save_directory / CALIBRATOR_FILES[0])
        self._save_record(save_directory)

    @classmethod
    def _from_pretrained(cls, *, model_id: str, **options: Any) -> HubCalibrator:
        folder = _folder(model_id, options)
        return cls(load(folder / CALIBRATOR_FILES[0]), _record(folder))


class HubRun(_OnHub):
    """A run folder that can be pushed to the Hub and loaded from it: weights, settings, log and calibrator.

    The optimizer's state stays behind, so that a run from the Hub predicts but is not resumed.

    Args:
        folder: The run folder. Its newest checkpoint is the one that is pushed.
        record: An evaluation of the run, for the card.

    Attributes:
        folder: The run folder, for `densecal predict` and the other commands.
    """

    title = "densecal run"
    usage = (
        "from densecal.integrations.huggingface import HubRun\n"
        "from densecal.prediction.predictor import load_predictor\n\n"
        'run = HubRun.from_pretrained("REPOSITORY")\npredictor = load_predictor(run.folder)'
    )

    def __init__(self, folder: Path | str, record: Record | None = None) -> None:
        super().__init__(record)
        self.folder = Path(folder)

    def _save_pretrained(self, save_directory: Path) -> None:
        import torch

        from densecal.training import checkpoint

        source = checkpoint.find(self.folder)
        target = save_directory / "checkpoints" / "last"
        target.mkdir(parents=True)
        checkpoint.load(source)  # an incomplete one is an error here, not for those who download it
        for name in (checkpoint.MODEL, checkpoint.METHOD):
            shutil.copyfile(source / name, target / name)
        torch.save({}, target / checkpoint.OPTIMIZER)
        meta = read_json(source / checkpoint.META, "a checkpoint")
        meta["sha256"][checkpoint.OPTIMIZER] = sha256((target / checkpoint.OPTIMIZER).read_bytes()).hexdigest()
        write_json(target / checkpoint.META, meta)
        for name in ("config.yaml", "log.jsonl", *CALIBRATOR_FILES):
            if (self.folder / name).is_file():
                shutil.copyfile(self.folder / name, save_directory / name)
        self._save_record(save_directory)

    @classmethod
    def _from_pretrained(cls, *, model_id: str, **options: Any) -> HubRun:
        from densecal.training import checkpoint

        folder = _folder(model_id, options)
        checkpoint.find(folder)
        return cls(folder, _record(folder))


def _folder(model_id: str, options: dict[str, Any]) -> Path:
    """Return a local folder, or the folder of the files downloaded from the Hub."""
    if Path(model_id).is_dir():
        return Path(model_id)
    known = ("revision", "cache_dir", "force_download", "local_files_only", "token")
    chosen = {name: options[name] for name in known if name in options}
    try:
        return Path(snapshot_download(model_id, allow_patterns=_FILES, **chosen))
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:160]
        problem = reason or type(error).__name__
        raise InputError(model_id, problem, "a repository of the Hub that can be reached") from None


def _record(folder: Path) -> Record | None:
    path = folder / RECORD
    return Record.from_json(read_json(path, "an evaluation"), path) if path.is_file() else None


def _results(record: Record) -> list[EvalResult]:
    """Return the figures as the Hub's `model-index` has them."""
    dataset = record.dataset
    return [
        EvalResult(
            task_type=_TASK, dataset_type=dataset, dataset_name=dataset, metric_type=key, metric_name=name,
            metric_value=round(record.calibration[key], 6),
        )
        for key, (name, _) in _SHOWN.items()
        if not math.isnan(record.calibration.get(key, math.nan))
    ]  # fmt: skip


def _body(title: str, usage: str, record: Record | None) -> str:
    parts = [f"# {title}\n\nMade with densecal {__version__}.\n"]
    if record is not None:
        advice_lines = [" ".join(advice.sentences) for advice in all_advice([record])]
        parts.append(f"## Calibration on {record.dataset}\n\n{record.images:,} images. {' '.join(advice_lines)}\n")
        rows = ["| figure | value | 95 % interval | |", "|---|---:|---|---|"]
        for key, (name, meaning) in _SHOWN.items():
            value = record.calibration.get(key, math.nan)
            ends = known_interval(record.calibration.ci, key)
            interval = "" if ends is None else f"{100 * ends[0]:.2f} to {100 * ends[1]:.2f} %"
            if not math.isnan(value):
                rows.append(f"| {name} | {100 * value:.2f} % | {interval} | {meaning} |")
        parts.append("\n".join(rows) + "\n")
        parts.append(f"![How often the model is right at each confidence]({PICTURE})\n")
    parts.append(f"## Use\n\n```python\n{usage}\n```\n")
    return "\n".join(parts)
