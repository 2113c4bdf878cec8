"""The training loop: explicit, on Lightning Fabric, resumable to the bit after a kill at any moment."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import math
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from densecal.data.augment import at_random_size, augment
from densecal.data.informationless import choose_samples, without_information
from densecal.errors import InputError, Preempted
from densecal.io.atomic import write_text
from densecal.io.documents import read_yaml
from densecal.methods import Method
from densecal.methods.adaptive import Adaptive
from densecal.metrics.calibration import CalibrationMeter, CalibrationResult
from densecal.runtime.lock import lock_folder
from densecal.runtime.prefetch import prefetch
from densecal.runtime.progress import Progress, silent
from densecal.runtime.sharding import join_after_restart
from densecal.training import checkpoint
from densecal.training.config import Config, dump_config, first_difference, parse_config
from densecal.training.logs import Log
from densecal.training.preemption import Place, stop_when_asked
from densecal.training.run import Run, fabric_of, open_run
from densecal.training.samples import Batch, Samples, epoch_batches, to_device, validation_batches
from densecal.training.schedule import learning_rate

CHECK_EVERY = 50
"""Steps between looks at the losses on a device that runs ahead; on the CPU every step is looked at."""
LOGGED = ("ece_ew", "oe_ew", "ece_em", "brier", "nll", "accuracy", "mean_confidence")


def train(config: Config, out: Path, resume: bool = False, progress: Progress = silent) -> CalibrationResult | None:
    """Train a model and leave a run folder.

    Args:
        config: What to train.
        out: Run folder: ``config.yaml``, ``log.jsonl``, ``alpha.csv``, ``checkpoints/last`` and ``checkpoints/best``.
        resume: Go on from the last checkpoint there, or start if there is none.
        progress: Told how far it is, and the figures of each epoch.

    Returns:
        The last validation, or ``None`` if the run was finished already.

    Raises:
        InputError: Bad data, a bad setting, a folder in use, a loss that is not finite.
        Preempted: SIGTERM or Ctrl-C; ``resume`` goes on at the next step (of several processes, at the next epoch).
    """
    _check_folder(config, out, resume)
    new = not out.exists()
    fabric = fabric_of(config)
    join_after_restart("nccl" if fabric.device.type == "cuda" else "gloo")
    fabric.launch()
    try:
        with lock_folder(out) if fabric.global_rank == 0 else contextlib.nullcontext(True) as held:
            if not held:
                raise InputError(out, "another process is training into it", "another folder, or wait until it ends")
            return _train(config, out, resume, progress, fabric)
    finally:
        if new and fabric.global_rank == 0:
            with contextlib.suppress(OSError):  # fails unless the folder is empty, because training never began
                out.rmdir()


def _train(config: Config, out: Path, resume: bool, progress: Progress, fabric: Fabric) -> CalibrationResult | None:
    found, problems = checkpoint.load_newest(out / "checkpoints") if resume else (None, [])
    if found is not None and int(found.meta["epoch"]) >= config.total_epochs:
        return None
    run = open_run(config, fabric, progress)
    for note in run.data.notes:
        warnings.warn(note, stacklevel=2)
    _warn_of_long_warmup(run)
    first = 0
    best = float("inf")
    log = Log(out, config.engine.loggers, config.model_dump(mode="json"), enabled=fabric.global_rank == 0)
    for problem in problems:
        warnings.warn(f"{problem}; the checkpoint before it is used", stacklevel=2)
    if found is not None:
        first, best = int(found.meta["epoch"]), float(found.meta["best"])
        _restore(run, found, out)
    log.keep(first)
    if fabric.global_rank == 0:
        write_text(out / "config.yaml", dump_config(config))
    result = None
    with log, stop_when_asked(alone=fabric.world_size == 1) as run.stop:
        for epoch in range(first, config.total_epochs):
            start = time.perf_counter()
            skipped = 0 if run.place is None else run.place.step * config.optim.batch
            loss = train_epoch(run, epoch, progress)
            if run.place is not None:
                _save(run, out, epoch, best, improved=False)
                raise Preempted(f"stopped after step {run.place.step} of epoch {epoch + 1}; --resume goes on there")
            seconds = time.perf_counter() - start
            result = validate(run, progress)
            run.method.after_epoch(result)
            line = {
                "epoch": epoch + 1,
                "loss": loss,
                "lr": learning_rate(config.optim, epoch),
                "images_per_second": (len(run.data.train) - skipped) / seconds,
                "validation": {name: getattr(result, name) for name in LOGGED},
                "method": run.method.statistics(),
            }
            log.write(line)
            progress(f"Epoch {epoch + 1} of {config.total_epochs}", 1, 1, **_shown(loss, result, run.method))
            improved = result.brier < best
            best = min(best, result.brier)
            if fabric.global_rank == 0:
                _save(run, out, epoch + 1, best, improved)
            fabric.barrier()
    return result


def _warn_of_long_warmup(run: Run) -> None:
    method, epochs = run.method, run.config.total_epochs
    if isinstance(method, Adaptive) and method.warmup >= epochs and run.fabric.global_rank == 0:
        warnings.warn(
            f"method.warmup is {method.warmup} and the number of epochs {epochs}: {method.VALUE} never moves, so that "
            f"{run.config.method.name} is plain cross entropy here",
            stacklevel=3,
        )


def train_epoch(run: Run, epoch: int, progress: Progress = silent) -> float:
    """One pass over the training images.

    Returns:
        The mean loss, so far where the process was asked to end; then ``run.place`` says where.
    """
    config, fabric, method = run.config, run.fabric, run.method
    rank, world = fabric.global_rank, fabric.world_size
    torch.manual_seed(config.engine.seed * 1_000_003 + epoch * world + rank)  # dropout
    method.start_epoch(epoch)
    run.model.train()
    batches = epoch_batches(len(run.data.train), config.optim.batch, epoch, config.engine.seed, rank, world)
    losses = torch.zeros(len(batches), device=fabric.device)
    first = _go_on(run, losses)
    for step, (batch, images, masks) in enumerate(_loaded(run, run.data.train, batches[first:]), first):
        ids = torch.from_numpy(batch.ids)
        images, masks = augment(
            images, masks, ids, epoch, config.engine.seed, config.data.augment, config.data.ignore_index
        )
        index = ids.to(fabric.device, non_blocking=True)
        if config.data.sizes:
            images, masks = at_random_size(
                images, masks, config.data.sizes, step, epoch, config.engine.seed, config.data.augment
            )
        weight = (index >= 0).float() if batch.own < len(batch.ids) else None
        if config.data.informationless:
            images, masks, index = _strip(run, ids, images, masks, index, epoch)
        images, targets = method.prepare(images, masks, index)
        last = (step + 1) % config.optim.accumulate == 0 or step + 1 == len(batches)
        with fabric.no_backward_sync(run.model, enabled=not last):
            by_optimizer, logits = run.criterion.step(run.model, images, masks, targets, method, weight, index)
            loss = torch.stack(list(by_optimizer.values())).sum()
            # a process that was padded weighs less, so that the gradient is that of the whole batch
            share = batch.own * world / batch.whole
            fabric.backward(loss * (share / config.optim.accumulate))
        losses[step] = loss.detach() * share
        if fabric.device.type == "cpu" or (step + 1) % CHECK_EVERY == 0 or step + 1 == len(batches):
            _check_losses(run, losses[: step + 1], batches)
        if last:
            _step(run, epoch, step, len(batches))
        method.after_step(logits.detach(), masks, index)
        if rank == 0:
            progress(f"Epoch {epoch + 1} of {config.total_epochs}", step + 1, len(batches))
        if run.stop.is_set() and last:
            losses = losses[: step + 1]
            run.place = Place.here(losses)
            break
    mean = fabric.all_reduce(losses.mean(), reduce_op="mean")
    assert isinstance(mean, Tensor)
    return float(mean)


def _go_on(run: Run, losses: Tensor) -> int:
    """Take up an epoch where it was left; the number of its steps that are done."""
    place, run.place = run.place, None
    if place is None:
        return 0
    losses[: place.step] = place.losses.to(losses.device)
    place.restore_random(losses.device)
    return place.step


@torch.no_grad()
def validate(run: Run, progress: Progress = silent) -> CalibrationResult:
    """Measure the current weights on the validation images, at the size the network sees."""
    config, fabric = run.config, run.fabric
    network = run.kept_network
    was_training = network.training
    network.eval()
    data = config.data
    meter = CalibrationMeter(
        config.engine.bins, data.classes, ignore_index=data.ignore_index if data.classes > 1 else None, boundary=False
    )
    size = max(1, config.optim.batch // fabric.world_size)
    batches = validation_batches(len(run.data.validation), size, fabric.global_rank, fabric.world_size)
    for step, (_, images, masks) in enumerate(_loaded(run, run.data.validation, batches)):
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


def _shown(loss: float, result: CalibrationResult, method: Method) -> dict[str, float]:
    """The figures beside the progress bar."""
    shown = {"loss": loss, "ECE": result.ece_ew, "accuracy": result.accuracy}
    mean = {name.removesuffix("_mean"): value for name, value in method.statistics().items() if name.endswith("_mean")}
    return shown | mean


def _loaded(run: Run, samples: Samples, batches: list[Batch]) -> Iterator[tuple[Batch, Tensor, Tensor]]:
    """Batches on the device, gathered ahead by a thread where they come from elsewhere; padding copies a sample."""

    def gathered() -> Iterator[tuple[Batch, Tensor, Tensor]]:
        for batch in batches:
            yield batch, *samples.batch(batch.ids.clip(min=0))

    for batch, images, masks in gathered() if run.resident else prefetch(gathered()):
        yield batch, *to_device(images, masks, run.fabric.device, run.config.data.classes)


def _strip(
    run: Run, ids: Tensor, images: Tensor, masks: Tensor, index: Tensor, epoch: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Take the information out of a share of the images; to the method they are nobody's, with clean, empty masks."""
    seed = run.config.engine.seed
    # chosen on the CPU, so that the device need not be asked how many they are
    taken = choose_samples(ids, epoch, seed, run.config.data.informationless).nonzero()[:, 0]
    if len(taken):
        rows = taken.to(index.device, non_blocking=True)
        stripped = without_information(images[rows], masks[rows], ids[taken], epoch, seed)
        images = images.index_copy(0, rows, stripped)
        masks, index = masks.index_fill(0, rows, 0), index.index_fill(0, rows, -1)
    return images, masks, index


