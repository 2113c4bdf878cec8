"""Every test of the methods starts from the same random state."""

import pytest
import torch


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(0)
