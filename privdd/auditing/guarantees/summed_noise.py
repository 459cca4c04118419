"""T0 where the server sees sums: does the noise of all clients together have the scale that is stated?

The residuals of every client's share were noted at the same places, so those of the sum are their sum. Shares that are too
small, missing, or alike are seen there, each by its own test (``own_noise``) and together here.
"""

from __future__ import annotations

import math
from collections import defaultdict

import torch
from torch import Tensor

from privdd.auditing.guarantees.residual_law import Look, scale, shape
from privdd.auditing.guarantees.statement import Subject
from privdd.federated.noise_record import HEAD, Noted, Watch
from privdd.privacy.mechanisms.noise_share import parts_of, whole_of

Release = tuple[Watch, Noted]
ADDS_UP = "the noise of the sum over clients is that of the shares that each of them adds (T0 tests both)"


def summed(subject: Subject, name: str, releases: list[Release]) -> tuple[dict[str, Tensor], str]:
    """(which sum -> its residuals, standard normal if all shares are what they state, why one cannot be looked at).

    Sums whose residuals were counted and no longer kept (``noise_record.RUN``) are left out, unless no other is there.
    """
    by_sum: dict[tuple[int, str, int], dict[int, Noted]] = defaultdict(dict)
    for watch, release in releases:
        where, at = (watch.round, release.partition or ""), 0
        while watch.client in by_sum[*where, at]:
            at += 1
        by_sum[*where, at][watch.client] = release
    stated = {row.round for row in subject.ledger.releases if row.name == name and row.protected}
    if unseen := sorted(stated - {round for round, _, _ in by_sum}):
        return {}, f"no share of round {unseen[0]} was noted"
    found, gone = {}, ""
    for (round, cell, at), shares in by_sum.items():
        there = subject.plan.participants(round)
        noted = [one for one in shares.values() if not one.missing]
        if set(shares) != set(there) or len(noted) < len(there):
            return {}, f"the shares of {len(noted)} of {len(there)} clients were noted in round {round}"
        heads = [one.sample[:HEAD].double() for one in noted]
        sizes = {len(head) for head in heads}
        if len(sizes) != 1 or 0 in sizes:
            gone = gone or f"the residuals of round {round} were not kept"
            continue
        which = ", ".join(filter(None, (f"round {round}", cell, f"sum {at}")))
        found[which] = torch.stack(heads).sum(0) / math.sqrt(len(heads))
    return found, "" if found else gone


def sum_looks(subject: Subject, name: str, sums: dict[str, Tensor]) -> list[Look]:
    """The law of the sums' residuals, and whether enough clients share the noise in every round."""
    everything = torch.cat(list(sums.values()))
    totals = {which: (len(one), float(one.square().sum())) for which, one in sums.items()}
    totals["all sums"] = (len(everything), float(everything.square().sum()))
    return [_named(scale(totals)), _named(shape([everything.float()])), enough(subject, name)]


def _named(look: Look) -> Look:
    return Look(look.p, f"in the sum over clients, {look.says}")


def enough(subject: Subject, name: str) -> Look:
    """Counted, so that no error is spent: honest clients in the smallest sum, against those that the noise needs."""
    plan, parts = subject.plan, parts_of(subject.plan.mechanisms[name])
    sizes = [len(plan.participants(t)) for t in range(plan.method.rounds)]
    honest = min((size for size in sizes if size), default=0) - plan.trust.colluding
    whole = float(whole_of(plan.mechanisms[name]).noise_std)  # type: ignore[attr-defined]
    share = float(plan.mechanisms[name].noise_std)  # type: ignore[attr-defined]
    short = share * math.sqrt(max(honest, 0)) < whole * (1 - 1e-9)
    says = f"the noise is dealt among {parts} clients, and {honest} who keep it to themselves are in a sum"
    return Look(0.0 if short else 1.0, says)
