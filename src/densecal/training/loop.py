"""The training loop: explicit, on Lightning Fabric, resumable to the bit after a kill at any moment."""

from __future__ import annotations

import copy
import csv
import hashlib
import io
import json
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from lightning_fabric import Fabric
from lightning_fabric.wrappers import _FabricModule
from torch import Tensor, nn

from densecal.data.augment import augment
from densecal.errors import InputError
from densecal.files import rounded, write_text
from densecal.methods import Method, create
from densecal.metrics.calibration import CalibrationMeter, CalibrationResult
from densecal.models import build
from densecal.training import checkpoint
from densecal.training.config import Config, dump_config, parse_config
from densecal.training.criterion import Criterion, PlainCriterion
from densecal.training.feed import (
    Batch,
    Data,
    Samples,
    epoch_batches,
    open_data,
    prefetched,
    to_device,
    validation_batches,
)
from densecal.training.logs import Log
from densecal.training.schedule import learning_rate

CHECK_EVERY = 50
"""Steps between looks at the losses on a device that runs ahead; on the CPU every step is looked at."""
COMPILE_PAYS_STEPS = 20_000
LOGGED = ("ece_ew", "oe_ew", "ece_em", "brier", "nll", "accuracy", "mean_confidence")

Progress = Callable[[str, int, int, dict[str, float]], None]


@dataclass
class Run:
    """Everything that a step, a validation or a checkpoint touches."""

    config: Config
    fabric: Fabric
    data: Data
    model: _FabricModule
    network: nn.Module
    """The module behind ``model``, which may be wrapped for several processes."""
    average: nn.Module | None
    method: Method
    optimizers: dict[str, torch.optim.Optimizer]
    criterion: Criterion

    @property
    def best_network(self) -> nn.Module:
        """The weights to validate and keep: their average where there is one."""
        return self.average or self.network


def train(
    config: Config, out: Path, resume: bool = False, progress: Progress | None = None
) -> CalibrationResult | None:
    """Train a model and leave a run folder.

    Args:
        config: What to train.
        out: Run folder: ``config.yaml``, ``log.jsonl``, ``alpha.csv``, ``checkpoints/last`` and ``checkpoints/best``.
        resume: Go on from the last checkpoint there, or start if there is none.
        progress: Called with (title, done, total, figures).

    Returns:
        The last validation, or ``None`` if the run was finished already.

    Raises:
        InputError: Bad data, a bad setting, a folder in use, a loss that is not finite.
    """
    _check_folder(config, out, resume)
    fabric = _fabric(config)
    fabric.launch()
    found, problems = checkpoint.load_newest(out / "checkpoints") if resume else (None, [])
    if found is not None and int(found.meta["epoch"]) >= config.total_epochs:
        return None
    data = open_data(
        config.data, None if progress is None else lambda title, done, total: progress(title, done, total, {})
    )
    for note in data.notes:
        warnings.warn(note, stacklevel=2)
    run = _assemble(config, fabric, data)
    first = 0
    best = float("inf")
    log = Log(out, enabled=fabric.global_rank == 0)
    for problem in problems:
        warnings.warn(f"{problem}; the checkpoint before it is used", stacklevel=2)
    if found is not None:
        first, best = int(found.meta["epoch"]), float(found.meta["best"])
        _restore(run, found, out)
    if fabric.global_rank == 0:
        write_text(out / "config.yaml", dump_config(config))
    log.keep(first)
    result = None
    for epoch in range(first, config.total_epochs):
        start = time.perf_counter()
        loss = train_epoch(run, epoch, progress)
        seconds = time.perf_counter() - start
        result = validate(run, progress)
        run.method.after_epoch(result)
        line = {
            "epoch": epoch + 1,
            "loss": loss,
            "lr": learning_rate(config.optim, epoch),
            "images_per_second": len(data.train) / seconds,
            "validation": {name: getattr(result, name) for name in LOGGED},
            "method": run.method.statistics(),
        }
        log.write(line)
        if progress:
            progress(f"Epoch {epoch + 1} of {config.total_epochs}", 1, 1, _shown(loss, result, run.method))
        improved = result.brier < best
        best = min(best, result.brier)
        if fabric.global_rank == 0:
            _save(run, out, epoch + 1, best, improved)
        fabric.barrier()
    return result


