"""Seconds from the command to the end of the first optimizer step and of its parts, with and without packing.

    python benchmarks/first_step.py data.images=DUTS-TR optim.batch=64

Arguments are settings of recipe `sod`. Training runs in a separate process, because imports and kernels count too.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path


def train_one_step(out: str, settings: list[str]) -> None:
    """Train until the first step is done, and print the time of day at which each part was done."""
    import torch

    from densecal.training import loop
    from densecal.training import run as assembly
    from densecal.training.config import load_config

    done_at = {"imports": time.time()}

    def watch(module, name: str, part: str) -> None:
        work = getattr(module, name)

        def timed(*given):
            result = work(*given)
            done_at[part] = time.time()
            return result

        setattr(module, name, timed)

    # the first two run at the same time
    watch(assembly, "open_data", "data")
    watch(assembly, "_rehearse", "kernels")
    watch(loop, "open_run", "data and network")

    def report(title: str, done: int, _total: int, /, **_figures: float) -> None:
        if title.startswith("Epoch 1") and done == 1:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            print(json.dumps({**done_at, "first step": time.time()}))
            sys.exit()

    warnings.simplefilter("ignore")
    loop.train(load_config("sod", settings), Path(out), progress=report)


def main() -> None:
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_CACHE_HOME": folder, "TRITON_CACHE_DIR": f"{folder}/triton"}
        for label in ("cold", "warm"):
            command = [sys.executable, __file__, "--one-step", f"{folder}/{label}", *sys.argv[1:]]
            start = time.time()
            output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
            done_at = json.loads(output.splitlines()[-1])
            seconds[label] = {part: end - start for part, end in done_at.items()}
    print(json.dumps(seconds))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one-step"]:
        train_one_step(sys.argv[2], sys.argv[3:])
    else:
        main()
