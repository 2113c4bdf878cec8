"""Predicting volumes: a 3D network slides over each in overlapping tiles, and the map keeps its place in the world."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from densecal.errors import InputError
from densecal.io import MAX_VOXELS
from densecal.io.folders import files_in, image_files
from densecal.io.map_files import map_targets, write_plane
from densecal.io.outputs import check_output_folder, check_outputs
from densecal.io.suffixes import ARRAY_SUFFIXES, VOLUME_SUFFIXES, stem_of, suffix_of
from densecal.io.urls import is_folder
from densecal.io.volume_files import Volume, read_volume, volume_kind, write_volume
from densecal.metrics.entropy import confidence_and_entropy
from densecal.prediction.preprocess import activate
from densecal.prediction.tiles import blend
from densecal.prediction.volume_input import VolumeInput
from densecal.prediction.volume_networks import VolumeNetwork, module_network
from densecal.runtime.progress import Progress, silent
from densecal.runtime.sharding import ALONE, Processes

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.float32]

_SUFFIXES = (*VOLUME_SUFFIXES, *ARRAY_SUFFIXES, ".zarr", ".h5", ".hdf5")
_BATCH_VOXELS = 1 << 18
"""As many as an image of 512 x 512 has pixels."""


def find_volumes(images: Path) -> list[Path]:
    """Return the volumes of a folder without pictures, or the one volume that is named; none for everything else."""
    if suffix_of(images) in _SUFFIXES:
        return [images]
    if not is_folder(images) or next(image_files(images), None) is not None:
        return []
    return files_in(images, _SUFFIXES)


def predict_volumes(
    network: VolumeNetwork | Callable[[Tensor], Any],
    volumes: Path,
    out: Path,
    prepare: VolumeInput,
    *,
    format: str | None = None,
    uncertainty: bool = False,
    batch: int = 8,
    max_voxels: int = MAX_VOXELS,
    device: str = "auto",
    progress: Progress = silent,
    processes: Processes = ALONE,
    reads: Iterable[Path] = (),
    force: bool = False,
) -> int:
    """Write the probability map of every volume of a folder, by a network that slides over it.

    Tiles overlap and are blended as those of images are (`prediction.tiles`). NIfTI, MetaImage and NRRD maps have the
    format and the geometry of their volume; all others are ``.npy``.

    Args:
        network: An `nn.Module`, any function from tensors (B, channels, D, H, W) to tensors (B, K, D, H, W), or what
            `load_volume_network` returns.
        volumes: Folder of volumes, or one volume.
        out: Folder for the maps, one per stem: (D, H, W) for K = 1, else (K, D, H, W).
        prepare: How volumes are prepared and cut, and what the output means.
        format: ``npy`` for arrays in place of the volume's own format.
        uncertainty: Also write the confidence of the winning class and the entropy, as a share of its maximum, into
            ``confidence/`` and ``entropy/``.
        batch: Number of images of 512 x 512 pixels. As many tiles go through the network at a time as have their
            pixels.
        max_voxels: Refuse larger volumes.
        device: auto, cpu or cuda, for modules.
        progress: Receives the number of maps written.
        processes: The processes that share the work; all of them make this call.
        reads: Further files that must not be written over, such as that of the network.
        force: Also replace files that no earlier prediction wrote, but never a volume.

    Returns:
        Number of maps written by all processes, on the first of them.
    """
    if not isinstance(network, VolumeNetwork):
        network = module_network(network, prepare.output, device)
    files = find_volumes(volumes)
    if not files:
        raise InputError(volumes, "no volumes", f"files that end in {', '.join(_SUFFIXES)}")
    prepare.tilings(network.sides)
    _check(files, volumes, out, format, uncertainty, reads, force)
    own, done = processes.share(files), 0
    outcome: int | InputError
    try:
        for number, path in enumerate(own, start=1):
            volume = read_volume(path, max_voxels)
            p = volume_probabilities(network, volume, prepare, batch, str(path))
            if uncertainty and len(p) > 1 and prepare.activation == "sigmoid":
                raise InputError("--uncertainty", f"{len(p)} sigmoids per voxel", "one foreground, or softmax")
            _write(out / stem_of(path), p, path, format)
            if uncertainty:
                for name, plane in confidence_and_entropy(p).items():
                    _write(out / name / stem_of(path), plane[None].astype(np.float32), path, format)
            progress("Predicting", number, len(own))
        outcome = len(own)
    except InputError as error:  # the other processes wait for the count of this one
        outcome = error
    for count in processes.gather(outcome) or [outcome]:
        if isinstance(count, InputError):
            raise count
        done += count
    return done


def volume_probabilities(
    network: VolumeNetwork, volume: Volume, prepare: VolumeInput, batch: int = 8, name: str = "the volume"
) -> Floats:
    """Return the probabilities (K, D, H, W) of a volume.

    Args:
        network: The network.
        volume: The volume.
        prepare: How it is prepared and cut, and what the output means.
        batch: As for `predict_volumes`.
        name: Name of the volume in errors.
    """
    tilings = prepare.tilings(network.sides)
    voxels = tilings[0].tile * tilings[1].tile * tilings[2].tile
    at_once = network.batch or max(1, batch * _BATCH_VOXELS // voxels)

    def probabilities(tiles: Floats) -> Floats:
        output = network.output(np.ascontiguousarray(np.moveaxis(tiles, -1, 1)))
        if prepare.activation == "softmax" and output.shape[1] == 1:
            raise InputError(network.name, "softmax over one channel", "activation: sigmoid in --preprocess")
        return activate(output, prepare.activation, network.name, f"the output for {name}")

    x = prepare.values(volume.values)
    turned = prepare.axes == "xyz" and volume.geometry is not None
    x = x.transpose(0, 3, 2, 1) if turned else x
    result: Floats | None = None
    done = 0
    for chunk in blend(np.moveaxis(x, 0, -1), tilings, probabilities, at_once):
        if result is None:
            result = np.empty((len(chunk), *x.shape[1:]), np.float32)
        np.clip(chunk, 0, 1, out=result[:, done : done + chunk.shape[1]])  # weights add up to 1 within rounding
        done += chunk.shape[1]
    assert result is not None
    return result.transpose(0, 3, 2, 1) if turned else result


def _kind(path: Path, format: str | None) -> str:
    return "npy" if format == "npy" else volume_kind(path) or "npy"


def _check(
    files: Sequence[Path], volumes: Path, out: Path, format: str | None, uncertainty: bool, reads: Iterable[Path],
    force: bool,
) -> None:  # fmt: skip
    """Refuse to write maps over volumes, over the network, or over files that no prediction wrote."""
    if format not in (None, "npy"):
        raise InputError("--format", format or "", "npy, or the format of the volumes without --format")
    check_output_folder(out, [volumes, *{path.parent for path in files}, *files])
    folders = [out, *(out / name for name in ("confidence", "entropy") if uncertainty)]
    targets = [one for path in files for folder in folders
               for one in map_targets(folder, [stem_of(path)], [_kind(path, format)])]  # fmt: skip
    check_outputs("predict", targets, chain(files, reads), force)


def _write(stem: Path, p: Floats, source: Path, format: str | None) -> None:
    values = p[0] if len(p) == 1 else p
    if _kind(source, format) == "npy":
        write_plane(stem, np.ascontiguousarray(values, "<f4"), "predict")
    else:
        write_volume(stem, values, source, "predict")
