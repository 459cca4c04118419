"""T0: does the run itself sample its records by independent coins of the stated probability?

The coins were noted while the run trained (``privdd.federated.noise_log``).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from attacks.types import Finding
from privdd.auditing.dp_tests.coin_statistics import (
    batch_size_p_value,
    record_count_p_value,
    same_coins_p_value,
    sampling_rate_p_value,
)
from privdd.auditing.dp_tests.logged_releases import (
    examined_finding,
    logged_releases,
    repeat_rounds,
    unexamined_finding,
    why_not_examined,
)
from privdd.auditing.dp_tests.outcomes import (
    CheckOutcome,
    combine_outcomes,
    p_value_limit,
)
from privdd.auditing.dp_tests.statement import GuaranteeSubject
from privdd.federated.noise_log import NoiseLog, RoundLog, SamplingLog

SAMPLING_TEST = "t0_sampling"
EXTRA_DRAWS = 256  # further draws of the sampler, outside the run


def is_sampled(subject: GuaranteeSubject, name: str) -> bool:
    """Whether a mechanism's accounting counts on sampling."""
    return float(subject.plan.mechanisms[name].sampling_probability) < 1


def sampling_finding(subject: GuaranteeSubject, record: NoiseLog, name: str) -> Finding:
    """One row for the sampling of a mechanism: what was looked at, and whether it refutes what is
    stated."""
    probability = float(subject.plan.mechanisms[name].sampling_probability)
    watches = [
        watch
        for _, watch in sorted(record.rounds.items())
        if any(r.name == name for r in watch.releases)
    ]
    why = why_not_examined(subject, name, logged_releases(record, name))
    again = draw_outcomes(_extra_draws(subject, name), probability, "ctx.sample")
    made = (
        *sampling_outcomes(watches, name, probability),
        *again,
        redrawn_coins_outcome(subject, record, name),
    )
    found = combine_outcomes(made)
    draws = sum(coins.name == name for watch in watches for coins in watch.samples)
    why = why or (
        "" if draws else "the method does not draw by ctx.sample, so who was taken is not known"
    )
    if why and found.p >= p_value_limit(subject.confidence):
        note = f"the sampling of this run was not looked at: {why}"
        return unexamined_finding(subject, SAMPLING_TEST, name, draws, note, why)
    text = f"{draws} draw(s) of the run, of {len(watches)} client round(s)"
    sound = f"coins of probability {probability:.3g}, independent of each other"
    rounds = {watch.round for watch in watches if watch.audited}
    return examined_finding(subject, SAMPLING_TEST, name, draws, found, (text, sound), rounds)


def _extra_draws(subject: GuaranteeSubject, name: str) -> list[Tensor]:
    """Further draws of the sampler that the method asks, for the audited client: a run may have too
    few to tell."""
    plan = subject.plan
    held = len(subject.shard.train)
    drawn = (replace(plan, keys=subject.keys.fold("draws", at)) for at in range(EXTRA_DRAWS))
    contexts = (one.client_context(0, plan.victim) for one in drawn)
    return [ctx.sample(name, held).cpu() for ctx in contexts] if name in plan.method.queries else []


def redrawn_coins_outcome(subject: GuaranteeSubject, record: NoiseLog, name: str) -> CheckOutcome:
    """Sampling coins of the run, compared with coins that are tossed from the public seed alone:
    unless the source is ``seed``, the two must differ."""
    if subject.plan.noise_source == "seed":
        return CheckOutcome(1.0)
    probability = float(subject.plan.mechanisms[name].sampling_probability)
    found = []
    for t, again in repeat_rounds(subject, record, name):
        pairs = zip(record.rounds[t, subject.plan.victim].samples, again.samples)
        taken = [(one.mask, other.mask) for one, other in pairs if one.name == other.name == name]
        if taken:
            once, again_taken = (torch.cat(masks) for masks in zip(*taken))
            both = {"the run": once, "whoever knows the seed": again_taken}
            look = same_coins_p_value(both, probability)
            found.append(
                (look.p, f"round {t}: tossed again, {look.says}, so the public seed decides")
            )
    return combine_outcomes(found)


