"""Train a network of segmentation-models-pytorch on three classes with a densecal method, and measure it."""

import numpy as np
import segmentation_models_pytorch as smp
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from densecal.data.scenes import generate
from densecal.methods import create
from densecal.metrics import CalibrationMeter, CalibrationResult

VOID = 255


def scenes(count: int, seed: int) -> TensorDataset:
    """Return scenes with background 0, clear parts of objects 1, the rest of them 2, and void pixels at the top."""
    drawn = generate(count, size=64, seed=seed)
    classes = np.where(drawn.masks > 127, np.where(drawn.probability > 0.9, 1, 2), 0)
    classes[:, :2] = VOID
    images = torch.from_numpy(drawn.images).permute(0, 3, 1, 2) / 255
    return TensorDataset(images, torch.from_numpy(classes).long(), torch.arange(count))


@torch.no_grad()
def validate(model: torch.nn.Module, loader: DataLoader) -> CalibrationResult:
    meter = CalibrationMeter(num_classes=3, ignore_index=VOID)
    model.eval()
    for images, masks, _ in loader:
        meter.update(logits=model(images), masks=masks)
    return meter.compute()


def train(epochs: int = 6) -> CalibrationResult:
    torch.manual_seed(0)
    data = scenes(48, seed=0)
    loader, validation = DataLoader(data, 4, shuffle=True), DataLoader(scenes(16, seed=1), 8)
    model = smp.Unet("tu-mobilenetv3_small_050", encoder_weights=None, classes=3, decoder_channels=(32, 32, 16, 16, 8))
    method = create("als", num_samples=len(data), num_classes=3, ignore_index=VOID, preset="stable", warmup=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(epochs):
        method.start_epoch(epoch)
        model.train()
        for images, masks, index in loader:
            images, targets = method.prepare(images, masks, index)
            logits: Tensor = model(images)
            optimizer.zero_grad()
            method.loss(logits, targets).backward()
            optimizer.step()
            method.after_step(logits.detach(), masks, index)
        result = validate(model, validation)
        method.after_epoch(result)
        print(f"epoch {epoch}: accuracy {result.accuracy:.3f}, ECE {result.ece_ew:.4f}, class-wise {result.sce:.4f}")
    return result


if __name__ == "__main__":
    train()
