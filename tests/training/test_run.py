"""A run is put together from its data, network and method."""

import threading

import pytest
import torch

from densecal.data.scenes import generate, write
from densecal.errors import InputError
from densecal.kernels.graphs import _ReplayedForward, replay
from densecal.training import run as run_module
from densecal.training.run import assemble, create_fabric, open_run
from densecal.training.samples import open_data
from tests.training.common import small_config


def test_a_network_built_while_data_are_opened_has_the_same_weights():
    config = small_config()
    runs = [open_run(config, create_fabric(config)), assemble(config, create_fabric(config), open_data(config.data))]
    one, other = (run.network.state_dict() for run in runs)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)
    assert runs[0].data.train.names == runs[1].data.train.names


def test_the_network_is_built_while_the_data_are_opened(monkeypatch):
    built = threading.Event()
    build = run_module.initial_network

    def build_and_announce(*arguments):
        network = build(*arguments)
        built.set()
        return network

    def wait_and_open(*arguments):
        assert built.wait(300), "the network is not built before the data are open"
        return open_data(*arguments)

    monkeypatch.setattr(run_module, "initial_network", build_and_announce)
    monkeypatch.setattr(run_module, "open_data", wait_and_open)
    config = small_config()
    open_run(config, create_fabric(config))


def test_missing_images_are_reported_first_then_the_network_before_images_are_packed(monkeypatch, tmp_path):
    write(generate(4, 32, 0), tmp_path / "scenes")

    def pack(*_):
        raise AssertionError("images were packed")

    monkeypatch.setattr(run_module, "open_data", pack)
    for weights in ("model.arch=nothing", f"model.weights={tmp_path / 'missing.pth'}"):
        config = small_config("data.scenes=null", f"data.images={tmp_path / 'scenes'}", "data.validation=1", weights)
        with pytest.raises(
            InputError, match=r"architecture: 'nothing'; expected one of .*unet|missing.pth: no such file"
        ):
            open_run(config, create_fabric(config))
        config = small_config("data.scenes=null", f"data.images={tmp_path / 'elsewhere'}", weights)
        with pytest.raises(InputError, match="elsewhere"):
            open_run(config, create_fabric(config))


@pytest.mark.parametrize("ema", [0, 0.9])
def test_the_validated_network_replays_its_predictions(monkeypatch, ema):
    monkeypatch.setattr(run_module, "accelerate", lambda network, **_: replay(network, training=True) or network)
    config = small_config(f"optim.ema={ema}")
    run = assemble(config, create_fabric(config), open_data(config.data))
    assert isinstance(run.kept_network.forward, _ReplayedForward)
    assert run.kept_network.forward._network is run.kept_network
    assert (run.kept_network is run.network) == (ema == 0)


def test_a_network_is_rehearsed_before_training(monkeypatch):
    calls = []
    monkeypatch.setattr(run_module, "_is_replayed", lambda *_: True)
    monkeypatch.setattr(run_module, "rehearse", lambda network, images: calls.append((network, images.shape)))
    config = small_config("optim.batch=5")
    run = open_run(config, create_fabric(config))
    assert calls == [(run.network, (2, 3, config.data.size, config.data.size))]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([], {"training": True, "kernels": True, "graphs": False}),
        (["engine.kernels=false"], {"training": True, "kernels": False, "graphs": False}),
    ],
)
def test_the_switches_of_the_engine_reach_the_kernels(monkeypatch, settings, expected):
    calls = []
    monkeypatch.setattr(run_module, "accelerate", lambda network, **options: calls.append(options) or network)
    config = small_config(*settings)
    assemble(config, create_fabric(config), open_data(config.data))
    assert calls == [expected]
