"""What is missing or wrong in a data set, file by file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.data.decoding import CHUNK, decode_all, level_range
from densecal.data.duplicates import Look, look_at, near_copies, pixel_digest, same_pixels
from densecal.data.layouts import WITHOUT_OBJECTS
from densecal.data.published_lists import TEXTURES, published_list
from densecal.data.sources import Files, Source, find_files
from densecal.errors import InputError
from densecal.io.masks import foreground_mask, one_sided
from densecal.runtime.progress import Progress, silent

KINDS = {
    "count": "a number of images other than the published one",
    "absent": "names on the set's list without an image",
    "no-mask": "images without a mask",
    "no-image": "masks without an image",
    "unreadable": "unreadable files",
    "size": "masks that differ in size from their image",
    "labels": "masks with unknown labels",
    "empty-mask": "masks without foreground (or valid pixels)",
    "full-mask": "masks without background",
    "one-sided": "sets whose masks all hold the same value",
    "duplicate": "identical images",
    "near-duplicate": "near-identical images",
    "shared": "images identical to one of the other set",
    "near-shared": "images near-identical to one of the other set",
    "similar": "similar images",
    "similar-shared": "images similar to one of the other set",
    "grey-mask": "masks with grey values, cut at > 127",
}
"""All kinds of findings, with their descriptions."""
NOTES = ("similar", "similar-shared", "grey-mask")
"""Kinds that are worth knowing but are not faults."""
COPIES = ("duplicate", "near-duplicate", "shared", "near-shared", "similar", "similar-shared")
"""Kinds whose findings are pairs (or groups) of images."""


@dataclass(frozen=True)
class Finding:
    """One fault or note.

    Attributes:
        kind: A key of ``KINDS``.
        files: The files concerned.
        detail: Their content, and what was expected.
    """

    kind: str
    files: tuple[str, ...]
    detail: str = ""


@dataclass(frozen=True)
class Report:
    """What was checked and what was found.

    Attributes:
        files: The files of the data set.
        classes: 1 for foreground masks, else the number of classes.
        against: The sets it was compared with.
        findings: All findings, in the order of ``KINDS``.
    """

    files: Files
    classes: int
    against: tuple[Files, ...]
    findings: list[Finding]

    @property
    def fine(self) -> bool:
        """Whether nothing is wrong; there may be notes."""
        return all(finding.kind in NOTES for finding in self.findings)

    def by_kind(self) -> dict[str, list[Finding]]:
        """Return the findings by kind, without kinds that have none."""
        groups = {kind: [finding for finding in self.findings if finding.kind == kind] for kind in KINDS}
        return {kind: findings for kind, findings in groups.items() if findings}

    def count(self, kind: str) -> str:
        """Return the extent of a kind: "3 pairs among 5 images" for copies, else the number of findings."""
        findings = self.by_kind().get(kind, [])
        if kind not in COPIES:
            return f"{len(findings):,}"
        pairs, images = self.pairs(kind)
        return f"{pairs:,} {'pair' if pairs == 1 else 'pairs'} among {images:,} images"

    def pairs(self, kind: str) -> tuple[int, int]:
        """Return the number of pairs of a kind of copies, and the number of images in them."""
        findings = self.by_kind().get(kind, [])
        images = {file for finding in findings for file in finding.files}
        return sum(math.comb(len(finding.files), 2) for finding in findings), len(images)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as a dictionary for JSON."""
        layout = self.files.layout
        return {
            "place": self.files.where,
            "set": layout.name if layout else None,
            "home": layout.home if layout else None,
            "published": list(layout.counts) if layout else [],
            "images": len(self.files.images),
            "masks": len(self.files.masks),
            "classes": self.classes,
            "against": [{"place": other.where, "images": len(other.images)} for other in self.against],
            "fine": self.fine,
            "copies": {
                kind: dict(zip(("pairs", "images"), self.pairs(kind), strict=True))
                for kind in self.by_kind()
                if kind in COPIES
            },
            "findings": {
                kind: [{"files": list(finding.files), "detail": finding.detail} for finding in findings]
                for kind, findings in self.by_kind().items()
            },
        }


