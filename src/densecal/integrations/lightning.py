"""A Lightning callback that drives a densecal method and measures calibration at every validation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from densecal.errors import InputError
from densecal.methods import Method
from densecal.metrics.calibration import CalibrationMeter
from densecal.runtime.extras import require

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    Callback = require("densecal.integrations.lightning", "lightning.pytorch", "pytorch_lightning").Callback

LOGGED = ("ece_ew", "oe_ew", "ece_em", "brier", "nll", "accuracy", "mean_confidence")
"""Figures of a validation that are logged, as ``val_ece_ew`` and so on."""


class CalibrationCallback(Callback):
    """Calls a method's hooks in step with the trainer.

    The module holds the method and uses it in its steps::

        self.method = densecal.methods.create("aslp-mc", num_samples=N)          # in __init__

        images, targets = self.method.prepare(images, masks, index)              # in training_step
        ...
        return {"loss": self.method.loss(logits, targets), "logits": logits, "masks": masks, "index": index}

        return {"logits": logits, "masks": masks}                                # in validation_step

    The method is a submodule, so it is on the module's device and its state is in the checkpoint. It learns after every
    batch and after every validation except the sanity check. Figures are logged as ``val_...`` and ``method_...``, for
    ``ModelCheckpoint(monitor="val_ece_ew")`` and others. Figures of several processes are combined exactly.

    Args:
        bins: Number of bins of the calibration errors.
    """

    def __init__(self, bins: int = 10) -> None:
        self.bins = bins
        self._meter: CalibrationMeter | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Fail before the first step if the module has no method."""
        method_of(pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the method's epoch."""
        method_of(pl_module).start_epoch(trainer.current_epoch)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Let the method learn from the batch."""
        logits, masks, index = _step_outputs("training_step", outputs, ("logits", "masks", "index"))
        method_of(pl_module).after_step(logits.detach(), masks, index)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start measuring."""
        method = method_of(pl_module)
        self._meter = CalibrationMeter(self.bins, method.num_classes, ignore_index=method.ignore_index, boundary=False)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Measure the batch."""
        logits, masks = _step_outputs("validation_step", outputs, ("logits", "masks"))
        assert self._meter is not None
        self._meter.update(logits=logits, masks=masks)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the figures and let the method learn from them."""
        meter, self._meter = self._meter, None
        if trainer.sanity_checking:
            return
        assert meter is not None
        meter.all_reduce()
        result, method = meter.compute(), method_of(pl_module)
        figures = {f"val_{name}": getattr(result, name) for name in LOGGED}
        if trainer.state.fn == "fit":
            method.after_epoch(result)
            figures |= {f"method_{name}": value for name, value in method.statistics().items()}
        # every process has the same figures; syncing them only avoids Lightning's warning
        pl_module.log_dict(figures, sync_dist=True)


def method_of(module: LightningModule) -> Method:
    """Return the densecal method among the submodules of a module.

    Raises:
        InputError: There is none, or more than one.
    """
    methods = [part for part in module.modules() if isinstance(part, Method)]
    if len(methods) != 1:
        raise InputError(
            type(module).__name__,
            f"{len(methods)} densecal methods among its submodules",
            "one, such as self.method = densecal.methods.create(...)",
        )
    return methods[0]


def _step_outputs(step: str, outputs: Any, names: tuple[str, ...]) -> list[Any]:
    """Return the values of these names among the outputs of a step of the module."""
    actual = sorted(outputs) if isinstance(outputs, dict) else type(outputs).__name__
    if not isinstance(outputs, dict) or not set(names) <= outputs.keys():
        raise InputError(step, f"it returned {actual}", f"a dictionary with {', '.join(names)}")
    return [outputs[name] for name in names]
