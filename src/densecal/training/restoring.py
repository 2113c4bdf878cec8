"""Restoring a run from a checkpoint: all of it is checked against the run before any of it is loaded.

A checkpoint may come from a stranger, and torch trusts what it is given. `Optimizer.load_state_dict` checks no shapes,
and fused optimizers then read and write beyond their tensors. `set_rng_state` accepts states that read beyond theirs.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from densecal.errors import InputError
from densecal.training.checkpoint import META, METHOD, MODEL, OPTIMIZER, Checkpoint
from densecal.training.preemption import Position
from densecal.training.run import Run
from densecal.training.samples import epoch_batches

POSITION, WEIGHTS, START = "place", "weights", "start"
"""Keys of `optimizer.pt` beside the names of the optimizers."""
_MERSENNE_STATES = 624
_OF_RUN = "as this run has"


def hash_names(run: Run) -> str:
    """Hash the names of the images in their order, which the state per image follows."""
    names = ["train", *run.data.train.names, "validation", *run.data.validation.names]
    return hashlib.sha256("\n".join(names).encode("utf-8", "surrogateescape")).hexdigest()


def restore(run: Run, saved: Checkpoint) -> None:
    """Load a checkpoint into a run.

    Raises:
        InputError: A part of the checkpoint does not fit the run. Nothing was loaded.
    """
    if saved.meta.get("samples") != hash_names(run):
        raise InputError(saved.folder, "a run that was started on other images", "the images the run was started on")
    path = saved.folder / OPTIMIZER
    stored = dict(saved.optimizer)
    weights, position, start = (stored.pop(key, None) for key in (WEIGHTS, POSITION, START))
    _check_tensors(saved.folder / MODEL, saved.model, run.kept_network.state_dict())
    own = run.method.state_dict()
    # a run of version 0.1 did not count perturbed labels
    uncounted = {"perturbed": torch.zeros((), dtype=torch.int64)} if "perturbed" in own else {}
    method = {**uncounted, **saved.method}
    _check_tensors(saved.folder / METHOD, method, own)
    if run.average is not None or weights is not None:
        expected = {} if run.average is None else run.network.state_dict()
        _check_tensors(f"{path}: {WEIGHTS}", weights, expected)
    if start is not None:
        _check_start(f"{path}: {START}", start, [] if run.average is None else run.average.start)
    steps = len(epoch_batches(len(run.data.train), run.config.optim.batch, 0, run.config.engine.seed, 0, 1))
    checked = None if position is None else _check_position(f"{path}: {POSITION}", position, run, steps)
    updates = _count_updates(int(saved.meta["epoch"]), checked, steps, run.config.optim.accumulate)
    if stored.keys() != run.optimizers.keys():
        raise InputError(path, f"entries {_names(stored)}", f"{_names(run.optimizers)}, {_OF_RUN}")
    states = {
        name: _check_optimizer(f"{path}: {name}", stored[name], optimizer, updates)
        for name, optimizer in run.optimizers.items()
    }
    run.position = checked
    run.first_stage = saved.meta.get("first_stage")
    run.kept_network.load_state_dict(saved.model)
    if weights is not None:
        run.network.load_state_dict(weights)
    if start is not None and run.average is not None:
        run.average.load_start(start)
    run.method.load_state_dict(method)
    for name, state in states.items():
        run.optimizers[name].load_state_dict(state)


def check_epoch(saved: Checkpoint, total: int) -> None:
    """Refuse a checkpoint after more epochs than the run has."""
    if saved.meta["epoch"] > total:
        raise InputError(saved.folder / META, f"epoch {saved.meta['epoch']}", f"at most {total}, {_OF_RUN}")


def _check_tensors(where: str | Path, stored: Any, expected: dict[str, Tensor]) -> None:
    if not isinstance(stored, dict) or stored.keys() != expected.keys():
        known = set(stored) if isinstance(stored, dict) else set()
        missing, unknown = expected.keys() - known, known - expected.keys()
        problem = f"no tensor {_names(missing)}" if missing else f"unknown tensor {_names(unknown)}"
        raise InputError(where, problem, "the tensors of this run")
    for name, tensor in expected.items():
        _check_tensor(f"{where}: {name}", stored[name], tensor.dtype, tensor.shape)


def _check_start(where: str, stored: Any, expected: list[Tensor]) -> None:
    """Check the initial weights of an average."""
    if not isinstance(stored, list) or len(stored) != len(expected):
        raise InputError(where, "damaged", f"{len(expected)} tensors, {_OF_RUN}")
    for i, (tensor, own) in enumerate(zip(stored, expected, strict=True)):
        _check_tensor(f"{where}: {i}", tensor, own.dtype, own.shape)


def _check_tensor(where: str, stored: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Return a stored value if it is a plain tensor. Files may also hold sparse, quantized and other tensors."""
    expected = f"{_plain_name(dtype)} of shape {tuple(shape)}, {_OF_RUN}"
    if type(stored) not in (Tensor, nn.Parameter):
        raise InputError(where, f"a {type(stored).__name__}", expected)
    if stored.layout is not torch.strided or stored.is_quantized or stored.device.type != "cpu":
        raise InputError(where, f"a tensor of layout {_plain_name(stored.layout)} on {stored.device}", expected)
    if stored.dtype != dtype or stored.shape != shape:
        raise InputError(where, f"{_plain_name(stored.dtype)} of shape {tuple(stored.shape)}", expected)
    tensor: Tensor = stored.detach()
    return tensor


