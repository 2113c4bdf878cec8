"""The progress of an export: how long PyTorch's exporter still takes, and the same file as without."""

import io
from contextlib import nullcontext
from itertools import pairwise

import numpy as np
import onnxruntime
import pytest
import torch
from rich.console import Console
from torch import nn

from densecal import export
from densecal.cli.progress import Bar
from densecal.export import TOLERANCE, export_model
from densecal.export.steps import report_steps
from densecal.models import SegmentationModel

FIRST, AGAIN = "Tracing the network", "Tracing the network again, for one image size"


class Plain(nn.Sequential):
    """Takes any size."""

    def __init__(self):
        layers = [nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()) for _ in range(6)]
        super().__init__(nn.Conv2d(3, 6, 1), *layers, nn.Conv2d(6, 1, 1))


class OneSize(Plain):
    """Has one learnt vector a position."""

    def __init__(self):
        super().__init__()
        self.positions = nn.Parameter(torch.linspace(-3, 3, 64 * 64).view(1, 1, 64, 64))

    def forward(self, x):
        return super().forward(x) + self.positions


class Large(Plain):
    """Takes images of more than 32 pixels, which the exporter learns when it has captured the graph."""

    def forward(self, x):
        if nn.functional.max_pool2d(x, 32).shape[-1] < 2:
            raise ValueError("too small")
        return super().forward(x)


class OnlyDynamo(Plain):
    """Can be captured only in the exporter's second way, in which PyTorch reads the code of the network."""

    def forward(self, x):
        scale = float(torch.ones(2).numpy().sum())
        return super().forward(x) * scale


class Shy(Plain):
    """Does not run before it is exported."""

    def forward(self, x):
        if not torch.compiler.is_compiling() and not self.exported:
            raise RuntimeError("not yet")
        return super().forward(x)

    exported = False


def model_of(network):
    torch.manual_seed(0)
    return SegmentationModel(network(), "pretended", "resnet18", 1)


def reports_of(network, path):
    """The reports of an export, as title, steps that are done, and all steps; a bar shows them meanwhile."""
    reports = []
    bar = Bar(Console(file=io.StringIO(), force_terminal=True), keep=False)

    def report(*step):
        bar(*step)  # nothing that Dynamo could make a part of the graph
        reports.append(step)

    made = export_model(model_of(network), path, 64, progress=report)
    assert made.difference < TOLERANCE
    return reports


def traced(reports, title):
    """The per cent that are done whenever there is a report with this title."""
    assert {total for said, _, total in reports if said == title} <= {100}
    return [done for said, done, _ in reports if said == title]


def rises(numbers):
    return all(before < after for before, after in pairwise(numbers))


def is_complete(numbers):
    """The numbers rise from 0 to 100, without a large step."""
    steps = np.diff(numbers)
    return rises(numbers) and (numbers[0], numbers[-1]) == (0, 100) and len(numbers) > 30 and max(steps) < 16


def test_tracing_is_reported_from_its_beginning_to_its_end(tmp_path):
    reports = reports_of(Plain, tmp_path / "model.onnx")
    assert is_complete(traced(reports, FIRST))
    assert traced(reports, AGAIN) == []
    compared = [step for step in reports if step[0] != FIRST]
    assert compared == [("Comparing the file with PyTorch", done, 4) for done in range(5)]
    assert reports[-5:] == compared


def test_a_bar_shows_the_time_left_of_tracing(tmp_path):
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    bar, shown = Bar(console, keep=False), []

    def report(title, done, total):
        bar(title, done, total)
        line = Console(file=io.StringIO(), width=120)
        line.print(bar.shown.get_renderable())
        shown.append(line.file.getvalue().strip())

    export_model(model_of(Plain), tmp_path / "model.onnx", 64, progress=report)
    tracing = [line for line in shown if line.startswith(FIRST)]
    assert tracing[0].endswith("so far")
    assert all(line.endswith(" left") for line in tracing[1:])


def test_a_second_attempt_for_one_size_is_reported_too(tmp_path):
    reports = reports_of(OneSize, tmp_path / "model.onnx")
    assert traced(reports, FIRST)[0] == 0
    assert is_complete(traced(reports, AGAIN))
    assert [title for title, *_ in reports].index(AGAIN) == len(traced(reports, FIRST))


def test_progress_goes_back_once_if_the_graph_is_captured_again(tmp_path):
    done = traced(reports_of(Large, tmp_path / "model.onnx"), FIRST)
    (again,) = (i for i in range(1, len(done)) if done[i] <= done[i - 1])
    first, second = done[:again], done[again:]
    assert rises(first)
    assert 20 < first[-1] < 40, "one of four passes"
    assert is_complete([0, *second])


def test_a_network_that_only_dynamo_captures_is_exported_with_its_progress(tmp_path):
    done = traced(reports_of(OnlyDynamo, tmp_path / "model.onnx"), FIRST)
    assert rises(done)
    assert (done[0], done[-1]) == (0, 100)


@pytest.mark.parametrize(
    "network", [Plain, *(pytest.param(each, marks=pytest.mark.slow) for each in (OneSize, Large, OnlyDynamo))]
)
def test_the_file_is_the_same_as_without_progress(tmp_path, monkeypatch, network):
    export_model(model_of(network), tmp_path / "with.onnx", 64)
    monkeypatch.setattr(export.network, "report_steps", lambda *_: nullcontext())
    export_model(model_of(network), tmp_path / "without.onnx", 64)
    assert (tmp_path / "with.onnx").read_bytes() == (tmp_path / "without.onnx").read_bytes()


def test_dynamo_finds_nothing_to_do_in_the_counting():
    network, example = Plain(), torch.zeros(2, 3, 8, 8)
    bar = Bar(Console(file=io.StringIO(), force_terminal=True), keep=False)
    with report_steps(network, example, FIRST, bar):
        with pytest.raises(RuntimeError, match="channels"):
            network(torch.zeros(2, 4, 8, 8))  # the exporter tries Dynamo when its first way has failed
        compiled = torch.compile(network, backend="eager", fullgraph=True)(example)
    assert torch.equal(compiled, network(example))


def test_a_network_says_nothing_after_its_export():
    network, example, reports = Plain(), torch.zeros(2, 3, 8, 8), []
    with report_steps(network, example, FIRST, lambda *step: reports.append(step)):
        network(example)
    assert [done for _, done, _ in reports] == [0, *range(13, 39), 100]
    network(example)
    assert reports[-1] == (FIRST, 100, 100)


def test_a_network_whose_operations_cannot_be_counted_beforehand_is_exported(tmp_path):
    model, reports = model_of(Shy), []

    def report(*step):
        reports.append(step)
        model.network.exported = step[0] != FIRST or step[1] == 100

    export_model(model, tmp_path / "model.onnx", 64, progress=report)
    assert [step for step in reports if step[0] == FIRST] == [(FIRST, 0, 100), (FIRST, 100, 100)]
    assert onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
