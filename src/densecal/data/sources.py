"""Where images and masks come from: two folders, zip files read in place, or a list file."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from densecal.data.layouts import Layout, LayoutMatch, find_layout, identify, kind_of_folder
from densecal.errors import InputError
from densecal.io import MAX_PIXELS, urls
from densecal.io.archives import Archive
from densecal.io.folders import image_files, is_image_name, is_mask_name, subfolder_hint, subfolders
from densecal.io.images import read_image
from densecal.io.masks import read_mask
from densecal.io.suffixes import IMAGE_SUFFIXES

MAX_MEMBER_BYTES = 1 << 28
"""Largest zip member that is unpacked."""

_NAMES_IN_ERRORS = 5


@dataclass(frozen=True)
class Location:
    """One file: on disk, or a member of a zip file.

    Attributes:
        path: The file, or the zip file that holds it.
        member: Name inside the zip; empty for a file on disk.
        size: Uncompressed size of the member in bytes.
        crc: The member's CRC-32.
    """

    path: Path
    member: str = ""
    size: int = 0
    crc: int = 0

    def __str__(self) -> str:
        return f"{self.path}:{self.member}" if self.member else str(self.path)

    def fingerprint(self) -> str:
        """Return text that changes when the file changes, without reading its content."""
        if self.member:
            return f"{self.member}|{self.size}|{self.crc:08x}"
        try:
            return urls.version(self.path)
        except OSError as error:
            raise InputError(self.path, error.strerror or "unreadable", "a readable file") from None


class SampleSource(Protocol):
    """Images and masks by name, wherever they come from."""

    @property
    def names(self) -> list[str]:
        """Sorted names."""
        ...

    @property
    def has_masks(self) -> bool:
        """Whether every image has a mask."""
        ...

    def image(self, name: str) -> NDArray[np.uint8]:
        """Return an image as RGB, uint8 (H, W, 3)."""
        ...

    def mask(self, name: str, classes: int | None = None) -> NDArray[np.uint8]:
        """Return a mask, uint8 (H, W): grey levels, or class indices when ``classes`` is above 1."""
        ...

    def image_location(self, name: str) -> object:
        """Return the name of an image in messages."""
        ...

    def mask_location(self, name: str) -> object:
        """Return the name of a mask in messages."""
        ...


@dataclass
class Source:
    """Named pairs of an image and a mask, read on request; safe to share between threads and processes.

    Attributes:
        names: Sorted stems of the files; unique.
        has_masks: Whether every image has a mask (else none has).
    """

    _images: Mapping[str, Location]
    _masks: Mapping[str, Location]
    names: list[str] = field(init=False)
    has_masks: bool = field(init=False)
    _zips: dict[tuple[int, Path], Archive] = field(init=False, default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.names = sorted(self._images)
        self.has_masks = bool(self._masks)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out open zip files, because another process opens its own."""
        return {**self.__dict__, "_zips": {}}

    def image(self, name: str, max_pixels: int = MAX_PIXELS) -> NDArray[np.uint8]:
        """Read an image as RGB, uint8 (H, W, 3)."""
        where = self._images[name]
        return read_image(self._open(where), str(where), max_pixels)

    def mask(self, name: str, classes: int | None = None) -> NDArray[np.uint8]:
        """Read a mask, uint8 (H, W): grey levels, or class indices when ``classes`` is above 1."""
        where = self.mask_location(name)
        return read_mask(self._open(where), str(where), classes)

    def image_location(self, name: str) -> Location:
        """Return the location of an image, for messages."""
        return self._images[name]

    def mask_location(self, name: str) -> Location:
        """Return the location of a mask, for messages."""
        if not self.has_masks:
            raise InputError(str(self._images[name]), "an image without a mask", "images with masks")
        return self._masks[name]

    def files(self) -> Iterator[Path]:
        """Yield the files that images and masks are read from. A zip file occurs once for each of its members."""
        return (where.path for where in (*self._images.values(), *self._masks.values()))

    def image_files(self, names: Iterable[str]) -> Iterator[Path]:
        """Yield the files of some images that are not inside zip files."""
        return (self._images[name].path for name in names if not self._images[name].member)

    def fingerprint(self, name: str) -> str:
        """Return text that changes when a pair does: path, size and time of a file, or name, size and CRC in a zip."""
        mask = self._masks[name].fingerprint() if self.has_masks else ""
        return f"{self._images[name].fingerprint()}\n{mask}"

    def _open(self, where: Location) -> Path | BinaryIO:
        if not where.member:
            return where.path
        # A forked process shares the file position with its parent, hence one handle per process.
        key = (os.getpid(), where.path)
        if key not in self._zips:
            self._zips[key] = Archive(where.path)
        try:
            return io.BytesIO(self._zips[key].open(where.member, str(where), MAX_MEMBER_BYTES).read_all())
        except InputError:
            raise
        except Exception as error:  # decompressors raise errors of their own classes
            raise InputError(str(where), f"unreadable ({error})", "a complete zip member") from None