def check(
    images: str | Path | Sequence[str | Path],
    masks: str | Path | None = None,
    against: Sequence[str | Path] = (),
    classes: int | None = None,
    ignore_index: int | None = None,
    workers: int | None = None,
    progress: Progress = silent,
) -> Report:
    """Read every file of a data set and say what is missing or wrong.

    Args:
        images: As for ``open_source``.
        masks: As for ``open_source``.
        against: Other sets, with which this one should share no image.
        classes: 1 for foreground masks, else the number of classes; a published set's own unless given.
        ignore_index: Label of void pixels; a published set's own, else 255, unless given.
        workers: Processes; one per core unless given.
        progress: Called with the number of files read, over all sets.

    Raises:
        InputError: A path does not exist or holds no images, or two files have the same name.
    """
    files = _recognise(find_files(images, masks))
    others = tuple(find_files(path) for path in against)
    layout = files.layout
    classes = classes or (layout.classes if layout else 1)
    void = ignore_index if ignore_index is not None else layout.ignore_index if layout else 255
    task = _Reading.of(files, classes, void)
    readings = [task, *(_Reading.of(Files(other.paths, other.images, {}), 1, 255) for other in others)]
    total = sum(len(reading.names) for reading in readings)
    facts_by_set: list[list[_Facts]] = []
    for reading in readings:
        before = sum(map(len, facts_by_set))
        facts_by_set.append(
            decode_all(reading, workers, _continue_count(before, total, progress)) if reading.names else []
        )
    findings = [
        *_files_missing(files),
        *(finding for facts in facts_by_set[0] for finding in facts.findings if _is_relevant(finding, files)),
        *(finding for other in facts_by_set[1:] for facts in other for finding in facts.findings),
        *_one_sided(files, facts_by_set[0], classes),
        *_copies_inside(task, facts_by_set[0]),
    ]
    for reading, facts in zip(readings[1:], facts_by_set[1:], strict=True):
        findings += _copies_between(task, facts_by_set[0], reading, facts)
    return Report(files, classes, others, sorted(findings, key=lambda finding: list(KINDS).index(finding.kind)))


def _recognise(files: Files) -> Files:
    """Recognise the paper's textures by their names, because their folder may have any name."""
    if files.layout is not None or files.masks or not files.images:
        return files
    known = files.images.keys() & set(published_list(TEXTURES))
    if len(known) <= len(files.images) / 2:
        return files
    return replace(files, layout=WITHOUT_OBJECTS)


def _continue_count(before: int, total: int, progress: Progress) -> Progress:
    """Report progress as part of a total, following on what is done already."""

    def report(title: str, done: int, _: int, /, **figures: float) -> None:
        progress(title, before + done, total)

    return report


def _is_relevant(finding: Finding, files: Files) -> bool:
    """Return whether a finding matters for this set: some sets contain images without an object on purpose."""
    return finding.kind != "empty-mask" or files.layout is None or not files.layout.empty_masks


@dataclass
class _Facts:
    """Findings and properties of one sample."""

    findings: list[Finding] = field(default_factory=list)
    look: Look | None = None
    mask_digest: bytes | None = None
    lowest: int | None = None
    """Lowest level of the mask (foreground masks are cut at > 127); ``None`` if all of it is void."""
    highest: int | None = None


@dataclass(frozen=True)
class _Reading:
    """A set as a task for the decoding processes."""

    source: Source
    names: list[str]
    images: frozenset[str]
    masks: frozenset[str]
    classes: int
    ignore_index: int

    @classmethod
    def of(cls, files: Files, classes: int, ignore_index: int) -> _Reading:
        """Return a task that also reads samples whose partner is missing."""
        images, masks = frozenset(files.images), frozenset(files.masks)
        return cls(Source(files.images, files.masks), sorted(images | masks), images, masks, classes, ignore_index)

    def run(self, start: int) -> list[_Facts]:
        """Read one chunk."""
        return [self._read(name) for name in self.names[start : start + CHUNK]]

    def _read(self, name: str) -> _Facts:
        facts = _Facts()
        image = mask = None
        try:
            if name in self.images:
                image = self.source.image(name)
                facts.look = look_at(image)
        except InputError as error:
            facts.findings.append(Finding("unreadable", (error.where,), error.found))
        try:
            if name in self.masks:
                mask = self.source.mask(name, self.classes)
                facts.mask_digest = pixel_digest(mask)
        except InputError as error:
            facts.findings.append(Finding("unreadable", (error.where,), f"{error.found}; expected {error.expected}"))
        if mask is not None:
            levels = foreground_mask(mask).foreground.view(np.uint8) if self.classes == 1 else mask
            facts.lowest, facts.highest = level_range(levels, self.ignore_index if self.classes > 1 else None)
            where = str(self.source.mask_location(name))
            facts.findings += [Finding(kind, (where,), detail) for kind, detail in self._mask_faults(mask, image)]
        return facts

    def _mask_faults(self, mask: NDArray[np.uint8], image: NDArray[np.uint8] | None) -> list[tuple[str, str]]:
        faults = []
        if image is not None and image.shape[:2] != mask.shape:
            size, expected = ("{1} x {0}".format(*shape) for shape in (mask.shape, image.shape))
            faults.append(("size", f"{size} pixels; expected {expected}"))
        counts = np.bincount(mask.ravel(), minlength=256)
        return faults + (_foreground_faults(counts) if self.classes == 1 else self._label_faults(counts))

    def _label_faults(self, counts: NDArray[np.int64]) -> list[tuple[str, str]]:
        labels = np.flatnonzero(counts)
        unknown = labels[(labels >= self.classes) & (labels != self.ignore_index)]
        faults = []
        if unknown.size:
            text = ", ".join(f"{label} ({counts[label]:,} pixels)" for label in unknown[:8])
            expected = f"0 to {self.classes - 1}, or {self.ignore_index} for void pixels"
            faults.append(("labels", f"labels {text}{', ...' if unknown.size > 8 else ''}; expected {expected}"))
        if labels.size == 1 and labels[0] == self.ignore_index:
            faults.append(("empty-mask", "only void pixels"))
        return faults


