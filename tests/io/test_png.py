"""Plain PNG files have the pixels that Pillow reads; every other file is left to Pillow."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from densecal.io import png
from densecal.io.map_files import read_map
from densecal.io.masks import read_foreground, read_labels

pytestmark = pytest.mark.skipif(png.native is None, reason="installed without a compiler")

MOST = 1 << 20


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def filtered(pixels: np.ndarray, filters: np.ndarray, step: int) -> bytes:
    """Return rows of bytes as PNG files store them, each with the given filter, by the words of the specification."""
    rows, above = [], np.zeros(pixels.shape[1], int)
    for row, kind in zip(pixels.astype(int), filters, strict=True):
        left, corner = (np.concatenate([np.zeros(step, int), r])[: len(r)] for r in (row, above))
        estimate = left + above - corner
        to_a, to_b, to_c = (abs(estimate - near) for near in (left, above, corner))
        nearest = np.where((to_a <= to_b) & (to_a <= to_c), left, np.where(to_b <= to_c, above, corner))
        rest = row - [0, left, above, (left + above) // 2, nearest][kind]
        rows.append(bytes([kind]) + rest.astype(np.uint8).tobytes())
        above = row
    return b"".join(rows)


def png_file(pixels: np.ndarray, filters: np.ndarray, bits: int, pieces: int = 1, extra: bytes = b"") -> bytes:
    """Return a grey PNG file (H, W) of booleans, uint8 or uint16."""
    height, width = pixels.shape
    stored = np.packbits(pixels, axis=1) if bits == 1 else pixels.astype(f">u{bits // 8}").view(np.uint8)
    packed = zlib.compress(filtered(stored.reshape(height, -1), filters, max(bits // 8, 1)))
    cut = -(-len(packed) // pieces)
    parts = [chunk(b"IDAT", packed[i : i + cut]) for i in range(0, len(packed), cut)]
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + extra + b"".join(parts) + chunk(b"IEND", b"")


@st.composite
def pictures(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    """Draw pixels, flat in places, a filter for each row, and the bits."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    bits = draw(st.sampled_from([1, 8, 16]))
    shape = draw(st.tuples(st.integers(1, 20), st.integers(1, 40)))
    pixels = rng.integers(0, 2**bits, shape) * (rng.random(shape) < draw(st.sampled_from([0.1, 0.5, 1.0])))
    kinds = [draw(st.sampled_from(range(5)))] if draw(st.booleans()) else range(5)
    dtype = {1: np.bool_, 8: np.uint8, 16: np.uint16}[bits]
    return pixels.astype(dtype), rng.choice(kinds, shape[0]), bits


def pillows(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        pixels = np.asarray(image)
    return pixels.view(np.uint8) != 0 if pixels.dtype == bool else pixels


@given(pictures(), st.integers(1, 3))
@settings(max_examples=100)
def test_every_filter_of_every_depth_is_undone(tmp_path_factory, picture, pieces):
    pixels, filters, bits = picture
    path = tmp_path_factory.getbasetemp() / "drawn.png"
    path.write_bytes(png_file(pixels, filters, bits, pieces))
    read = png.read_plain_png(path, MOST)
    assert read.dtype == pixels.dtype
    np.testing.assert_array_equal(read, pixels)
    np.testing.assert_array_equal(pillows(path), pixels)


@pytest.mark.parametrize("kind", range(5))
@pytest.mark.parametrize("bits", [8, 16])
def test_ties_between_neighbours_are_decided_as_the_specification_says(kind, bits, tmp_path):
    pixels = np.random.default_rng(kind).integers(0, 2**bits, (100, 100)).astype(f"u{bits // 8}")
    (tmp_path / "noise.png").write_bytes(png_file(pixels, np.full(100, kind), bits))
    np.testing.assert_array_equal(png.read_plain_png(tmp_path / "noise.png", MOST), pixels)


@given(st.data())
@settings(max_examples=300)
def test_a_damaged_file_is_left_to_pillow_or_read_as_by_it(tmp_path_factory, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    pixels = rng.integers(0, 256, (6, 9)).astype(np.uint8)
    content = bytearray(png_file(pixels, rng.integers(0, 5, 6), 8, 2, chunk(b"tEXt", b"Software\0x")))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(1, 2 * len(content))) :]
    path = tmp_path_factory.getbasetemp() / "damaged.png"
    path.write_bytes(content)
    read = png.read_plain_png(path, MOST)
    if read is not None:
        np.testing.assert_array_equal(read, pillows(path))


