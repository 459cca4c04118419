"""ResNet-18 (privdd.models.networks) against torchvision's, with the CIFAR stem put in."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from privdd.core.user_modules import import_torchvision
from privdd.models import ModelSpec, build


@pytest.mark.parametrize("train", [True, False])
def test_features_and_logits_are_torchvisions(train: bool) -> None:
    """The same weights, in the order of the state: the same logits, with batch statistics and with
    running ones."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        peer = import_torchvision("torchvision.models").resnet18(weights=None, num_classes=10)
        peer.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        peer.maxpool = nn.Identity()
        for name, buffer in peer.named_buffers():
            if "running" in name:
                buffer.uniform_(0.5, 1.5)
        x = torch.rand(4, 3, 32, 32)
    ours = build(ModelSpec("resnet18", norm="batch"), (3, 32, 32), 10)
    state = list(peer.state_dict().values())
    names = list(ours.state_dict())
    assert len(names) == len(state)
    ours.load_state_dict(dict(zip(names, state)))
    torch.testing.assert_close(ours.train(train)(x), peer.train(train)(x), rtol=1e-4, atol=1e-4)
