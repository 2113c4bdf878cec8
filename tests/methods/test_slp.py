"""Static SLP: which images are perturbed, how often, and with which labels."""

import torch
from scipy import stats
from torch.nn.functional import one_hot

from densecal.labels import perturb
from densecal.methods import create
from densecal.methods.slp import sample_targets


def targets_of(masks, alpha, draws, technique="hi", classes=1):
    """Return the targets of a batch whose images have the given draws."""
    method = create("slp", num_samples=len(masks), num_classes=classes, technique=technique)
    method.uniform = lambda index, stream, count=1: draws[:, None]
    return sample_targets(method, masks, torch.arange(len(masks)), alpha, technique, noise_bound=0.5)


def test_an_image_is_perturbed_if_its_draw_lies_below_its_probability():
    y, draws = torch.ones(4, 1, 1, 1), torch.tensor([0.0, 0.249, 0.25, 0.9])
    assert targets_of(y, 0.25, draws).flatten().tolist() == [0, 0, 1, 1]
    each = torch.tensor([0.0, 0.25, 0.3, 1.0])
    assert targets_of(y, each, draws).flatten().tolist() == [1, 0, 0, 0]


def test_whole_images_are_perturbed_at_the_given_rate():
    count, alpha = 4000, 0.3
    y = (torch.rand(count, 1, 2, 3) > 0.5).float()
    _, t = create("slp", num_samples=count, alpha=alpha).prepare(y, y, torch.arange(count))
    changed = (t != y).flatten(1)
    assert torch.equal(changed.all(1), changed.any(1))
    assert stats.binomtest(int(changed.all(1).sum()), count, alpha).pvalue > 1e-3


def test_moderation_is_disturb_label_whose_perturbed_labels_are_uniform():
    y = torch.arange(3).view(3, 1, 1)
    labels, strength = targets_of(y, 0.1, torch.tensor([0.0, 0.5, 0.05]), "m", classes=3)
    t = perturb(one_hot(labels.flatten(), 3).float(), strength, 3)
    assert t[1].tolist() == [0, 1, 0]
    torch.testing.assert_close(t[[0, 2]], torch.full((2, 3), 1 / 3))
