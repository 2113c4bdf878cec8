"""Expected cost of acting on a probability, at a user's price of a miss and of a false alarm.

A pixel is acted on where p > t. With the price c1 of a miss and c0 of a false alarm, cost(t) = (c1 FN + c0 FP) / N.
Whoever believes p acts above t0 = c0 / (c0 + c1): there the two expected costs are equal. For a calibrated model t0 is
also the threshold that minimises the cost. For another one, cost(t0) - min cost(t) is the price of its miscalibration,
because t0 on the best rising map of p (isotonic regression) acts as the best threshold on p does. Thresholds are those
from 0 to 1, so that a pixel with p = 0 is never acted on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from densecal.metrics.curves import Atoms


@dataclass(frozen=True)
class Prices:
    """What a missed pixel and a falsely reported one cost, in any unit.

    Attributes:
        miss: Price of a miss.
        false_alarm: Price of a false alarm.
    """

    miss: float
    false_alarm: float

    def __post_init__(self) -> None:
        for price in (self.miss, self.false_alarm):
            if not (math.isfinite(price) and price > 0.0):
                raise ValueError(f"a price of {price:g}; expected a number above 0")

    @property
    def threshold(self) -> float:
        """The threshold above which acting is the cheaper choice, for whoever believes the probability."""
        return self.false_alarm / (self.false_alarm + self.miss)


@dataclass(frozen=True)
class ExpectedCost:
    """What acting on a probability costs per pixel, at the prices of a miss and of a false alarm.

    Attributes:
        miss: Price of a miss.
        false_alarm: Price of a false alarm.
        threshold: The threshold of whoever believes the probability: false_alarm / (false_alarm + miss).
        cost: Its cost.
        best_threshold: The threshold with the lowest cost on these images.
        best_cost: Its cost, which is that of ``threshold`` after the best rising recalibration.
        cost_at_half: The cost of the threshold 0.5.
        never: The cost of never acting.
        always: The cost of always acting.
        ci: 95 % interval of ``cost``.
    """

    miss: float
    false_alarm: float
    threshold: float
    cost: float
    best_threshold: float
    best_cost: float
    cost_at_half: float
    never: float
    always: float
    ci: tuple[float, float] | None = None

    @classmethod
    def of_counts(cls, tp: Sequence[int], fp: Sequence[int], pixels: tuple[int, int], prices: Prices) -> ExpectedCost:
        """Return the cost from the counts of a record, at thresholds in equal steps from 0 to 1.

        Args:
            tp: Foreground pixels above each threshold.
            fp: Background pixels above it.
            pixels: All foreground and all background pixels.
            prices: What errors cost.
        """
        costs = prices.miss * (pixels[0] - np.array(tp)) + prices.false_alarm * np.array(fp)
        costs = costs / sum(pixels)
        last = len(costs) - 1
        best = int(np.argmin(costs))
        return cls(
            miss=prices.miss,
            false_alarm=prices.false_alarm,
            threshold=prices.threshold,
            cost=float(costs[round(prices.threshold * last)]),
            best_threshold=best / last,
            best_cost=float(costs[best]),
            cost_at_half=float(costs[last // 2]),
            never=prices.miss * pixels[0] / sum(pixels),
            always=prices.false_alarm * pixels[1] / sum(pixels),
        )


def expected_cost(atoms: Atoms, prices: Prices) -> ExpectedCost:
    """Return what acting on a probability costs.

    Args:
        atoms: The probabilities, with the number of pixels with outcome 1.
        prices: What errors cost.

    Examples:
        >>> atoms = Atoms(np.array([0.2, 0.6, 0.9]), np.array([10, 10, 10]), np.array([1, 8, 10]))
        >>> result = expected_cost(atoms, Prices(miss=9, false_alarm=1))
        >>> result.threshold, round(result.cost, 3), result.best_threshold
        (0.1, 0.367, 0.1)
    """
    misses = np.concatenate([[0], np.cumsum(atoms.hits)]).astype(np.float64)
    clear = np.concatenate([[0], np.cumsum(atoms.count - atoms.hits)]).astype(np.float64)
    # Entry i: pixels up to the i-th value are left alone, those above are acted on.
    costs = (prices.miss * misses + prices.false_alarm * (clear[-1] - clear)) / atoms.total

    def at(threshold: float) -> float:
        return float(costs[np.searchsorted(atoms.value, threshold, side="right")])

    first = int(np.searchsorted(atoms.value, 0.0, side="right"))
    best = first + int(np.argmin(costs[first:]))
    ends = np.concatenate([[0.0], atoms.value, [1.0]])[best : best + 2]
    return ExpectedCost(
        miss=prices.miss,
        false_alarm=prices.false_alarm,
        threshold=prices.threshold,
        cost=at(prices.threshold),
        best_threshold=float(ends.mean()),
        best_cost=float(costs[best]),
        cost_at_half=at(0.5),
        never=float(costs[-1]),
        always=float(costs[0]),
    )
