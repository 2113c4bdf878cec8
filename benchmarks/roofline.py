"""The two numbers of a roofline: arithmetic and memory traffic of a training step, counted without a GPU.

    python benchmarks/roofline.py unet tf_efficientnet_lite2 256

Operations are counted as eager PyTorch runs them in bfloat16: each reads its inputs and writes its outputs. A compiler
that fuses them may do better. The default peaks are those of a data-centre GPU.
"""

import argparse

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from densecal.models import build

VIEWS = ("view", "reshape", "expand", "permute", "transpose", "detach", "alias", "slice", "select", "t.", "as_strided")


class Traffic(TorchDispatchMode):
    """Counter of the bytes that every operation reads and writes."""

    def __init__(self):
        super().__init__()
        self.bytes = 0
        self.kernels = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        name = function.__name__ if hasattr(function, "__name__") else str(function)
        if not any(name.startswith(view) or f"_{view}" in name for view in VIEWS) and not name.startswith("empty"):
            self.kernels += 1
            for tensor in torch.utils._pytree.tree_leaves((args, kwargs, out)):
                if isinstance(tensor, torch.Tensor):
                    self.bytes += tensor.numel() * tensor.element_size()
        return out


def count(arch, encoder, size, batch):
    """Return arithmetic operations and bytes per image, and operations launched per step, for a batch size."""
    with torch.device("meta"):
        network = build(arch, encoder, None, 1)
    network = network.to(torch.bfloat16).train()
    images = torch.empty(batch, 3, size, size, device="meta", dtype=torch.bfloat16)
    with Traffic() as traffic:
        with FlopCounterMode(display=False) as flops:
            logits = network(images)
        logits.float().square().mean().backward()
    # In the backward pass the counter mistakes depth-wise convolutions for full ones. The forward pass costs half as
    # much, so it is counted three times.
    return 3 * flops.get_total_flops() / batch, traffic.bytes / batch, traffic.kernels


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arch", nargs="?", default="unet")
    parser.add_argument("encoder", nargs="?", default="tf_efficientnet_lite2")
    parser.add_argument("size", nargs="?", type=int, default=256)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--tflops", type=float, default=790, help="measured peak of bf16 matrix products, TFLOP/s")
    parser.add_argument("--tbps", type=float, default=4.3, help="measured memory bandwidth, TB/s")
    given = parser.parse_args()
    flops, traffic, kernels = count(given.arch, given.encoder, given.size, given.batch)
    print(f"{given.arch} {given.encoder} {given.size} x {given.size}, batch {given.batch}, forward and backward")
    print(f"  arithmetic {flops / 1e9:8.1f} GFLOP per image -> at most {given.tflops * 1e12 / flops:8.0f} images/s")
    print(f"  traffic    {traffic / 1e6:8.1f} MB    per image -> at most {given.tbps * 1e12 / traffic:8.0f} images/s")
    launched = given.batch / (kernels * 5e-6)
    print(f"  {kernels} operations per step, 5 us each to launch -> at most {launched:8.0f} images/s")


if __name__ == "__main__":
    main()
