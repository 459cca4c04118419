"""T0: the noise that a sum over clients gets from the shares that each of them adds."""

from __future__ import annotations

import math
from collections import defaultdict

import torch
from torch import Tensor

from privdd.auditing.dp_tests.outcomes import (
    CheckOutcome,
)
from privdd.auditing.dp_tests.residual_statistics import (
    normality_p_value,
    variance_p_value,
)
from privdd.auditing.dp_tests.statement import GuaranteeSubject
from privdd.federated.noise_log import FIRST_RESIDUALS, ReleaseLog, RoundLog
from privdd.privacy.mechanisms.noise_share import share_count_of, unshared_mechanism

SUM_ASSUMPTION = (
    "the noise of the sum over clients is that of the shares that each of them adds (T0 tests both)"
)


LoggedShare = tuple[RoundLog, ReleaseLog]


def sum_residuals(
    subject: GuaranteeSubject, name: str, releases: list[LoggedShare]
) -> tuple[dict[str, Tensor], str]:
    """(which sum -> its residuals, standard normal if all shares are what they state, why one
    cannot be looked at); sums whose residuals are no longer kept (``noise_log.RUN_RESIDUALS``) are
    left out, unless no other is there."""
    by_sum: dict[tuple[int, str, int], dict[int, ReleaseLog]] = defaultdict(dict)
    for watch, release in releases:
        where = (watch.round, release.partition or "")
        at = 0
        while watch.client in by_sum[*where, at]:
            at += 1
        by_sum[*where, at][watch.client] = release
    stated = {row.round for row in subject.ledger.releases if row.name == name and row.is_protected}
    if unseen := sorted(stated - {round for round, _, _ in by_sum}):
        return {}, f"no share of round {unseen[0]} was noted"
    found = {}
    gone = ""
    for (round, cell, at), shares in by_sum.items():
        there = subject.plan.participants(round)
        noted = [one for one in shares.values() if not one.missing]
        if set(shares) != set(there) or len(noted) < len(there):
            return (
                {},
                f"the shares of {len(noted)} of {len(there)} clients were noted in round {round}",
            )
        heads = [one.sample[:FIRST_RESIDUALS].double() for one in noted]
        sizes = {len(head) for head in heads}
        if len(sizes) != 1 or 0 in sizes:
            gone = gone or f"the residuals of round {round} were not kept"
            continue
        which = ", ".join(filter(None, (f"round {round}", cell, f"sum {at}")))
        found[which] = torch.stack(heads).sum(0) / math.sqrt(len(heads))
    return found, "" if found else gone


def sum_noise_outcomes(
    subject: GuaranteeSubject, name: str, sums: dict[str, Tensor]
) -> list[CheckOutcome]:
    """The law of the sums' residuals, and whether enough clients share the noise in every round."""
    everything = torch.cat(list(sums.values()))
    totals = {which: (len(one), float(one.square().sum())) for which, one in sums.items()}
    totals["all sums"] = (len(everything), float(everything.square().sum()))
    looks = [variance_p_value(totals), normality_p_value([everything.float()])]
    in_sums = [CheckOutcome(look.p, f"in the sum over clients, {look.says}") for look in looks]
    return [*in_sums, share_count_outcome(subject, name)]


def share_count_outcome(subject: GuaranteeSubject, name: str) -> CheckOutcome:
    """Whether the smallest sum holds as many honest clients as its noise needs: a count, which
    takes no share of the error."""
    plan = subject.plan
    parts = share_count_of(subject.plan.mechanisms[name])
    sizes = [len(plan.participants(t)) for t in range(plan.method.rounds)]
    honest = min((size for size in sizes if size), default=0) - plan.trust.colluding
    whole = float(unshared_mechanism(plan.mechanisms[name]).noise_std)  # type: ignore[attr-defined]
    share = float(plan.mechanisms[name].noise_std)  # type: ignore[attr-defined]
    short = share * math.sqrt(max(honest, 0)) < whole * (1 - 1e-9)
    says = (
        f"the noise is dealt among {parts} clients, and {honest} who keep it to themselves "
        "are in a sum"
    )
    return CheckOutcome(0.0 if short else 1.0, says)