def _foreground_faults(counts: NDArray[np.int64]) -> list[tuple[str, str]]:
    grey = int(counts[1:255].sum())
    highest, lowest = int(np.flatnonzero(counts)[-1]), int(np.flatnonzero(counts)[0])
    faults = []
    if highest <= 127:
        faults.append(("empty-mask", f"its highest value is {highest}; foreground is above 127"))
    elif lowest > 127:
        faults.append(("full-mask", f"its lowest value is {lowest}; background is up to 127"))
    if grey:
        faults.append(("grey-mask", f"{grey:,} of {int(counts.sum()):,} pixels"))
    return faults


def _files_missing(files: Files) -> list[Finding]:
    """Return findings for names without a partner, and for a number of images other than the published one."""
    names = published_list(files.layout.published) if files.layout and files.layout.published else ()
    findings = [Finding("absent", (name,)) for name in (*files.absent, *sorted(set(names) - files.images.keys()))]
    if files.masks:
        findings += [
            Finding("no-mask", (str(files.images[name]),)) for name in sorted(files.images.keys() - files.masks.keys())
        ]
        findings += [
            Finding("no-image", (str(files.masks[name]),)) for name in sorted(files.masks.keys() - files.images.keys())
        ]
    elif files.layout is not None and files.layout.has_masks:
        wanted = " or ".join(folder for _, folder in files.layout.folders) or "masks"
        findings.append(Finding("no-mask", (files.where,), f"no masks at all; expected a folder {wanted}"))
    published = files.layout.counts if files.layout else ()
    if published and len(files.images) not in published:
        wanted = " or ".join(f"{count:,}" for count in published)
        findings.append(Finding("count", (files.where,), f"{len(files.images):,} images; expected {wanted}"))
    return findings


def _one_sided(files: Files, facts: list[_Facts], classes: int) -> list[Finding]:
    """Return a finding if all masks of the set hold one level or label."""
    levels = [level for fact in facts for level in (fact.lowest, fact.highest) if level is not None]
    detail = one_sided(min(levels), max(levels), len(files.masks), classes) if levels else ""
    return [Finding("one-sided", (files.where,), detail)] if detail else []


def _looks(reading: _Reading, facts: list[_Facts]) -> tuple[list[str], list[Look], list[bytes | None]]:
    """Return the locations of the readable images, their looks, and the digests of their masks."""
    readable = [
        (str(reading.source.image_location(name)), fact.look, fact.mask_digest)
        for name, fact in zip(reading.names, facts, strict=True)
        if fact.look is not None
    ]
    return [where for where, _, _ in readable], [look for _, look, _ in readable], [digest for _, _, digest in readable]


def _copies_inside(reading: _Reading, facts: list[_Facts]) -> list[Finding]:
    where, looks, masks = _looks(reading, facts)
    findings = []
    for group in same_pixels(looks):
        detail = "their masks differ" if len({masks[i] for i in group} - {None}) > 1 else ""
        findings.append(Finding("duplicate", tuple(where[i] for i in group), detail))
    firsts = _first_of_each(looks)
    for pair in near_copies([looks[i] for i in firsts]):
        files = (where[firsts[pair.first]], where[firsts[pair.second]])
        kind = "near-duplicate" if pair.near else "similar"
        findings.append(Finding(kind, files, f"correlation {pair.correlation:.3f}"))
    return findings


def _copies_between(
    reading: _Reading, facts: list[_Facts], other: _Reading, other_facts: list[_Facts]
) -> list[Finding]:
    where, looks, _ = _looks(reading, facts)
    elsewhere, other_looks, _ = _looks(other, other_facts)
    by_digest: dict[bytes, list[str]] = {}
    for look, file in zip(other_looks, elsewhere, strict=True):
        by_digest.setdefault(look.digest, []).append(file)
    findings = [
        Finding("shared", (file, twin))
        for look, file in zip(looks, where, strict=True)
        for twin in by_digest.get(look.digest, [])
    ]
    for pair in near_copies(looks, other_looks):
        files = (where[pair.first], elsewhere[pair.second])
        kind = "near-shared" if pair.near else "similar-shared"
        findings.append(Finding(kind, files, f"correlation {pair.correlation:.3f}"))
    return findings


def _first_of_each(looks: Sequence[Look]) -> list[int]:
    """Return one index for each distinct image."""
    firsts = {look.digest: i for i, look in reversed(list(enumerate(looks)))}
    return sorted(firsts.values())
