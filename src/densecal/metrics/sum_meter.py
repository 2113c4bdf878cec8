"""What the segmentation meters share: named sums that are the same whatever the order and grouping of the images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from densecal.metrics.exact import ExactSums, add_pixels, total_count
from densecal.metrics.locking import Shareable, locked


class SumMeter(Shareable):
    """A meter whose whole state is a set of named sums."""

    _sums: ExactSums

    def _flush(self) -> None:
        """Add pending maps to the sums, if there are any."""

    @locked
    def exact_sums(self) -> ExactSums:
        """Return a copy of the sums, not rounded."""
        self._flush()
        sums = ExactSums()
        sums.merge(self._sums)
        return sums

    @locked
    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the whole state as arrays."""
        self._flush()
        return self._sums.values()

    @locked
    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Replace the state by one that ``state_dict`` returned."""
        self._flush()
        sums = self._sums.values()
        for key, own in sums.items():
            if key not in state or np.shape(state[key]) != own.shape:
                actual = f"shape {np.shape(state[key])}" if key in state else "nothing"
                raise ValueError(f"state[{key!r}]: found {actual}; expected shape {own.shape}")
        self._sums = ExactSums({key: np.array(state[key], dtype=own.dtype) for key, own in sums.items()})

    def merge(self, other: Self) -> None:
        """Add the sums of another meter of the same kind."""
        sums = other.exact_sums()  # never both locks at once: two threads could wait for each other
        state = sums.values()
        with self._lock:
            self._flush()
            for key, own in self._sums.values().items():
                if own.shape != state[key].shape:
                    raise ValueError(f"merge: found {key} of shape {state[key].shape}; expected {own.shape}")
                if np.issubdtype(own.dtype, np.integer):
                    add_pixels(total_count(own), total_count(state[key]))
            self._sums.merge(sums)
