"""Integer tables: what they count, the units of their sums, and where a fine bin ends."""

import numpy as np
import torch

from densecal.metrics.fine_bins import fine_index, fine_size, tally


class OnAccelerator(torch.Tensor):
    """A tensor that says it is on an accelerator, whose memory NumPy cannot read."""

    @property
    def device(self):
        return torch.device("cuda")

    def numpy(self):
        raise TypeError("can't convert cuda device type tensor to numpy")


def values_and_outcomes(count=500):
    rng = np.random.default_rng(0)
    values = np.concatenate([[0.0, 0.5, 1.0, 2.0**-60, 1 - 2.0**-53], rng.random(count) ** 8])
    return values, rng.integers(0, 2, len(values)), rng.integers(0, 7, len(values))


def test_a_table_counts_outcomes_and_sums_values_in_two_integers():
    """Their units are 2**-26 and 2**-53, in sketches on disk and in the kernel that counts on CUDA devices too."""
    values, outcomes, index = values_and_outcomes()
    table = tally(*map(torch.from_numpy, (index, values, outcomes)), None, 7)
    for row in range(7):
        own = values[index == row]
        units = [round(value * 2**53) for value in own.tolist()]  # in exact integers
        expected = [(outcomes[index == row] == 0).sum(), outcomes[index == row].sum()]
        assert table[row].tolist() == [*expected, sum(u >> 27 for u in units), sum(u & (2**27 - 1) for u in units)]


def test_pixels_on_an_accelerator_are_counted_there():
    values, outcomes, index = (torch.from_numpy(array) for array in values_and_outcomes())
    elsewhere = (array.as_subclass(OnAccelerator) for array in (index, values, outcomes))
    assert torch.equal(tally(*elsewhere, None, 7).as_subclass(torch.Tensor), tally(index, values, outcomes, None, 7))


def test_fine_bins_begin_at_every_step_of_an_octave_and_mirror_at_one_half():
    for steps in (0, 3):
        starts = [
            0.0,
            *(2.0**-40 * 2**octave * (1 + i / 2**steps) for octave in range(39) for i in range(2**steps)),
            0.5,
        ]
        starts = torch.tensor(starts, dtype=torch.float64)
        ends = torch.cat([torch.nextafter(starts[1:], torch.zeros_like(starts[1:])), starts[-1:]])
        size = fine_size(steps)
        assert size == 2 * len(starts)
        for values in (starts, ends):
            assert fine_index(values, steps).tolist() == list(range(len(starts)))
            below_half = values[values < 0.5]
            exact = below_half[1.0 - (1.0 - below_half) == below_half]  # those whose mirror image is a float
            assert torch.equal(fine_index(1.0 - exact, steps), size - 1 - fine_index(exact, steps))
