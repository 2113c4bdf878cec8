"""densecal in the Hugging Face Trainer: a subclass with its own loss, and a meter for its metrics."""

import tempfile
from typing import Any

import torch
from torch.nn.functional import interpolate
from transformers import SegformerConfig, SegformerForSemanticSegmentation, Trainer, TrainingArguments, set_seed

from densecal.data.scenes import generate
from densecal.methods import create
from densecal.metrics import CalibrationMeter


class CalibratedTrainer(Trainer):
    def compute_loss(self, model: Any, inputs: dict[str, torch.Tensor], return_outputs: bool = False, **_: Any) -> Any:
        images, masks, index = inputs["pixel_values"], inputs["labels"], inputs["index"]
        method, targets = self.model.method, masks
        if model.training:
            method.start_epoch(int(self.state.epoch))
            images, targets = method.prepare(images, masks, index)
        logits = interpolate(model(pixel_values=images).logits, masks.shape[-2:], mode="bilinear")
        if model.training:
            method.after_step(logits.detach(), masks, index)
        loss = method.loss(logits, targets)
        return (loss, {"logits": logits}) if return_outputs else loss


def scenes(count: int, seed: int) -> list[dict[str, Any]]:
    drawn = generate(count, size=64, seed=seed)
    images, masks = torch.from_numpy(drawn.images).permute(0, 3, 1, 2) / 127.5 - 1, torch.from_numpy(drawn.masks) / 255
    return [{"pixel_values": images[i], "labels": masks[i, None], "index": i} for i in range(count)]


def main(folder: str) -> None:
    set_seed(0)
    data, meter = scenes(64, seed=0), CalibrationMeter(boundary=False)
    small = {"depths": [1] * 4, "hidden_sizes": [16, 16, 32, 32], "decoder_hidden_size": 32}
    model = SegformerForSemanticSegmentation(SegformerConfig(num_labels=1, initializer_range=0.1, **small))
    # as part of the model, the method moves to its device and is saved in its checkpoints
    model.method = create("aslp-mc", num_samples=len(data), preset="stable", warmup=2)

    def measure(batch: Any, compute_result: bool) -> dict[str, float]:
        meter.update(logits=batch.predictions, masks=batch.label_ids)
        if not compute_result:
            return {}
        result = meter.compute()
        meter.reset()
        model.method.after_epoch(result)
        return {"ece": result.ece_ew, "accuracy": result.accuracy, "alpha": model.method.alpha.mean().item()}

    # `compute_loss` needs `index`, which the network does not take; metrics are computed batch by batch
    options = {"remove_unused_columns": False, "batch_eval_metrics": True, "eval_strategy": "epoch"}
    arguments = TrainingArguments(folder, num_train_epochs=6, learning_rate=4e-3, save_strategy="epoch", **options)
    CalibratedTrainer(model, arguments, None, data, scenes(16, seed=1), compute_metrics=measure).train()


if __name__ == "__main__":
    main(tempfile.mkdtemp())
