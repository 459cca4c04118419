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
from privdd.auditing.dp_tests.logged_releases import (
    RunLook,
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
from privdd.auditing.dp_tests.sampling_statistics import (
    batch_size_p_value,
    record_count_p_value,
    same_coins_p_value,
    sampling_rate_p_value,
)
from privdd.auditing.dp_tests.statement import GuaranteeSubject
from privdd.federated.noise_log import NoiseLog, RoundLog, SamplingLog

LoggedDraw = tuple[RoundLog, SamplingLog]
SAMPLING_TEST = "t0_sampling"
EXTRA_DRAWS = 256  # further draws of the sampler, outside the run


def is_sampled(subject: GuaranteeSubject, name: str) -> bool:
    """Whether a mechanism's accounting counts on sampling."""
    return float(subject.plan.mechanisms[name].sampling_probability) < 1


def sampling_finding(subject: GuaranteeSubject, record: NoiseLog, name: str) -> Finding:
    """One row for the sampling of a mechanism: what was examined, and whether it refutes what is
    stated.

    Args:
        subject: the run.
        record: the noise log of the run.
        name: of the releases.
    """
    probability = float(subject.plan.mechanisms[name].sampling_probability)
    round_logs = []
    for _, round_log in sorted(record.rounds.items()):
        if name in {release.name for release in round_log.releases}:
            round_logs.append(round_log)
    outcomes = [
        *sampling_outcomes(round_logs, name, probability),
        *draw_outcomes(_extra_draws(subject, name), probability, "ctx.sample"),
        redrawn_coins_outcome(subject, record, name),
    ]
    outcome = combine_outcomes(outcomes)
    draws = len(_logged_draws(round_logs, name))
    why = why_not_examined(subject, name, logged_releases(record, name))
    if not why and not draws:
        why = "the method does not draw by ctx.sample, so who was taken is not known"
    run_look = RunLook(SAMPLING_TEST, name, draws)
    if why and outcome.p >= p_value_limit(subject.confidence):
        note = f"the sampling of this run was not tested: {why}"
        return unexamined_finding(subject, run_look, note, why)
    text = f"{draws} draw(s) of the run, of {len(round_logs)} client round(s)"
    sound = f"coins of probability {probability:.3g}, independent of each other"
    rounds = {round_log.round for round_log in round_logs if round_log.audited}
    return examined_finding(subject, run_look, outcome, text, sound, rounds)


def _logged_draws(round_logs: list[RoundLog], name: str) -> list[LoggedDraw]:
    """All draws for a name with the client round that they belong to, in order."""
    draws = []
    for round_log in round_logs:
        for draw in round_log.samples:
            if draw.name == name:
                draws.append((round_log, draw))
    return draws


def _extra_draws(subject: GuaranteeSubject, name: str) -> list[Tensor]:
    """Further draws of the sampler that the method asks, for the audited client: a run may have too
    few to tell."""
    plan = subject.plan
    if name not in plan.method.queries:
        return []
    records = len(subject.shard.train)
    masks = []
    for number in range(EXTRA_DRAWS):
        repeated = replace(plan, keys=subject.keys.fold("draws", number))
        ctx = repeated.client_context(0, plan.victim)
        masks.append(ctx.sample(name, records).cpu())
    return masks


def redrawn_coins_outcome(subject: GuaranteeSubject, record: NoiseLog, name: str) -> CheckOutcome:
    """Sampling coins of the run, compared with coins that are tossed from the public seed alone:
    unless the source is ``seed``, the two must differ."""
    if subject.plan.noise_source == "seed":
        return CheckOutcome(1.0)
    probability = float(subject.plan.mechanisms[name].sampling_probability)
    outcomes = []
    for t, repeated in repeat_rounds(subject, record, name):
        first = []
        second = []
        for draw, redraw in zip(record.rounds[t, subject.plan.victim].samples, repeated.samples):
            if draw.name == redraw.name == name:
                first.append(draw.mask)
                second.append(redraw.mask)
        if first:
            masks = {"the run": torch.cat(first), "whoever knows the seed": torch.cat(second)}
            outcome = same_coins_p_value(masks, probability)
            says = f"round {t}: tossed again, {outcome.says}, so the public seed decides"
            outcomes.append((outcome.p, says))
    return combine_outcomes(outcomes)


def sampling_outcomes(
    round_logs: list[RoundLog], name: str, probability: float
) -> Iterator[CheckOutcome]:
    """Every test of the sampling of one name.

    Args:
        round_logs: the client rounds that release the name, in order.
        name: of the releases.
        probability: the stated one, q.
    """
    draws = _logged_draws(round_logs, name)
    yield _excess_records_outcome(round_logs, name)
    yield _discarded_draw_outcome(round_logs, name)
    without_draws = []
    for round_log in round_logs:
        if name not in {draw.name for draw in round_log.samples}:
            without_draws.append(round_log)
    yield from _own_draw_outcomes(without_draws, name, probability)
    for client in sorted({round_log.client for round_log, _ in draws}):
        masks = [draw.mask for round_log, draw in draws if round_log.client == client]
        yield from draw_outcomes(masks, probability, f"client {client}")
    masks_by_draw = {}
    for number, (round_log, draw) in enumerate(draws):
        which = f"round {round_log.round}, client {round_log.client}, draw {number}"
        masks_by_draw[which] = draw.mask
    yield same_coins_p_value(masks_by_draw, probability)
    yield next_draw_outcome(draws, probability)


def next_draw_outcome(draws: list[LoggedDraw], probability: float) -> CheckOutcome:
    """Are records that a client's draw took taken again by its next draw as often as any others?

    Among M records that a draw took, those that the next one takes are Binomial(M, q), if no coin
    knows of those before. M is up to the coins too, so only the first m = floor(E - 4 sqrt(E)), E =
    the expected M, are examined, in order of time: a number that does not depend on them, and that
    M nearly always reaches.

    Args:
        draws: of all clients, in order.
        probability: the stated one, q.
    """
    masks: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
    for round_log, draw in draws:
        masks[round_log.client, len(draw.mask)].append(draw.mask)
    expected_terms = []
    repeated_bits = [torch.zeros(0, dtype=torch.bool)]
    for client_masks in masks.values():
        for earlier, later in pairwise(client_masks):
            expected_terms.append(len(earlier))
            repeated_bits.append(later[earlier])
    expected = probability * sum(expected_terms)
    bits = torch.cat(repeated_bits)
    bits = bits[: max(0, math.floor(expected - 4 * expected**0.5))]
    what = "of those that the draw before took"
    return sampling_rate_p_value(int(bits.sum()), [len(bits)], probability, what)


def draw_outcomes(masks: list[Tensor], probability: float, what: str) -> Iterator[CheckOutcome]:
    """Tests of draws of one client: their rate, the sizes of batches, and each record's count.

    Args:
        masks: (n,) bool of each draw.
        probability: the stated one, q.
        what: whose draws these are, in words.
    """
    sizes = [int(mask.sum()) for mask in masks]
    records = [len(mask) for mask in masks]
    yield sampling_rate_p_value(sum(sizes), records, probability, what)
    yield batch_size_p_value(sizes, records, probability, what)
    for size in sorted(set(records)):
        same_size = [mask for mask in masks if len(mask) == size]
        counts = torch.stack(same_size).sum(0)
        yield record_count_p_value(counts, len(same_size), probability, what)
        # The counts are all equal if each record is taken once in a pass over the data.
        draws = [len(same_size)] * size
        counted = "the numbers of draws that take a record"
        yield batch_size_p_value(counts.tolist(), draws, probability, what, counted)


def _own_draw_outcomes(
    round_logs: list[RoundLog], name: str, probability: float
) -> Iterator[CheckOutcome]:
    """If a method draws in a way of its own: the numbers of records in its releases."""
    for client in sorted({round_log.client for round_log in round_logs}):
        sizes: list[int] = []
        records: list[int] = []
        for round_log in round_logs:
            if round_log.client == client:
                passes = _records_by_pass(round_log, name)
                sizes += passes
                records += [round_log.record_count] * len(passes)
        what = f"client {client}, without ctx.sample"
        yield sampling_rate_p_value(min(sum(sizes), sum(records)), records, probability, what)
        yield batch_size_p_value(sizes, records, probability, what)


def _records_by_pass(round_log: RoundLog, name: str) -> list[int]:
    """The records in each pass over the cells: the n-th releases of all of them."""
    passes: dict[int, int] = {}
    calls: Counter[str | None] = Counter()
    for release in round_log.releases:
        if release.name == name and release.records is not None:
            number = calls[release.partition]
            passes[number] = passes.get(number, 0) + release.records
            calls[release.partition] += 1
    return list(passes.values())


def _discarded_draw_outcome(round_logs: list[RoundLog], name: str) -> CheckOutcome:
    """A draw after which nothing is released before the next one: what is used is chosen among
    draws."""
    for round_log in round_logs:
        starts = [draw.releases_before for draw in round_log.samples if draw.name == name]
        for start, end in pairwise(starts):
            if not any(release.name == name for release in round_log.releases[start:end]):
                place = f"round {round_log.round}, client {round_log.client}"
                return CheckOutcome(0.0, f"{place}: a draw is thrown away and made again")
    return CheckOutcome(1.0)


def _excess_records_outcome(round_logs: list[RoundLog], name: str) -> CheckOutcome:
    """More records contribute to the releases after a draw than it took."""
    for round_log in round_logs:
        remaining: int | None = None
        draws = [draw for draw in round_log.samples if draw.name == name]
        for number, release in enumerate(round_log.releases):
            while draws and draws[0].releases_before <= number:
                remaining = int(draws.pop(0).mask.sum())
            if release.name != name or release.records is None or remaining is None:
                continue
            remaining -= release.records
            if remaining < 0:
                place = f"round {round_log.round}, client {round_log.client}"
                return CheckOutcome(0.0, f"{place}: more records contribute than were drawn")
    return CheckOutcome(1.0)
