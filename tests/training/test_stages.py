"""A second stage is a training of its own, which starts from the weights of a first stage, its own or another run's."""

import dataclasses
import json
import shutil
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from densecal.data.scenes import Scenes, generate
from densecal.errors import InputError, Preempted
from densecal.models.registry import ARCHITECTURES
from densecal.prediction.predictor import load_predictor
from densecal.training import loop, samples
from densecal.training.config import Config, load_config
from densecal.training.loop import train
from densecal.training.sections import MethodConfig
from tests.training.common import command, end_state, log_lines, run, run_here, run_signalled, small_config

TWO_STAGES = (
    "method.name=aslp-mc", "method.schedule=two-stage", "method.warmup=null", "method.lam=50", "method.eta=0.02",
)  # fmt: skip
PLAIN = ("method.name=bce",)


def two_stages(*overrides: str) -> Config:
    return small_config(*TWO_STAGES, "optim.epochs=2", *overrides)


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("plain") / "run"
    train(small_config(*PLAIN, "optim.epochs=2"), out)
    return out


def second_stage(out: Path) -> dict[str, bytes]:
    """Return the end of a run, with the log of its second stage only."""
    state = end_state(out)
    lines = [{k: v for k, v in line.items() if k != "images_per_second"} for line in log_lines(out)]
    state["log"] = json.dumps([line for line in lines if line["epoch"] > 2]).encode()
    # the best accuracy of stage one is known to a run that trained it, and is not used after the accuracy is frozen
    method = load_file(out / "checkpoints" / "last" / "method.safetensors")
    method.pop("best_accuracy")
    state["method.safetensors"] = b"".join(key.encode() + method[key].numpy().tobytes() for key in sorted(method))
    return state


@pytest.mark.parametrize("average", [[], ["optim.ema=0.7", "optim.ema_start=0.2"]])
def test_starting_from_a_run_equals_training_both_stages(tmp_path, average):
    train(two_stages(*average), tmp_path / "both")
    train(small_config(*PLAIN, "optim.epochs=2", *average), tmp_path / "plain")
    train(two_stages(*average), tmp_path / "second", start=tmp_path / "plain")
    assert second_stage(tmp_path / "second") == second_stage(tmp_path / "both")
    assert [line["epoch"] for line in log_lines(tmp_path / "second")] == [3, 4]
    assert max(load_file(tmp_path / "second/checkpoints/last/method.safetensors")["values"]) > 0


def test_the_checkpoints_name_the_run_they_started_from_and_its_accuracy(plain, tmp_path):
    train(two_stages(), tmp_path / "run", start=plain)
    meta = json.loads((tmp_path / "run/checkpoints/last/meta.json").read_text())
    assert (meta["first_stage"]["run"], meta["first_stage"]["epoch"]) == (str(plain), 2)
    assert meta["first_stage"]["accuracy"] == pytest.approx(log_lines(plain)[-1]["validation"]["accuracy"], rel=1e-6)
    assert log_lines(tmp_path / "run")[-1]["method"]["accuracy"] == pytest.approx(meta["first_stage"]["accuracy"])


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_the_second_stage_begins_with_fresh_optimizers_and_the_base_rate(tmp_path, monkeypatch, optimizer):
    seen, update = [], loop._update_weights

    def record(run, epoch, step, steps):
        state = run.optimizers["main"].state_dict()["state"]
        seen.append((epoch, step, bool(state)))
        update(run, epoch, step, steps)

    monkeypatch.setattr(loop, "_update_weights", record)
    train(two_stages(f"optim.optimizer={optimizer}", "optim.schedule=paper"), tmp_path / "run")
    assert [(epoch, step) for epoch, step, has_state in seen if not has_state] == [(0, 0), (2, 0)]
    assert [line["lr"] for line in log_lines(tmp_path / "run")] == [1e-3] * 4


def test_the_best_checkpoint_of_a_run_with_two_stages_is_of_the_second(tmp_path, monkeypatch):
    briers = iter([0.1, 0.2, 0.4, 0.3])
    validate = loop.validate
    monkeypatch.setattr(
        loop, "validate", lambda run, progress: dataclasses.replace(validate(run, progress), brier=next(briers))
    )
    train(two_stages(), tmp_path / "run")
    meta = json.loads((tmp_path / "run/checkpoints/best/meta.json").read_text())
    assert (meta["epoch"], meta["best"]) == (4, 0.3)


def mean_confidence_on_training_images(out: Path, config: Config, scenes: Scenes) -> float:
    """Return how sure a run's model is of the images whose labels were perturbed."""
    network = load_predictor(out, "cpu").model
    images = torch.from_numpy(scenes.images[: config.data.scenes.train]).permute(0, 3, 1, 2).float() / 255
    with torch.no_grad():
        return float((network(images).sigmoid() - 0.5).abs().mean() + 0.5)


