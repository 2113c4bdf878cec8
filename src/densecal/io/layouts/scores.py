"""Scores that transformers and mmsegmentation return, saved as tensors under the names that they have there.

`logits` and `segmentation_scores` are those of transformers. The second are logits for networks such as SegFormer, and
sums of masks for MaskFormer and its successors, which are 0 or more and do not sum to 1. `seg_logits` are those of
mmsegmentation. They are logits, or sums of masks for the same networks, or probabilities where there is one channel.
"""

from __future__ import annotations

from dataclasses import replace

from densecal.errors import InputError
from densecal.io.layouts.contents import array_names, by_stem, choose_key, class_axis_length, with_meaning
from densecal.io.layouts.protocol import Folders, Found, Layout

_SUFFIXES = (".npz", ".safetensors", ".pt", ".npy")
_QUERIES = ("class_queries_logits", "masks_queries_logits")


def _find(given: Folders, keys: tuple[str, ...]) -> Found | None:
    options = given.options
    files = by_stem(given.predictions, _SUFFIXES if given.forced else _SUFFIXES[:-1])
    if not files or (options.key is not None and not given.forced):
        return None
    first = next(iter(files.values()))
    names = array_names(first)
    key = options.key or choose_key(names, keys)
    if set(_QUERIES) <= set(names) and key not in names:
        expected = "post_process_semantic_segmentation(..., return_segmentation_scores=True), and its scores saved"
        raise InputError(first, f"{' and '.join(_QUERIES)}", expected)
    if key is None and names:  # .npy files have no names
        if given.forced and len(names) > 1:
            raise InputError(first, f"arrays {', '.join(names[:5])}", f"one of {', '.join(keys)}, or --key NAME")
        if not given.forced:
            return None
    options = replace(options, key=key)
    classes = given.classes or class_axis_length(first, options)
    options, meaning = with_meaning(first, options, classes, "--normalise if they are sums of masks (MaskFormer)")
    channels = "one channel" if classes == 1 else f"{classes} classes"
    said = f"{len(files)} files, {channels}, {meaning}" + (f" called {key}" if key and names else "")
    maps = {stem: (path,) for stem, path in files.items()}
    return Found(said, options, maps, classes=classes if classes > 1 else None)


TRANSFORMERS = Layout(
    "transformers", "transformers", "maps", "logits or segmentation_scores in .npz, .safetensors, .pt or .npy files",
    lambda given: _find(given, ("segmentation_scores", "logits")),
)  # fmt: skip
MMSEG = Layout(
    "mmseg", "mmsegmentation", "maps", "seg_logits in .pt, .npz, .safetensors or .npy files",
    lambda given: _find(given, ("seg_logits.data", "seg_logits", "pred.seg_logits.data")),
)  # fmt: skip
