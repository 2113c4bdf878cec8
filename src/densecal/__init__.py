"""densecal: segmentation models whose confidence can be believed."""

__version__ = "0.1.0"
