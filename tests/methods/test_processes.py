"""Two processes that share a global batch learn the same values as one process that sees all of it."""

from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist

from densecal.methods import Method, create
from tests import forked

N, EPOCHS, STEPS, LOCAL = 11, 3, 2, 3
CASES = {
    "aslp-mc": {"technique": "si", "preset": "stable"},
    "aslp-mei": {"technique": "dm"},
    "als": {"preset": "stable", "num_classes": 3},
}


def global_batch(epoch: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return seeded logits and six indices of one step: 11 images in two steps leave one slot for padding."""
    order = [*torch.randperm(N, generator=torch.Generator().manual_seed(epoch)).tolist(), -1]
    index = torch.tensor(order[step * 2 * LOCAL : (step + 1) * 2 * LOCAL])
    generator = torch.Generator().manual_seed(100 * epoch + step)
    return torch.randn(2 * LOCAL, 3, 4, 4, generator=generator) + torch.tensor([2.0, 0, 0]).view(3, 1, 1), index


def run(rank: int, world: int) -> dict[str, Method]:
    methods = {name: create(name, num_samples=N, warmup=1, **options) for name, options in CASES.items()}
    for method in methods.values():
        for epoch in range(EPOCHS):
            method.start_epoch(epoch)
            for step in range(STEPS):
                logits, index = global_batch(epoch, step)
                logits, index = logits[rank::world], index[rank::world]
                masks = torch.zeros(len(logits), 4, 4, dtype=torch.long)
                if method.num_classes == 1:
                    logits, masks = logits[:, :1], torch.ones(len(logits), 1, 4, 4)
                method.loss(logits, method.prepare(logits, masks, index)[1])
                method.after_step(logits, masks, index)
            method.after_epoch(SimpleNamespace(accuracy=0.9))
    return methods


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    methods = run(rank, 2)
    torch.save({name: (m.state_dict(), m.statistics()) for name, m in methods.items()}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_agree_with_one(tmp_path: Path):
    forked.run_ranks("tests.methods.test_processes", tmp_path)
    results = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1)]
    for name, method in run(0, 1).items():
        values = method.state_dict()["values"]
        assert values[:N].gt(0).sum() >= N - 1
        assert values[N] == 0
        for state, statistics in (result[name] for result in results):
            torch.testing.assert_close(state["values"], values, rtol=0, atol=0)
            assert statistics == method.statistics()
