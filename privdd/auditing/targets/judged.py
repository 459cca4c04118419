"""Attacks on a target from outside, judged on the target alone: shadow models only lend it their scale."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attacks.membership.attack import audited_epsilon, nothing_read
from attacks.membership.label_only import first_world
from attacks.membership.records_alone import told_apart
from attacks.types import Adversary, Attack, Evidence, Family, Finding, Surface, Truth, View, Worlds
from privdd.auditing.attack_tasks import attack_seeds, attack_stream
from privdd.auditing.error_budget import ErrorBudget
from privdd.auditing.targets.coin_game import CoinGame
from privdd.core.keys import Keys

BOUND = ("epsilon_measured", "epsilon_method", "epsilon_validity")
PREFERRED = ("rmia", "lira", "quantile_regression", "density_ratio", "loss_threshold")  # whose scores rank the records
NAMED = 10  # most exposed records that a finding names
NOT_ALIKE = (
    "training and held-out records can be told apart without the target (blind control): part of this is that "
    "difference, and no bound on epsilon follows"
)
TOGETHER = "each audited record stands for all its copies: no bound on epsilon follows for one of them"
_NONE = torch.zeros(0, 1, 1, 1), torch.zeros(0, dtype=torch.long)
NOBODY = Truth(*_NONE, *_NONE, torch.zeros(1))  # a membership attack is judged by the coins


@dataclass(frozen=True)
class Judged:
    """A row of the report, and what is kept of it as evidence."""

    finding: Finding
    kept: Mapping[str, Tensor] = field(default_factory=dict)


def judged_all(
    view: View, attacks: Mapping[str, Attack], game: CoinGame, keys: Keys, budget: ErrorBudget, note: str
) -> list[Judged]:
    """Each membership attack on the view, whose worlds' row 0 is the target; one that cannot run says why.

    note: where the view comes from, in words (it also names the
    random stream). Raises ValueError where a view has no worlds.
    """
    best = next((name for name in PREFERRED if name in attacks), "")
    found = []
    for name, attack in attacks.items():
        try:
            found.append(_one(name, attack, view, game, keys, budget, note, name == best))
        except (ValueError, ArithmeticError, torch.linalg.LinAlgError) as error:  # on few records, or odd ones
            why = " ".join(str(error).split())[:200]
            found += not_attacked(view.surface, [name], f"it could not run ({why})", note)
    return found


def _one(
    name: str, attack: Attack, view: View, game: CoinGame, keys: Keys, budget: ErrorBudget, note: str, naming: bool
) -> Judged:
    began, worlds, row = time.monotonic(), _worlds(view), game.row
    why = attack.nothing_to_read(view)
    if why:
        return Judged(said_of(nothing_read(attack, view, why), name, note))
    stream = attack_stream(keys, name, str(view.surface), note)
    scores = attack.run(view, stream).scores
    if scores is None:
        raise ValueError(f"{name}: brought back no scores")
    target = first_world(worlds)
    first, second = attack_seeds(keys, name, str(view.surface), note)
    evidence = Evidence(scores=scores[:1], notes={"seed": first, "queries": 0})
    finding = attack.judge(evidence, replace(view, worlds=target), NOBODY)
    if finding.measures.get("status") == "nothing_to_read":
        return Judged(said_of(finding, name, note))
    rng = np.random.default_rng(second)
    delta = float(view.knowledge.settings["delta"])
    bound = audited_epsilon(scores[:1], target.masks, delta, rng, confidence=budget.confidence)
    decisive: dict[str, Any] = {"epsilon_familywise": bound.value, "tests": budget.tests}
    unlike = told_apart(worlds.blind, worlds.masks[0])
    if unlike or not game.repeats.single:
        finding = replace(finding, measures={k: v for k, v in finding.measures.items() if k not in BOUND})
        decisive = {}
    exposed = most_exposed(scores[0], worlds.masks[0], row) if naming else []
    if exposed:
        decisive["most_exposed"] = exposed
    diagnostics = {**finding.measures.get("diagnostics", {}), **decisive}
    if diagnostics:
        finding = finding.with_measures(diagnostics=diagnostics)
    told = f"most exposed training records, by their place in the file from 0: {', '.join(map(str, exposed))}"
    said = said_of(
        finding,
        name,
        note,
        NOT_ALIKE if unlike else "",
        "" if game.repeats.single else TOGETHER,
        told if exposed else "",
        _shadows(worlds),
    )
    return Judged(said.with_measures(seconds=time.monotonic() - began), _kept(scores[:1], target, row))


def _worlds(view: View) -> Worlds:
    if view.worlds is None:
        raise ValueError(f"surface {view.surface}: the view carries no worlds")
    return view.worlds


def _shadows(worlds: Worlds) -> str:
    count = len(worlds.masks) - 1
    return f"{count} shadow models" if count else ""


def said_of(finding: Finding, name: str, *notes: str) -> Finding:
    file = f"{finding.surface}.{name}.safetensors"
    said = [*notes, str(finding.measures.get("note", ""))]
    return replace(finding.with_measures(note="; ".join(filter(None, said)), figure=file), attack=name)


def most_exposed(scores: Tensor, member: Tensor, row: Tensor) -> list[int]:
    """Places in the training file of the members with the highest scores, highest first."""
    inside = torch.nonzero(member).flatten()
    order = scores[inside].argsort(descending=True, stable=True)[:NAMED]
    return row[inside[order]].tolist()


def _kept(scores: Tensor, target: Worlds, row: Tensor) -> dict[str, Tensor]:
    count = scores.shape[1]
    return {
        "scores": scores.double().flatten(),
        "members": target.masks.flatten().to(torch.uint8),
        "blind": target.blind.double().expand(1, count).flatten(),
        "record": torch.arange(count),
        "world": torch.zeros(count, dtype=torch.long),
        "place": row,
    }


def not_attacked(
    surface: Surface, attacks: Sequence[str], why: str, note: str, family: Family = Family.MEMBERSHIP
) -> list[Judged]:
    """A row for each attack that could not be tried, with the reason."""
    return [
        Judged(
            said_of(
                Finding(surface, name, family, Adversary.PUBLIC, {"n": 0, "status": "not_attacked"}),
                name,
                note,
                f"not attacked: {why}",
            )
        )
        for name in attacks
    ]
