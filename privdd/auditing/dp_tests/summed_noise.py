"""T0: the noise that a sum over clients gets from the shares that each of them adds."""

from __future__ import annotations

import math
from collections import defaultdict

import torch
from torch import Tensor

from privdd.auditing.dp_tests.logged_releases import LoggedRelease
from privdd.auditing.dp_tests.outcomes import CheckOutcome
from privdd.auditing.dp_tests.residual_statistics import normality_p_value, variance_p_value
from privdd.auditing.dp_tests.statement import GuaranteeSubject
from privdd.federated.noise_log import FIRST_RESIDUALS, ReleaseLog
from privdd.privacy.mechanisms.noise_share import share_count_of, unshared_mechanism

SUM_ASSUMPTION = (
    "the noise of the sum over clients is that of the shares that each of them adds (T0 tests both)"
)
SumPlace = tuple[int, str, int]  # round, cell, which sum of the cell in this round


def sum_residuals(
    subject: GuaranteeSubject, name: str, releases: list[LoggedRelease]
) -> tuple[dict[str, Tensor], str]:
    """The residuals of sums over clients.

    With the residuals x_i of p shares of equal scale, the sum's is sum_i x_i / sqrt(p), standard
    normal if all shares are what they state.

    Returns:
        (which sum -> its residuals, why they cannot be examined). Sums whose residuals are no
        longer kept (``noise_log.RUN_RESIDUALS``) are left out, unless there is no other.
    """
    shares_by_sum = _group_shares(releases)
    stated = {row.round for row in subject.ledger.releases if row.name == name and row.is_protected}
    unseen = sorted(stated - {round for round, _, _ in shares_by_sum})
    if unseen:
        return {}, f"no share of round {unseen[0]} was noted"
    residuals = {}
    why = ""
    for (round, cell, place), shares in shares_by_sum.items():
        participants = subject.plan.participants(round)
        noted = [share for share in shares.values() if not share.missing]
        if set(shares) != set(participants) or len(noted) < len(participants):
            why = (
                f"the shares of {len(noted)} of {len(participants)} clients were noted in round "
                f"{round}"
            )
            return {}, why
        heads = [share.sample[:FIRST_RESIDUALS].double() for share in noted]
        sizes = {len(head) for head in heads}
        if len(sizes) != 1 or 0 in sizes:
            why = why or f"the residuals of round {round} were not kept"
            continue
        which = ", ".join(filter(None, (f"round {round}", cell, f"sum {place}")))
        residuals[which] = torch.stack(heads).sum(0) / math.sqrt(len(heads))
    return residuals, "" if residuals else why


def _group_shares(releases: list[LoggedRelease]) -> dict[SumPlace, dict[int, ReleaseLog]]:
    """Sum -> client -> its share. A client's second release of a cell is of the second sum."""
    shares_by_sum: dict[SumPlace, dict[int, ReleaseLog]] = defaultdict(dict)
    for round_log, release in releases:
        place = 0
        while round_log.client in shares_by_sum[round_log.round, release.partition or "", place]:
            place += 1
        key = (round_log.round, release.partition or "", place)
        shares_by_sum[key][round_log.client] = release
    return shares_by_sum


def sum_noise_outcomes(
    subject: GuaranteeSubject, name: str, sums: dict[str, Tensor]
) -> list[CheckOutcome]:
    """The law of the sums' residuals, and whether enough clients share the noise in every round."""
    residuals = torch.cat(list(sums.values()))
    totals = {which: (len(part), float(part.square().sum())) for which, part in sums.items()}
    totals["all sums"] = (len(residuals), float(residuals.square().sum()))
    outcomes = [variance_p_value(totals), normality_p_value([residuals.float()])]
    in_sums = [
        CheckOutcome(outcome.p, f"in the sum over clients, {outcome.says}") for outcome in outcomes
    ]
    return [*in_sums, share_count_outcome(subject, name)]


def share_count_outcome(subject: GuaranteeSubject, name: str) -> CheckOutcome:
    """Whether the smallest sum holds as many honest clients as its noise needs.

    With h honest clients of noise s each the sum has noise s sqrt(h), and must reach the stated
    one. A count, which takes no share of the error.
    """
    plan = subject.plan
    mechanism = plan.mechanisms[name]
    parts = share_count_of(mechanism)
    sizes = [len(plan.participants(t)) for t in range(plan.method.rounds)]
    honest = min((size for size in sizes if size), default=0) - plan.trust.colluding
    stated_std = float(unshared_mechanism(mechanism).noise_std)  # type: ignore[attr-defined]
    share_std = float(mechanism.noise_std)  # type: ignore[attr-defined]
    is_short = share_std * math.sqrt(max(honest, 0)) < stated_std * (1 - 1e-9)
    says = (
        f"the noise is dealt among {parts} clients, and {honest} who keep it to themselves "
        "are in a sum"
    )
    return CheckOutcome(0.0 if is_short else 1.0, says)
