"""Our CUDA kernels compute what PyTorch's do; they run in Triton's interpreter here."""

import json
import os
import subprocess
import sys
from pathlib import Path


def test_kernels_agree_with_pytorch_in_float64():
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("fused_check.py"))],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for layer in found["layers"]:
        assert layer.pop("tracked") == 0
        assert max(layer.values()) < 2e-4, layer
    assert max(found["networks"].values()) < 1e-3, found
    assert max(max(differences) for differences in found["doublings"]) < 1e-5, found["doublings"]