def train_epoch(run: Run, epoch: int, progress: Progress | None = None) -> float:
    """One pass over the training images.

    Returns:
        The mean loss.
    """
    config, fabric, method = run.config, run.fabric, run.method
    rank, world = fabric.global_rank, fabric.world_size
    torch.manual_seed(config.engine.seed * 1_000_003 + epoch * world + rank)  # dropout
    method.start_epoch(epoch)
    run.model.train()
    batches = epoch_batches(len(run.data.train), config.optim.batch, epoch, config.engine.seed, rank, world)
    losses = torch.zeros(len(batches), device=fabric.device)
    for step, (batch, images, masks) in enumerate(_loaded(run, run.data.train, batches)):
        index = torch.from_numpy(batch.ids).to(fabric.device, non_blocking=True)
        images, masks = augment(
            images, masks, index, epoch, config.engine.seed, config.data.augment, config.data.ignore_index
        )
        images, targets = method.prepare(images, masks, index)
        weight = (index >= 0).float() if batch.own < len(batch.ids) else None
        last = (step + 1) % config.optim.accumulate == 0 or step + 1 == len(batches)
        with fabric.no_backward_sync(run.model, enabled=not last):
            by_optimizer, logits = run.criterion.step(run.model, images, masks, targets, method, weight)
            loss = torch.stack(list(by_optimizer.values())).sum()
            # a process that was padded weighs less, so that the gradient is that of the whole batch
            share = batch.own * world / batch.whole
            fabric.backward(loss * (share / config.optim.accumulate))
        losses[step] = loss.detach()
        if fabric.device.type == "cpu" or (step + 1) % CHECK_EVERY == 0 or step + 1 == len(batches):
            _check_losses(run, losses[: step + 1], batches)
        if last:
            _step(run, epoch + (step + 1) / len(batches) if config.optim.schedule == "cosine" else epoch)
        method.after_step(logits.detach(), masks, index)
        if progress and rank == 0:
            progress(f"Epoch {epoch + 1} of {config.total_epochs}", step + 1, len(batches), {})
    mean = fabric.all_reduce(losses.mean(), reduce_op="mean")
    assert isinstance(mean, Tensor)
    return float(mean)


@torch.no_grad()
def validate(run: Run, progress: Progress | None = None) -> CalibrationResult:
    """Measure the current weights on the validation images, at the size the network sees."""
    config, fabric = run.config, run.fabric
    network = run.best_network
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
        if progress and fabric.global_rank == 0:
            progress("Validation", step + 1, len(batches), {})
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


def _fabric(config: Config) -> Fabric:
    engine = config.engine
    cuda = torch.cuda.is_available() if engine.accelerator == "auto" else engine.accelerator == "cuda"
    if cuda and not torch.cuda.is_available():
        raise InputError("engine.accelerator", "cuda, which this machine does not have", "cpu or auto")
    precision = engine.precision if engine.precision != "auto" else "bf16-mixed" if cuda else "32-true"
    several = engine.devices * engine.nodes > 1
    return Fabric(
        accelerator="cuda" if cuda else "cpu",
        strategy="ddp" if several else "auto",
        devices=engine.devices,
        num_nodes=engine.nodes,
        precision=precision,
    )


