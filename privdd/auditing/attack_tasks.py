"""Attacks as tasks for an engine: each with its own random stream, so that its result depends on nothing else.

Jobs of one attack that cost less together than one by one are one task.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attacks.inversion.compare import nothing_sent
from attacks.membership.attack import audited_epsilon, nothing_read
from attacks.types import Attack, Evidence, Family, Finding, Truth, View
from privdd.auditing.error_budget import ErrorBudget
from privdd.core.keys import Keys
from privdd.core.placement import placed

LONGEST_FIRST = (Family.GRADIENT_INVERSION, Family.MODEL_INVERSION, Family.RECONSTRUCTION)  # then all others


class AttackFailed(RuntimeError):
    """An attack that applies to a surface failed; a report without it would look better than the truth."""


@dataclass(frozen=True)
class Job:
    """One attack on one view; note: where the view comes from, in words."""

    view: View
    truth: Truth
    note: str
    name: str
    attack: Attack


@dataclass(frozen=True)
class Terms:
    """What all attacks of a run share. pictures: whether the most exposed records themselves are kept; device: where
    attacks compute that can elsewhere than on the CPU."""

    keys: Keys
    delta: float
    budget: ErrorBudget
    pictures: bool = False
    device: str = "cpu"


@dataclass(frozen=True)
class Attacked:
    """What one job gave; kept: the tensors of its evidence file."""

    finding: Finding
    kept: Mapping[str, Tensor]


@dataclass(frozen=True)
class AttackTask:
    """Jobs of one attack. Raises AttackFailed."""

    jobs: tuple[Job, ...]
    terms: Terms

    def run(self) -> list[Attacked]:
        """What each job gave, on the CPU."""
        return self._at(self.terms.device)._attacked(self.jobs)

    def _at(self, device: str) -> AttackTask:
        """The task with all that its attack reads on ``device``, if the attack computes where its tensors are."""
        return replace(self, jobs=placed(self.jobs, device)) if self.jobs[0].attack.on_gpu else self

    def _attacked(self, given: Sequence[Job]) -> list[Attacked]:
        """given: the jobs on the CPU, where the bounds are computed and the evidence is kept."""
        streams = [attack_stream(self.terms.keys, job.name, job.view.surface, job.note) for job in self.jobs]
        began = time.monotonic()
        refused = [_refused(job) for job in self.jobs]
        open_jobs = [i for i, found in enumerate(refused) if found is None]
        evidence = dict(zip(open_jobs, self._evidence(open_jobs, streams)))
        spent = (time.monotonic() - began) / len(self.jobs)
        return [self._judged(i, given[i], refused[i], evidence.get(i, Evidence()), spent) for i in range(len(given))]

    def _evidence(self, rows: Sequence[int], streams: Sequence[torch.Generator]) -> list[Evidence]:
        if not rows:
            return []
        jobs = [self.jobs[i] for i in rows]
        try:
            return jobs[0].attack.run_each([job.view for job in jobs], [streams[i] for i in rows])
        except Exception as error:
            raise _failed(jobs[0], error) from error

    def _judged(self, at: int, job: Job, refused: Finding | None, evidence: Evidence, spent: float) -> Attacked:
        began, there = time.monotonic(), self.jobs[at]
        try:
            finding = job.attack.judge(evidence, there.view, there.truth) if refused is None else refused
        except Exception as error:
            raise _failed(job, error) from error
        finding, evidence = placed((finding, evidence), "cpu")
        if finding.measures.get("status") == "nothing_to_read":
            evidence = Evidence()
        if evidence.scores is not None and job.view.worlds is not None:
            _, seed = attack_seeds(self.terms.keys, job.name, job.view.surface, job.note)
            bound = decisive(evidence.scores, job.view, self.terms.delta, self.terms.budget, seed)
            finding = finding.with_measures(diagnostics={**finding.measures.get("diagnostics", {}), **bound})
        finding = finding.with_measures(seconds=spent + time.monotonic() - began)
        records = exposed(finding, job.view) if self.terms.pictures else {}
        return Attacked(replace(finding, attack=job.name), kept(finding, evidence, job.view) | records)


def _refused(job: Job) -> Finding | None:
    """A finding that nothing was sent or is there to be read, instead of an attack; None where there is."""
    try:
        if (finding := nothing_sent(job.attack, job.view)) is not None:
            return finding
        why = job.attack.nothing_to_read(job.view)
    except Exception as error:
        raise _failed(job, error) from error
    return nothing_read(job.attack, job.view, why) if why else None


def _failed(job: Job, error: Exception) -> AttackFailed:
    view, text = job.view, f"{type(error).__name__}: {error}"
    return AttackFailed(f"attack {job.name} on {view.surface} ({view.adversary}) failed: {text}")


def attack_tasks(jobs: Sequence[Job], terms: Terms) -> list[tuple[tuple[int, ...], AttackTask]]:
    """(positions of its jobs, task) of all tasks, those that take longest first."""
    groups: dict[tuple[str, int], list[int]] = {}
    for at, job in enumerate(jobs):
        alone = type(job.attack).run_each is Attack.run_each
        groups.setdefault((job.name, at if alone else -1), []).append(at)
    order = sorted(groups.values(), key=lambda rows: (_rank(jobs[rows[0]].attack.family), rows[0]))
    return [(tuple(rows), AttackTask(tuple(jobs[at] for at in rows), terms)) for rows in order]


def _rank(family: Family) -> int:
    return LONGEST_FIRST.index(family) if family in LONGEST_FIRST else len(LONGEST_FIRST)


def attack_stream(keys: Keys, attack: str, surface: str, where: str) -> torch.Generator:
    """The randomness of one attack; where: the first words of its finding's note. A verifier draws it again."""
    return keys.fold("attack", attack, surface, where).torch()


