"""What every method guarantees to a training loop: bit-exact cross entropy, draws, void, padding, state."""

import io
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils._python_dispatch import TorchDispatchMode

from densecal.methods import create

N = 32
VOID = 255
METHODS = {
    "bce": {},
    "slp": {"alpha": 0.4},
    "label-smoothing": {"beta": 0.2},
    "aslp-mei": {"warmup": 0},
    "aslp-mc": {"warmup": 0, "preset": "stable"},
    "als": {"warmup": 0, "preset": "stable"},
}
ADAPTIVE = ("aslp-mei", "aslp-mc", "als")


def make(name: str, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return create(name, **{"num_samples": N, **METHODS[name], **options})


def binary_batch(count: int = N) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    z, y = 2 * torch.randn(count, 1, 6, 5) + 1, (torch.rand(count, 1, 6, 5) > 0.3).float()
    return z, y, torch.arange(count)


def class_batch(count: int = N, K: int = 4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randn(count, K, 6, 5), torch.randint(K, (count, 6, 5)), torch.arange(count)


def batch(classes: int):
    return binary_batch() if classes == 1 else class_batch(K=classes)


def steps(method, z, y, index, epochs=range(3), accuracy=0.9):
    """Run epochs of one batch each; return the losses and the last targets."""
    losses = []
    for epoch in epochs:
        method.start_epoch(epoch)
        _, targets = method.prepare(z, y, index)
        losses.append(method.loss(z, targets).item())
        method.after_step(z, y, index)
        method.after_epoch(SimpleNamespace(accuracy=accuracy))
    return losses, targets


@pytest.mark.parametrize("name", ["bce", *ADAPTIVE])
@pytest.mark.parametrize("technique", ["hi", "si", "m", "dm"])
def test_alpha_zero_is_bce_bit_for_bit(name, technique):
    method = make(name, **({"technique": technique} if name.startswith("aslp") else {}))
    z, y, index = binary_batch()
    soft = torch.rand_like(y)
    for masks in (y, soft):
        images, targets = method.prepare(z, masks, index)
        assert torch.equal(targets, masks)
        assert images is z
        assert torch.equal(method.loss(z, targets), binary_cross_entropy_with_logits(z, masks))
        assert torch.equal(method(z, targets), method.loss(z, targets))


@pytest.mark.parametrize("name", ADAPTIVE)
def test_alpha_zero_is_cross_entropy_bit_for_bit(name):
    z, y, index = class_batch()
    method = make(name, num_classes=4)
    assert torch.equal(method.loss(z, method.prepare(z, y, index)[1]), make("bce", num_classes=4).loss(z, y))


@pytest.mark.parametrize(("technique", "alpha"), [("hi", 0.01), ("si", 0.02), ("m", 0.03), ("dm", 0.03)])
def test_static_slp_has_the_probabilities_of_the_papers_ablation(technique, alpha):
    method = create("slp", num_samples=2, technique=technique)
    assert method.probability == alpha
    method.uniform = lambda index, stream, count=1: torch.tensor([[alpha], [alpha - 1e-6]]).expand(2, count)
    y = torch.ones(2, 1, 3, 3)
    assert (method.prepare(y, y, torch.arange(2))[1] != y).flatten(1).all(1).tolist() == [False, True]


def test_static_slp_inverts_labels_by_default():
    method = create("slp", num_samples=1)
    assert (method.technique, method.probability, method.noise_bound, method.band) == ("hi", 0.01, 0.5, None)


def test_certain_hard_inversion_is_bce_with_inverted_masks():
    z, y, index = binary_batch()
    method = make("aslp-mc", technique="hi")
    method.alpha.fill_(1.0)
    _, targets = method.prepare(z, y, index)
    assert torch.equal(targets, 1 - y)
    assert torch.equal(method.loss(z, targets), binary_cross_entropy_with_logits(z, 1 - y))


@pytest.mark.parametrize(
    ("technique", "beta", "classes"), [("hi", 2.0, 1), ("si", 1.5, 1), ("m", 1.0, 1), ("dm", 1.0, 1), ("hi", 4 / 3, 4)]
)
def test_monte_carlo_mean_of_the_loss_is_label_smoothing_at_alpha_times_beta(technique, beta, classes):
    alpha, epochs = 0.3, 300
    one = batch(classes)
    z, y = one[0][:1].expand(N, *one[0].shape[1:]), one[1][:1].expand(N, *one[1].shape[1:])
    method = make("slp", technique=technique, alpha=alpha, num_classes=classes)
    losses = torch.tensor(steps(method, z, y, torch.arange(N), range(epochs))[0])
    smooth = make("label-smoothing", beta=alpha * beta, num_classes=classes)
    expected = smooth.loss(z, smooth.prepare(z, y, torch.arange(N))[1]).item()
    clean = method.loss(z, y).item()
    error = losses.std().item() / epochs**0.5
    assert abs(losses.mean().item() - expected) < 4 * error
    assert abs(clean - expected) > 20 * error


def test_dynamic_moderation_draws_fresh_noise_for_every_pixel_image_and_epoch():
    z, y, index = binary_batch()
    method = make("aslp-mc", technique="dm", noise_bound=0.25)
    method.alpha.fill_(1.0)
    seen = []
    for epoch in (0, 1):
        method.start_epoch(epoch)
        seen.append(method.prepare(z, y, index)[1])
    labels = torch.cat([t.flatten() for t in seen])
    assert labels.unique().numel() > 0.99 * labels.numel()
    assert labels.min() >= 0.25
    assert labels.max() <= 0.75
    assert labels.std().item() == pytest.approx(0.143737, rel=0.05)


@pytest.mark.parametrize("name", ["slp", "aslp-mc"])
@pytest.mark.parametrize("technique", ["hi", "dm"])
def test_draws_depend_on_seed_epoch_and_index_and_not_on_the_batch(name, technique):
    _, y, index = binary_batch()
    method = make(name, technique=technique)
    if name == "aslp-mc":
        method.alpha.fill_(0.4)
    method.start_epoch(7)
    _, whole = method.prepare(y, y, index)
    some = torch.tensor([9, 30, 2, 17])
    assert torch.equal(method.prepare(y[some], y[some], some)[1], whole[some])
    assert not torch.equal(whole, y)
    method.start_epoch(8)
    assert not torch.equal(method.prepare(y, y, index)[1], whole)
    other = make(name, technique=technique, seed=1)
    if name == "aslp-mc":
        other.alpha.fill_(0.4)
    other.start_epoch(7)
    assert not torch.equal(other.prepare(y, y, index)[1], whole)


@pytest.mark.parametrize("name", sorted(METHODS))
@pytest.mark.parametrize("classes", [1, 4])
def test_resuming_from_a_state_dict_continues_the_run(name, classes):
    z, y, index = batch(classes)
    straight, stopped, resumed = (make(name, num_classes=classes) for _ in range(3))
    losses, targets = steps(straight, z, y, index, range(8))
    first, _ = steps(stopped, z, y, index, range(4))
    file = io.BytesIO()
    torch.save(stopped.state_dict(), file)
    file.seek(0)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    second, again = steps(resumed, z, y, index, range(4, 8))
    assert first + second == losses
    torch.testing.assert_close(again, targets, rtol=0, atol=0)
    for key, value in straight.state_dict().items():
        assert torch.equal(resumed.state_dict()[key].nan_to_num(-1), value.nan_to_num(-1))


@pytest.mark.parametrize("name", ADAPTIVE)
def test_state_is_one_float_per_image_in_the_state_dict(name):
    method = make(name)
    value = method.beta if name == "als" else method.alpha
    assert value.shape == (N,)
    assert value.dtype == torch.float32
    z, y, index = binary_batch()
    steps(method, z, y, index)
    assert value.max() > 0
    assert torch.equal(method.state_dict()["values"][:N], value)


@pytest.mark.parametrize("name", sorted(METHODS))
@pytest.mark.parametrize("classes", [1, 4])
def test_void_pixels_change_nothing(name, classes):
    z, y, index = batch(classes)
    void = torch.rand(N, 6, 5) < 0.3
    mask_void = void[:, None] if classes == 1 else void
    y = torch.where(mask_void, VOID, y)
    garbage = torch.where(void[:, None], 50 * torch.randn_like(z), z)
    runs = []
    for logits in (z, garbage):
        method = make(name, num_classes=classes)
        losses, targets = steps(method, logits, y, index)
        runs.append((losses, method.state_dict()))
        labels = targets if isinstance(targets, torch.Tensor) else targets.labels
        assert torch.equal(labels == VOID, mask_void)
    assert runs[0][0] == runs[1][0]
    for key, value in runs[0][1].items():
        assert torch.equal(value.nan_to_num(-1), runs[1][1][key].nan_to_num(-1))


@pytest.mark.parametrize(
    ("name", "options"),
    [("slp", {"technique": "hi"}), ("slp", {"technique": "dm"}), ("slp", {"band": 2}), ("label-smoothing", {})],
)
def test_padding_samples_keep_their_labels(name, options):
    z, y, index = binary_batch(8)
    index[4:] = -1
    for epoch in range(20):
        method = make(name, **options)
        method.start_epoch(epoch)
        targets = method.prepare(z, y, index)[1]
        assert torch.equal(targets[4:], y[4:])
    assert not torch.equal(targets[:4], y[:4])


@pytest.mark.parametrize("name", ADAPTIVE)
def test_padding_samples_change_nothing(name):
    z, y, index = binary_batch(8)
    plain, padded = make(name), make(name)
    padding = torch.cat([z, 9 * torch.ones(2, 1, 6, 5)]), torch.cat([y, y[:2]]), torch.tensor([*range(8), -1, -1])
    steps(plain, z, y, index)
    steps(padded, *padding)
    assert torch.equal(plain.values, padded.values)
    assert plain.values[8:].eq(0).all()
    padded.values[:N] = 0.4
    assert torch.equal(padded.prepare(padding[0], padding[1], padding[2])[1][8:], padding[1][8:])
    weight = torch.tensor([1.0] * 8 + [0.0] * 2)
    torch.testing.assert_close(padded.loss(padding[0], padding[1], weight), plain.loss(z, y))


@pytest.mark.parametrize("name", ADAPTIVE)
def test_only_the_images_of_the_batch_move(name):
    z, y, _ = binary_batch(3)
    method = make(name)
    index = torch.tensor([20, 4, 11])
    steps(method, z.abs() * (2 * y - 1), y, index, accuracy=0.5)
    moved = method.values.nonzero().flatten().tolist()
    assert moved == [4, 11, 20]


@pytest.mark.parametrize("name", sorted(METHODS))
def test_two_softmax_classes_train_like_one_sigmoid_logit(name):
    z, y, index = binary_batch()
    two = torch.cat([torch.zeros_like(z), z], dim=1)
    binary, softmax = make(name), make(name, num_classes=2)
    losses, _ = steps(binary, z, y, index, range(5))
    again, _ = steps(softmax, two, y[:, 0].long(), index, range(5))
    assert again == pytest.approx(losses, rel=1e-5)
    for key, value in binary.state_dict().items():
        torch.testing.assert_close(softmax.state_dict()[key], value, equal_nan=True)


class NoSync(TorchDispatchMode):
    """Fail on operations whose result the host must wait for."""

    FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal.default", "unique")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func)
        if any(f"aten.{forbidden}" in name or f"aten._{forbidden}" in name for forbidden in self.FORBIDDEN):
            raise AssertionError(f"{name} makes the host wait")
        if name.startswith("aten.index") and any(
            isinstance(i, torch.Tensor) and i.dtype == torch.bool for i in args[1]
        ):
            raise AssertionError(f"{name} with booleans makes the host wait")
        return func(*args, **(kwargs or {}))


def forbid(monkeypatch) -> None:
    def fail(*_):
        raise AssertionError("a tensor's value was read on the host")

    for name in ("item", "tolist", "numpy", "__bool__", "__float__", "__int__", "__index__"):
        monkeypatch.setattr(torch.Tensor, name, fail)


@pytest.mark.parametrize("name", sorted(METHODS))
@pytest.mark.parametrize("classes", [1, 4])
@pytest.mark.parametrize("technique", ["hi", "dm"])
def test_a_step_reads_no_tensor_on_the_host(name, classes, technique, monkeypatch):
    dynamic = technique == "dm" and classes == 1 and "slp" in name
    method = make(name, num_classes=classes, **({"technique": "dm"} if dynamic else {}))
    z, y, index = batch(classes)
    z.requires_grad_()
    weight = torch.ones(N)
    method.after_epoch(SimpleNamespace(accuracy=0.9))
    with monkeypatch.context() as patch, NoSync():
        forbid(patch)
        for _ in range(2):
            images, targets = method.prepare(z, y, index)
            loss = method.loss(images, targets, weight)
            loss.backward()
            method.after_step(z, y, index)


def test_the_guard_against_host_reads_can_fail(monkeypatch):
    x = torch.rand(3)
    with pytest.raises(AssertionError, match="makes the host wait"), NoSync():
        x[x > 0.5]
    with monkeypatch.context() as patch:
        forbid(patch)
        with pytest.raises(AssertionError, match="read on the host"):
            bool(x[0] > 0)


def test_after_step_leaves_no_graph_behind():
    z, y, index = binary_batch()
    method = make("aslp-mc")
    method.freeze(0.9)
    method.after_step(z.requires_grad_(), y, index)
    assert not method.values.requires_grad
    assert method.alpha.max() > 0


def test_epochs_are_counted_for_a_loop_without_start_epoch():
    method = make("aslp-mc", warmup=2)
    for epoch in range(3):
        assert method.epoch == epoch
        method.after_epoch(SimpleNamespace(accuracy=0.9))
    method.start_epoch(7)
    method.after_epoch(SimpleNamespace(accuracy=0.9))
    assert method.epoch == 7


@pytest.mark.parametrize("name", ["bce", "slp", "label-smoothing", "aslp-mc", "als", "mixup", "mmce"])
def test_masks_of_only_0_and_255_cause_one_warning(name):
    images, index = torch.zeros(2, 3, 4, 4), torch.tensor([0, 1])
    masks = torch.zeros(2, 1, 4, 4)
    masks[0, 0, :2] = 255
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        method = create(name, num_samples=2)
        for _ in range(2):
            method.prepare(images, masks, index)
            method.after_epoch(SimpleNamespace(accuracy=0.9, mean_confidence=0.9))
    assert sum("masks hold only 0 and 255" in str(w.message) for w in seen) == 1
    masks[1, 0, 0, 0] = 1  # foreground beside void pixels
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        method = create(name, num_samples=2)
        method.prepare(images, masks, index)
        method.after_epoch(SimpleNamespace(accuracy=0.9, mean_confidence=0.9))
    assert not any("hold only" in str(w.message) for w in seen)


@pytest.mark.parametrize(("classes", "void"), [(1, False), (3, True), (3, False)])
def test_masks_of_background_alone_or_of_classes_cause_no_warning(classes, void):
    masks = torch.zeros(2, 1, 4, 4) if classes == 1 else torch.zeros(2, 4, 4, dtype=torch.int64)
    if void:
        masks[0, :2] = VOID
    method = create("bce", num_samples=2, num_classes=classes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        method.prepare(torch.zeros(2, 3, 4, 4), masks, torch.tensor([0, 1]))
        method.after_epoch(SimpleNamespace(accuracy=0.9))