def sampling_outcomes(
    watches: list[RoundLog], name: str, probability: float
) -> Iterator[CheckOutcome]:
    """Every test of the sampling of one name."""
    draws = [(watch, coins) for watch in watches for coins in watch.samples if coins.name == name]
    yield _excess_records_outcome(watches, name)
    yield _discarded_draw_outcome(watches, name)
    yield from _own_draw_outcomes(
        [w for w in watches if all(c.name != name for c in w.samples)], name, probability
    )
    for client in sorted({watch.client for watch, _ in draws}):
        yield from draw_outcomes(
            [c.mask for w, c in draws if w.client == client], probability, f"client {client}"
        )
    named = {
        f"round {w.round}, client {w.client}, draw {at}": c.mask for at, (w, c) in enumerate(draws)
    }
    yield same_coins_p_value(named, probability)
    yield next_draw_outcome(draws, probability)


def next_draw_outcome(
    draws: list[tuple[RoundLog, SamplingLog]], probability: float
) -> CheckOutcome:
    """Records that one draw of a client took, in its next draw: their coins fall as any others, if
    none knows of those before. In order of time, and no more of them than there nearly always are:
    how many there are is up to the coins too."""
    masks = defaultdict[tuple[int, int], list[Tensor]](list)
    for watch, coins in draws:
        masks[watch.client, len(coins.mask)].append(coins.mask)
    pairs = [pair for of in masks.values() for pair in pairwise(of)]
    expected = probability * sum(len(earlier) for earlier, _ in pairs)
    again = torch.cat(
        [torch.zeros(0, dtype=torch.bool), *(later[earlier] for earlier, later in pairs)]
    )
    again = again[: max(0, math.floor(expected - 4 * expected**0.5))]
    return sampling_rate_p_value(
        int(again.sum()), [len(again)], probability, "of those that the draw before took"
    )


def draw_outcomes(draws: list[Tensor], probability: float, what: str) -> Iterator[CheckOutcome]:
    """Tests of draws (n,) bool of one client: their rate, the sizes of batches, and each record's
    count."""
    sizes = [int(taken.sum()) for taken in draws]
    asked = [len(taken) for taken in draws]
    yield sampling_rate_p_value(sum(sizes), asked, probability, what)
    yield batch_size_p_value(sizes, asked, probability, what)
    for size in sorted(set(asked)):
        alike = [taken for taken in draws if len(taken) == size]
        counts = torch.stack(alike).sum(0)
        yield record_count_p_value(counts, len(alike), probability, what)
        # all alike where each is taken once in a pass over the data
        each = "the numbers of draws that take a record"
        yield batch_size_p_value(counts.tolist(), [len(alike)] * size, probability, what, each)


def _own_draw_outcomes(
    watches: list[RoundLog], name: str, probability: float
) -> Iterator[CheckOutcome]:
    """Where a method draws in a way of its own: the numbers of records in its releases."""
    for client in sorted({watch.client for watch in watches}):
        sizes: list[int] = []
        asked: list[int] = []
        for watch in (w for w in watches if w.client == client):
            passes: dict[int, int] = {}
            calls: Counter[str | None] = Counter()
            for release in watch.releases:
                if release.name == name and release.records is not None:
                    at = calls[release.partition]
                    passes[at] = passes.get(at, 0) + release.records
                    calls[release.partition] += 1
            sizes += passes.values()
            asked += [watch.record_count] * len(passes)
        what = f"client {client}, without ctx.sample"
        yield sampling_rate_p_value(min(sum(sizes), sum(asked)), asked, probability, what)
        yield batch_size_p_value(sizes, asked, probability, what)


def _discarded_draw_outcome(watches: list[RoundLog], name: str) -> CheckOutcome:
    """A draw after which nothing is released before the next one: what is used is chosen among
    draws."""
    for watch in watches:
        draws = [coins.releases_before for coins in watch.samples if coins.name == name]
        for before, after in pairwise(draws):
            if not any(release.name == name for release in watch.releases[before:after]):
                where = f"round {watch.round}, client {watch.client}"
                return CheckOutcome(0.0, f"{where}: a draw is thrown away and made again")
    return CheckOutcome(1.0)


def _excess_records_outcome(watches: list[RoundLog], name: str) -> CheckOutcome:
    """More records contribute to the releases after a draw than it took."""
    for watch in watches:
        left: int | None = None
        draws = [coins for coins in watch.samples if coins.name == name]
        for at, release in enumerate(watch.releases):
            while draws and draws[0].releases_before <= at:
                left = int(draws.pop(0).mask.sum())
            if release.name != name or release.records is None or left is None:
                continue
            left -= release.records
            if left < 0:
                says = (
                    f"round {watch.round}, client {watch.client}: more records contribute "
                    "than were drawn"
                )
                return CheckOutcome(0.0, says)
    return CheckOutcome(1.0)
