"""CUDA graphs of predictions and training steps. Here graphs are simulated on a CPU, operation by operation."""

import contextlib
import copy
import pickle
import time
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from densecal import kernels
from densecal.kernels import accelerate, graphs, rehearse
from densecal.kernels.graphs import EAGER_BATCHES, MAX_RECORDINGS, _ReplayedForward, replay
from densecal.prediction import predictor as prediction
from densecal.prediction.ensembles import mc_dropout
from densecal.training.loop import train
from tests.training.common import small_config


class SimulatedGraph:
    """A graph that repeats its operations on the same memory."""

    created = 0

    def __init__(self):
        SimulatedGraph.created += 1
        self.operations = []

    def replay(self):
        for operation, args, kwargs, output in self.operations:
            result = operation(*args, **kwargs)
            if result.data_ptr() != output.data_ptr():
                output.copy_(result)


class Recorder(TorchDispatchMode):
    def __init__(self, graph):
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        output = operation(*args, **(kwargs or {}))
        self.graph.operations.append((operation, args, kwargs or {}, output))
        return output


@contextlib.contextmanager
def record(graph, stream, capture_error_mode):
    assert capture_error_mode == "thread_local"
    with Recorder(graph):
        yield
    for *_, output in graph.operations:  # a recording has no results before it is replayed
        output.fill_(torch.nan)


@pytest.fixture
def network(monkeypatch):
    """A small network that replays its predictions."""
    device = types.SimpleNamespace(free=0.9, stream=0)
    monkeypatch.setattr(graphs, "_DEVICES", ("cpu",))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", SimulatedGraph)
    monkeypatch.setattr(torch.cuda, "graph", record)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: device.stream)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (int(device.free * 1000), 1000))
    SimulatedGraph.created = 0
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3, bias=False), nn.Hardtanh(0, 6), nn.Conv2d(4, 1, 1, bias=False)
    network = nn.Sequential(*layers).eval()
    network.device = device
    replay(network, training=False)
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
    for logits, expected in kept:  # none is overwritten by later ones
        torch.testing.assert_close(logits, expected, rtol=0, atol=0)
    assert SimulatedGraph.created == 1


def test_a_recording_made_for_inference_serves_without_it(network):
    images = torch.rand(2, 3, 8, 8)
    with torch.inference_mode():
        for _ in range(EAGER_BATCHES + 1):
            network(images)
    with torch.no_grad():
        torch.testing.assert_close(network(images), plain(network, images))
    assert SimulatedGraph.created == 1


def test_changed_weights_are_used(network):
    images = torch.rand(2, 3, 8, 8)
    with torch.no_grad():
        before = [network(images) for _ in range(EAGER_BATCHES + 1)][-1]
        network.load_state_dict({name: 2 * value for name, value in network.state_dict().items()})
        after = network(images)
    torch.testing.assert_close(after, plain(network, images))
    assert not torch.allclose(before, after)


def use(network, images):
    """Predict until the prediction is recorded, and once more."""
    for _ in range(EAGER_BATCHES + 2):
        torch.testing.assert_close(network(images), plain(network, images))


@torch.no_grad()
def test_shapes_and_layouts_have_recordings_of_their_own(network):
    images = torch.rand(2, 3, 8, 8)
    kinds = [images, images[:1], images.contiguous(memory_format=torch.channels_last)]
    for kind in kinds:
        use(network, kind)
    assert SimulatedGraph.created == len(kinds)


@torch.no_grad()
def test_precisions_and_streams_have_recordings_of_their_own(network, monkeypatch):
    images = torch.rand(2, 3, 8, 8)
    use(network, images)
    network.device.stream = 1
    use(network, images)
    assert SimulatedGraph.created == 2
    use(network.double(), images.double())
    assert SimulatedGraph.created == 3
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda _: True)
    monkeypatch.setattr(graphs, "_uncached_autocast", contextlib.nullcontext)
    use(network, images.double())
    assert SimulatedGraph.created == 4


@torch.no_grad()
def test_there_are_a_few_recordings_at_most(network):
    for side in range(5, 5 + 2 * MAX_RECORDINGS):
        use(network, torch.rand(1, 3, side, 8))
    assert SimulatedGraph.created == MAX_RECORDINGS


@torch.no_grad()
def test_a_network_that_was_moved_off_the_device_computes_as_before(network, monkeypatch):
    monkeypatch.setattr(graphs, "_DEVICES", ("cuda",))
    use(network, torch.rand(2, 3, 8, 8))
    assert SimulatedGraph.created == 0


