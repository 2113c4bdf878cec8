"""Masks without information: a mask in the alpha channel, labels that lose their meaning, sets of a single class."""

import io
import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from densecal.data import open_source, pack
from densecal.errors import InputError
from densecal.io.map_files import read_map
from densecal.io.masks import one_sided, read_foreground, read_labels, read_mask
from tests.adversarial.common import assert_one_line, densecal, write_set

OBJECT = np.zeros((6, 8), np.uint8)
OBJECT[2:4, 3:6] = 255


def png(levels: np.ndarray, bits: int, palette: bytes = b"") -> io.BytesIO:
    """Write a grey or palette PNG of 1, 2, 4 or 8 bits, with the levels as they are stored."""
    rows = b"".join(
        b"\0" + np.packbits(np.unpackbits(row[:, None], axis=1)[:, 8 - bits :].ravel()).tobytes() for row in levels
    )
    height, width = levels.shape
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, 3 if palette else 0, 0, 0, 0))]
    chunks += [(b"PLTE", palette)] if palette else []
    chunks += [(b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    framed = (struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks)
    return io.BytesIO(b"\x89PNG\r\n\x1a\n" + b"".join(framed))


def encoded(image: Image.Image, **options: object) -> io.BytesIO:
    stream = io.BytesIO()
    image.save(stream, "png", **options)
    stream.seek(0)
    return stream


def with_alpha(mode: str, grey: np.ndarray, alpha: np.ndarray) -> io.BytesIO:
    """Return the same mask in a mode that has transparency."""
    if mode == "P":  # both entries of the palette have a colour of their own, and one may be transparent
        indices = Image.fromarray(grey // 255, "P")
        indices.putpalette([0, 0, 0, 255, 255, 255])
        transparent = bytes(int(alpha[grey == level].min(initial=255)) for level in (0, 255))
        return encoded(indices, transparency=transparent)
    image = Image.fromarray(grey).convert(mode)
    image.putalpha(Image.fromarray(alpha))
    return encoded(image)


READERS = {
    "read_foreground": lambda file: read_foreground(file, "a.png").foreground,
    "read_mask": lambda file: read_mask(file, "a.png") > 127,
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize("mode", ["LA", "RGBA"])
@pytest.mark.parametrize("level", [0, 255])
def test_a_mask_in_the_alpha_channel_is_refused(read, mode, level):
    with pytest.raises(InputError) as caught:
        read(with_alpha(mode, np.full_like(OBJECT, level), OBJECT))
    assert str(caught.value) == (
        f"a.png: an alpha channel (0 to 255) that differs from the grey levels ({level} to {level}), so the mask may "
        "be in either; expected a grey mask without transparency"
    )


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_palette_of_equal_colours_with_different_transparency_is_refused(read):
    indices = Image.fromarray(OBJECT // 255 + 2, "P")
    indices.putpalette([0, 0, 0] * 4)
    with pytest.raises(InputError, match="an alpha channel"):
        read(encoded(indices, transparency=bytes([255, 255, 0, 255])))


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize("mode", ["LA", "RGBA", "P"])
def test_redundant_or_uniform_transparency_is_accepted(read, mode):
    for alpha in (OBJECT, np.full_like(OBJECT, 255), np.full_like(OBJECT, 200)):
        assert np.array_equal(read(with_alpha(mode, OBJECT, alpha)), OBJECT > 0)


def test_labels_and_maps_with_transparent_pixels_are_refused(tmp_path):
    stream = with_alpha("LA", OBJECT // 255, OBJECT)
    with pytest.raises(InputError, match=r"a\.png: transparent pixels; expected a label mask without transparency"):
        read_labels(stream, "a.png", 3)
    (tmp_path / "a.png").write_bytes(stream.getvalue())
    with pytest.raises(InputError, match=r"a\.png: transparent pixels; expected a grey map"):
        read_map(tmp_path / "a.png")


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("palette", [b"", bytes(range(256)) * 3])
def test_no_label_is_lost_in_masks_of_few_bits(bits, palette):
    labels = np.arange(min(2**bits, 16), dtype=np.uint8).reshape(1, -1)
    stream = png(labels, bits, palette[: 3 * 2**bits])
    assert np.array_equal(read_labels(stream, "a.png", 16), labels)


def test_a_label_of_two_bits_is_not_mistaken_for_void():
    with pytest.raises(InputError, match="label 3; expected labels 0 to 2"):
        read_labels(png(np.array([[0, 3]], np.uint8), 2), "a.png", 3)


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_foreground_of_few_bits_is_one_or_the_highest_level(read, bits):
    for highest in (1, 2**bits - 1):
        stored = (OBJECT // 255) * np.uint8(highest)
        assert np.array_equal(read(png(stored, bits)), OBJECT > 0)


def test_levels_of_two_bits_are_cut_in_the_middle():
    mask = read_foreground(png(np.array([[0, 1, 2, 3]], np.uint8), 2), "a.png")
    assert mask.foreground.tolist() == [[False, False, True, True]]
    assert mask.grey


# ------------------------------------------------------------------ sets that are all one class


def fill_masks(folder: Path, level: int) -> None:
    for path in sorted((folder / "masks").iterdir()):
        Image.fromarray(np.full((24, 32), level, np.uint8)).save(path)


SAME = {
    0: "every pixel of all 4 masks is background: nothing can be learned or measured about foreground",
    255: "every pixel of all 4 masks is foreground: nothing can be learned or measured about background",
}


@pytest.mark.parametrize("level", SAME)
@pytest.mark.parametrize("options", [[], ["--metrics", "fast"]])
def test_evaluate_warns(tmp_path, level, options):
    write_set(tmp_path)
    fill_masks(tmp_path, level)
    code, _, errors = densecal(tmp_path, "evaluate", "maps", "masks", "--json", "e.json", *options)
    assert code == 0, errors
    assert SAME[level] in json.loads((tmp_path / "e.json").read_text())["warnings"]
    assert SAME[level][:60] in " ".join(errors.split())


def test_evaluate_does_not_warn_if_one_mask_differs(tmp_path):
    write_set(tmp_path)
    fill_masks(tmp_path, 0)
    Image.fromarray(np.full((24, 32), 255, np.uint8)).save(tmp_path / "masks" / "2.png")
    densecal(tmp_path, "evaluate", "maps", "masks", "--json", "e.json")
    assert not [w for w in json.loads((tmp_path / "e.json").read_text())["warnings"] if "every pixel" in w]


def write_classes(folder: Path, labels: list[int]) -> None:
    rng = np.random.default_rng(0)
    for kind in ("maps", "masks"):
        (folder / kind).mkdir()
    for number, label in enumerate(labels):
        np.save(folder / "maps" / f"{number}.npy", rng.dirichlet((1, 1, 1), (8, 8)).transpose(2, 0, 1))
        mask = np.full((8, 8), label, np.uint8)
        mask[0] = 255
        Image.fromarray(mask).save(folder / "masks" / f"{number}.png")


def test_evaluate_warns_if_masks_of_classes_hold_one_label(tmp_path):
    write_classes(tmp_path, [1, 1])
    densecal(tmp_path, "evaluate", "maps", "masks", "--classes", "3", "--json", "e.json")
    (warning,) = json.loads((tmp_path / "e.json").read_text())["warnings"]
    assert warning.startswith("every pixel of all 2 masks has label 1: nothing can be learned")


@pytest.mark.parametrize("method", ["temperature", "isotonic", "selective"])
@pytest.mark.parametrize("level", SAME)
def test_no_calibrator_is_fitted(tmp_path, method, level):
    write_set(tmp_path)
    fill_masks(tmp_path, level)
    more = ["--images", "photos"] if method == "selective" else []
    result = densecal(tmp_path, "calibrate", "fit", method, "maps", "masks", "--out", "c.json", *more)
    assert_one_line(result, method, "background" if level else "foreground")
    assert not (tmp_path / "c.json").exists()


def test_no_calibrator_of_classes_is_fitted(tmp_path):
    write_classes(tmp_path, [1, 1])
    result = densecal(tmp_path, "calibrate", "fit", "temperature", "maps", "masks", "--classes", "3", "--out", "c.json")
    assert_one_line(result, "temperature: every pixel of all 2 masks has label 1", "expected more than one class")


def test_risk_is_not_controlled_where_nothing_can_be_missed(tmp_path):
    write_set(tmp_path)
    fill_masks(tmp_path, 0)
    result = densecal(tmp_path, "risk-control", "maps", "masks", "--alpha", "0.5")
    assert_one_line(result, "masks: " + SAME[0])


@pytest.mark.parametrize("level", SAME)
def test_data_check_says_so(tmp_path, level):
    write_set(tmp_path)
    fill_masks(tmp_path, level)
    code, out, _ = densecal(tmp_path, "data", "check", "photos", "masks", "--json", "c.json")
    assert code == 1
    (finding,) = json.loads((tmp_path / "c.json").read_text())["findings"]["one-sided"]
    assert finding["detail"] == SAME[level]
    assert SAME[level] in out


@pytest.mark.parametrize("level", SAME)
def test_packing_for_training_warns(tmp_path, level):
    write_set(tmp_path)
    fill_masks(tmp_path, level)
    source = open_source(tmp_path / "photos", tmp_path / "masks")
    assert pack(source, source.names, 16, tmp_path / "cache", workers=1).warnings == [SAME[level]]
    code, _, errors = densecal(tmp_path, "data", "pack", "photos", "masks", "--size", "16", "--out", "cache")
    assert code == 0
    assert errors.strip() == f"warning: {SAME[level]}"


def test_training_warns(tmp_path):
    from densecal.training.config import load_config
    from densecal.training.samples import open_data

    write_set(tmp_path)
    fill_masks(tmp_path, 0)
    settings = ["data.scenes=null", f"data.images={tmp_path}/photos", f"data.masks={tmp_path}/masks", "data.size=32",
                f"data.cache={tmp_path}/cache", "data.validation=1", "data.workers=1"]  # fmt: skip
    notes = open_data(load_config("demo", settings).data).notes
    assert [note.split(":")[0] for note in notes] == ["training", "validation"]
    assert "every pixel of all 3 masks is background" in notes[0]
    assert "every pixel of the only mask is background" in notes[1]


def test_masks_that_differ_are_not_one_sided():
    assert one_sided(0, 255, 3) == one_sided(0, 1, 3, classes=4) == ""