@dataclass(frozen=True)
class Files:
    """The images and masks of a data set by name, whether or not they belong together.

    Attributes:
        paths: The paths that the user gave.
        images: Images by name.
        masks: Masks by name; empty for a set without masks.
        absent: Names on the set's own list that have no image.
        layout: The published data set, if it is one.
    """

    paths: tuple[Path, ...]
    images: Mapping[str, Location]
    masks: Mapping[str, Location]
    absent: tuple[str, ...] = ()
    layout: Layout | None = None

    def files(self) -> Iterator[Path]:
        """Yield the files that are read, preceded by the paths that the user gave."""
        yield from self.paths
        yield from (where.path for where in (*self.images.values(), *self.masks.values()))

    @property
    def where(self) -> str:
        """The name of the set in errors and reports."""
        return ", ".join(str(path) for path in self.paths)


def open_source(
    images: str | Path | Sequence[str | Path],
    masks: str | Path | None = None,
) -> Source:
    """Find the images and masks of a data set. Only names are read, no pixels.

    Args:
        images: One of: a folder of images; one image; the folder of a data set as it is published
            (``layouts.LAYOUTS``), or one that holds ``images/`` and ``masks/`` under these or the other usual
            names; one or several zip files with members ``images/NAME.*`` and ``masks/NAME.*``, or with the
            folders of a published set; a list file whose lines are ``IMAGE [MASK]``, relative to the list file and
            separated by a tab or a space (a tab if the paths themselves contain spaces); a list of bare names inside
            a data set's folder.
        masks: The folder of masks, if ``images`` is a folder of images.

    Returns:
        The source. Images and masks belong together when their names agree up to the suffix.

    Raises:
        InputError: Something is missing, occurs twice, or has no partner.
    """
    return _pair(find_files(images, masks))


def find_files(images: str | Path | Sequence[str | Path], masks: str | Path | None = None) -> Files:
    """Find files as ``open_source`` does, but do not require a mask for every image.

    Raises:
        InputError: A path does not exist or holds no images, or two files have the same name.
    """
    paths = (Path(images),) if isinstance(images, str | Path) else tuple(Path(path) for path in images)
    if not paths:
        raise InputError("images", "an empty list", "a folder, a list file or zip files")
    for path in paths:
        if not urls.exists(path):
            raise InputError(path, "does not exist", f"a folder, a list file or a zip file{_download_hint(path)}")
    if all(_is_zip(path) for path in paths):
        _refuse_masks(masks, "no mask folder: a zip holds its masks under masks/")
        return Files(paths, *_index_zips(paths), layout=_layout_of_zips(paths))
    if len(paths) > 1:
        other = next(path for path in paths if not _is_zip(path))
        raise InputError(other, "not a zip file", "only zip files where several paths are given")
    path = paths[0]
    if is_image_name(path.name) and not urls.is_folder(path):
        _refuse_masks(masks, "no masks beside a single image: folders of both, or a list file")
        return Files(paths, {path.stem: Location(path)}, {})
    if not urls.is_folder(path):
        _refuse_masks(masks, "no mask folder: a list file names its masks")
    match = find_layout(path) if masks is None else None
    if match is not None:
        return _index_match(path, match)
    if not urls.is_folder(path):
        return Files(paths, *_index_list(path))
    return Files(paths, _index_folder(path), _index_masks(Path(masks)) if masks is not None else {})