PIXELS = np.arange(60, dtype=np.uint8).reshape(6, 10)
NONE = np.zeros(6, int)
PACKED = zlib.compress(filtered(PIXELS, NONE, 1))


def with_pixels(packed: bytes) -> bytes:
    """Return a file whose rows are compressed to these bytes."""
    return png_file(PIXELS, NONE, 8).replace(chunk(b"IDAT", PACKED), chunk(b"IDAT", packed))


def with_header(*fields: int) -> bytes:
    """Return a file with these fields in its header: width, height, bits, colour, compression, filters, interlacing."""
    usual = chunk(b"IHDR", struct.pack(">IIBBBBB", 10, 6, 8, 0, 0, 0, 0))
    return png_file(PIXELS, NONE, 8).replace(usual, chunk(b"IHDR", struct.pack(">IIBBBBB", *fields)))


@pytest.mark.parametrize(
    ("name", "content"),
    {
        "a filter that does not exist": with_pixels(zlib.compress(b"\5" + filtered(PIXELS, NONE, 1)[1:])),
        "a stream without its end": with_pixels(PACKED[:-1]),
        "bytes after the stream": with_pixels(PACKED + b"x"),
        "another sum": with_pixels(PACKED[:-1] + bytes([PACKED[-1] ^ 1])),
        "no stream": with_pixels(b""),
        "half a stream's header": with_pixels(PACKED[:1]),
        "too few rows": with_header(10, 7, 8, 0, 0, 0, 0),
        "too many rows": with_header(10, 5, 8, 0, 0, 0, 0),
        "a palette": with_header(10, 6, 8, 3, 0, 0, 0),
        "another compression": with_header(10, 6, 8, 0, 1, 0, 0),
        "other filters": with_header(10, 6, 8, 0, 0, 1, 0),
        "interlacing": with_header(10, 6, 8, 0, 0, 0, 1),
        "a size of nothing": with_header(0, 6, 8, 0, 0, 0, 0),
        "transparency": png_file(PIXELS, NONE, 8, extra=chunk(b"tRNS", b"\0\7")),
        "metadata": png_file(PIXELS, NONE, 8, extra=chunk(b"eXIf", b"MM\0*\0\0\0\10")),
        "metadata in a text": png_file(PIXELS, NONE, 8, extra=chunk(b"tEXt", b"Raw profile type exif\0x")),
        "frames": png_file(PIXELS, NONE, 8, extra=chunk(b"acTL", b"\0\0\0\1\0\0\0\0")),
        "bytes after the end": png_file(PIXELS, NONE, 8) + b"x",
        "no end": png_file(PIXELS, NONE, 8)[:-12],
        "no pixels": b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 9, 9, 8, 0, 0, 0, 0))
        + chunk(b"IEND", b""),
        "a short header": b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", b"\0\0\0\1") + chunk(b"IDAT", b"")
        + chunk(b"IEND", b""),
        "nothing": b"",
        "another format": b"GIF89a",
    }.items(),
)  # fmt: skip
def test_a_file_with_anything_unusual_is_left_to_pillow(name, content, tmp_path):
    path = tmp_path / "unusual.png"
    path.write_bytes(content)
    assert png.read_plain_png(path, MOST) is None, name


