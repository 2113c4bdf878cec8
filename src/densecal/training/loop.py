"""The training loop, on Lightning Fabric. A killed run resumes to the same bits with the same number of threads."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from densecal.data.augment import at_random_size, augment
from densecal.data.informationless import choose_samples, without_information
from densecal.errors import InputError, Preempted
from densecal.io.run_files import CALIBRATOR_FILES
from densecal.methods import Method
from densecal.methods.adaptive import Adaptive
from densecal.metrics.calibration import CalibrationMeter
from densecal.metrics.calibration_result import CalibrationResult
from densecal.runtime.lock import lock_folder
from densecal.runtime.prefetch import prefetch
from densecal.runtime.progress import Progress, silent
from densecal.runtime.sharding import check_variables, join_after_restart, report_waiting
from densecal.training import checkpoint
from densecal.training.config import Config
from densecal.training.fabric import Fabric
from densecal.training.logs import Log
from densecal.training.preemption import Position, stop_on_signal
from densecal.training.restoring import check_epoch, restore
from densecal.training.run import PEER_TIMEOUT, Run, create_fabric, open_run
from densecal.training.run_folder import check_run_folder, newest_checkpoint, save_checkpoint, write_config
from densecal.training.samples import Batch, Samples, epoch_batches, to_device, validation_batches
from densecal.training.schedule import learning_rate, stage_position
from densecal.training.stages import (
    FirstStage,
    begin_second_stage,
    check_first_stage,
    load_first_stage,
    read_first_stage,
)
from densecal.training.threads import choose_threads

STEPS_BETWEEN_CHECKS = 50
"""How often the losses are checked on a device that runs ahead. On the CPU every step is checked."""
LOGGED_FIGURES = ("ece_ew", "oe_ew", "ece_em", "brier", "nll", "accuracy", "mean_confidence")


def train(
    config: Config, out: Path, resume: bool = False, progress: Progress = silent, start: Path | None = None
) -> CalibrationResult | None:
    """Train a model and leave a run folder.

    Args:
        config: What to train.
        out: Run folder: ``config.yaml``, ``log.jsonl``, ``alpha.csv``, ``checkpoints/last`` and ``checkpoints/best``.
        resume: Continue from the last checkpoint in the folder, or start if there is none.
        progress: Receives the progress of the run and the figures of each epoch.
        start: A finished run of plain cross entropy on the same data, used as the first of two stages. The run begins
            with the second stage and ends as if it had trained the first itself, with the same settings.

    Returns:
        The last validation, or ``None`` if the run had already finished.

    Raises:
        InputError: Bad data, a bad setting, a folder in use, a loss that is not finite.
        Preempted: SIGTERM or Ctrl-C. ``resume`` continues at the next step, or with several processes after the
            last finished epoch.
    """
    check_run_folder(config, out, resume)
    first_stage = None if start is None else read_first_stage(config, start)
    is_new = not out.exists()
    check_variables()
    fabric = create_fabric(config)
    with report_waiting(PEER_TIMEOUT) if config.engine.devices * config.engine.nodes > 1 else contextlib.nullcontext():
        join_after_restart("nccl" if fabric.device.type == "cuda" else "gloo", PEER_TIMEOUT)
        fabric.launch()
    try:
        with lock_folder(out) if fabric.global_rank == 0 else contextlib.nullcontext(True) as locked:
            if not locked:
                raise InputError(out, "another process is training into it", "another folder, or wait until it ends")
            return _train(config, out, resume, progress, fabric, first_stage)
    finally:
        if is_new and fabric.global_rank == 0:
            with contextlib.suppress(OSError):  # fails unless the folder is empty, because training never began
                out.rmdir()


def _train(
    config: Config, out: Path, resume: bool, progress: Progress, fabric: Fabric, first_stage: FirstStage | None
) -> CalibrationResult | None:
    saved = newest_checkpoint(out, resume, fabric)
    if saved is not None:
        if first_stage is not None:
            check_first_stage(out, saved, first_stage)
        check_epoch(saved, config.total_epochs)
        if saved.meta["epoch"] == config.total_epochs:
            return None
    run = open_run(config, fabric, progress)
    run.threads = choose_threads(config.engine, fabric.device)
    for note in run.data.notes:
        warnings.warn(note, stacklevel=2)
    _warn_of_long_warmup(run)
    log = Log(out, config.engine.loggers, config.model_dump(mode="json"), enabled=fabric.global_rank == 0)
    first_epoch, best_brier = _begin(run, out, log, saved, first_stage, progress)
    result, start = None, time.perf_counter()
    with log, run.threads, stop_on_signal(alone=fabric.world_size == 1) as run.stop:
        for epoch in range(first_epoch, config.total_epochs):
            if epoch == config.optim.epochs and run.position is None:
                begin_second_stage(run)
                best_brier = float("inf")
            images, epoch_start = _images_left(run, epoch), time.perf_counter()
            loss = train_epoch(run, epoch, progress)
            if run.position is not None:
                save_checkpoint(run, out, epoch, best_brier, improved=False)
                raise Preempted(
                    f"stopped after step {run.position.step} of epoch {epoch + 1}; --resume continues from there"
                )
            speed = images / (time.perf_counter() - epoch_start)
            result = validate(run, progress)
            run.method.after_epoch(result)
            log.write(_log_entry(run, epoch, loss, speed, result))
            seconds_per_epoch = (time.perf_counter() - start) / (epoch + 1 - first_epoch)
            seconds_left = seconds_per_epoch * (config.total_epochs - epoch - 1)
            improved = result.brier < best_brier
            best_brier = min(best_brier, result.brier)
            if fabric.global_rank == 0:
                figures = _progress_figures(loss, result, run.method, speed, seconds_left)
                progress(f"Epoch {epoch + 1} of {config.total_epochs}", 1, 1, **figures)
                save_checkpoint(run, out, epoch + 1, best_brier, improved)
            fabric.barrier()
    return result


def _begin(
    run: Run,
    out: Path,
    log: Log,
    saved: checkpoint.Checkpoint | None,
    first_stage: FirstStage | None,
    progress: Progress,
) -> tuple[int, float]:
    """Restore or start a run and its folder; return the epoch to go on with and the best Brier score so far."""
    epoch, best_brier = 0, float("inf")
    if saved is not None:
        epoch, best_brier = int(saved.meta["epoch"]), float(saved.meta["best"])
        restore(run, saved)
        run.threads.start_with(saved.meta.get("threads", run.threads.number))
    elif first_stage is not None:
        epoch = run.config.optim.epochs
        _adopt_first_stage(run, first_stage, progress)
    log.keep(epoch)
    if run.fabric.global_rank == 0:
        write_config(run.config, out / "config.yaml")
        for name in CALIBRATOR_FILES:  # left by a shorter run that is now extended
            (out / name).unlink(missing_ok=True)
        if saved is None and first_stage is not None:  # a kill from here on leaves a run that can be resumed
            save_checkpoint(run, out, epoch, best_brier, improved=False)
    return epoch, best_brier


def _images_left(run: Run, epoch: int) -> int:
    """Return how many images an epoch has left: all of them, unless it was interrupted."""
    images = len(run.data.train)
    if run.position is None:
        return images
    optim, seed = run.config.optim, run.config.engine.seed
    done = epoch_batches(images, optim.batch, epoch, seed, 0, 1)[: run.position.step]
    return images - sum(batch.global_size for batch in done)


def _adopt_first_stage(run: Run, first_stage: FirstStage, progress: Progress) -> None:
    """Start a run from the end of a first stage that another run has trained."""
    load_first_stage(run, first_stage)
    assert isinstance(run.method, Adaptive)  # only adaptive methods have two stages
    result = validate(run, progress)
    run.method.start_epoch(run.config.optim.epochs - 1)
    run.method.after_epoch(result)  # as at the end of a first stage of its own
    run.first_stage = {**first_stage.origin, "accuracy": result.accuracy}


def _warn_of_long_warmup(run: Run) -> None:
    method, epochs = run.method, run.config.total_epochs
    if isinstance(method, Adaptive) and method.warmup >= epochs and run.fabric.global_rank == 0:
        warnings.warn(
            f"method.warmup is {method.warmup} and the number of epochs is {epochs}: {method.VALUE} never moves, so "
            f"{run.config.method.name} is plain cross entropy here",
            stacklevel=3,
        )


def _log_entry(
    run: Run, epoch: int, loss: float, images_per_second: float, result: CalibrationResult
) -> dict[str, Any]:
    return {
        "epoch": epoch + 1,
        "loss": loss,
        "lr": learning_rate(run.config.optim, epoch),
        "images_per_second": images_per_second,
        "threads": run.threads.history(),
        "validation": {name: getattr(result, name) for name in LOGGED_FIGURES},
        "method": run.method.statistics(),
    }


def train_epoch(run: Run, epoch: int, progress: Progress = silent) -> float:
    """Train on every training image once.

    Returns:
        The mean loss. If the process was asked to stop, ``run.position`` says after which step it stopped, and the mean
        is over the steps done.
    """
    config, fabric, method = run.config, run.fabric, run.method
    rank, world = fabric.global_rank, fabric.world_size
    torch.manual_seed(config.engine.seed * 1_000_003 + epoch * world + rank)  # for dropout
    method.start_epoch(epoch)
    run.model.train()
    batches = epoch_batches(len(run.data.train), config.optim.batch, epoch, config.engine.seed, rank, world)
    losses = torch.zeros(len(batches), device=fabric.device)
    first_step = _resume_epoch(run, losses)
    for step, (batch, images, masks) in enumerate(_load_batches(run, run.data.train, batches[first_step:]), first_step):
        is_last_step = step + 1 == len(batches)
        updates_weights = (step + 1) % config.optim.accumulate == 0 or is_last_step
        images, masks = _augment(run, batch, images, masks, step, epoch)
        index = torch.from_numpy(batch.ids).to(fabric.device, non_blocking=True)
        weight = (index >= 0).float() if batch.own_size < len(batch.ids) else None
        if config.data.informationless:
            images, masks, index = _remove_information(run, batch, images, masks, index, epoch)
        images, targets = method.prepare(images, masks, index)
        with fabric.no_backward_sync(run.model, enabled=not updates_weights):
            loss_by_optimizer, logits = run.criterion.step(run.model, images, masks, targets, method, weight, index)
            loss = torch.stack(list(loss_by_optimizer.values())).sum()
            # a process with padding counts for less, so that the gradient is that of the whole batch
            share = batch.own_size * world / batch.global_size
            fabric.backward(loss * (share / config.optim.accumulate))
        losses[step] = loss.detach() * share
        if fabric.device.type == "cpu" or (step + 1) % STEPS_BETWEEN_CHECKS == 0 or is_last_step:
            _check_losses(run, losses[: step + 1], batches)
        if updates_weights:
            _update_weights(run, epoch, step, len(batches))
        method.after_step(logits.detach(), masks, index)
        if rank == 0:
            progress(f"Epoch {epoch + 1} of {config.total_epochs}", step + 1, len(batches))
        if run.stop.is_set() and updates_weights:
            losses = losses[: step + 1]
            run.position = Position.after(losses)
            break
    mean = fabric.all_reduce(losses.mean(), reduce_op="mean")
    assert isinstance(mean, Tensor)
    return float(mean)


def _resume_epoch(run: Run, losses: Tensor) -> int:
    """Restore the state inside an interrupted epoch, and return the number of steps that are done."""
    position, run.position = run.position, None
    if position is None:
        return 0
    losses[: position.step] = position.losses.to(losses.device)
    position.restore_random(losses.device)
    return position.step


def _load_batches(run: Run, samples: Samples, batches: list[Batch]) -> Iterator[tuple[Batch, Tensor, Tensor]]:
    """Yield batches on the device. Samples that are not on the device are read ahead by a thread."""

    def read() -> Iterator[tuple[Batch, Tensor, Tensor]]:
        for batch in batches:
            yield batch, *samples.batch(batch.ids.clip(min=0))  # padding is a copy of sample 0

    config = run.config
    for batch, images, masks in read() if run.resident else prefetch(read()):
        run.threads.follow()
        yield batch, *to_device(images, masks, run.fabric.device, config.data.classes)


def _augment(run: Run, batch: Batch, images: Tensor, masks: Tensor, step: int, epoch: int) -> tuple[Tensor, Tensor]:
    data, seed = run.config.data, run.config.engine.seed
    images, masks = augment(images, masks, torch.from_numpy(batch.ids), epoch, seed, data.augment, data.ignore_index)
    if data.sizes:
        images, masks = at_random_size(images, masks, data.sizes, step, epoch, seed, data.augment)
    return images, masks


def _remove_information(
    run: Run, batch: Batch, images: Tensor, masks: Tensor, index: Tensor, epoch: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Remove the information from a share of the images.

    They are trained on with clean, empty masks: their index becomes -1, so the method does not perturb their labels.
    """
    seed, ids = run.config.engine.seed, torch.from_numpy(batch.ids)
    # chosen on the CPU, so that counting them does not wait for the device
    chosen = choose_samples(ids, epoch, seed, run.config.data.informationless).nonzero()[:, 0]
    if len(chosen):
        rows = chosen.to(index.device, non_blocking=True)
        images = images.index_copy(0, rows, without_information(images[rows], masks[rows], ids[chosen], epoch, seed))
        masks, index = masks.index_fill(0, rows, 0), index.index_fill(0, rows, -1)
    return images, masks, index


