"""A batch of logits and masks for the losses."""

import torch

VOID = 255


def batch(classes: int, count: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits and masks of 6 x 7 pixels for a method of one sigmoid logit or of K classes."""
    if classes == 1:
        return 2 * torch.randn(count, 1, 6, 7), (torch.rand(count, 1, 6, 7) > 0.4).float()
    return 2 * torch.randn(count, classes, 6, 7), torch.randint(classes, (count, 6, 7))