def _step(run: Run, epoch: int, batch: int, batches: int) -> None:
    """Move the weights, after a batch of those of an epoch."""
    optim = run.config.optim
    rate = learning_rate(optim, epoch + batch / batches, batches / optim.accumulate)
    for optimizer in run.optimizers.values():
        for group in optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    if run.average is not None:
        steps = epoch * math.ceil(batches / optim.accumulate) + batch // optim.accumulate + 1
        run.average.follow(steps)


def _check_losses(run: Run, losses: Tensor, batches: list[Batch]) -> None:
    """Stop at a loss that is not finite, naming the batch; the last checkpoint was written before it."""
    finite = losses.isfinite()
    if bool(finite.all()):
        return
    step = int((~finite).nonzero()[0])
    names = [run.data.train.names[i] for i in batches[step].ids if i >= 0]
    raise InputError(
        "loss", f"{float(losses[step])} at step {step + 1} on {', '.join(names)}",
        "a finite loss (a lower optim.lr, or other images); the last checkpoint is kept",
    )  # fmt: skip


def _save(run: Run, out: Path, epoch: int, best: float, improved: bool) -> None:
    config = run.config
    training: dict[str, Any] = {name: optimizer.state_dict() for name, optimizer in run.optimizers.items()}
    if run.average is not None:
        training["weights"] = run.network.state_dict()
    if run.place is not None:
        training["place"] = run.place.state()
    meta = {"epoch": epoch, "best": best, "samples": _names_digest(run), "config": config.model_dump(mode="json")}
    # the checkpoint comes last: a kill before it has the epoch done again, and the table with it
    if isinstance(run.method, Adaptive):
        values = getattr(run.method, run.method.VALUE)
        table = io.StringIO()
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(["name", "value"])
        writer.writerows(zip(run.data.train.names, (f"{v:.9g}" for v in values.tolist()), strict=True))
        write_text(out / "alpha.csv", table.getvalue())
    last = out / "checkpoints" / "last"
    best_folder = last.with_name("best") if improved else None
    weights = run.kept_network.state_dict()
    checkpoint.save(last, weights, run.method.state_dict(), training, meta, best_folder)


