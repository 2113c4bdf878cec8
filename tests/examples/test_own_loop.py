"""examples/own_loop.py runs, uses at most five densecal lines, and is an ordinary loop without them."""

import re
import runpy
from pathlib import Path

import torch

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_loop.py"


def test_densecal_takes_at_most_five_lines():
    lines = EXAMPLE.read_text().splitlines()
    assert len([line for line in lines if line.endswith("# densecal")]) <= 5
    code = [line.split("#")[0] for line in lines[lines.index("from typing import NamedTuple") :]]
    unmarked = [c for c, line in zip(code, lines[-len(code) :], strict=True) if not line.endswith("# densecal")]
    assert not any("densecal" in line or re.search(r"criterion\.", line) for line in unmarked)


def test_the_loop_trains_and_learns_a_probability_per_image(capsys):
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    out = capsys.readouterr().out
    accuracies = [float(number) for number in re.findall(r"accuracy (\d\.\d+)", out)]
    assert len(accuracies) == 6
    assert accuracies[-1] > 0.95
    mean = float(re.search(r"mean (\d\.\d+)", out)[1])
    assert 0 < mean < 2 * (1 - min(accuracies[1:]))


def test_without_the_marked_lines_it_is_an_ordinary_loop():
    lines = EXAMPLE.read_text().splitlines()
    ordinary = [
        line.replace('criterion = create("aslp-mc", num_samples=len(data), preset="stable", warmup=2)',
                     "criterion = nn.BCEWithLogitsLoss()")
        for line in lines
        if not line.endswith("# densecal") or "create(" in line
        if "import create" not in line
    ]  # fmt: skip
    source = "\n".join(ordinary).replace("criterion(logits, targets)", "criterion(logits, masks)")
    names: dict = {"__name__": "ordinary"}
    exec(compile(source, "ordinary_loop.py", "exec"), names)
    assert isinstance(names["train"](epochs=1), torch.nn.BCEWithLogitsLoss)
