"""A data set decoded and resized once into memory-mapped files, so that no epoch waits for decoding."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from densecal.data.blocks import BlockChecksums, blocks_agree
from densecal.data.cache_folder import (
    FORMAT,
    IMAGES,
    MANIFEST,
    MASKS,
    build_folder,
    fresh_neighbour,
    refuse_other_files,
    remove_abandoned,
)
from densecal.data.decoding import Facts, Job, decode_all
from densecal.data.sources import Source
from densecal.errors import InputError
from densecal.io.documents import read_json
from densecal.io.masks import one_sided
from densecal.runtime.progress import Progress, silent

if TYPE_CHECKING:
    import torch
    from torch import Tensor

VERSION = 2

_LOG = logging.getLogger(__name__)

_PIECE_BYTES = 1 << 26
"""Number of bytes that are copied to a device at a time."""
_SYNC_BYTES = 1 << 28
"""Number of bytes written between two calls of fsync. With fewer, writing would wait for the disk too often."""


class Packed:
    """An open cache: ``images`` uint8 (N, size, size, 3) and ``masks`` uint8 (N, size, size), read-only maps.

    Attributes:
        folder: Folder of the cache.
        names: Sample names; the position is the sample id.
        size: Side of the images in pixels.
        classes: 1 for soft foreground masks (0 to 255), else the number of classes of the label masks.
        original_sizes: (height, width) of every image before resizing.
        warnings: Warnings from packing, such as masks with grey values.
        rebuilt: Why ``pack`` rebuilt the cache; empty if the existing one was used.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder = folder
        self.names: list[str] = manifest["names"]
        self.size: int = manifest["size"]
        self.classes: int = manifest["classes"]
        self.original_sizes: list[tuple[int, int]] = [(h, w) for h, w in manifest["original_sizes"]]
        self.warnings: list[str] = manifest["warnings"]
        self.rebuilt = ""
        self._manifest = manifest
        shape = (len(self.names), self.size, self.size)
        self.images: NDArray[np.uint8] = np.memmap(folder / IMAGES, np.uint8, "r", shape=(*shape, 3))
        self.masks: NDArray[np.uint8] = np.memmap(folder / MASKS, np.uint8, "r", shape=shape)
        self._on_device: tuple[Tensor, Tensor] | None = None

    def __len__(self) -> int:
        return len(self.names)

    def __reduce__(self) -> tuple[Callable[..., Packed], tuple[Path, dict[str, Any]]]:
        """Make another process map the files, instead of sending it their content."""
        return _reopen, (self.folder, self._manifest)

    def batch(self, indices: Sequence[int] | NDArray[np.int64] | Tensor) -> tuple[Tensor, Tensor]:
        """Gather samples.

        Args:
            indices: Sample ids, shape (B,).

        Returns:
            uint8 images (B, 3, size, size), channels last in memory, and uint8 masks (B, size, size), in
            pinned memory where CUDA is present, or on the device after ``keep_on_device``.
        """
        import torch

        if self._on_device is not None:
            images, masks = self._on_device
            where = torch.as_tensor(indices, dtype=torch.int64).to(images.device, non_blocking=True)
            return images.index_select(0, where).permute(0, 3, 1, 2), masks.index_select(0, where)
        rows = np.asarray(indices, dtype=np.int64)
        if rows.size and (rows.min() < 0 or rows.max() >= len(self)):
            raise IndexError(f"indices: found {rows.min()} to {rows.max()}; expected 0 to {len(self) - 1}")
        pinned = torch.cuda.is_available()
        gathered = []
        for data in (self.images, self.masks):
            out = torch.empty((len(rows), *data.shape[1:]), dtype=torch.uint8, pin_memory=pinned)
            # With any mode but "raise", NumPy writes into `out` without a buffer. The bounds are checked above.
            np.take(data, rows, axis=0, out=out.numpy(), mode="clip")
            gathered.append(out)
        return gathered[0].permute(0, 3, 1, 2), gathered[1]

    def keep_on_device(self, device: torch.device | str) -> bool:
        """Move the whole cache to a CUDA device if it takes at most half of the free memory there.

        Args:
            device: Device of the training.

        Returns:
            Whether ``batch`` now gathers on the device; always ``False`` for other devices, which read the map.
        """
        import torch

        device = torch.device(device)
        if device.type != "cuda":
            return False
        free, _ = torch.cuda.mem_get_info(device)
        if self.images.nbytes + self.masks.nbytes > free // 2:
            return False
        self._on_device = (_copy_to(self.images, device), _copy_to(self.masks, device))
        return True


def open_packed(folder: str | Path, verify: bool = False) -> Packed:
    """Open a cache that ``pack`` built. Its sizes, its manifest and some blocks of its data are always checked.

    Args:
        folder: The cache.
        verify: Also read all data and compare the hashes with the manifest.

    Raises:
        InputError: The folder does not hold a complete cache.
    """
    packed = _try_open(Path(folder), None, verify)
    if isinstance(packed, str):
        raise InputError(folder, packed, "a cache built by `densecal data pack`")
    return packed


