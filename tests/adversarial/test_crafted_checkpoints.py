"""A crafted checkpoint is refused on `--resume` in one line, before any of it is loaded."""

import copy
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

from densecal.errors import InputError, Preempted
from densecal.training import checkpoint
from densecal.training.config import dump_config
from densecal.training.loop import train
from densecal.training.restoring import restore
from densecal.training.run import assemble, create_fabric
from densecal.training.samples import open_data
from tests.training.common import run, small_config, train_command

SETTINGS = ("optim.ema=0.9",)


@pytest.fixture(scope="module", params=["adam", "sgd"])
def stopped(request, tmp_path_factory):
    """A run that was stopped inside an epoch, and what its checkpoint holds."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    config = small_config(*SETTINGS, f"optim.optimizer={request.param}")

    def stop(title, done, *_, **__):
        if (title, done) == ("Epoch 2 of 3", 2):
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Preempted):
        train(config, out, progress=stop)
    return assemble(config, create_fabric(config), open_data(config.data)), checkpoint.load(
        out / "checkpoints" / "last"
    )


def content(opened) -> list[bytes]:
    """Return everything that a checkpoint may change."""
    modules = (opened.network, opened.average.network, opened.method)
    states = [state for optimizer in opened.optimizers.values() for state in optimizer.state.values()]
    tensors = [*(module.state_dict() for module in modules), *states, {"random": torch.get_rng_state()}]
    return [value.numpy().tobytes() for part in tensors for value in part.values()]


def entry(saved) -> dict:
    """Return the state of the first parameter in `optimizer.pt`."""
    return saved.optimizer["main"]["state"][0]


def moment(saved) -> str:
    return "exp_avg" if "exp_avg" in entry(saved) else "momentum_buffer"


def change(key, make):
    """Replace the tensor `key`, or a moment of the optimizer, by another."""

    def craft(saved):
        name = moment(saved) if key == "moment" else key
        entry(saved)[name] = make(entry(saved).get(name, torch.tensor(1.0)))

    return craft


def replace_at(path, value):
    def craft(saved):
        *parents, last = path
        target = saved.optimizer
        for key in parents:
            target = target[key]
        target[last] = value(target[last]) if callable(value) else value

    return craft


def set_generator(left, position):
    def craft(saved):
        state = saved.optimizer["place"]["random"][0]
        state.numpy()[8:12].view(np.int32)[0] = left
        state.numpy()[16:24].view(np.uint64)[0] = position

    return craft


CRAFTED = {
    "a moment of another shape": (change("moment", lambda _: torch.zeros(7, 7)), "shape (7, 7)"),
    "a moment of as many numbers": (change("moment", lambda x: x.flatten()), "of shape"),
    "a moment of another type": (change("moment", lambda x: x.double()), "float64"),
    "a sparse moment": (change("moment", lambda x: x.to_sparse()), "sparse_coo"),
    "a moment without memory": (change("moment", lambda x: x.to("meta")), "on meta"),
    "a number for a moment": (change("moment", lambda _: 0.5), "a float"),
    "an unknown entry": (change("more", lambda x: x), "more"),
    "no moment": (lambda saved: entry(saved).pop(moment(saved)), "state 0"),
    "an unknown parameter": (replace_at(("main", "state"), lambda x: {**x, 10_000: x[0]}), "state 10000"),
    "a parameter that is not a number": (replace_at(("main", "state"), lambda x: {**x, "a": x[0]}), "'a'"),
    "a list for the state": (replace_at(("main", "state"), []), "a list"),
    "no groups": (replace_at(("main", "param_groups"), []), "groups of parameters"),
    "other parameters": (replace_at(("main", "param_groups", 0, "params"), lambda x: x[::-1]), "other parameters"),
    "a tensor of parameters": (replace_at(("main", "param_groups", 0, "params"), torch.tensor), "other parameters"),
    "a learning rate of text": (replace_at(("main", "param_groups", 0, "lr"), "0.1"), "lr: '0.1'"),
    "a weight decay of NaN": (replace_at(("main", "param_groups", 0, "weight_decay"), float("nan")), "weight_decay"),
    "unfused": (replace_at(("main", "param_groups", 0, "fused"), "no"), "fused: 'no'"),
    "another optimizer": (lambda saved: saved.optimizer.update(other=saved.optimizer["main"]), "entries main, other"),
    "no optimizer": (lambda saved: saved.optimizer.pop("main"), "optimizer.pt: entries"),
    "a list for an optimizer": (replace_at(("main",), []), "main: damaged"),
    "no weights": (lambda saved: saved.optimizer.pop("weights"), "weights: no tensor"),
    "weights of another shape": (
        replace_at(("weights",), lambda w: {**w, next(iter(w)): torch.zeros(3)}), "shape (3,)"
    ),
    "more weights": (replace_at(("weights",), lambda w: {**w, "x": torch.zeros(3)}), "unknown tensor x"),
    "a step before the epoch": (replace_at(("place", "step"), -1), "step: -1"),
    "a step after the epoch": (replace_at(("place", "step"), 10**9), "step: 1000000000"),
    "half a step": (replace_at(("place", "step"), 1.5), "step: 1.5"),
    "true for a step": (replace_at(("place", "step"), True), "step: True"),
    "fewer losses than steps": (replace_at(("place", "losses"), lambda x: x[:1]), "losses"),
    "losses of NaN": (replace_at(("place", "losses"), lambda x: x * float("nan")), "NaN"),
    "no random state": (replace_at(("place", "random"), []), "random"),
    "a short random state": (replace_at(("place", "random", 0), lambda x: x[:100]), "uint8 of shape (100,)"),
    "a random state of floats": (replace_at(("place", "random", 0), lambda x: x.float()), "float32"),
    "random numbers from beyond the end": (set_generator(624, 624), "word 624 with 624 left"),
    "random numbers from far away": (set_generator(1, 2**40), "word 1099511627776"),
    "a position of another form": (replace_at(("place",), [1]), "place: damaged"),
    "a model of another shape": (lambda saved: saved.model.update({next(iter(saved.model)): torch.zeros(2)}), "(2,)"),
    "half a model": (lambda saved: saved.model.pop(next(iter(saved.model))), "model.safetensors: no tensor"),
    "a method for fewer images": (lambda saved: saved.method.update(values=torch.zeros(3)), "values: float32"),
    "a method of another type": (lambda saved: saved.method.update(visits=torch.zeros(3)), "visits: float32"),
    "a method with more state": (lambda saved: saved.method.update(x=torch.zeros(3)), "unknown tensor x"),
}  # fmt: skip
ADAM_ONLY = {
    "a step that is not a number": (change("step", lambda _: "2"), "a str"),
    "steps before the first": (change("step", lambda _: torch.tensor(-1.0)), "-1.0"),
    "more steps than the run has done": (change("step", lambda x: x + 1), "from 1 to 7"),
    "half of a step": (change("step", lambda x: x - 0.5), "6.5"),
    "steps of NaN": (change("step", lambda x: x * float("nan")), "nan"),
    "steps per element": (change("step", lambda _: torch.ones(9)), "shape (9,)"),
    "one beta": (replace_at(("main", "param_groups", 0, "betas"), (0.9,)), "betas: (0.9,)"),
    "betas of text": (replace_at(("main", "param_groups", 0, "betas"), ("0.9", "0.99")), "betas"),
    "a list of betas": (replace_at(("main", "param_groups", 0, "betas"), [0.9, 0.99]), "betas: [0.9"),
    "infinite betas": (replace_at(("main", "param_groups", 0, "betas"), (float("inf"), 0.9)), "betas: (inf"),
}


@pytest.mark.parametrize("name", CRAFTED)
def test_a_checkpoint_that_does_not_fit_the_run_is_refused_before_anything_is_loaded(stopped, name):
    check_refused(*stopped, *CRAFTED[name])


@pytest.mark.parametrize("name", ADAM_ONLY)
@pytest.mark.parametrize("stopped", ["adam"], indirect=True)
def test_steps_and_betas_are_those_of_the_run(stopped, name):
    check_refused(*stopped, *ADAM_ONLY[name])


def check_refused(opened, saved, craft, problem):
    crafted = copy.deepcopy(saved)
    craft(crafted)
    before = content(opened)
    with pytest.raises(InputError) as caught:
        restore(opened, crafted)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)
    assert opened.position is None
    assert content(opened) == before


@pytest.mark.parametrize("stride", ["one number for all", "overlapping", "transposed"])
def test_the_optimizer_gets_memory_of_its_own(stopped, stride):
    """A stored tensor of the right shape may have less memory than numbers, which fused optimizers do not expect."""
    opened, saved = (copy.deepcopy(part) if part is stopped[1] else part for part in stopped)
    index, parameter = next((i, p) for i, p in enumerate(parameters(opened)) if p.ndim == 4 and min(p.shape[:2]) > 1)
    stored = saved.optimizer["main"]["state"][index]
    crafted = {
        "one number for all": torch.ones(1).expand(parameter.shape),
        "overlapping": torch.arange(float(parameter.numel())).as_strided(parameter.shape, (1, 1, 1, 1)),
        "transposed": torch.rand(parameter.shape).transpose(0, 1).contiguous().transpose(0, 1),
    }[stride]
    stored[moment(saved)] = crafted
    restore(opened, saved)
    loaded = opened.optimizers["main"].state[parameter][moment(saved)]
    assert torch.equal(loaded, crafted)
    assert loaded.stride() == parameter.stride()
    assert loaded.untyped_storage().nbytes() == 4 * parameter.numel()
    opened.position = None


def parameters(opened) -> list[torch.Tensor]:
    return [p for group in opened.optimizers["main"].param_groups for p in group["params"]]


def test_stored_settings_of_the_optimizer_are_not_used(stopped):
    opened, saved = stopped
    crafted = copy.deepcopy(saved)
    own = copy.deepcopy([{**group, "params": None} for group in opened.optimizers["main"].param_groups])
    for group in crafted.optimizer["main"]["param_groups"]:
        group["weight_decay"] = 123.0
    restore(opened, crafted)
    assert [{**group, "params": None} for group in opened.optimizers["main"].param_groups] == own
    opened.position = None


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"epoch": 4}, "meta.json: epoch 4; expected at most 3"),
        ({"epoch": 10**30}, "meta.json: epoch 1000"),
        ({"epoch": True}, "epoch True and best"),
        ({"best": float("nan")}, "best nan"),
        ({"best": -1.0}, "best -1.0"),
        ({"best": 10**400}, "best 1000"),
        ({"best": True}, "best True"),
        ({"threads": 0}, "threads 0"),
        ({"threads": True}, "threads True"),
        ({"threads": "2"}, "threads '2'"),
    ],
)
def test_numbers_of_meta_json_are_those_of_a_run(tmp_path, changes, problem):
    meta = {"epoch": 1, "best": 0.5, "config": {}, **changes}
    checkpoint.save(tmp_path / "checkpoints" / "last", {}, {}, {}, meta)
    (tmp_path / "config.yaml").write_text(dump_config(small_config()))
    with pytest.raises(InputError) as caught:
        train(small_config(), tmp_path, resume=True)
    assert problem in str(caught.value)


def test_images_are_those_of_the_run(stopped):
    opened, saved = stopped
    with pytest.raises(InputError, match="a run that was started on other images"):
        restore(opened, replace(saved, meta={**saved.meta, "samples": "0" * 64}))


def test_the_command_refuses_a_crafted_checkpoint_in_one_line(tmp_path):
    out = tmp_path / "run"
    config = small_config("optim.epochs=2")
    train(config, out)
    saved = checkpoint.load(out / "checkpoints" / "last")
    entry(saved)["exp_avg"] = torch.zeros(7, 7)
    meta = {**saved.meta, "epoch": 1}
    checkpoint.save(out / "checkpoints" / "last", saved.model, saved.method, saved.optimizer, meta)
    done = run([*train_command(out, "optim.epochs=2"), "--resume"])
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert "last/optimizer.pt: main: state 0: exp_avg: float32 of shape (7, 7); expected float32 of shape" in line


@pytest.mark.parametrize("origin", ["x", {"weights": "z"}, []])
def test_a_damaged_first_stage_is_refused(tmp_path, origin):
    meta = {"epoch": 1, "best": 0.5, "config": {}, "first_stage": origin}
    checkpoint.save(tmp_path / "last", {}, {}, {}, meta)
    with pytest.raises(InputError, match=r"meta\.json: a damaged first_stage"):
        checkpoint.load(tmp_path / "last")
