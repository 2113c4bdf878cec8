"""Run by test_counting.py under Triton's interpreter: prints whether tables of three images equal PyTorch's."""

import json

import faster_interpreter  # noqa: F401 (in the same folder)
import torch

from densecal.kernels import counting
from densecal.metrics.fine_bins import _agrees, equal_width_index, fine_index, fine_size, tally

IMAGES = 3


def values(pixels: int) -> torch.Tensor:
    """Probabilities that crowd at 0 and 1, some of them on the edges of bins."""
    random = torch.Generator().manual_seed(pixels)
    network = torch.randn(IMAGES, pixels, dtype=torch.float64, generator=random).mul(20.0).sigmoid()
    edges = torch.randint(0, 31, network.shape, generator=random) / 30
    return torch.where(torch.rand(network.shape, generator=random) < 0.3, edges.double(), network)


def small_tables_agree(v: torch.Tensor, y: torch.Tensor, valid: torch.Tensor | None, bins: int) -> bool:
    image = torch.arange(IMAGES)[:, None]
    views = [(torch.maximum(v, 1 - v), (v > 0.5) == (y == 1)), (1 - v, y == 0), (v, y == 1)]
    wanted = [
        tally(image * bins + equal_width_index(value, bins), value, outcome, valid, IMAGES * bins).view(-1, bins, 4)
        for value, outcome in views
    ]
    return torch.equal(counting.small_tables(v, y, valid, bins), torch.stack(wanted, dim=1))


def fine_tables_agree(v: torch.Tensor, y: torch.Tensor) -> bool:
    flat, hit, index, size = v.flatten(), (y == 1).flatten(), fine_index(v.flatten(), 10), fine_size(10)
    return torch.equal(counting.fine_table(flat, index, hit, size), tally(index, flat, hit, None, size))


def histograms_agree(pixels: int, size: int) -> bool:
    index = torch.randint(0, size, (IMAGES, pixels))
    wanted = torch.stack([torch.bincount(row, minlength=size) for row in index])
    return torch.equal(counting.histograms(index, size), wanted)


if __name__ == "__main__":
    tables = []
    for pixels in (1, 700, 5000):
        v, y = values(pixels), torch.randint(0, 2, (IMAGES, pixels))
        for bins in (1, 10, 15):
            for valid in (None, torch.rand(v.shape) < 0.7):
                tables.append({"small": [pixels, bins, valid is None], "equal": small_tables_agree(v, y, valid, bins)})
        tables.append({"fine": pixels, "equal": fine_tables_agree(v, y)})
        tables += [{"histogram": [pixels, size], "equal": histograms_agree(pixels, size)} for size in (7, 101, 512)]
    trusted = _agrees(counting, torch.device("cpu"))
    correct = counting.small_tables
    counting.small_tables = lambda *arguments: correct(*arguments).roll(1, dims=1)  # right figures, wrong tables
    wrong_trusted = _agrees(counting, torch.device("cpu"))
    print(json.dumps({"tables": tables, "trusted": trusted, "wrong kernels are trusted": wrong_trusted}))
