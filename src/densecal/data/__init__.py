"""Data sets: folders, zips and lists of pairs, splits and the packed cache.

``densecal.data.augment`` (torch) and ``densecal.data.scenes`` (scipy) are not imported here, because the decoding
processes import this package and need neither.
"""

from densecal.data.packed import Packed, open_packed, pack
from densecal.data.sources import Source, open_source
from densecal.data.splits import split

__all__ = ["Packed", "Source", "open_packed", "open_source", "pack", "split"]
