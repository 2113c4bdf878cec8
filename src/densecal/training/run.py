"""What a run is put together from: the network, the method, the optimizers, and the ways to make a step fast."""

from __future__ import annotations

import contextlib
import importlib.util
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import torch
from lightning_fabric import Fabric
from lightning_fabric.wrappers import _FabricModule
from torch import nn

from densecal.errors import InputError
from densecal.kernels.graphs import replay_inference, replay_training, undisturbed
from densecal.methods import Method, create
from densecal.models import SegmentationModel, build
from densecal.models.criterion import Criterion, criterion_of, is_plain
from densecal.runtime.progress import Progress, silent
from densecal.training.averaging import Average
from densecal.training.config import Config
from densecal.training.optimizers import create_optimizers
from densecal.training.preemption import Place
from densecal.training.samples import Data, open_data


@dataclass
class Run:
    """Everything that a step, a validation or a checkpoint touches."""

    config: Config
    fabric: Fabric
    data: Data
    resident: bool
    """Whether all samples are on the device."""
    model: _FabricModule
    network: nn.Module
    """The module behind ``model``, which may be wrapped for several processes."""
    average: Average | None
    method: Method
    optimizers: dict[str, torch.optim.Optimizer]
    criterion: Criterion
    stop: threading.Event = field(default_factory=threading.Event)
    """Set when the process is asked to end."""
    place: Place | None = None
    """Where an interrupted epoch goes on."""

    @property
    def kept_network(self) -> nn.Module:
        """The weights to validate and keep: their average where there is one."""
        return self.network if self.average is None else self.average.network


def fabric_of(config: Config) -> Fabric:
    """The devices, processes and precision that a configuration asks for."""
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


def open_run(config: Config, fabric: Fabric, progress: Progress = silent) -> Run:
    """Open the data of a run and assemble it; the network is built and tried while images are packed."""
    failed = threading.Event()
    with ThreadPoolExecutor(1) as beside:
        building = beside.submit(_tried_network, config, fabric, failed)
        try:
            data = open_data(config.data, progress)
        except BaseException:
            failed.set()
            raise
    return assemble(config, fabric, data, building.result())


def _tried_network(config: Config, fabric: Fabric, failed: threading.Event) -> SegmentationModel:
    # a thread begins on the first device
    with torch.cuda.device(fabric.device) if fabric.device.type == "cuda" else contextlib.nullcontext():
        network = fast_network(config, fabric)
        if _is_replayed(network, config, fabric) and not failed.is_set():
            rehearse(network, fabric, min(2, config.optim.batch), config.data.size)
    return network


def rehearse(network: SegmentationModel, fabric: Fabric, batch: int, size: int) -> None:
    """Take a step on black images that leaves no trace: Triton needs seconds to translate the kernels of one."""
    images = torch.zeros(batch, 3, size, size, device=fabric.device).contiguous(memory_format=torch.channels_last)
    # one that finds no room is none
    with contextlib.suppress(torch.OutOfMemoryError), undisturbed(network, fabric.device), fabric.autocast():
        network(images).sum().backward()
    network.zero_grad()


def fast_network(config: Config, fabric: Fabric) -> SegmentationModel:
    """The initial network, with kernels of ours where its steps are replayed; launched one by one they are no gain."""
    network = initial_network(config, fabric.device)
    engine = config.engine
    wanted = engine.fused and engine.channels_last and importlib.util.find_spec("triton") is not None
    if wanted and _is_replayed(network, config, fabric):
        from densecal.kernels.normalisation import fuse_normalisation
        from densecal.kernels.small_convolutions import fuse_narrow

        fuse_normalisation(network)
        fuse_narrow(network)
        if engine.depthwise:
            from densecal.kernels.depthwise import fuse_depthwise

            fuse_depthwise(network)
    return network


def _is_replayed(network: SegmentationModel, config: Config, fabric: Fabric) -> bool:
    """Whether the steps of a run are replayed by CUDA graphs."""
    alone = fabric.world_size == 1 and config.optim.accumulate == 1
    wanted = fabric.device.type == "cuda" and config.engine.graphs and not config.engine.compile
    return wanted and alone and is_plain(network.network)


def initial_network(config: Config, device: torch.device) -> SegmentationModel:
    """Build the network of a run on its device; its random weights follow from the seed alone."""
    torch.manual_seed(config.engine.seed)
    given = config.model
    try:
        network = build(given.arch, given.encoder, given.weights, config.data.classes, **given.options)
    except InputError:
        raise
    except ValueError as error:
        raise InputError("model", str(error), "an architecture and encoder that fit") from None
    if config.engine.channels_last:
        network = network.to(memory_format=torch.channels_last)
    return network.to(device)


def assemble(config: Config, fabric: Fabric, data: Data, network: SegmentationModel | None = None) -> Run:
    """Put the network, the method and the optimizers of a run on its device, as fast as the device allows.

    Args:
        config: What to train.
        fabric: Where.
        data: On what.
        network: Of ``fast_network``; built here unless given.
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
        # packed foreground masks hold 0 to 1: no value of theirs may mean void
        ignore_index=config.data.ignore_index if config.data.classes > 1 else 255,
        seed=engine.seed,
        **config.method_options,
    ).to(fabric.device)
    criterion = criterion_of(network.network)
    if config.method.name == "mixup" and not is_plain(network.network):
        raise InputError(
            "method.name", f"mixup for {network.arch}, whose losses need masks of unmixed images", "another"
        )
    optimizers = create_optimizers(network.network, optim)
    if engine.compile:
        # batches come in two sizes: two static graphs, where one dynamic graph takes minutes or never ends
        network.compile(dynamic=False)
    if _is_replayed(network, config, fabric):
        replay_inference(network if average is None else average.network)
        replay_training(network)
    model, *ready = fabric.setup(network, *optimizers.values())
    optimizers = dict(zip(optimizers, ready, strict=True))
    resident = [samples.resident(fabric.device) for samples in (data.train, data.validation)]
    return Run(config, fabric, data, all(resident), model, network, average, method, optimizers, criterion)