def attack_seeds(keys: Keys, attack: str, surface: str, where: str) -> tuple[int, int]:
    """What a membership attack draws first, and what its decisive bound draws, whatever else the attack drew.

    Both break ties between scores; a verifier, who has the scores and not the attack, draws them again.
    """
    stream = attack_stream(keys, attack, surface, where)
    first, second = (int(torch.randint(2**31 - 1, (1,), generator=stream)) for _ in range(2))
    return first, second


def decisive(scores: Tensor, view: View, delta: float, budget: ErrorBudget, seed: int) -> dict[str, Any]:
    """The bound that may decide a verdict: at its share of the run's error budget. seed: breaks ties between scores."""
    if view.worlds is None:
        return {}
    rng = np.random.default_rng(seed)
    bound = audited_epsilon(scores, view.worlds.masks[: len(scores)], delta, rng, confidence=budget.confidence)
    return {"epsilon_familywise": bound.value, "tests": budget.tests}


def decided_again(finding: Finding, kept: Mapping[str, Tensor], job: Job, terms: Terms) -> Finding:
    """An earlier finding at today's share of the error budget. kept: what its evidence file holds."""
    if "scores" not in kept or job.view.worlds is None:
        return finding
    shape = 1 + int(kept["world"].max()), 1 + int(kept["record"].max())
    masks = kept["members"].bool().reshape(shape)
    view = replace(job.view, worlds=replace(job.view.worlds, signals={}, rounds={}, masks=masks))
    _, seed = attack_seeds(terms.keys, job.name, job.view.surface, job.note)
    bound = decisive(kept["scores"].reshape(shape), view, terms.delta, terms.budget, seed)
    return finding.with_measures(diagnostics={**finding.measures.get("diagnostics", {}), **bound})


def kept(finding: Finding, evidence: Evidence, view: View) -> dict[str, Tensor]:
    """What the report's figures are drawn from: images, and exact scores with their membership bits."""
    found = {name: tensor for name, tensor in finding.figures.items() if not name.startswith("roc_")}
    if evidence.scores is not None and view.worlds is not None:
        count = len(evidence.scores)
        masks = view.worlds.masks[:count]
        blind = view.worlds.blind.expand(masks.shape)
        world, record = torch.meshgrid(torch.arange(count), torch.arange(masks.shape[1]), indexing="ij")
        found |= {"scores": evidence.scores.double().flatten(), "members": masks.flatten().to(torch.uint8)}
        found |= {"blind": blind.flatten(), "record": record.flatten(), "world": world.flatten()}
        found |= {f"kind_{kind}": at for kind, at in view.worlds.kinds.items()}
    return found


def exposed(finding: Finding, view: View) -> dict[str, Tensor]:
    """The most exposed records themselves (m, c, h, w) with their labels (m,), in the order of the finding's list.

    Empty where the finding names none, or they are no pictures.
    """
    rows = (finding.measures.get("worst_records") or {}).get("records", [])
    records = None if view.worlds is None else view.worlds.records
    if not rows or view.worlds is None or records is None or records.ndim != 4 or records.shape[1] not in (1, 3):
        return {}
    at = torch.tensor([row["record"] for row in rows])
    return {"exposed": records[at].clone(), "exposed_label": view.worlds.labels[at].clone()}
