"""FedMD: what clients send and learn are outputs on public images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from privdd.core.rng import Keys
from privdd.core.types import Problem, Records, Shard, State
from tests.reference.averaging import sgd
from tests.reference.networks import fresh, network
from tests.reference.parts import client, merged, under, values


def fedmd(m: Any, shards: Sequence[Shard], keys: Keys) -> State:
    """Clients keep their models, share logits, and approach the mean before they train."""
    shape = shards[0].shape
    classes = shards[0].classes
    first = fresh(m.model, shape, classes, keys.fold("public", "fedmd", "model").torch())
    models = [network(m.model, shape, classes, first) for _ in shards]
    images = m.public_images(Problem(shape, classes, len(shards)), keys.seed)
    places = torch.arange(len(images))
    digestion = replace(m, lr=m.digest_lr, weight_decay=0.0, local_epochs=m.digest_epochs)
    consensus: Tensor | None = None
    for t in range(m.rounds):
        sent = []
        for shard, model in zip(shards, models):
            if consensus is not None:

                def loss(net: Any, x: Tensor, at: Tensor, mean: Tensor = consensus) -> Tensor:
                    return (net(x) - mean[at]).abs().mean()

                public = shard.with_train(Records(images, places, places))
                sgd(digestion, model, public, client(keys, t, shard, "digest").torch(), loss)
            sgd(m, model, shard, client(keys, t, shard, "batch").torch())
            with torch.no_grad():
                sent.append(model(images))
        consensus = sum(sent) / len(sent)
    personal = merged([under(f"client/{k}/personal", values(net)) for k, net in enumerate(models)])
    return {**under("model", first), "consensus/logits": consensus, **personal}
