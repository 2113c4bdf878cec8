"""Deep ensembles and MC dropout, both as the mean probability of several networks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax, logsigmoid

from densecal.errors import InputError
from densecal.prediction.predictor import Predictor, load_predictor

Logits = Callable[[Tensor], Tensor]
"""Images (B, 3, S, S) in [0, 1] to logits (B, C, S, S)."""


def logits_of_mean(outputs: Iterable[Tensor]) -> Tensor:
    """Return the logits of the mean probability of several outputs, which are read one after the other.

    One channel: log(mean p) - log(mean(1 - p)), p = sigmoid(z). K channels: log(mean p), p = softmax(z). Sums are of
    logarithms, so the result is finite wherever the logits are.

    Args:
        outputs: Logits (B, C, ...) of each member; C is 1 for a sigmoid.

    Examples:
        >>> float(logits_of_mean([torch.zeros(1, 1), torch.full((1, 1), 2.0)]).sigmoid())  # (0.5 + 0.8808) / 2
        0.6903985142707825
    """
    inside: Tensor | None = None
    outside: Tensor | None = None
    members = 0
    for output in outputs:
        z = output if output.dtype == torch.float64 else output.float()
        log_p = logsigmoid(z) if z.shape[1] == 1 else log_softmax(z, dim=1)
        inside = log_p if inside is None else torch.logaddexp(inside, log_p)
        if z.shape[1] == 1:
            log_q = logsigmoid(-z)
            outside = log_q if outside is None else torch.logaddexp(outside, log_q)
        members += 1
    if inside is None:
        raise ValueError("no outputs; expected those of at least one member")
    return inside - (torch.tensor(float(members)).log().to(inside) if outside is None else outside)


def mean_logits(members: Sequence[Logits]) -> Logits:
    """Return a deep ensemble: a function from images to the logits of the members' mean probability."""
    return lambda images: logits_of_mean(member(images) for member in members)


def mc_dropout(network: nn.Module, samples: int = 10, seed: int = 0) -> nn.Module:
    """Average the probabilities of a network over draws of its dropout; everything else in it stays as it is.

    The draws of a batch depend on the seed alone, so the same batch always gives the same logits.

    Args:
        network: Has dropout: ``model.options.dropout``, or an architecture that has its own (fpn, deeplabv3plus).
        samples: Draws.
        seed: Seed of the draws.

    Returns:
        A network from images to the logits of the mean probability.
    """
    if samples < 1:
        raise InputError("MC dropout", f"{samples} samples", "at least 1")
    if not _dropouts(network):
        raise InputError("MC dropout", "a network without dropout", "one trained with, say, model.options.dropout=0.1")
    return _MCDropout(network, samples, seed)


def load_ensemble(runs: Sequence[Path], device: str = "auto") -> Predictor:
    """Load the models of several run or checkpoint folders as one.

    Raises:
        InputError: They differ in the size of their images or in the number of classes.
    """
    members = [load_predictor(run, device) for run in runs]
    first = members[0].config.data
    for run, member in zip(runs, members, strict=True):
        data = member.config.data
        if (data.size, data.classes) != (first.size, first.classes):
            raise InputError(
                run,
                f"a model of {data.classes} classes on images of {data.size} pixels",
                f"{first.classes} classes and {first.size} pixels, as in {runs[0]}",
            )
    if len(members) == 1:
        return members[0]
    return _replace_model(members[0], _Ensemble(m.model for m in members))


def with_mc_dropout(predictor: Predictor, samples: int = 10, seed: int = 0) -> Predictor:
    """Return a predictor whose dropout is on, averaged over draws."""
    return _replace_model(predictor, mc_dropout(predictor.model, samples, seed))


def _replace_model(predictor: Predictor, model: nn.Module) -> Predictor:
    """Replace a model with a mean of models, and drop its calibrator, which was not fitted for the mean."""
    if predictor.calibrator is not None:
        method = predictor.calibrator.method
        warnings.warn(f"the mean is not calibrated: {method} was fitted to one model alone", stacklevel=3)
    return replace(predictor, model=model.eval(), calibrator=None)


class _Ensemble(nn.Module):
    """``mean_logits`` of networks, as a network."""

    def __init__(self, members: Iterable[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, images: Tensor) -> Tensor:
        return logits_of_mean(member(images) for member in self.members)


class _MCDropout(nn.Module):
    """What ``mc_dropout`` returns."""

    def __init__(self, network: nn.Module, samples: int, seed: int) -> None:
        super().__init__()
        self.network = network
        self.samples = samples
        self.seed = seed

    def forward(self, images: Tensor) -> Tensor:
        with _enable_dropout(self.network), _seed_generator(images.device, self.seed):
            return logits_of_mean(self.network(images) for _ in range(self.samples))


def _dropouts(network: nn.Module) -> list[nn.Module]:
    kinds = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
    return [module for module in network.modules() if isinstance(module, kinds) and module.p > 0]


@contextmanager
def _enable_dropout(network: nn.Module) -> Iterator[None]:
    """Switch on dropout and nothing else, and restore it afterwards."""
    before = [(module, module.training) for module in _dropouts(network)]
    try:
        for module, _ in before:
            module.train()
        yield
    finally:
        for module, was in before:
            module.train(was)


@contextmanager
def _seed_generator(device: torch.device, seed: int) -> Iterator[None]:
    """Seed the random numbers of one device, and restore them afterwards."""
    generator = torch.cuda.default_generators[device.index] if device.type == "cuda" else torch.default_generator
    before = generator.get_state()
    generator.manual_seed(seed)
    try:
        yield
    finally:
        generator.set_state(before)