def _assemble(config: Config, fabric: Fabric, data: Data) -> Run:
    engine, optim = config.engine, config.optim
    if optim.batch < fabric.world_size:
        raise InputError("optim.batch", f"{optim.batch} for {fabric.world_size} processes", "at least one image each")
    on_cuda = fabric.device.type == "cuda"
    torch.manual_seed(engine.seed)
    given = config.model
    try:
        network: nn.Module = build(given.arch, given.encoder, given.weights, config.data.classes, **given.options)
    except InputError:
        raise
    except ValueError as error:
        raise InputError("model", str(error), "an architecture and encoder that fit") from None
    if engine.channels_last:
        network = network.to(memory_format=torch.channels_last)
    network = network.to(fabric.device)
    average = copy.deepcopy(network).requires_grad_(False) if optim.ema else None
    method = create(
        config.method.name,
        num_samples=len(data.train),
        num_classes=config.data.classes,
        # packed foreground masks hold 0 to 1: no value of theirs may mean void
        ignore_index=config.data.ignore_index if config.data.classes > 1 else 255,
        seed=engine.seed,
        **config.method_options,
    ).to(fabric.device)
    steps = config.total_epochs * -(-len(data.train) // optim.batch)
    compiled = on_cuda and steps >= COMPILE_PAYS_STEPS if engine.compile is None else engine.compile
    family = torch.optim.AdamW if optim.optimizer == "adamw" else torch.optim.Adam
    optimizer = family(network.parameters(), lr=optim.lr, weight_decay=optim.weight_decay, fused=True)
    if compiled:
        # batches come in two sizes: two static graphs, where one dynamic graph takes minutes or never ends
        network.compile(dynamic=False)
    model, optimizer = fabric.setup(network, optimizer)
    for samples in (data.train, data.validation):
        samples.resident(fabric.device)
    return Run(config, fabric, data, model, network, average, method, {"main": optimizer}, PlainCriterion())


def _loaded(run: Run, samples: Samples, batches: list[Batch]) -> Iterator[tuple[Batch, Tensor, Tensor]]:
    """Batches on the device, gathered ahead by a thread; a padding sample is a copy of another."""

    def gathered() -> Iterator[tuple[Batch, Tensor, Tensor]]:
        for batch in batches:
            yield batch, *samples.batch(batch.ids.clip(min=0))

    for batch, images, masks in prefetched(gathered()):
        on_device = to_device(
            images, masks, run.fabric.device, run.config.data.classes, run.config.engine.channels_last
        )
        yield batch, *on_device


def _step(run: Run, epoch: float) -> None:
    rate = learning_rate(run.config.optim, epoch)
    for optimizer in run.optimizers.values():
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    if run.average is not None:
        with torch.no_grad():
            decay = run.config.optim.ema
            for kept, now in zip(run.average.state_dict().values(), run.network.state_dict().values(), strict=True):
                if kept.is_floating_point():
                    kept.lerp_(now, 1.0 - decay)
                else:
                    kept.copy_(now)


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
    meta = {"epoch": epoch, "best": best, "samples": _names_digest(run), "config": config.model_dump(mode="json")}
    weights = run.best_network.state_dict()
    last = out / "checkpoints" / "last"
    checkpoint.save(last, weights, run.method.state_dict(), training, meta)
    if improved:
        checkpoint.copy(last, last.with_name("best"))
    values = getattr(run.method, "alpha", getattr(run.method, "beta", None))
    if values is not None:
        table = io.StringIO()
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(["name", "value"])
        writer.writerows(zip(run.data.train.names, (f"{v:.9g}" for v in values.tolist()), strict=True))
        write_text(out / "alpha.csv", table.getvalue())


def _names_digest(run: Run) -> str:
    """Which images the run trains and validates on; per-image state belongs to their order."""
    names = ["train", *run.data.train.names, "validation", *run.data.validation.names]
    return hashlib.sha256("\n".join(names).encode("utf-8", "surrogateescape")).hexdigest()


def _restore(run: Run, found: checkpoint.Checkpoint, out: Path) -> None:
    if found.meta.get("samples") != _names_digest(run):
        raise InputError(out, "a run on other images than those there now", "the images the run was started with")
    training = dict(found.optimizer)
    weights = training.pop("weights", None)
    run.best_network.load_state_dict(found.model)
    if weights is not None:
        run.network.load_state_dict(weights)
    run.method.load_state_dict(found.method)
    for name, optimizer in run.optimizers.items():
        optimizer.load_state_dict(training[name])


def _check_folder(config: Config, out: Path, resume: bool) -> None:
    """A run folder is resumed with its own settings, and never overwritten by another run."""
    held = out / "config.yaml"
    if not held.exists():
        return
    if not resume:
        raise InputError(out, "a run already", "--resume to go on with it, or another folder")
    try:
        before = parse_config(yaml.safe_load(held.read_text(encoding="utf-8")), str(held))
    except (OSError, yaml.YAMLError) as error:
        raise InputError(held, f"unreadable ({error})", "the configuration of the run") from None
    was, now = (json.loads(json.dumps(rounded(c.model_dump(mode="json")))) for c in (before, config))
    for section, keys in was.items():
        for key in sorted(keys.keys() | now[section].keys()):
            # where it runs may change from one call to the next; what is trained may not
            fixed = section != "engine" or key in ("seed", "bins")
            if fixed and keys.get(key) != now[section].get(key):
                raise InputError(
                    out, f"a run with {section}.{key} = {keys.get(key)!r}, not {now[section].get(key)!r}",
                    "the same settings to resume",
                )  # fmt: skip
