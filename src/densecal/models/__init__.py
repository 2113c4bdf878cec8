"""Segmentation networks that take raw images: any decoder of the registry on any timm encoder."""

from densecal.models.factory import SegmentationModel, build
from densecal.models.registry import architectures

__all__ = ["SegmentationModel", "architectures", "build"]