def _names_digest(run: Run) -> str:
    """Which images the run trains and validates on; per-image state belongs to their order."""
    names = ["train", *run.data.train.names, "validation", *run.data.validation.names]
    return hashlib.sha256("\n".join(names).encode("utf-8", "surrogateescape")).hexdigest()


def _restore(run: Run, found: checkpoint.Checkpoint, out: Path) -> None:
    if found.meta.get("samples") != _names_digest(run):
        raise InputError(out, "a run on other images than those there now", "the images the run was started with")
    training = dict(found.optimizer)
    weights, place = training.pop("weights", None), training.pop("place", None)
    try:
        run.place = None if place is None else Place(**place)
        run.kept_network.load_state_dict(found.model)
        if weights is not None:
            run.network.load_state_dict(weights)
        run.method.load_state_dict(found.method)
        for name, optimizer in run.optimizers.items():
            optimizer.load_state_dict(training[name])
    except (RuntimeError, LookupError, TypeError, ValueError, AttributeError) as error:
        problem = f"a checkpoint that does not fit the run ({' '.join(str(error).split())})"
        raise InputError(out / "checkpoints", problem, "a checkpoint of this run") from None


def _check_folder(config: Config, out: Path, resume: bool) -> None:
    """A run folder is resumed with its own settings, and never overwritten by another run."""
    held = out / "config.yaml"
    if not held.exists():
        return
    if not resume:
        raise InputError(out, "a run already", "--resume to go on with it, or another folder")
    before = parse_config(read_yaml(held, "the configuration of the run"), str(held))
    difference = first_difference(before, config)
    if difference is not None:
        key, was, now = difference
        raise InputError(out, f"a run with {key} = {was!r}, not {now!r}", "the same settings to resume")
