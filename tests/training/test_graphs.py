"""Predictions replayed by CUDA graphs; graphs are played here, operation by operation on a CPU."""

import contextlib
import copy
import pickle
import types

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from densecal.training import graphs
from densecal.training.graphs import EAGER_BATCHES, replay_inference


class PlayedGraph:
    """A graph that does its operations again, on the memory that they had."""

    made = 0

    def __init__(self):
        PlayedGraph.made += 1
        self.operations = []

    def replay(self):
        for operation, given, named, found in self.operations:
            again = operation(*given, **named)
            if again.data_ptr() != found.data_ptr():
                found.copy_(again)


class Recorder(TorchDispatchMode):
    def __init__(self, graph):
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(self, operation, types, given=(), named=None):
        found = operation(*given, **(named or {}))
        self.graph.operations.append((operation, given, named or {}, found))
        return found


@contextlib.contextmanager
def play(graph, stream, capture_error_mode):
    assert capture_error_mode == "thread_local"
    with Recorder(graph):
        yield
    for *_, found in graph.operations:  # what a recording computes is not there before it is replayed
        found.fill_(torch.nan)


@pytest.fixture
def network(monkeypatch):
    """A small network that replays its predictions."""
    free = types.SimpleNamespace(share=0.9)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", PlayedGraph)
    monkeypatch.setattr(torch.cuda, "graph", play)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (int(free.share * 1000), 1000))
    PlayedGraph.made = 0
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3, bias=False), nn.Hardtanh(0, 6), nn.Conv2d(4, 1, 1, bias=False)
    network = nn.Sequential(*layers).eval()
    network.free = free
    replay_inference(network)
    return network


def plain(network, images):
    with torch.no_grad():
        return nn.Sequential.forward(network, images)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_replayed_predictions_are_those_of_the_network(network, mode):
    kept = []
    with mode():
        for seed in range(6):
            images = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
            kept.append((network(images), plain(network, images)))
    for found, expected in kept:  # none is overwritten by those after it
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert PlayedGraph.made == 1


def test_a_recording_made_for_inference_serves_without_it(network):
    images = torch.rand(2, 3, 8, 8)
    with torch.inference_mode():
        for _ in range(EAGER_BATCHES + 1):
            network(images)
    with torch.no_grad():
        torch.testing.assert_close(network(images), plain(network, images))
    assert PlayedGraph.made == 1


def test_weights_that_have_changed_are_seen(network):
    images = torch.rand(2, 3, 8, 8)
    with torch.no_grad():
        before = [network(images) for _ in range(EAGER_BATCHES + 1)][-1]
        network.load_state_dict({name: 2 * value for name, value in network.state_dict().items()})
        after = network(images)
    torch.testing.assert_close(after, plain(network, images))
    assert not torch.allclose(before, after)


def test_shapes_layouts_and_precisions_have_recordings_of_their_own(network):
    images = torch.rand(2, 3, 8, 8)
    kinds = [images, images[:1], images.contiguous(memory_format=torch.channels_last)]
    with torch.no_grad():
        for _ in range(EAGER_BATCHES + 2):
            for kind in kinds:
                torch.testing.assert_close(network(kind), plain(network, kind))
    assert PlayedGraph.made == len(kinds)


def test_a_shape_that_comes_seldom_is_not_recorded(network):
    with torch.no_grad():
        for _ in range(EAGER_BATCHES):
            network(torch.rand(2, 3, 8, 8))
    assert PlayedGraph.made == 0


def test_nothing_is_recorded_where_memory_is_short(network):
    network.free.share = 0.4
    images = torch.rand(2, 3, 8, 8)
    with torch.no_grad():
        for _ in range(EAGER_BATCHES + 2):
            torch.testing.assert_close(network(images), plain(network, images))
    assert PlayedGraph.made == 0


def test_gradients_and_training_go_their_own_way(network):
    images = torch.rand(2, 3, 8, 8)
    for _ in range(EAGER_BATCHES + 2):
        network(images).sum().backward()
    assert network[0].weight.grad is not None
    network.train()
    with torch.no_grad():
        for _ in range(EAGER_BATCHES + 2):
            network(images)
    assert PlayedGraph.made == 0


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda network: pickle.loads(pickle.dumps(network))])
def test_a_copy_has_its_own_weights_and_recordings(network, copied):
    images = torch.rand(2, 3, 8, 8)
    with torch.no_grad():
        for _ in range(EAGER_BATCHES + 1):
            network(images)
        other = copied(network)
        other[0].weight.zero_()
        for _ in range(EAGER_BATCHES + 2):
            assert not other(images).any()
            torch.testing.assert_close(network(images), plain(network, images))


def test_autocast_remembers_no_weights_while_a_graph_is_recorded(network, monkeypatch):
    remembered = []
    record = graphs._Recording

    class Watched(record):
        def __init__(self, eager, images):
            def watched(images):
                remembered.append(torch.is_autocast_cache_enabled())
                return eager(images)

            super().__init__(watched, images)

    monkeypatch.setattr(graphs, "_Recording", Watched)
    with torch.no_grad():
        for _ in range(EAGER_BATCHES + 1):
            network(torch.rand(2, 3, 8, 8))
    assert remembered == [False]
    assert torch.is_autocast_cache_enabled()