@torch.no_grad()
def test_a_network_that_cannot_be_recorded_warns_once_and_computes_as_before(network, monkeypatch):
    @contextlib.contextmanager
    def failing(*_, **__):
        SimulatedGraph.created += 1
        yield
        raise RuntimeError("no room")

    monkeypatch.setattr(torch.cuda, "graph", failing)
    images = torch.rand(2, 3, 8, 8)
    with pytest.warns(UserWarning, match="not replayed by a CUDA graph: no room"):
        use(network, images)
    use(network, images)
    assert SimulatedGraph.created == 2, "the graph, and one attempt to record it"


class Caching(nn.Module):
    """Caches a product of its weights between predictions, as attention layers of timm do."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.cached = None

    def train(self, mode=True):
        self.cached = None
        return super().train(mode)

    def forward(self, x):
        if self.cached is None:
            self.cached = 2 * self.weight
        return x + self.cached


@torch.no_grad()
def test_what_layers_cache_of_their_weights_is_computed_again(network):
    network.add_module("caching", Caching())
    network.eval()
    images = torch.rand(2, 3, 8, 8)
    use(network, images)
    for _ in range(2):
        network.train()
        network.caching.weight += 1
        network.eval()
        logits = network(images)
        network.eval()
        torch.testing.assert_close(logits, plain(network, images))
    assert SimulatedGraph.created == 1


def test_threads_do_not_get_each_others_predictions(network, monkeypatch):
    images = [torch.rand(2, 3, 8, 8) for _ in range(2)]
    expected = [plain(network, batch) for batch in images]
    with torch.no_grad():
        use(network, images[0])
    replay = SimulatedGraph.replay

    def slow(graph):
        time.sleep(0.02)
        replay(graph)

    monkeypatch.setattr(SimulatedGraph, "replay", slow)

    def predict(i):
        with torch.no_grad():
            return [network(images[i]) for _ in range(4)]

    with ThreadPoolExecutor(2) as threads:
        for i, predictions in enumerate(threads.map(predict, range(2))):
            for logits in predictions:
                torch.testing.assert_close(logits, expected[i])


def test_a_rare_shape_is_not_recorded(network):
    with torch.no_grad():
        for _ in range(EAGER_BATCHES):
            network(torch.rand(2, 3, 8, 8))
    assert SimulatedGraph.created == 0


def test_nothing_is_recorded_when_memory_is_short(network):
    network.device.free = 0.4
    images = torch.rand(2, 3, 8, 8)
    with torch.no_grad():
        for _ in range(EAGER_BATCHES + 2):
            torch.testing.assert_close(network(images), plain(network, images))
    assert SimulatedGraph.created == 0


def test_gradients_and_training_mode_are_not_replayed(network):
    images = torch.rand(2, 3, 8, 8)
    for _ in range(EAGER_BATCHES + 2):
        network(images).sum().backward()
    assert network[0].weight.grad is not None
    network.train()
    with torch.no_grad():
        for _ in range(EAGER_BATCHES + 2):
            network(images)
    assert SimulatedGraph.created == 0


def test_dropout_that_is_turned_on_draws_again(network):
    network.add_module("dropout", nn.Dropout(0.5).eval())
    images = torch.rand(2, 3, 8, 8)
    with torch.no_grad():
        for _ in range(EAGER_BATCHES + 1):
            network(images)
        mean = mc_dropout(network, samples=1)
        first = mean(images)
        assert torch.equal(mean(images), first), "draws depend on the seed alone"
        network.dropout.train()
        assert not torch.equal(network(images), network(images))
        network.dropout.eval()
        torch.testing.assert_close(network(images), plain(network, images))
    assert SimulatedGraph.created == 1
    assert (first == 0).any()


class OnDevice(nn.Sequential):
    """A network that claims to be on a device that this machine does not have."""

    def __init__(self, device):
        small, depthwise = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        super().__init__(small, depthwise, nn.Upsample(scale_factor=2), nn.Conv2d(8, 64, 1))
        self.device = torch.device(device)

    def parameters(self, recurse=True):
        if self.device.type == "cpu":
            return super().parameters(recurse)
        return iter([types.SimpleNamespace(device=self.device)])

    def replaced(self):
        return ["forward" in vars(layer) for layer in self]


def record_normalisation(monkeypatch):
    networks = []
    module = pytest.importorskip("densecal.kernels.normalisation")
    monkeypatch.setattr(module, "replace_normalisation", networks.append)
    return networks


@pytest.mark.parametrize(("device", "graphs", "replayed"), [("cuda", True, 1), ("cuda", False, 0), ("cpu", True, 0)])
def test_a_network_accelerated_for_prediction_is_replayed_on_cuda(device, graphs, replayed, monkeypatch):
    calls = []
    monkeypatch.setattr(kernels, "replay", lambda *arguments: calls.append(arguments))
    monkeypatch.setattr(kernels.importlib.util, "find_spec", lambda _: None)  # no Triton
    network = OnDevice(device)
    accelerate(network, training=False, graphs=graphs)
    assert calls == [(network, False)] * replayed


def test_a_network_accelerated_for_prediction_on_cuda_uses_our_kernels(monkeypatch):
    network = OnDevice("cuda")
    normalised = record_normalisation(monkeypatch)
    accelerate(network, training=False, graphs=False)
    assert normalised == [network]
    assert network.replaced() == [True, True, True, False]


@pytest.mark.parametrize(
    ("kernels", "graphs", "replaced"),
    [(True, True, [True, True, True, False]), (True, False, [False, False, True, False]), (False, True, [False] * 4)],
)
def test_a_network_trained_on_cuda_uses_the_kernels_that_save_time(monkeypatch, kernels, graphs, replaced):
    """Without graphs, only those of upsampling do."""
    network = OnDevice("cuda")
    normalised = record_normalisation(monkeypatch)
    assert accelerate(network, training=True, kernels=kernels, graphs=graphs) is network
    assert network.replaced() == replaced
    assert normalised == [network] * (kernels and graphs)
    assert isinstance(network.forward, _ReplayedForward) == graphs


def test_a_network_trained_on_a_cpu_is_left_alone():
    network = OnDevice("cpu")
    assert accelerate(network, training=True) is network
    assert network.replaced() == [False] * 4
    assert "forward" not in vars(network)


@pytest.mark.parametrize("graphs", [True, False])
def test_the_configuration_of_a_run_decides_whether_its_predictions_are_replayed(graphs, tmp_path, monkeypatch):
    config = small_config("method.name=bce", "optim.epochs=1", f"engine.graphs={graphs}")
    train(config, tmp_path)
    settings = []
    monkeypatch.setattr(prediction, "prepare_model", lambda model, device, graphs: settings.append(graphs) or model)
    prediction.load_predictor(tmp_path)
    assert settings == [graphs]


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


def test_autocast_caches_no_weights_while_a_graph_is_recorded(network, monkeypatch):
    cache_enabled = []

    class ObservedRecording(graphs._Recording):
        def __init__(self, eager, images):
            def observe(images):
                cache_enabled.append(torch.is_autocast_cache_enabled())
                return eager(images)

            super().__init__(observe, images)

    monkeypatch.setattr(graphs, "_Recording", ObservedRecording)
    with torch.no_grad():
        for _ in range(EAGER_BATCHES + 1):
            network(torch.rand(2, 3, 8, 8))
    assert cache_enabled == [False]
    assert torch.is_autocast_cache_enabled()


@pytest.fixture
def trained(network, monkeypatch):
    """Return the network, replaying its training steps, and a list of the shapes that were recorded."""
    recorded = []

    def simulate(network, images):
        forward = network.forward
        recorded.append(images[0].shape)
        network(images[0]).sum().backward()
        network.forward = lambda images: forward(images)

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", simulate)
    del network.forward
    replay(network, training=True)
    return network.train(), recorded


def test_training_steps_are_recorded_once_per_shape_and_apart_from_predictions(trained):
    network, recorded = trained
    for batch in (2, 2, 1, 2):
        images = torch.rand(batch, 3, 8, 8)
        torch.testing.assert_close(network(images), plain(network, images))
    assert [shape[0] for shape in recorded] == [2, 1]
    assert isinstance(network.forward, _ReplayedForward)
    with torch.no_grad():
        use(network.eval(), torch.rand(2, 3, 8, 8))
    assert len(recorded) == 2


def test_a_rehearsal_records_nothing_and_leaves_no_trace(trained):
    network, recorded = trained
    network.add_module("norm", nn.BatchNorm2d(1))
    before = {key: value.clone() for key, value in network.state_dict().items()}
    network.add_module("dropout", nn.Dropout(0.5))
    images = torch.rand(2, 3, 8, 8)
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    rehearse(network, images)
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    assert all(weight.grad is None for weight in network.parameters())
    assert recorded == []
    assert isinstance(network.forward, _ReplayedForward)
