"""Calibration beside other metrics in a torchmetrics collection, updated and combined over processes together.

With `torchrun --nproc-per-node 2 examples/torchmetrics_collection.py` each process measures half of the maps. The
result is the same.
"""

import os

import torch
import torch.distributed as dist
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryJaccardIndex

from densecal.data.scenes import generate
from densecal.integrations.torchmetrics import CalibrationMetric


def measure(rank: int = 0, processes: int = 1) -> dict[str, float]:
    metrics = MetricCollection(
        {
            "iou": BinaryJaccardIndex(),
            "ece": CalibrationMetric("ece_ew", bins=15),
            "brier": CalibrationMetric("brier", bins=15),  # shares the counts of ece
        }
    )
    scenes = generate(32, size=64)
    # an over-confident model: the logits of the true probability, three times too large
    probability = torch.from_numpy(scenes.probability)[:, None].clamp(1e-4, 1 - 1e-4)
    maps = (3 * probability.logit()).sigmoid()
    masks = (torch.from_numpy(scenes.masks) > 127).long()[:, None]
    for batch in range(rank, 8, processes):
        part = slice(4 * batch, 4 * batch + 4)
        metrics.update(maps[part], masks[part])
    return {name: value.item() for name, value in metrics.compute().items()}


if __name__ == "__main__":
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    rank, processes = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    figures = measure(rank, processes)
    if rank == 0:
        print(", ".join(f"{name} {value:.6f}" for name, value in sorted(figures.items())))
    if dist.is_initialized():
        dist.destroy_process_group()
