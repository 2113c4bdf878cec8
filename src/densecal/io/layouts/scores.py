"""Scores that transformers and mmsegmentation return, saved as tensors under the names that these use.

Those of transformers are `logits` and `segmentation_scores`. The latter are logits for networks such as SegFormer, and
sums of masks, which are 0 or more and do not sum to 1, for MaskFormer and its successors. Those of mmsegmentation are
`seg_logits`: logits, or sums of masks for the same networks, or probabilities where there is one channel.
"""

from __future__ import annotations

from dataclasses import replace

from densecal.errors import InputError
from densecal.io.layouts.contents import array_names, by_stem, choose_key, class_axis_length, with_meaning
from densecal.io.layouts.protocol import Folders, Layout, Match

_SUFFIXES = (".npz", ".safetensors", ".pt", ".npy")
_QUERIES = ("class_queries_logits", "masks_queries_logits")


def _find(folders: Folders, keys: tuple[str, ...]) -> Match | None:
    options = folders.options
    files = by_stem(folders.predictions, _SUFFIXES if folders.forced else _SUFFIXES[:-1])
    if not files or (options.key is not None and not folders.forced):
        return None
    first = next(iter(files.values()))
    names = array_names(first)
    key = options.key or choose_key(names, keys)
    if set(_QUERIES) <= set(names) and key not in names:
        expected = "post_process_semantic_segmentation(..., return_segmentation_scores=True), and its scores saved"
        raise InputError(first, f"{' and '.join(_QUERIES)}", expected)
    if key is None and names:  # .npy files have no names
        if folders.forced and len(names) > 1:
            raise InputError(first, f"arrays {', '.join(names[:5])}", f"one of {', '.join(keys)}, or --key NAME")
        if not folders.forced:
            return None
    options = replace(options, key=key)
    classes = folders.classes or class_axis_length(first, options)
    options, meaning = with_meaning(first, options, classes, "--normalise if they are sums of masks (MaskFormer)")
    channels = "one channel" if classes == 1 else f"{classes} classes"
    note = f"{len(files)} files, {channels}, {meaning}" + (f" called {key}" if key and names else "")
    maps = {stem: (path,) for stem, path in files.items()}
    return Match(note, options, maps, classes=classes if classes > 1 else None)


TRANSFORMERS = Layout(
    "transformers", "transformers", "maps", "logits or segmentation_scores in .npz, .safetensors, .pt or .npy files",
    lambda folders: _find(folders, ("segmentation_scores", "logits")),
)  # fmt: skip
MMSEG = Layout(
    "mmseg", "mmsegmentation", "maps", "seg_logits in .pt, .npz, .safetensors or .npy files",
    lambda folders: _find(folders, ("seg_logits.data", "seg_logits", "pred.seg_logits.data")),
)  # fmt: skip
