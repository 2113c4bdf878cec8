"""The paper's tables and figures, each as a matrix in its own setting, with its numbers beside ours."""

from densecal.reproduce.items import Item, Scale, load_items
from densecal.reproduce.runner import Outcome, reproduce

__all__ = ["Item", "Outcome", "Scale", "load_items", "reproduce"]