def _check_losses(run: Run, losses: Tensor, batches: list[Batch]) -> None:
    """Raise an error for a loss that is not finite, naming the images of its batch."""
    finite = losses.isfinite()
    if bool(finite.all()):
        return
    step = int((~finite).nonzero()[0])
    names = [run.data.train.names[i] for i in batches[step].ids if i >= 0]
    raise InputError(
        "loss", f"{float(losses[step])} at step {step + 1} on {', '.join(names)}",
        "a finite loss (a lower optim.lr, or other images); the last checkpoint is kept",
    )  # fmt: skip


def _update_weights(run: Run, epoch: int, step: int, steps: int) -> None:
    """Update the weights after a step, one of ``steps`` in the epoch."""
    optim = run.config.optim
    rate = learning_rate(optim, epoch + step / steps, steps / optim.accumulate)
    for optimizer in run.optimizers.values():
        for group in optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    if run.average is not None:
        epochs_done = int(stage_position(optim, epoch)[0])
        updates = epochs_done * math.ceil(steps / optim.accumulate) + step // optim.accumulate + 1
        run.average.follow(updates)


@torch.no_grad()
def validate(run: Run, progress: Progress = silent) -> CalibrationResult:
    """Measure the current weights on the validation images, at the size the network sees."""
    config, fabric, data = run.config, run.fabric, run.config.data
    network = run.kept_network
    was_training = network.training
    network.eval()
    meter = CalibrationMeter(
        config.engine.bins, data.classes, ignore_index=data.ignore_index if data.classes > 1 else None, boundary=False
    )
    size = max(1, config.optim.batch // fabric.world_size)
    batches = validation_batches(len(run.data.validation), size, fabric.global_rank, fabric.world_size)
    for step, (_, images, masks) in enumerate(_load_batches(run, run.data.validation, batches)):
        with fabric.autocast():
            logits = network(images)
        meter.update(logits=logits.float(), masks=masks)
        if fabric.global_rank == 0:
            progress("Validation", step + 1, len(batches))
    meter.all_reduce()
    network.train(was_training)
    try:
        return meter.compute()
    except ValueError as error:
        raise InputError("data.validation", str(error), "validation masks with valid pixels") from None


def _progress_figures(
    loss: float, result: CalibrationResult, method: Method, images_per_second: float, seconds_left: float
) -> dict[str, float]:
    """Return the figures shown beside the progress bar."""
    means = {name.removesuffix("_mean"): value for name, value in method.statistics().items() if name.endswith("_mean")}
    figures = {"loss": loss, "ECE": result.ece_ew, "accuracy": result.accuracy, **means}
    return figures | {"images_per_second": images_per_second, "seconds_left": seconds_left}