def pack(
    source: Source,
    names: Sequence[str],
    size: int,
    folder: str | Path,
    classes: int = 1,
    workers: int | None = None,
    progress: Progress = silent,
    verify: bool = False,
    ignore_index: int = 255,
) -> Packed:
    """Open the cache of these samples, or build it if it is missing or no longer matches the source.

    Images are resized bilinearly with antialiasing. Foreground masks are binarised at > 127 and resized the
    same way, which makes them soft at the borders; label masks take the nearest pixel.

    Args:
        source: Where images and masks are read.
        names: Samples, in the order of their ids.
        size: Side of the square images in pixels.
        folder: Folder of the cache; must be new, empty, or a cache.
        classes: 1 for foreground masks, else the number of classes.
        workers: Decoding processes; ``None`` takes one per core, 1 decodes in this process. A script that packs
            with several must guard its main part with ``if __name__ == "__main__"``, as for any process pool.
        progress: Called with the number of samples packed.
        verify: Read all data of an existing cache and check its hashes, instead of only some blocks.
        ignore_index: The label of void pixels in K-class masks; other labels outside 0..K-1 are an error.

    Returns:
        The open cache; ``rebuilt`` says why an existing one was not used.

    Raises:
        InputError: A file is invalid (nothing is then left behind), or the folder holds other files.
    """
    folder = Path(folder).absolute()
    if size < 1 or classes < 1:
        raise ValueError(f"size={size}, classes={classes}; expected positive integers")
    wanted = _description(source, names, size, classes, ignore_index)
    refuse_other_files(folder)
    existing = _try_open(folder, wanted, verify)
    if isinstance(existing, Packed):
        return existing
    if folder.exists() and os.listdir(folder):
        _LOG.warning("%s: %s; the cache is rebuilt", folder, existing)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(folder)
        with build_folder(folder) as build:
            _build(build, source, wanted, workers, progress)
            packed = _publish(build, folder, wanted, verify)
    except OSError as error:
        expected = f"a folder that can be written to, with {len(names) * size * size * 4:,} bytes free"
        raise InputError(folder.parent, error.strerror or str(error), expected) from error
    packed.rebuilt = existing
    return packed


def _description(source: Source, names: Sequence[str], size: int, classes: int, ignore_index: int) -> dict[str, Any]:
    """Return the part of the manifest that is known before decoding; a cache that agrees with it is current."""
    if not names:
        raise InputError("names", "no samples", "at least one sample")
    if len(set(names)) != len(names):
        raise ValueError("names: a name occurs twice; expected unique names")
    unknown = sorted(set(names) - set(source.names))
    if unknown:
        raise InputError("names", f"{unknown[0]!r}, which is not in the source", "names of the source")
    source.mask_location(names[0])
    digest = hashlib.sha256()
    for name in names:
        digest.update(source.fingerprint(name).encode("utf-8", "surrogateescape") + b"\n\n")
    return {
        "format": FORMAT,
        "version": VERSION,
        "size": size,
        "classes": classes,
        "ignore_index": ignore_index if classes > 1 else None,
        "names": list(names),
        "fingerprints": digest.hexdigest(),
    }


def _try_open(folder: Path, wanted: dict[str, Any] | None, verify: bool | None) -> Packed | str:
    """Open a cache, or return why it cannot be used. ``verify`` checks all data, some of it, or (``None``) none."""
    if not folder.exists():
        return "does not exist"
    try:
        manifest = read_json(folder / MANIFEST, "a manifest")
    except InputError:
        return "an unreadable manifest" if (folder / MANIFEST).exists() else "no manifest"
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        return "a manifest of another kind"
    if manifest.get("version") != VERSION:
        return f"format version {manifest.get('version')} (wanted {VERSION})"
    if wanted is not None:
        reason = _difference(manifest, wanted)
        if reason:
            return reason
    try:
        pixels = len(manifest["names"]) * manifest["size"] ** 2
        for file, expected in ((IMAGES, 3 * pixels), (MASKS, pixels)):
            actual = (folder / file).stat().st_size
            if actual != expected:
                return f"{file} has {actual:,} bytes (wanted {expected:,})"
        if _digest(manifest) != manifest.get("digest"):
            return "a damaged manifest"
        for file in (IMAGES, MASKS):
            if verify and _sha256(folder / file) != manifest["sha256"][file]:
                return f"{file} does not have the hash of the manifest"
            if verify is False and not blocks_agree(folder / file, manifest["blocks"][file]):
                return f"{file} is damaged"
        packed = Packed(folder, manifest)
    except (OSError, KeyError, TypeError, ValueError) as error:
        return f"incomplete ({error})"
    return packed


def _difference(manifest: dict[str, Any], wanted: dict[str, Any]) -> str:
    for key in ("size", "classes", "ignore_index"):
        if manifest.get(key) != wanted[key]:
            return f"{key} {manifest.get(key)} (wanted {wanted[key]})"
    if manifest.get("names") != wanted["names"]:
        return "other samples"
    if manifest.get("fingerprints") != wanted["fingerprints"]:
        return "source files that have changed"
    return ""