def _check_position(where: str, stored: Any, run: Run, steps: int) -> Position:
    if not isinstance(stored, dict) or stored.keys() != {"step", "losses", "random"}:
        raise InputError(where, "damaged", "step, losses and random")
    step, accumulate = stored["step"], run.config.optim.accumulate
    if type(step) is not int or not 0 < step <= steps or (step % accumulate and step != steps):
        raise InputError(f"{where}: step", f"{step!r:.100}", f"a step of the {steps} in an epoch of this run")
    losses = _check_tensor(f"{where}: losses", stored["losses"], torch.float32, (step,))
    if not bool(losses.isfinite().all()):
        raise InputError(f"{where}: losses", "NaN or infinite numbers", "finite losses")
    random = stored["random"]
    if not isinstance(random, list) or len(random) not in (1, 2):
        raise InputError(f"{where}: random", f"a {type(random).__name__}", "the states of one or two generators")
    sizes = [torch.get_rng_state().shape]
    if run.fabric.device.type == "cuda" and len(random) == 2:
        sizes.append(torch.cuda.get_rng_state(run.fabric.device).shape)
    states = [
        _check_tensor(f"{where}: random", state, torch.uint8, size).clone(memory_format=torch.contiguous_format)
        for state, size in zip(random, sizes, strict=False)
    ]
    _check_generator(f"{where}: random", states[0])
    return Position(step, losses, states)


def _check_generator(where: str, state: Tensor) -> None:
    """Refuse a state of the CPU's generator that would read random numbers from beyond its memory.

    The generator is a Mersenne twister. It draws word `next` of 624 until none is `left`, so the two have a fixed sum;
    a new generator has drawn nothing. torch checks each number alone.
    """
    content = state.numpy()
    left, position = int(content[8:12].view(np.int32)[0]), int(content[16:24].view(np.uint64)[0])
    drawing = 1 <= position <= _MERSENNE_STATES and left + position == _MERSENNE_STATES + 1
    try:
        if not drawing and (left, position) != (1, 0):
            raise RuntimeError(f"word {position} with {left} left")
        torch.Generator().set_state(state)
    except RuntimeError as error:
        raise InputError(where, f"damaged ({error})", "the state of a random number generator") from None


