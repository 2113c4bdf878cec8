"""densecal in a LightningModule: five lines marked `# densecal`, and steps that return what the callback needs.

The method takes the place of `nn.BCEWithLogitsLoss()`. Every training image has its own perturbation probability, so
the loader returns the index of each image beside it.
"""

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from densecal.data.scenes import generate
from densecal.integrations.lightning import CalibrationCallback  # densecal
from densecal.methods import create  # densecal


class Segmenter(lightning.LightningModule):
    def __init__(self, num_samples: int) -> None:
        super().__init__()
        self.save_hyperparameters()
        convolutions = [nn.Conv2d(i, o, 7, padding=3) for i, o in ((3, 16), (16, 16), (16, 1))]
        self.network = nn.Sequential(convolutions[0], nn.ReLU(), convolutions[1], nn.ReLU(), convolutions[2])
        self.method = create("aslp-mc", num_samples=num_samples, preset="stable", warmup=2)  # densecal

    def training_step(self, batch: list[Tensor], batch_idx: int) -> dict[str, Tensor]:
        images, masks, index = batch
        images, targets = self.method.prepare(images, masks, index)  # densecal
        logits = self.network(images)
        return {"loss": self.method.loss(logits, targets), "logits": logits, "masks": masks, "index": index}

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> dict[str, Tensor]:
        images, masks, _ = batch
        return {"logits": self.network(images), "masks": masks}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=5e-3)


def scenes(count: int, seed: int) -> TensorDataset:
    drawn = generate(count, size=32, seed=seed)
    images = torch.from_numpy(drawn.images).permute(0, 3, 1, 2) / 255 - 0.5
    return TensorDataset(images, torch.from_numpy(drawn.masks)[:, None] / 255, torch.arange(count))


def main(epochs: int = 6) -> None:
    lightning.seed_everything(0, verbose=False)
    data, validation = scenes(96, seed=0), scenes(32, seed=1)
    best = ModelCheckpoint(monitor="val_brier")
    callbacks = [CalibrationCallback(), best]  # densecal
    trainer = lightning.Trainer(max_epochs=epochs, accelerator="cpu", callbacks=callbacks, log_every_n_steps=1)
    trainer.fit(Segmenter(len(data)), DataLoader(data, 8, shuffle=True), DataLoader(validation, 8))
    figures = {name: round(float(trainer.callback_metrics[f"val_{name}"]), 4) for name in ("ece_ew", "accuracy")}
    alpha = Segmenter.load_from_checkpoint(best.best_model_path).method.alpha
    print(f"validation {figures}, mean perturbation probability {alpha.mean():.4f}")


if __name__ == "__main__":
    main()
