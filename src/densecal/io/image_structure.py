"""What image files can hold besides one picture: further pages, frames or bands, an orientation. All are refused."""

from __future__ import annotations

import contextlib

from PIL import Image
from PIL.TiffImagePlugin import BITSPERSAMPLE, SAMPLEFORMAT, SAMPLESPERPIXEL, TILELENGTH, TILEWIDTH

from densecal.errors import InputError

_MAX_PAGES = 1000
"""Pages are counted up to this number: a file of a gigabyte can hold millions of empty ones."""
_NEW_SUBFILE_TYPE = 254
_REDUCED = 1
"""The bit of NewSubfileType that marks a smaller copy of another page, as pyramids have."""
_ORIENTATION = 274
_SIGNED = 2
_METADATA = ("exif", "xmp", "XML:com.adobe.xmp", "Raw profile type exif")


def check_pixels(image: Image.Image, name: str, max_pixels: int) -> None:
    """Refuse sizes that take too much memory to decode: that of the image, and of TIFF tiles, which may be larger."""
    sizes = {"": image.size}
    tags = getattr(image, "tag_v2", {})
    if TILEWIDTH in tags:
        sizes["tiles of "] = (int(tags[TILEWIDTH]), int(tags[TILELENGTH]))
    for prefix, (width, height) in sizes.items():
        if width * height > max_pixels:
            expected = f"at most {max_pixels:,} pixels (raise the limit with --max-pixels)"
            raise InputError(name, f"{prefix}{width} x {height} pixels", expected)


def check_structure(image: Image.Image, name: str, expected: str) -> None:
    """Refuse an image, before it is loaded, if Pillow would read only one of several pages, frames or bands.

    Args:
        image: The image, at its first frame.
        name: Name of the file in error messages.
        expected: The expected pages, frames and bands, for error messages.
    """
    if image.format == "TIFF":
        tags = image.tag_v2  # type: ignore[attr-defined]
        bands = int(tags.get(SAMPLESPERPIXEL, 1))
        if bands > len(image.getbands()):
            raise InputError(name, f"{bands} bands", expected)
        if tags.get(SAMPLEFORMAT, (1,))[0] == _SIGNED and tags.get(BITSPERSAMPLE, (1,))[0] == 8:
            raise InputError(name, "signed 8-bit numbers", "unsigned 8- or 16-bit levels, or floats")
        if (pages := _pages(image)) > 1:
            raise InputError(name, f"{'at least ' if pages == _MAX_PAGES else ''}{pages:,} pages", expected)
        _check_orientation_value(tags.get(_ORIENTATION, 1), name)
    # the further pictures of a phone's JPEG are previews of the first
    elif image.format != "MPO" and (frames := getattr(image, "n_frames", 1)) > 1:
        raise InputError(name, f"{frames:,} frames", expected)


def check_orientation(image: Image.Image, name: str) -> None:
    """Refuse a loaded image that viewers show rotated or mirrored: its mask may fit either version."""
    if any(key in image.info for key in _METADATA):
        orientation = 1
        with contextlib.suppress(Exception):  # viewers ignore damaged metadata, too
            orientation = image.getexif().get(_ORIENTATION, 1)
        _check_orientation_value(orientation, name)


def _check_orientation_value(orientation: object, name: str) -> None:
    if orientation in range(2, 9):
        expected = (
            "pixels stored upright, because a mask may fit either way: `mogrify -auto-orient FILE` turns the pixels, "
            "`exiftool -Orientation= FILE` keeps them as they are stored"
        )
        raise InputError(name, f"EXIF orientation {orientation}", expected)


def _pages(image: Image.Image) -> int:
    """Return the number of pages of a TIFF, not counting smaller copies, and leave it at the first page."""
    pages = 1
    try:
        for page in range(1, _MAX_PAGES):
            image.seek(page)
            pages += not int(image.tag_v2.get(_NEW_SUBFILE_TYPE, 0)) & _REDUCED  # type: ignore[attr-defined]
    except EOFError:
        image.seek(0)
        return pages
    return _MAX_PAGES
