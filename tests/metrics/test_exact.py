"""Exact sums: the same whatever the order and grouping of their terms."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from densecal.metrics.exact import ExactSums


@given(st.lists(st.floats(0, 100), min_size=1, max_size=40), st.randoms())
def test_exact_sums_do_not_depend_on_order_or_grouping(values: list[float], random: object) -> None:
    def total_of(order: list[float], groups: int) -> float:
        total = ExactSums()
        for group in range(groups):
            part = ExactSums()
            for value in order[group::groups]:
                part.add({"x": np.array([value])})
            total.merge(part)
        return float(total.values()["x"][0])

    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert total_of(values, 1) == total_of(shuffled, 1) == total_of(shuffled, 3)
    assert total_of(values, 1) == pytest.approx(sum(values), rel=1e-14, abs=1e-15)


@pytest.mark.parametrize("first", [0, 1])
def test_integers_and_floats_of_one_name_are_not_added(first: int) -> None:
    values = [np.array([1]), np.array([0.5])]
    sums, other = ExactSums({"a": values[first]}), ExactSums({"a": values[1 - first]})
    with pytest.raises(ValueError, match="ints and floats"):
        sums.merge(other)
