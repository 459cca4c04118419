"""Opacus's ``PrivacyEngine`` as a training script calls it: the rows are the data set, the gradients that are applied are released."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from dp_accounting import GaussianDpEvent, NeighboringRelation
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from privdd.core.validation import BadConfig, check_integer, check_number

DELTA = 1e-5
OURS = ("records", "batch_size", "shuffle", "steps", "layers", "accountant")  # the others are keywords of make_private


class _Parts(nn.Module):
    """Linear scores of the parts of a row, one layer each: the gradient of their sum for one row is that row."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.widths = [len(part) for part in np.array_split(np.arange(width), min(layers, width))]
        self.parts = nn.ModuleList(nn.Linear(width, 1, bias=False) for width in self.widths)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part(columns) for part, columns in zip(self.parts, x.split(self.widths, dim=1))], dim=1)


class _ScoreLoss(nn.Module):
    """The score as the loss. reduction: mean, sum or none, which ghost clipping sets."""

    def __init__(self, reduction: str) -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        each = scores.sum(dim=1)
        return each if self.reduction == "none" else each.mean() if self.reduction == "mean" else each.sum()


class _Training:
    """One training run on the rows: a new engine, model, optimizer and loader each time."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = {
            "records": 40,
            "batch_size": 2,
            "shuffle": False,
            "steps": 1,
            "layers": 1,
            "accountant": "prv",
            **given,
        }
        self.asked = {"max_grad_norm": 1.0, **{name: v for name, v in given.items() if name not in OURS}}
        self.batches = 0  # of an epoch
        self.engine = PrivacyEngine(accountant=self.given["accountant"])

    def __call__(self, x: np.ndarray) -> list[np.ndarray]:
        given, reduction = self.given, self.asked.get("loss_reduction", "mean")
        model: Any = (
            _Parts(x.shape[1], given["layers"]) if given["layers"] > 1 else nn.Linear(x.shape[1], 1, bias=False)
        )
        criterion = _ScoreLoss(reduction)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        data = TensorDataset(torch.from_numpy(x).float(), torch.zeros(len(x)))
        loader: Any = DataLoader(data, batch_size=given["batch_size"], shuffle=given["shuffle"])
        model, optimizer, *wrapped, loader = self.engine.make_private(
            module=model, optimizer=optimizer, criterion=criterion, data_loader=loader, **self.asked
        )
        self.batches, released = len(loader), list[np.ndarray]()
        for rows, labels in loader:
            optimizer.zero_grad()
            (wrapped[0] if wrapped else criterion)(model(rows), labels).backward()
            optimizer.step()
            released.append(np.concatenate([p.grad.numpy().ravel() for p in model.parameters()]))
            if len(released) == given["steps"]:
                break
        return released


def adapt_privacy_engine(
    target: type, args: Mapping[str, Any], stated: Mapping[str, Any]
) -> tuple[type, dict[str, Any]]:
    """``make_private``, and steps of the optimizer and the loader that it returns.

    args: batch_size and shuffle of the loader, steps (0: one epoch), layers of the model, accountant (of the engine), keywords
    of ``make_private``. It states what the engine says after the steps on ``records`` rows; batches that are shuffled, and are
    no Poisson samples, are declared as such. Raises BadConfig.
    """
    for name in ("records", "batch_size", "steps", "layers"):
        check_integer(f"args.{name}", args.get(name, 1), 0, most=10_000)
    if "noise_multiplier" not in args:
        raise BadConfig("args.noise_multiplier= is needed")
    check_number("args.noise_multiplier", args["noise_multiplier"])
    logging.getLogger("opacus").setLevel(logging.CRITICAL)
    delta = float(stated.get("delta", DELTA))
    once = _Training(args)
    once(np.ones((once.given["records"], 4)))
    said: dict[str, Any] = {
        "epsilon": float(once.engine.get_epsilon(delta)),
        "delta": delta,
        "kind": "records",
        "relation": "add_remove",
    }
    if not once.asked.get("poisson_sampling", True):  # batches of a fixed size: how many records there are is public
        said["relation"] = "zero_out"
        if once.given["shuffle"]:
            said |= {
                "sampling": "shuffled",
                "batches": once.batches,
                "noise_multiplier": float(args["noise_multiplier"]),
            }

    class Training(_Training):
        def __init__(self) -> None:
            super().__init__(args)

    return Training, said


def adapt_accountant(target: type, args: Mapping[str, Any], stated: Mapping[str, Any]) -> tuple[type, dict[str, Any]]:
    """What an accountant of dp-accounting says of one Gaussian event, held against Opacus's clipped sum of all rows.

    args: noise_multiplier of both; relation=REPLACE_ONE, the accountant's, else its default.
    """
    relation = NeighboringRelation[str(args.get("relation", "ADD_OR_REMOVE_ONE"))]
    spent: Any = target(neighboring_relation=relation)
    whole = {"batch_size": 10_000, "loss_reduction": "sum", **{k: v for k, v in args.items() if k != "relation"}}
    training, said = adapt_privacy_engine(PrivacyEngine, whole, stated)
    spent.compose(GaussianDpEvent(float(args["noise_multiplier"])))
    kind = "replace" if relation is NeighboringRelation.REPLACE_ONE else "add_remove"
    return training, {**said, "epsilon": float(spent.get_epsilon(said["delta"])), "relation": kind}