def generate_scenes(config: Config) -> Scenes:
    s = config.data.scenes
    return generate(s.train + s.validation, config.data.size, s.seed, s.softness, s.doubtful, s.noise)


class PerPixel(nn.Module):
    """A network that can learn to copy a mask that it is shown, in a moment."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Tanh(), nn.Conv2d(4, 1, 1))

    def forward(self, images):
        return self.layers(images)


def test_the_confidence_follows_the_labels_in_the_second_stage(tmp_path, monkeypatch):
    if "per-pixel" not in ARCHITECTURES.names():
        ARCHITECTURES.register("per-pixel")(lambda encoder, classes: PerPixel())

    def generate_shown(*arguments):
        scenes = generate(*arguments)
        return dataclasses.replace(scenes, images=scenes.masks[..., None].repeat(3, 3))

    monkeypatch.setattr(samples, "generate", generate_shown)
    config = load_config("demo", [
        "data.size=32", "data.scenes.train=32", "data.scenes.validation=8", "model.arch=per-pixel", "model.options={}",
        "method={name: als, schedule: two-stage, eta: 0.01, lam: 20}", "optim.batch=4", "optim.epochs=30",
        "optim.lr=0.02", "optim.schedule=paper",
    ])  # fmt: skip
    train(config, tmp_path / "run")
    first, last = (log_lines(tmp_path / "run")[i] for i in (29, 59))
    labels = last["method"]["expected_confidence"]
    assert first["validation"]["mean_confidence"] > 0.98
    assert labels < 0.95  # the labels moved by several points
    assert last["validation"]["mean_confidence"] == pytest.approx(labels, abs=0.01)


@pytest.mark.slow
def test_the_confidence_of_a_whole_network_follows_the_labels(tmp_path):
    config = load_config("demo", [
        "data.size=64", "data.scenes={train: 32, validation: 8, doubtful: 0, softness: 0, noise: 0}", "optim.batch=8",
        "method={name: als, schedule: two-stage, eta: 0.02, lam: 30}", "optim.epochs=30", "optim.lr=3e-3",
        "model.options={decoder_channels: [32, 32, 24, 16, 16]}",
    ])  # fmt: skip
    plain = tmp_path / "plain"
    train(config.model_copy(update={"method": MethodConfig(name="bce")}), plain)
    train(config, tmp_path / "run", start=plain)
    scenes = generate_scenes(config)
    before, after = (mean_confidence_on_training_images(out, config, scenes) for out in (plain, tmp_path / "run"))
    labels = log_lines(tmp_path / "run")[-1]["method"]["expected_confidence"]
    assert before > labels + 0.04
    # a network is less sure than its labels where it is undecided: of clean labels by 1 - before
    assert after == pytest.approx(labels, abs=max(0.01, 1 - before))


class KilledError(Exception):
    pass


@pytest.mark.parametrize("epoch", [2, 3])
@pytest.mark.parametrize("average", [[], ["optim.ema=0.7", "optim.ema_start=0.2"]])
def test_a_second_stage_that_was_killed_ends_like_one_that_was_not(plain, tmp_path, monkeypatch, epoch, average):
    train(small_config(*PLAIN, "optim.epochs=2", *average), tmp_path / "plain")
    train(two_stages(*average), tmp_path / "whole", start=tmp_path / "plain")
    update = loop._update_weights

    def kill(run, at, step, steps):
        if (at, step) == (epoch, 1):
            raise KilledError
        update(run, at, step, steps)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "_update_weights", kill)
        with pytest.raises(KilledError):
            train(two_stages(*average), tmp_path / "parts", start=tmp_path / "plain")
    train(two_stages(*average), tmp_path / "parts", resume=True)  # it need not be told again where it started
    assert second_stage(tmp_path / "parts") == second_stage(tmp_path / "whole")


@pytest.mark.parametrize("step", [0, 2])
def test_a_second_stage_that_was_asked_to_stop_in_its_first_epoch_ends_like_one_that_was_not(
    tmp_path, monkeypatch, step
):
    train(two_stages(), tmp_path / "whole")
    update = loop._update_weights

    def stop(run, epoch, at, steps):
        update(run, epoch, at, steps)
        if (epoch, at) == (2, step):
            run.stop.set()

    with monkeypatch.context() as patch:
        patch.setattr(loop, "_update_weights", stop)
        with pytest.raises(Preempted):
            train(two_stages(), tmp_path / "parts")
    train(two_stages(), tmp_path / "parts", resume=True)
    assert end_state(tmp_path / "parts") == end_state(tmp_path / "whole")


def test_a_process_killed_in_its_second_stage_resumes(plain, tmp_path):
    out, whole = tmp_path / "run", tmp_path / "whole"
    overrides = [
        "data.size=32", "data.scenes.train=18", "data.scenes.validation=6", "optim.batch=4", "optim.epochs=2",
        "model.encoder=test_efficientnet", "model.options={decoder_channels: [16, 16, 8, 8, 8]}", *TWO_STAGES,
        "optim.second_epochs=8",
    ]  # fmt: skip
    arguments = [*command("train", "demo", *overrides), "--from", str(plain), "--out"]
    ended = run_signalled([*arguments, str(out)], out, signal.SIGKILL, 1)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    done = run_here([*arguments, str(out), "--resume"])
    assert done.returncode == 0, done.stderr
    assert "validation on 6 images" in done.stdout
    assert run_here([*arguments, str(whole)]).returncode == 0
    assert second_stage(out) == second_stage(whole)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.size=48", "data.size = 32, not 48"),
        ("data.scenes.seed=5", "data.scenes = "),
        ("data.scenes.validation=5", "data.scenes = "),
        ("model.encoder=resnet10t", "model.encoder = 'test_efficientnet', not 'resnet10t'"),
        ("model.options={decoder_channels: [16, 16, 8, 8, 4]}", "model.options = "),
        ("model.arch=fpn", "model.arch = 'unet', not 'fpn'"),
        ("method.loss.dice=1", "method.loss = {'bce': 1}, not {'dice': 1}"),
    ],
)
def test_a_run_with_another_network_data_or_split_is_refused(plain, tmp_path, override, message):
    with pytest.raises(InputError) as error:
        train(two_stages(override), tmp_path / "run", start=plain)
    assert str(error.value).startswith(f"{plain}: a run with ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_split_with_other_names_is_refused(plain, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(plain, other)
    meta = other / "checkpoints/last/meta.json"
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"samples": "0"}))
    with pytest.raises(InputError, match="a run on other images, or on another split of them"):
        train(two_stages(), tmp_path / "run", start=other)
    assert not (tmp_path / "run").exists()


def test_only_a_finished_run_of_cross_entropy_can_be_started_from(plain, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(plain, other)
    meta = other / "checkpoints/last/meta.json"
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"epoch": 1}))
    with pytest.raises(InputError, match="a run after 1 of 2 epochs; expected a finished run"):
        train(two_stages(), tmp_path / "run", start=other)
    train(small_config("optim.epochs=2"), tmp_path / "aslp")
    with pytest.raises(InputError, match="a run of aslp-mc; expected a run of bce"):
        train(two_stages(), tmp_path / "run", start=tmp_path / "aslp")
    with pytest.raises(InputError, match=r"without a second stage.*expected method\.schedule=two-stage"):
        train(small_config(), tmp_path / "run", start=plain)
    with pytest.raises(InputError, match="no such folder"):
        train(two_stages(), tmp_path / "run", start=tmp_path / "nowhere")


def test_a_run_is_not_resumed_as_if_it_had_started_elsewhere(plain, tmp_path):
    out = tmp_path / "run"
    train(two_stages(), out)
    with pytest.raises(InputError, match="a run with a first stage of its own; expected another folder"):
        train(two_stages(), out, resume=True, start=plain)
    train(two_stages(), tmp_path / "second", start=plain)
    train(small_config(*PLAIN, "optim.epochs=2", "engine.seed=3"), tmp_path / "other")
    with pytest.raises(InputError, match="a run that started from"):
        train(two_stages(), tmp_path / "second", resume=True, start=tmp_path / "other")
    assert train(two_stages(), tmp_path / "second", resume=True, start=plain) is None


def test_runs_of_before_resume_whatever_their_second_stage_would_have_been(tmp_path):
    """A run without a second stage does not change with the default of its length."""
    out = tmp_path / "run"
    config = small_config(*PLAIN, "optim.epochs=1")
    train(config, out)
    text = (out / "config.yaml").read_text()
    assert "second_epochs: null" in text
    (out / "config.yaml").write_text(text.replace("second_epochs: null", "second_epochs: 10"))
    assert train(config, out, resume=True) is None


@pytest.mark.filterwarnings("ignore")
def test_the_command_says_in_one_line_what_does_not_fit(plain, tmp_path):
    done = run([*command("train", "demo", "method={name: bce}"), "--from", str(plain), "--out", str(tmp_path / "run")])
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "without a second stage" in done.stderr