def _layout_of_zips(paths: Sequence[Path]) -> Layout | None:
    """Return the published set after which zip files are named. Each of several may end in a number."""
    names = {re.sub(r"[\W_]*\d*$", "", path.stem) if len(paths) > 1 else path.stem for path in paths}
    return identify(paths[0].with_name(names.pop())) if len(names) == 1 else None


def _download_hint(path: Path) -> str:
    layout = identify(path)
    return "" if layout is None else f" ({layout.name} is available at {layout.home})"


def _index_match(path: Path, match: LayoutMatch) -> Files:
    """Return the files of a set, without other files in its folders."""
    by_class = match.layout is not None and match.layout.by_class
    images = _index_folder(match.images, by_class)
    masks = _index_masks(match.masks) if match.masks is not None else {}
    absent: tuple[str, ...] = ()
    if match.names is not None:
        absent = tuple(sorted(match.names - images.keys()))
        images = {name: where for name, where in images.items() if name in match.names}
        masks = {name: where for name, where in masks.items() if name in match.names - set(absent)}
    return Files((path,), images, masks, absent, match.layout)


def _refuse_masks(masks: str | Path | None, expected: str) -> None:
    if masks is not None:
        raise InputError(masks, "a mask folder", expected)


def _pair(files: Files) -> Source:
    """Check that every image has a mask and every mask an image, unless there are no masks at all."""
    images, masks = files.images, files.masks
    problems = [_count_names(files.absent, "listed name", "without an image")]
    if masks:
        problems += [
            _count_names(sorted(images.keys() - masks.keys()), "image", "without a mask"),
            _count_names(sorted(masks.keys() - images.keys()), "mask", "without an image"),
        ]
    if any(problems):
        problem = " and ".join(problem for problem in problems if problem)
        raise InputError(files.where, problem, "the same names in images and masks")
    if not images:
        raise InputError(files.where, "no images", f"files ending in {' '.join(IMAGE_SUFFIXES)}")
    return Source(images, masks)


def _count_names(names: Sequence[str], noun: str, problem: str) -> str:
    if not names:
        return ""
    first = ", ".join(names[:_NAMES_IN_ERRORS]) + (", ..." if len(names) > _NAMES_IN_ERRORS else "")
    return f"{len(names)} {noun}{'s' if len(names) > 1 else ''} {problem} ({first})"


def _by_stem(locations: Iterable[Location], stem: Callable[[Location], str]) -> dict[str, Location]:
    by_stem: dict[str, Location] = {}
    for location in locations:
        name = stem(location)
        if name in by_stem:
            raise InputError(
                str(location),
                f"the same name as {by_stem[name]}",
                "names that differ without folder and suffix",
            )
        by_stem[name] = location
    return by_stem


def _index_masks(folder: Path) -> dict[str, Location]:
    return _index_folder(folder, is_wanted=is_mask_name)


def _index_folder(
    folder: Path, by_class: bool = False, is_wanted: Callable[[str], bool] = is_image_name
) -> dict[str, Location]:
    if not urls.is_folder(folder):
        problem = "not a folder" if urls.exists(folder) else "does not exist"
        raise InputError(folder, problem, "a folder of images or masks")
    folders = subfolders(folder) if by_class else [folder]
    files = sorted(file for inner in folders for file in image_files(inner, is_wanted))
    if not files:
        problem = f"no image files{subfolder_hint(folder)}"
        raise InputError(folder, problem, f"files ending in {' '.join(IMAGE_SUFFIXES)}")
    return _by_stem(map(Location, files), lambda location: location.path.stem)