def _count_updates(epochs: int, position: Position | None, steps: int, accumulate: int) -> int:
    """Return how often the weights were updated before a checkpoint."""
    return epochs * math.ceil(steps / accumulate) + (math.ceil(position.step / accumulate) if position else 0)


def _check_optimizer(where: str, stored: Any, optimizer: torch.optim.Optimizer, updates: int) -> dict[str, Any]:
    """Return the state to load: the run's settings, and stored tensors in memory laid out like the parameters."""
    if not isinstance(stored, dict) or stored.keys() != {"state", "param_groups"}:
        raise InputError(where, "damaged", "state and param_groups")
    own = optimizer.state_dict()["param_groups"]
    _check_groups(f"{where}: param_groups", stored["param_groups"], own)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if not isinstance(stored["state"], dict):
        raise InputError(f"{where}: state", f"a {type(stored['state']).__name__}", "the state of each parameter")
    keys = {"momentum_buffer"} if isinstance(optimizer, torch.optim.SGD) else {"step", "exp_avg", "exp_avg_sq"}
    state = {}
    for index, entries in stored["state"].items():
        name = f"{where}: state {index!r:.50}"
        if type(index) is not int or not 0 <= index < len(parameters):
            raise InputError(name, "an unknown parameter", f"one of the {len(parameters)} parameters of this run")
        if not isinstance(entries, dict) or entries.keys() != keys:
            known = _names(entries) if isinstance(entries, dict) else f"a {type(entries).__name__}"
            raise InputError(name, known, _names(keys))
        state[index] = {key: _copy_state(f"{name}: {key}", key, entries[key], parameters[index]) for key in keys}
        _check_step(f"{name}: step", state[index].get("step"), updates)
    return {"state": state, "param_groups": own}


def _copy_state(where: str, key: str, stored: Any, parameter: Tensor) -> Tensor:
    if key == "step":
        return _check_tensor(where, stored, torch.float32, ()).clone()
    checked = _check_tensor(where, stored, parameter.dtype, parameter.shape)
    return torch.empty_like(parameter, requires_grad=False).copy_(checked)


def _check_step(where: str, step: Tensor | None, updates: int) -> None:
    if step is not None and not (1 <= float(step) <= updates and float(step).is_integer()):
        raise InputError(where, str(float(step)), f"a whole number from 1 to {updates}, {_OF_RUN}")


def _check_groups(where: str, stored: Any, own: list[dict[str, Any]]) -> None:
    """Check the groups of parameters. The run's own settings are used, so the stored ones need only be plausible."""
    if not isinstance(stored, list) or len(stored) != len(own):
        raise InputError(where, "damaged", f"{len(own)} groups of parameters, {_OF_RUN}")
    for group, mine in zip(stored, own, strict=True):
        if not isinstance(group, dict) or not _same_indices(group.get("params"), mine["params"]):
            raise InputError(where, "other parameters", "the parameters of this run")
        for key in mine.keys() & group.keys() - {"params"}:
            if not _is_alike(group[key], mine[key]):
                raise InputError(f"{where}: {key}", f"{group[key]!r:.100}", f"a value like {mine[key]!r}")


def _same_indices(stored: Any, own: list[int]) -> bool:
    return isinstance(stored, list) and all(type(index) is int for index in stored) and stored == own


def _is_alike(stored: Any, own: Any) -> bool:
    """Return whether a setting has the type of the run's own: a finite number, a tuple of these, or the same value."""
    if type(stored) is not type(own):
        return False
    if isinstance(own, tuple):
        return len(stored) == len(own) and all(map(_is_alike, stored, own))
    return math.isfinite(stored) if isinstance(own, float) else bool(stored == own)


def _names(keys: Iterable[Any]) -> str:
    return ", ".join(sorted(map(str, keys)))[:200]


def _plain_name(kind: Any) -> str:
    return str(kind).removeprefix("torch.")
