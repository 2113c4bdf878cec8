"""Shared fixtures: the specification's test vectors."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def vectors() -> dict[str, dict[str, Any]]:
    cases = json.loads((Path(__file__).parent / "vectors.json").read_text())
    return {case["name"]: case for case in cases}