def _is_zip(path: Path) -> bool:
    return path.suffix.lower() == ".zip" and urls.is_file(path)


def _index_zips(paths: Sequence[Path]) -> tuple[dict[str, Location], dict[str, Location]]:
    images: list[Location] = []
    masks: list[Location] = []
    for path in paths:
        folders: dict[PurePosixPath, list[Location]] = {}
        with Archive(path) as archive:
            for info in archive.members:
                member = PurePosixPath(info.filename)
                if is_image_name(member.name) and not info.is_dir():
                    location = Location(path, info.filename, info.file_size, info.CRC)
                    folders.setdefault(member.parent, []).append(location)
        own_images = _folder_of(path, folders, "images")
        own_masks = _folder_of(path, folders, "masks", beside=own_images)
        # some sets have their masks in a separate zip
        if own_images is None and (own_masks is None or len(paths) == 1):
            raise InputError(path, "no members images/NAME", "a zip with images/NAME and masks/NAME")
        images += [] if own_images is None else folders[own_images]
        masks += [] if own_masks is None else folders[own_masks]
    return _by_stem(images, _member_stem), _by_stem(masks, _member_stem)


def _member_stem(location: Location) -> str:
    return PurePosixPath(location.member).stem


def _folder_of(
    path: Path, folders: Iterable[PurePosixPath], kind: str, beside: PurePosixPath | None = None
) -> PurePosixPath | None:
    """Return the folder of images or masks in a zip, masks at the depth of the images. A plain name is preferred."""
    matches = [folder for folder in folders if kind_of_folder(folder) == kind]
    if beside is not None:
        matches = [folder for folder in matches if len(folder.parts) == len(beside.parts)]
    if PurePosixPath(kind) in matches:
        return PurePosixPath(kind)
    if len(matches) > 1:
        several = ", ".join(map(str, matches))
        raise InputError(path, f"the folders {several}", f"one folder of {kind}, or images/ and masks/")
    return matches[0] if matches else None


def _index_list(path: Path) -> tuple[dict[str, Location], dict[str, Location]]:
    try:
        # File names need not be valid UTF-8; surrogateescape is how Python's own os functions spell them.
        with urls.open_bytes(path) as file:
            lines = file.read().decode("utf-8-sig", errors="surrogateescape").replace("\r\n", "\n").split("\n")
    except OSError as error:
        raise InputError(path, error.strerror or "unreadable", "a list file") from None
    images, masks = [], {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        image, mask = _list_entry(path.parent, line, f"{path} line {number}")
        images.append(Location(image))
        if mask is not None:
            masks[image] = Location(mask)
    index = _by_stem(images, lambda location: location.path.stem)
    return index, {name: masks[location.path] for name, location in index.items() if location.path in masks}


def _list_entry(folder: Path, line: str, where: str) -> tuple[Path, Path | None]:
    """Split a line into image and mask: at a tab, or else at the space that yields two existing files."""
    if "\t" in line:
        splits = [tuple(part.strip() for part in line.split("\t", 1))]
    else:
        text = line.strip()
        spaces = [position for position, letter in enumerate(text) if letter == " "]
        splits = [(text,), *((text[:at].rstrip(), text[at + 1 :].lstrip()) for at in spaces)]
    named_url = next((part for part in line.split() if urls.is_remote(Path(part))), None)
    if named_url is not None and not urls.is_remote(folder):
        raise InputError(where, f"the URL {named_url}", "a file; a URL is read only where you give it yourself")
    for parts in splits:
        files = [folder / part for part in parts if part]
        if files and all(urls.is_file(file) for file in files):
            return files[0], files[1] if len(files) > 1 else None
    fields = splits[0] if "\t" in line else tuple(line.split())
    missing = next((field for field in fields if not urls.is_file(folder / field)), line.strip())
    raise InputError(where, f"no file {str(folder / missing)!r}", "IMAGE or IMAGE<tab>MASK, relative to the list file")