@pytest.mark.parametrize("length", [0, 1, 31, 32, 33, 4095, 4096, 4097, 100_000])
def test_sums_of_bytes_are_those_of_zlib(length):
    for content in (bytes(length), b"\xff" * length, np.random.default_rng(length).bytes(length)):
        assert png.native.adler32(content) == zlib.adler32(content)


def test_headers_of_streams_mean_what_they_mean_to_zlib():
    """All 65,536 of them."""
    rows = filtered(PIXELS, NONE, 1)
    for header in range(1 << 16):
        packed = header.to_bytes(2, "big") + PACKED[2:]
        try:
            expected = zlib.decompress(packed) == rows
        except zlib.error:
            expected = False
        try:
            accepted = png._inflate(packed, len(rows)) == rows
        except (zlib.error, png._NotPlainError):
            accepted = False
        assert accepted == expected, hex(header)


@pytest.mark.parametrize("mode", ["RGB", "LA", "P", "RGBA"])
def test_colours_are_left_to_pillow(mode, tmp_path):
    Image.new(mode, (4, 3)).save(tmp_path / "colour.png")
    assert png.read_plain_png(tmp_path / "colour.png", MOST) is None


def test_limits_links_and_other_names_are_left_to_pillow(tmp_path, monkeypatch):
    Image.fromarray(PIXELS).save(tmp_path / "map.png")
    assert png.read_plain_png(tmp_path / "map.png", PIXELS.size) is not None
    assert png.read_plain_png(tmp_path / "map.png", PIXELS.size - 1) is None
    (tmp_path / "map.tif").write_bytes((tmp_path / "map.png").read_bytes())
    (tmp_path / "zeros.png").symlink_to("/dev/zero")
    for name in ("map.tif", "zeros.png", "missing.png"):
        assert png.read_plain_png(tmp_path / name, MOST) is None
    monkeypatch.setattr(png, "_MOST_BYTES", 50)
    assert png.read_plain_png(tmp_path / "map.png", MOST) is None


def test_files_of_pillow_are_plain_and_mean_the_same(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    text = PngInfo()
    text.add_text("Software", "densecal")
    pictures = {
        "bits": rng.random((30, 41)) < 0.5, "zeros and ones": rng.integers(0, 2, (30, 41)).astype(np.uint8),
        "levels": rng.integers(0, 256, (30, 41)).astype(np.uint8),
        "middle": np.full((30, 41), 128, np.uint8), "words": rng.integers(0, 65536, (30, 41)).astype(np.uint16),
        "labels in words": rng.integers(0, 256, (30, 41)).astype(np.uint16),
    }  # fmt: skip
    compiled = png.native
    for name, pixels in pictures.items():
        path = tmp_path / f"{name}.png"
        Image.fromarray(pixels).save(path, pnginfo=text, dpi=(72, 72))
        results = []
        for native in (compiled, None):
            monkeypatch.setattr(png, "native", native)
            assert (png.read_plain_png(path, MOST) is None) == (native is None)
            masks = [read_foreground(path, name, void) for void in (None, 0, 255)]
            arrays = [a for mask in masks for a in (mask.foreground, mask.void, mask.middle, mask.grey)]
            labels = read_labels(path, name, 256, None) if pixels.max() < 256 else None
            results.append([read_map(path), labels, *arrays])
        for own, other in zip(*results, strict=True):
            assert getattr(own, "dtype", None) == getattr(other, "dtype", None)
            np.testing.assert_array_equal(own, other)


def test_rows_of_another_size_are_refused():
    with pytest.raises(ValueError, match="found 20 and 16 bytes; expected 4 rows of 5 bytes"):
        png.native.undo_filters(bytes(20), np.zeros(16, np.uint8), 4, 5, 1)
    with pytest.raises(ValueError, match="in steps of 3"):
        png.native.undo_filters(bytes(20), np.zeros(16, np.uint8), 4, 4, 3)


def test_a_library_of_another_version_is_not_used(monkeypatch):
    monkeypatch.setattr(png.native, "API", png._API + 1)
    assert png._load() is None
