import threading

import pytest
import torch

from densecal.errors import InputError
from densecal.training import run as assembly
from densecal.training.run import assemble, fabric_of, initial_network, open_run, rehearse
from densecal.training.samples import open_data
from tests.training.common import small_config


def test_a_run_has_the_same_weights_whether_its_network_was_built_beside_the_data_or_after_them():
    config = small_config()
    runs = [open_run(config, fabric_of(config)), assemble(config, fabric_of(config), open_data(config.data))]
    one, other = (run.network.state_dict() for run in runs)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)
    assert runs[0].data.train.names == runs[1].data.train.names


def test_the_network_is_built_while_the_data_are_opened(monkeypatch):
    built = threading.Event()
    build = assembly.initial_network

    def announced(*given):
        network = build(*given)
        built.set()
        return network

    def slow(*given):
        assert built.wait(60), "data that wait for the network get it"
        return open_data(*given)

    monkeypatch.setattr(assembly, "initial_network", announced)
    monkeypatch.setattr(assembly, "open_data", slow)
    config = small_config()
    open_run(config, fabric_of(config))


def test_a_rehearsal_leaves_no_trace():
    config = small_config("model.options.dropout=0.5")
    fabric = fabric_of(config)
    network = initial_network(config, fabric.device)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    calls = []
    network.register_forward_hook(lambda *_: calls.append(network.training))
    torch.manual_seed(3)
    said = torch.rand(3)
    torch.manual_seed(3)
    rehearse(network, fabric, 2, config.data.size)
    assert calls == [True]
    assert torch.equal(torch.rand(3), said)
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    assert all(weight.grad is None for weight in network.parameters())


def test_problems_of_the_data_and_of_the_network_are_told_and_those_of_the_data_first(monkeypatch):
    config = small_config("model.arch=nothing")
    with pytest.raises(InputError, match=r"architecture: 'nothing'; expected one of .*unet"):
        open_run(config, fabric_of(config))

    def missing(*_):
        raise InputError("data", "nothing", "something")

    monkeypatch.setattr(assembly, "open_data", missing)
    with pytest.raises(InputError, match="data: "):
        open_run(config, fabric_of(config))


@pytest.mark.parametrize("ema", [0, 0.9])
def test_predictions_are_replayed_by_the_network_that_is_validated_and_before_its_training_is(monkeypatch, ema):
    replayed = []
    monkeypatch.setattr(assembly, "_is_replayed", lambda *_: True)
    for kind in ("inference", "training"):
        monkeypatch.setattr(assembly, f"replay_{kind}", lambda network, kind=kind: replayed.append((kind, network)))
    config = small_config(f"optim.ema={ema}", "engine.fused=false")
    run = assemble(config, fabric_of(config), open_data(config.data))
    assert replayed == [("inference", run.kept_network), ("training", run.network)]
    assert (run.kept_network is run.network) == (ema == 0)