def _build(
    build: Path,
    source: Source,
    wanted: dict[str, Any],
    workers: int | None,
    progress: Progress,
) -> None:
    """Write the data files and, last, the manifest."""
    names, size = wanted["names"], wanted["size"]
    files = [_Filling(build / file, size * size * channels) for file, channels in ((IMAGES, 3), (MASKS, 1))]
    for file in files:
        with file.path.open("wb") as empty:
            empty.truncate(len(names) * file.sample)

    def follow(_: str, done: int, total: int, /, **figures: float) -> None:
        for file in files:
            file.follow(done)
        progress("Packing", done, total)

    classes, ignore_index = wanted["classes"], wanted["ignore_index"]
    job = Job(source, names, size, classes, ignore_index, build / IMAGES, build / MASKS)
    facts = decode_all(job, workers, follow, build)
    manifest = {
        **wanted,
        "sha256": {file.path.name: file.sha256.hexdigest() for file in files},
        "blocks": {file.path.name: file.blocks.text() for file in files},
        "original_sizes": [(fact.height, fact.width) for fact in facts],
        "warnings": _warnings(names, facts, classes),
    }
    (build / MANIFEST).write_text(json.dumps({**manifest, "digest": _digest(manifest)}), encoding="utf-8")
    for path in (build / IMAGES, build / MASKS, build / MANIFEST):
        # After a power failure a renamed folder must not hold files that never reached the disk.
        with path.open("rb") as stream:
            os.fsync(stream.fileno())


def _warnings(names: Sequence[str], facts: Sequence[Facts], classes: int) -> list[str]:
    warnings = []
    grey = [name for name, fact in zip(names, facts, strict=True) if fact.grey]
    if grey:
        first = ", ".join(grey[:5])
        warnings.append(f"{len(grey)} of {len(names)} masks hold grey values, binarised at > 127 ({first})")
    levels = [level for fact in facts for level in (fact.lowest, fact.highest) if level is not None]
    if not levels:
        warnings.append("all masks hold nothing but void pixels")
    elif same := one_sided(min(levels), max(levels), len(facts), classes):
        warnings.append(same)
    return warnings


@dataclass
class _Filling:
    """A file that is hashed and synced while it is filled from its start. At the end, both would take seconds."""

    path: Path
    sample: int
    """Bytes per sample."""
    sha256: hashlib._Hash = field(default_factory=hashlib.sha256)
    blocks: BlockChecksums = field(default_factory=BlockChecksums)
    hashed: int = 0
    synced: int = 0

    def follow(self, samples: int) -> None:
        """Hash and sync up to the given number of complete samples."""
        end = samples * self.sample
        with self.path.open("rb") as stream:
            stream.seek(self.hashed)
            content = stream.read(end - self.hashed)
            self.sha256.update(content)
            self.blocks.update(content)
            self.hashed = end
            if end - self.synced >= _SYNC_BYTES:
                os.fsync(stream.fileno())
                self.synced = end


def _publish(build: Path, folder: Path, wanted: dict[str, Any], verify: bool) -> Packed:
    """Rename a finished build to its folder, or use the equal cache of a process that was faster."""
    packed = _try_open(build, wanted, verify=False)
    if isinstance(packed, str):
        raise InputError(build, packed, "the cache just built")
    while True:
        try:
            os.rename(build, folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        else:
            packed.folder = folder  # the maps stay open, whatever happens to the folder afterwards
            return packed
        other = _try_open(folder, wanted, verify)
        if isinstance(other, Packed):
            return other
        refuse_other_files(folder)
        aside = fresh_neighbour(folder)
        with contextlib.suppress(FileNotFoundError):
            os.rename(folder, aside)
            shutil.rmtree(aside, ignore_errors=True)


def _reopen(folder: Path, manifest: dict[str, Any]) -> Packed:
    packed = _try_open(folder, None, verify=None)  # the sending process has checked it
    if isinstance(packed, str):
        raise InputError(folder, packed, "the cache that was open")
    if packed._manifest["sha256"] != manifest["sha256"]:
        raise InputError(folder, "another cache, which has replaced it", "the cache that was open")
    return packed


def _digest(manifest: dict[str, Any]) -> str:
    """Return the hash of a manifest, without its digest."""
    content = {key: value for key, value in manifest.items() if key != "digest"}
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _copy_to(data: NDArray[np.uint8], device: torch.device) -> Tensor:
    """Copy a map to a device piece by piece, so that the host never holds it twice."""
    import torch

    whole = torch.empty(data.shape, dtype=torch.uint8, device=device)
    rows = max(1, _PIECE_BYTES // data[0].nbytes) if len(data) else 1
    for start in range(0, len(data), rows):
        part = whole[start : start + rows]
        # Pinned memory is copied while the next piece is read, and is reused once it has been copied.
        piece = torch.empty(part.shape, dtype=torch.uint8, pin_memory=device.type == "cuda")
        np.copyto(piece.numpy(), data[start : start + rows])
        part.copy_(piece, non_blocking=True)
    return whole
