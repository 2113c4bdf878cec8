"""A calibrator that is a network: the protocol of calibrators on top of a module of PyTorch."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from densecal.metrics.arrays import as_array, is_tensor
from densecal.posthoc.base import Calibrator


class NetworkCalibrator(nn.Module, Calibrator):
    """A calibrator whose `tables` are buffers, and whose other state is written as safetensors.

    Args:
        num_classes: 1 for one sigmoid logit, K for K softmax logits.
    """

    needs_images = True
    multiclass = True

    def __init__(self, num_classes: int = 1) -> None:
        nn.Module.__init__(self)
        Calibrator.__init__(self, num_classes)

    def __call__(self, logits: Any, images: Any = None) -> Any:
        """Return calibrated probabilities: a tensor for a tensor, otherwise a NumPy array."""
        if is_tensor(logits):
            return nn.Module.__call__(self, logits, images)
        device = next(iter(self.buffers())).device
        tensors = (None if array is None else to_tensor(array).to(device) for array in (logits, images))
        with torch.no_grad():
            return nn.Module.__call__(self, *tensors).cpu().numpy()

    def forward(self, logits: Tensor, images: Tensor | None = None) -> Tensor:
        """Return calibrated probabilities."""
        probabilities: Tensor = Calibrator.__call__(self, logits, images)
        return probabilities

    def as_module(self) -> Self:
        """Return itself."""
        return self

    def extra_state(self) -> dict[str, Tensor]:
        """Return the weights."""
        return {name: tensor for name, tensor in self.state_dict().items() if name not in self.tables}

    def load_extra_state(self, tensors: dict[str, Tensor]) -> None:
        """Replace the weights."""
        self.load_state_dict({**self.state_dict(), **tensors})

    def set_table(self, name: str, value: Any) -> None:
        """Set a buffer to numbers in float64, creating it if needed."""
        old = self._buffers.get(name)
        new = torch.tensor(np.asarray(value), dtype=torch.float64, device=None if old is None else old.device)
        self.register_buffer(name, new)


def to_tensor(array: Any) -> Tensor:
    """Return an array of any library as a tensor."""
    return array if is_tensor(array) else torch.from_numpy(as_array(array))
