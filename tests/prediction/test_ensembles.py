"""Deep ensembles and MC dropout: the mean probability without overflow, and only dropout switched on."""

import contextlib
import copy
import itertools

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.special import expit, softmax
from torch import nn

from densecal.errors import InputError
from densecal.models import build
from densecal.models.dropout import add_dropout
from densecal.prediction.ensembles import load_ensemble, logits_of_mean, mc_dropout, mean_logits, with_mc_dropout
from densecal.prediction.predictor import Predictor, load_predictor
from densecal.training import checkpoint
from tests.running import run
from tests.training.common import small_config

ARCHITECTURES = {
    "unet": {"decoder_channels": (16, 16, 8, 8, 8)},
    "fpn": {"decoder_pyramid_channels": 16, "decoder_segmentation_channels": 32},
    "deeplabv3plus": {"decoder_channels": 16},
    "paper-unet": {"channels": 8},
}


def small(arch="unet", **options):
    torch.manual_seed(0)
    return build(arch, "resnet18", **ARCHITECTURES[arch], **options).eval()


def images(n=2, size=32):
    return torch.rand(n, 3, size, size, generator=torch.Generator().manual_seed(1))


# ------------------------------------------------------------------ the mean probability


def test_binary_mean_is_that_of_the_sigmoids():
    z = np.random.default_rng(0).normal(scale=4, size=(5, 2, 1, 7, 6))
    mean = logits_of_mean(torch.tensor(member) for member in z)
    np.testing.assert_allclose(expit(mean.numpy()), expit(z).mean(axis=0), atol=1e-14)


def test_class_mean_is_that_of_the_softmaxes():
    z = np.random.default_rng(0).normal(scale=4, size=(3, 2, 4, 7, 6))
    mean = logits_of_mean(torch.tensor(member) for member in z)
    np.testing.assert_allclose(softmax(mean.numpy(), axis=1), softmax(z, axis=2).mean(axis=0), atol=1e-14)


@pytest.mark.parametrize("channels", [1, 3])
def test_extreme_logits_stay_finite_and_one_member_is_itself(channels):
    z = torch.randn(2, channels, 5, 5) * 300
    mean = logits_of_mean([z, -z])
    assert mean.isfinite().all()
    alone = logits_of_mean([z])
    squash = torch.sigmoid if channels == 1 else lambda x: x.softmax(dim=1)
    torch.testing.assert_close(squash(alone), squash(z))
    if channels == 1:
        torch.testing.assert_close(mean, torch.zeros_like(mean), atol=1e-4, rtol=0)
        torch.testing.assert_close(alone, z)


def test_members_may_be_any_functions_and_there_must_be_one():
    logits = mean_logits([lambda x: x[:, :1], lambda x: -x[:, :1]])
    torch.testing.assert_close(logits(images()), torch.zeros(2, 1, 32, 32))
    with pytest.raises(ValueError, match="at least one member"):
        logits_of_mean([])


# ------------------------------------------------------------------ dropout


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_dropout_changes_no_key_and_nothing_at_test_time(arch):
    plain, dropping = small(arch), small(arch, dropout=0.5)
    assert list(plain.state_dict()) == list(dropping.state_dict())
    dropping.load_state_dict(plain.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(dropping(images()), plain(images()))
        draws = torch.stack([mc_dropout(dropping, 1, seed)(images()) for seed in range(4)])
    assert (draws.std(dim=0) > 0).float().mean() > 0.9


def test_a_copy_of_the_network_has_a_dropout_of_its_own():
    model = small(dropout=0.5)
    twin = copy.deepcopy(model)
    model.train()
    torch.testing.assert_close(twin(images()), twin(images()))


def test_dropout_trains_in_a_compiled_graph():
    class Features(nn.Conv2d):
        def forward(self, x):
            return [super().forward(x), 2 * super().forward(x)]

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = Features(3, 4, 1)

        def forward(self, x):
            return sum(self.encoder(x)).sum(dim=1, keepdim=True)

    model = Network().train()
    add_dropout(model, 0.5)
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=False)
    outputs = []
    for network, seed in ((compiled, 0), (model, 0), (compiled, 1)):
        torch.manual_seed(seed)
        with torch.no_grad():
            outputs.append(network(images()))
    torch.testing.assert_close(outputs[0], outputs[1])
    assert not torch.allclose(outputs[0], outputs[2])


