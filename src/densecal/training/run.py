"""What a run consists of: data, network, method and optimizers, put together on their device."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
from torch import nn

from densecal.errors import InputError
from densecal.kernels import accelerate, rehearse
from densecal.methods import Method, create
from densecal.models import SegmentationModel, build
from densecal.models.criterion import Criterion, criterion_of, is_plain
from densecal.runtime.progress import Progress, silent
from densecal.training.averaging import Average
from densecal.training.config import Config
from densecal.training.fabric import DDPStrategy, Fabric, _FabricModule
from densecal.training.optimizers import create_optimizers
from densecal.training.preemption import Position
from densecal.training.samples import Data, open_data, open_parts
from densecal.training.threads import Threads

PEER_TIMEOUT = timedelta(minutes=30)
"""How long one of several processes waits for the others, at the start and at every step."""


@dataclass
class Run:
    """Everything that a step, a validation or a checkpoint uses."""

    config: Config
    fabric: Fabric
    data: Data
    resident: bool
    """Whether all samples are on the device."""
    model: _FabricModule
    network: nn.Module
    """The module inside ``model``, which may be a wrapper for several processes."""
    average: Average | None
    method: Method
    optimizers: dict[str, torch.optim.Optimizer]
    criterion: Criterion
    threads: Threads = field(default_factory=Threads)
    stop: threading.Event = field(default_factory=threading.Event)
    """Set when the process is asked to stop."""
    position: Position | None = None
    """Where an interrupted epoch continues."""
    first_stage: dict[str, Any] | None = None
    """The run that trained the first of two stages, if it was another one."""

    @property
    def kept_network(self) -> nn.Module:
        """The network to validate and save: that of the averaged weights if there is one."""
        return self.network if self.average is None else self.average.network


def create_fabric(config: Config) -> Fabric:
    """Create a Fabric with the devices, processes and precision of a configuration."""
    engine = config.engine
    cuda = torch.cuda.is_available() if engine.accelerator == "auto" else engine.accelerator == "cuda"
    if cuda and not torch.cuda.is_available():
        raise InputError("engine.accelerator", "cuda, which this machine does not have", "cpu or auto")
    precision = engine.precision if engine.precision != "auto" else "bf16-mixed" if cuda else "32-true"
    several = engine.devices * engine.nodes > 1
    try:
        return Fabric(
            accelerator="cuda" if cuda else "cpu",
            strategy=DDPStrategy(timeout=PEER_TIMEOUT) if several else "auto",
            devices=engine.devices,
            num_nodes=engine.nodes,
            precision=precision,
        )
    except (ValueError, RuntimeError) as error:  # devices and nodes other than those that torchrun or SLURM started
        reason = " ".join(str(error).split())
        expected = "engine.devices and engine.nodes as torchrun or SLURM started them"
        raise InputError("engine.devices", f"{engine.devices} ({reason})", expected) from None


def open_run(config: Config, fabric: Fabric, progress: Progress = silent) -> Run:
    """Open the data of a run and assemble it.

    The network is built before images are packed, so that missing weights are reported at once. Its kernels are
    compiled while images are packed.
    """
    if config.data.scenes is None:
        open_parts(config.data)  # reports missing images before anything is built
    network = fast_network(config, fabric)
    with ThreadPoolExecutor(1) as executor:
        rehearsal = executor.submit(_rehearse, network, config, fabric)
        data = open_data(config.data, progress)
    rehearsal.result()
    return assemble(config, fabric, data, network)


def _rehearse(network: SegmentationModel, config: Config, fabric: Fabric) -> None:
    if not _is_replayed(network, config, fabric):
        return
    # without this, a new thread would use the first device
    with torch.cuda.device(fabric.device) if fabric.device.type == "cuda" else contextlib.nullcontext():
        shape = min(2, config.optim.batch), 3, config.data.size, config.data.size
        images = torch.zeros(shape, device=fabric.device).contiguous(memory_format=torch.channels_last)
        with fabric.autocast():
            rehearse(network, images)


def fast_network(config: Config, fabric: Fabric) -> SegmentationModel:
    """Build the initial network, as fast as its device allows."""
    network = initial_network(config, fabric.device)
    graphs = _is_replayed(network, config, fabric)
    return accelerate(network, training=True, kernels=config.engine.kernels, graphs=graphs)


def _is_replayed(network: SegmentationModel, config: Config, fabric: Fabric) -> bool:
    """Return whether the steps of a run are replayed by CUDA graphs."""
    alone = fabric.world_size == 1 and config.optim.accumulate == 1
    enabled = fabric.device.type == "cuda" and config.engine.graphs
    return enabled and alone and is_plain(network.network)


def initial_network(config: Config, device: torch.device) -> SegmentationModel:
    """Build the network of a run on its device. Its random weights depend on the seed alone."""
    torch.manual_seed(config.engine.seed)
    model = config.model
    try:
        network = build(model.arch, model.encoder, model.weights, config.data.classes, **model.options)
    except InputError:
        raise
    except ValueError as error:
        raise InputError("model", str(error), "an architecture and encoder that fit") from None
    # the faster layout on CPU and CUDA alike
    return network.to(memory_format=torch.channels_last).to(device)


def assemble(config: Config, fabric: Fabric, data: Data, network: SegmentationModel | None = None) -> Run:
    """Put the network, the method and the optimizers of a run on its device.

    Args:
        config: What to train.
        fabric: Devices and precision.
        data: Training and validation samples.
        network: From ``fast_network``; built here unless given.
    """
    engine, optim = config.engine, config.optim
    if optim.batch < fabric.world_size:
        raise InputError("optim.batch", f"{optim.batch} for {fabric.world_size} processes", "at least one image each")
    network = network or fast_network(config, fabric)
    average = Average(network, optim.ema, optim.ema_start) if optim.ema else None
    method = create(
        config.method.name,
        num_samples=len(data.train),
        num_classes=config.data.classes,
        # packed foreground masks hold values from 0 to 1, none of which may mean void
        ignore_index=config.data.ignore_index if config.data.classes > 1 else 255,
        seed=engine.seed,
        **config.method_options,
    ).to(fabric.device)
    criterion = criterion_of(network.network)
    if config.method.name == "mixup" and not is_plain(network.network):
        raise InputError(
            "method.name", f"mixup for {network.arch}, whose losses need masks of unmixed images", "another method"
        )
    optimizers = create_optimizers(network.network, optim)
    model, *wrapped = fabric.setup(network, *optimizers.values())
    optimizers = dict(zip(optimizers, wrapped, strict=True))
    resident = [samples.keep_on_device(fabric.device) for samples in (data.train, data.validation)]
    return Run(config, fabric, data, all(resident), model, network, average, method, optimizers, criterion)
