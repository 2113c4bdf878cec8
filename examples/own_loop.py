"""An ordinary PyTorch training loop with densecal in five lines, each marked `# densecal`.

Without them the loop would use `criterion = nn.BCEWithLogitsLoss()` and `criterion(logits, masks)`. The loader returns
the index of each image beside it, because every training image has its own perturbation probability.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from densecal.methods import create  # densecal


class Result(NamedTuple):
    accuracy: float


def discs(count: int, size: int = 32) -> TensorDataset:
    """Return noisy images of a disc, their masks, and their indices."""
    generator = torch.Generator().manual_seed(count)
    grid = torch.arange(size) + 0.5
    x, y, radius = (size * torch.rand(3, count, 1, 1, generator=generator)).unbind()
    masks = ((grid - x) ** 2 + (grid[:, None] - y) ** 2 < (radius / 2) ** 2).float()[:, None]
    images = masks + 0.5 * torch.randn(masks.shape, generator=generator)
    return TensorDataset(images, masks, torch.arange(count))


@torch.no_grad()
def validate(model: nn.Module, data: TensorDataset) -> Result:
    images, masks, _ = data.tensors
    correct = (model(images) > 0) == (masks > 0.5)
    return Result(accuracy=correct.float().mean().item())


def train(epochs: int = 6) -> nn.Module:
    torch.manual_seed(0)
    data, validation = discs(64), discs(16)
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 1, 5, padding=2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    criterion = create("aslp-mc", num_samples=len(data), preset="stable", warmup=2)  # densecal

    for epoch in range(epochs):
        for images, masks, index in loader:
            images, targets = criterion.prepare(images, masks, index)  # densecal
            logits = model(images)
            loss = criterion(logits, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            criterion.after_step(logits, masks, index)  # densecal
        result = validate(model, validation)
        criterion.after_epoch(result)  # densecal
        print(f"epoch {epoch}: loss {loss.item():.3f}, validation accuracy {result.accuracy:.3f}")
    return criterion


if __name__ == "__main__":
    alpha: Tensor = train().alpha
    print(f"perturbation probability of {len(alpha)} images: mean {alpha.mean():.4f}, largest {alpha.max():.4f}")
