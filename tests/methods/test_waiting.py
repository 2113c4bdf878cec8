"""No method makes the host wait for a GPU in a step: checked with fake tensors, so no GPU is needed."""

import warnings

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from densecal.methods import create, names, options


class NoNumbersAssigned(TorchFunctionMode):
    """Assigning a number to an element copies it from the host, which then waits for the device."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.__setitem__:
            assert args[0][args[1]].dim() or isinstance(args[2], torch.Tensor), f"{args[2]} assigned to an element"
        return function(*args, **(kwargs or {}))


class NoBlockingCopies(TorchDispatchMode):
    """Copies between devices make the host wait unless they are non-blocking."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        output = function(*args, **kwargs)
        if function in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default):
            devices = {tensor.device.type for tensor in (*args, output) if isinstance(tensor, torch.Tensor)}
            asynchronous = kwargs.get("non_blocking") or args[2:3] == (True,)
            assert len(devices) == 1 or asynchronous, f"{function} between {devices}"
        return output


def step(method, masks, logits, index):
    images = torch.rand(len(index), 3, 8, 8, device="cuda")
    _, targets = method.prepare(images, masks, index)
    method.loss(logits, targets)
    method.after_step(logits, masks, index)


# A fake tensor has no values: code that asks for one, or for a number of pixels, raises an error by itself.
@pytest.mark.parametrize("index_on", ["cuda", "cpu"])
@pytest.mark.parametrize("classes", [1, 5])
@pytest.mark.parametrize("name", names())
def test_a_step_does_not_wait(name, classes, index_on):
    given = {"warmup": 0} if "warmup" in options(name) else {}
    with FakeTensorMode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        method = create(name, num_samples=9, num_classes=classes, **given).to("cuda")
        method.start_epoch(3)
        masks = torch.rand(4, 1, 8, 8, device="cuda") if classes == 1 else torch.ones(4, 8, 8, device="cuda").long()
        logits = torch.rand(4, classes, 8, 8, device="cuda")
        index = torch.arange(4, device=index_on)
        with NoNumbersAssigned(), NoBlockingCopies():
            step(method, masks, logits, index)
