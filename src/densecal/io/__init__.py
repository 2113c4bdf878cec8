"""Files in and out: images, masks, maps, JSON and YAML, atomic writing, URLs. Nothing here needs PyTorch."""

MAX_PIXELS = 1 << 26
"""Files with more pixels are refused before they are decoded: 67 megapixels, 8,192 x 8,192."""
MAX_SLAB_PIXELS = 1 << 30
"""The limit for files that are read slab by slab: 1,074 megapixels, 32,768 x 32,768 or 1,024 cubed."""
MAX_VOXELS = 1 << 28
"""The limit for volumes that are predicted: 268 megavoxels, 640 cubed, 1 GB of float32 per channel and class."""
SUM_TOLERANCE = 0.02
"""How far the sum of a pixel's class probabilities may be from 1."""