class Maps(nn.Module):
    """A network whose encoder hands on two feature maps of ones, of 40 and 60 channels."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Module()
        self.encoder.forward = lambda: [torch.ones(5, 40, 4, 4), torch.ones(5, 60, 2, 2)]


def test_whole_channels_of_every_map_are_dropped_and_the_others_scaled_up():
    network = Maps().train()
    add_dropout(network, 0.25)
    torch.manual_seed(0)
    for dropped, shape in zip(network.encoder(), ((5, 40, 4, 4), (5, 60, 2, 2)), strict=True):
        assert dropped.shape == shape
        channels = dropped.flatten(2)
        assert torch.equal(channels, channels[:, :, :1].expand_as(channels)), "a channel is kept or dropped as a whole"
        torch.testing.assert_close(channels.unique(), torch.tensor([0.0, 1 / 0.75]))
        assert float((channels == 0).float().mean()) == pytest.approx(0.25, abs=0.1)
        assert len(channels[:, :, 0].unique(dim=0)) == 5, "every image loses channels of its own"


@pytest.mark.parametrize("p", [0, 0.0])
def test_a_share_of_zero_adds_no_dropout(p):
    network = Maps().train()
    add_dropout(network, p)
    assert not [module for module in network.modules() if isinstance(module, nn.Dropout2d)]
    assert all((feature == 1).all() for feature in network.encoder())


@pytest.mark.parametrize("p", [1.0, 1, -0.1, "a lot", True])
def test_an_error_names_a_wrong_share(p):
    with pytest.raises(ValueError, match="dropout is"):
        build("unet", "resnet18", dropout=p)


# ------------------------------------------------------------------ MC dropout


class Tiny(nn.Module):
    """Batch norm and dropout, so that it shows which of them is on."""

    def __init__(self):
        super().__init__()
        self.norm, self.dropout, self.idle = nn.BatchNorm2d(3), nn.Dropout(0.4), nn.Dropout(0.0)

    def forward(self, x):
        return self.dropout(self.norm(x)).sum(dim=1, keepdim=True)


def test_only_dropout_is_on_and_everything_is_restored_afterwards():
    network = Tiny().eval()
    before = copy.deepcopy(network.state_dict())
    modes = [module.training for module in network.modules()]
    state = torch.get_rng_state()
    x = images()
    mc_dropout(network, 3)(x)
    assert [module.training for module in network.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    for key, value in network.state_dict().items():
        assert torch.equal(value, before[key]), key


def test_draws_come_from_the_seed_and_are_averaged_as_probabilities():
    network, x = Tiny().eval(), images()
    found = mc_dropout(network, 4, seed=7)(x)
    torch.testing.assert_close(found, mc_dropout(network, 4, seed=7)(x))
    assert not torch.equal(found, mc_dropout(network, 4, seed=8)(x))
    torch.manual_seed(7)
    network.dropout.train()
    draws = torch.stack([network(x).sigmoid() for _ in range(4)])
    torch.testing.assert_close(found.sigmoid(), draws.mean(dim=0))


class RecordingNetwork(nn.Module):
    """Keeps what every pass gave."""

    def __init__(self):
        super().__init__()
        self.dropout, self.passes = nn.Dropout(0.5), []

    def forward(self, x):
        self.passes.append(self.dropout(x)[:, :1])
        return self.passes[-1]


def test_every_pass_draws_anew_and_every_call_draws_the_same_passes():
    network, x = RecordingNetwork().eval(), images()
    drawing = mc_dropout(network, 5, seed=3)
    drawing(x)
    first, network.passes = network.passes, []
    assert len(first) == 5
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(first, 2))
    torch.rand(7)  # whatever else was drawn in between
    drawing(x)
    assert all(torch.equal(a, b) for a, b in zip(first, network.passes, strict=True))
    network.passes = []
    mc_dropout(network, 5, seed=4)(x)
    assert all(not torch.equal(a, b) for a in first for b in network.passes)


def test_ten_passes_are_drawn_from_seed_0_unless_told_otherwise():
    network, x = RecordingNetwork().eval(), images()
    found = mc_dropout(network)(x)
    assert len(network.passes) == 10
    assert torch.equal(found, mc_dropout(network, 10, 0)(x))
    one = Predictor(network, small_config(), torch.device("cpu"))
    assert torch.equal(with_mc_dropout(one).model(x), found)


def test_a_predictor_draws_as_many_passes_from_the_seed_as_asked_for():
    network, x = RecordingNetwork().eval(), images()
    one = Predictor(network, small_config(), torch.device("cpu"))
    assert torch.equal(with_mc_dropout(one, 3, seed=5).model(x), mc_dropout(network, 3, seed=5)(x))
    assert not torch.equal(with_mc_dropout(one, 3, seed=6).model(x), mc_dropout(network, 3, seed=5)(x))
    assert not any(module.training for module in with_mc_dropout(one).model.modules())


@pytest.mark.parametrize(
    "kind", [nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout]
)
def test_every_kind_of_dropout_is_switched_on(kind):
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.dropout = kind(0.5)

        def forward(self, x):
            flat = x.flatten(2) if kind is nn.Dropout1d else x[..., None] if kind is nn.Dropout3d else x
            return self.dropout(flat).reshape(x.shape)[:, :1]

    network, x = Network().eval(), images()
    found = mc_dropout(network, 1, seed=0)(x)
    assert not torch.allclose(found, network(x))
    assert not network.dropout.training


def test_layers_that_were_training_go_on_training_also_after_an_error():
    class Failing(Tiny):
        def forward(self, x):
            super().forward(x)
            raise RuntimeError("no memory")

    for network in (Tiny().train(), Failing().train()):
        network.norm.eval()
        modes = [module.training for module in network.modules()]
        state = torch.get_rng_state()
        with contextlib.suppress(RuntimeError):
            mc_dropout(network, 2)(images())
        assert [module.training for module in network.modules()] == modes
        assert torch.equal(torch.get_rng_state(), state)


def test_dropout_with_probability_zero_does_not_count():
    with pytest.raises(InputError, match="without dropout"):
        mc_dropout(nn.Sequential(nn.Dropout(0.0)))


def test_a_network_without_dropout_is_refused():
    with pytest.raises(InputError, match=r"without dropout; expected .*model\.options\.dropout"):
        mc_dropout(small())
    with pytest.raises(InputError, match="0 samples"):
        mc_dropout(Tiny(), 0)


# ------------------------------------------------------------------ runs


@pytest.fixture
def runs(tmp_path):
    """Three untrained runs: two alike but for the weights, one of another size; and a folder of images."""
    paths = []
    for name, size in (("a", 32), ("b", 32), ("large", 64)):
        config = small_config(f"data.size={size}", "model.options.dropout=0.3")
        torch.manual_seed(len(paths))
        model = build(config.model.arch, config.model.encoder, None, 1, **config.model.options)
        meta = {"epoch": 1, "best": 1.0, "config": config.model_dump(mode="json")}
        checkpoint.save(tmp_path / name / "checkpoints" / "last", model.state_dict(), {}, {}, meta)
        paths.append(tmp_path / name)
    (tmp_path / "photos").mkdir()
    rng = np.random.default_rng(0)
    for i in range(3):
        pixels = rng.integers(0, 256, (40 + i, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{i}.png")
    return paths


def test_an_ensemble_of_runs_averages_their_probabilities(runs):
    x = images()
    members = [load_predictor(run, "cpu").model(x).sigmoid() for run in runs[:2]]
    together = load_ensemble(runs[:2], "cpu").model(x).sigmoid()
    torch.testing.assert_close(together, torch.stack(members).mean(dim=0))
    assert not torch.allclose(members[0], members[1])


def test_members_of_another_size_are_refused(runs):
    with pytest.raises(InputError, match=r"large.*64 pixels; expected 1 classes and 32 pixels"):
        load_ensemble(runs)


def test_predict_writes_the_maps_of_an_ensemble_and_of_mc_dropout(runs, tmp_path):
    def second_map(name, *options):
        out = tmp_path / "maps" / name
        options = ("--out", out, "--format", "npy", "--device", "cpu", *options)
        code, _, err = run("predict", runs[0], tmp_path / "photos", *options)
        assert code == 0, err
        return np.load(out / "1.npy")

    photos = [np.asarray(Image.open(path)) for path in sorted((tmp_path / "photos").iterdir())]
    ensemble = load_ensemble(runs[:2], "cpu").probabilities(photos)[1].numpy()
    np.testing.assert_allclose(second_map("ensemble", "--ensemble", runs[1]), ensemble, atol=1e-6)
    dropped = with_mc_dropout(load_predictor(runs[0], "cpu"), 5).probabilities(photos)[1].numpy()
    np.testing.assert_allclose(second_map("dropout", "--mc-dropout", 5), dropped, atol=1e-6)
    assert np.abs(second_map("plain") - dropped).max() > 1e-4


def test_the_error_about_a_run_without_dropout_takes_one_line(runs, tmp_path):
    config = small_config()
    model = build(config.model.arch, config.model.encoder, None, 1, **config.model.options)
    meta = {"epoch": 1, "best": 1.0, "config": config.model_dump(mode="json")}
    checkpoint.save(tmp_path / "none" / "checkpoints" / "last", model.state_dict(), {}, {}, meta)
    arguments = ("predict", tmp_path / "none", tmp_path / "photos", "--out", tmp_path / "m", "--mc-dropout", 3)
    code, _, err = run(*arguments)
    assert code == 2
    assert "without dropout" in err
