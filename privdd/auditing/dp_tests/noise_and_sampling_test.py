"""T0: are the noise and the sampling of the run itself what its releases state, and drawn anew each
time?

The other tests run the method with noise of their own; these look at the residuals and coins that
were noted while the run trained (``privdd.federated.noise_log``).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

import privdd.auditing.dp_tests.randomness_statistics as law
from attacks.types import Finding
from privdd.auditing.coverage import covered_diagnostics, untested_diagnostics
from privdd.auditing.dp_tests.randomness_statistics import CheckOutcome
from privdd.auditing.dp_tests.statement import GuaranteeSubject
from privdd.federated.noise_log import FIRST_RESIDUALS, NoiseLog, ReleaseLog, RoundLog, SamplingLog
from privdd.federated.simulation import ClientTask, logged_step
from privdd.privacy.mechanisms.noise_share import share_count_of, unshared_mechanism

LoggedShare = tuple[RoundLog, ReleaseLog]
SUM_ASSUMPTION = (
    "the noise of the sum over clients is that of the shares that each of them adds (T0 tests both)"
)


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
    looks = [law.variance_test(totals), law.normality_test([everything.float()])]
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


NOISE_TEST = "t0_noise"
# client rounds (audited, and others) and releases of a name in each
SHIFT_TEST_ROUNDS = 6
SHIFT_TEST_RELEASES = 2
ALIKE = 12  # releases of one shape that show noise in a fixed subspace of half of the dimensions
# whole releases beside their tensors; the fewest numbers in which few directions show
WHOLE = "releases"
WIDE = 64

LoggedRelease = tuple[RoundLog, ReleaseLog]


def release_counts(subject: GuaranteeSubject, name: str) -> dict[int, int]:
    """Round -> how often the audited client's ledger rows say that ``name`` was released."""
    calls: dict[int, int] = {}
    for row in subject.own_releases(name):
        if row.is_protected:
            calls[row.round] = calls.get(row.round, 0) + row.count
    return calls


def logged_releases(record: NoiseLog, name: str) -> list[LoggedRelease]:
    """All releases of a name with the client round that they belong to, in order."""
    return [
        (watch, r)
        for _, watch in sorted(record.rounds.items())
        for r in watch.releases
        if r.name == name
    ]


def why_not_examined(subject: GuaranteeSubject, name: str, releases: list[LoggedRelease]) -> str:
    """Why the audited client's noise was not seen in all of its rounds; "" where it was."""
    mine = [(watch, r) for watch, r in releases if watch.audited]
    silent = next((r.missing for _, r in mine if r.missing), "")
    if silent:
        return silent
    stated = release_counts(subject, name)
    seen = [watch.round for watch, _ in mine]
    gone = [t for t, count in sorted(stated.items()) if seen.count(t) != count]
    if gone:
        return (
            f"the residuals of {len(gone)} of {len(stated)} rounds are not there (first: "
            f"round {gone[0]})"
        )
    return ""


def noise_finding(subject: GuaranteeSubject, record: NoiseLog, name: str) -> Finding:
    """One row for the noise of a mechanism: what was looked at, and whether it refutes what is
    stated."""
    releases = logged_releases(record, name)
    why = why_not_examined(subject, name, releases)
    sums: dict[str, Tensor] = {}
    if subject.plan.trust.is_summed and not why:
        sums, why = sum_residuals(subject, name, releases)
    mine = [one for one in releases if one[0].audited]
    if why:
        note = f"the noise of this run was not looked at: {why}"
        return _unexamined_finding(subject, NOISE_TEST, name, len(mine), note, why)
    seen = [*noise_outcomes(subject, record, name, releases)]
    seen += sum_noise_outcomes(subject, name, sums) if sums else []
    found = law.combine_outcomes(seen)
    others = len({w.client for w, _ in releases} - {subject.plan.victim})
    rounds = {watch.round for watch, _ in mine}
    text = (
        f"{len(mine)} release(s) of the run in {len(rounds)} round(s), and {others} other client(s)"
    )
    sound = (
        "the noise is what is stated, and no two releases share it; "
        f"{_describe_blind_spots(subject, releases, len(seen))}"
    )
    return _examined_finding(subject, NOISE_TEST, name, len(mine), found, (text, sound), rounds)


def _describe_blind_spots(
    subject: GuaranteeSubject, releases: list[LoggedRelease], tests: int
) -> str:
    """What so many numbers cannot show, whatever the tests."""
    seen = [release for _, release in releases if not release.missing]
    numbers = [r.number_count for r in seen]
    steps = [r.step for r in seen]
    p = law.p_value_limit(subject.confidence) / tests
    cut = law.least_visible_cut(sum(numbers), p)
    bare = law.fewest_visible_zeros(numbers, steps, p)
    alike = max((len(rows) for rows in _residual_rows(releases).values()), default=0)
    few = (
        f", nor, of {alike} releases of one shape, noise in half of the directions"
        if alike < ALIKE
        else ""
    )
    return (
        f"in {sum(numbers)} numbers, noise that is cut beyond {cut:.3g} standard "
        "deviations would not show, "
        f"nor fewer than {bare} numbers without noise{few}"
    )


def _unexamined_finding(
    subject: GuaranteeSubject, attack: str, name: str, count: int, note: str, why: str
) -> Finding:
    """A row of T0 that could look at nothing, for the reason ``why``."""
    return subject.run_finding(attack, name, count, note, untested_diagnostics(attack, why))


def _examined_finding(
    subject: GuaranteeSubject,
    attack: str,
    name: str,
    count: int,
    found: CheckOutcome,
    says: tuple[str, str],
    rounds: set[int],
) -> Finding:
    """A row of T0. says: at what it looked, and what it says where it refutes nothing; rounds: that
    it looked at."""
    limit = law.p_value_limit(subject.confidence)
    wrong = {"refuted": True} if found.p < limit else {}
    more = {"p_value": found.p, "p_allowed": limit, **wrong, **covered_diagnostics(attack, rounds)}
    return subject.run_finding(
        attack, name, count, f"{says[0]}: {found.says if wrong else says[1]}", more
    )


def noise_outcomes(
    subject: GuaranteeSubject, record: NoiseLog, name: str, releases: list[LoggedRelease]
) -> Iterator[CheckOutcome]:
    """Every test of the noise of one name."""
    mine = [one for one in releases if one[0].audited]
    seen = [one for one in releases if not one[1].missing]
    squares = {
        f"{_name_release(w, r)}, {key}": sums for w, r in seen for key, sums in r.squares.items()
    }
    yield law.variance_test(squares)
    yield law.variance_test(_sums_over_rounds(mine))
    yield law.variance_test(_sums_of_other_clients(seen, subject.plan.victim))
    yield law.single_number_test(
        _sums_by_number([watch for watch in record.rounds.values() if watch.audited], name)
    )
    heads = [r.sample[:FIRST_RESIDUALS] for _, r in seen]
    yield law.single_number_test(_sums_of_first_numbers(heads))
    for some in ([r.sample for _, r in mine], heads):
        yield law.normality_test(some)
        yield law.maximum_test(some)
    yield law.correlation_test(_residuals_by_release(mine))
    yield law.correlation_test(
        {w: sample[:FIRST_RESIDUALS] for w, sample in _residuals_by_release(seen).items()}
    )
    repeats = {
        f"{_name_release(w, r)}, release {at}": r.autocorrelation for at, (w, r) in enumerate(mine)
    }
    yield law.autocorrelation_test(repeats)
    yield law.shifted_reuse_test(_first_residuals(record, name), _first_residuals(record))
    yield _low_bits_outcome(mine)
    yield _magnitude_count_outcome(seen, subject.plan.victim)
    yield from _tie_outcomes(record, name)
    for what, these in (("the audited client", mine), ("all clients", seen)):
        yield from _joint_law_outcomes(what, these)
    if subject.plan.noise_source != "seed":
        yield redrawn_noise_outcome(subject, record, name)


def _magnitude_count_outcome(releases: list[LoggedRelease], victim: int) -> CheckOutcome:
    """Residuals near zero and far from it: release by release, round by round, client by client,
    and all together."""
    groups: dict[str, list[int]] = {}
    for at, (watch, release) in enumerate(releases):
        which = f"release {at} ({_name_release(watch, release)})"
        for what in (which, f"round {watch.round}", f"client {watch.client}", "all clients"):
            groups.setdefault(what, []).append(at)
    noted = [release for _, release in releases]
    near, far = (
        torch.tensor(counts) for counts in ([r.near for r in noted], [r.far for r in noted])
    )
    return law.magnitude_count_test(
        [r.number_count for r in noted], [r.step for r in noted], near, far, groups
    )


def _tie_outcomes(record: NoiseLog, name: str) -> Iterator[CheckOutcome]:
    """Whether a noise number of this mechanism occurs twice in the run: in any two releases, at any
    place and with any sign."""
    every = [(w, r) for _, w in sorted(record.rounds.items()) for r in w.releases]
    kept, chosen = (
        [one for one in every if len(held(one[1]))]
        for held in (lambda r: r.sample, lambda r: r.marked)
    )
    steps, names, own, releases = _labelled(kept, name)
    for test in (law.tie_test, law.near_tie_test):
        yield test([r.sample for r in releases], steps, names, own)
    steps, names, own, releases = _labelled(chosen, name)
    share = min((r.share for r in releases), default=1.0)
    yield law.tie_test(
        [r.marked for r in releases], steps, names, own, [r.number_count for r in releases], share
    )


def _labelled(
    releases: list[LoggedRelease], name: str
) -> tuple[list[float], list[str], list[bool], list[ReleaseLog]]:
    """(steps, what each is called, whether it is of this name, the releases), of not too many."""
    some = law.select_evenly(releases, law.MAX_COMPARED_RELEASES)
    names = [f"{_name_release(w, r)}, {r.name!r} release {at}" for at, (w, r) in enumerate(some)]
    return [r.step for _, r in some], names, [r.name == name for _, r in some], [r for _, r in some]


def _joint_law_outcomes(what: str, releases: list[LoggedRelease]) -> Iterator[CheckOutcome]:
    """Noise that takes itself off: over releases, over places, and over blocks and frequencies of
    one tensor."""
    groups = _residual_rows(releases)
    looks: dict[str, list[CheckOutcome]] = {}
    for key, rows in groups.items():
        where, (power, sums) = f"{what}, {key}", law.power_spectrum(rows)
        looks.setdefault("pivots", []).append(law.conditional_variance_test(rows, where))
        looks.setdefault("places", []).append(law.weak_place_test(rows, where))
        looks.setdefault("blocks", []).append(law.block_variance_test(rows.square(), 1, where))
        looks.setdefault("frequencies", []).append(
            law.block_variance_test(power, 2, f"{where}, frequencies")
        )
        looks.setdefault("empty", []).append(law.empty_frequency_test(power, where))
        for kind, numbers in (("sums", sums), ("lengths", law.normal_lengths(rows))):
            total = (len(numbers), float(numbers.square().sum()))
            looks.setdefault(kind, []).append(law.variance_test({f"the {kind} of {where}": total}))
    for found in looks.values():
        yield law.combine_outcomes(found)
    whole = {key: rows for key, rows in groups.items() if key.startswith(WHOLE)}
    yield law.direction_alignment_test(whole)
    wide = {key: rows for key, rows in groups.items() if key not in whole and rows.shape[1] >= WIDE}
    yield law.direction_alignment_test(wide)


def _residual_rows(releases: list[LoggedRelease]) -> dict[str, Tensor]:
    """Releases of one shape as rows of residuals, whole and, where all of them were kept, tensor by
    tensor."""
    alike: dict[tuple[tuple[tuple[str, int], ...], int], list[Tensor]] = {}
    for _, release in releases:
        shape = tuple((key, count) for key, (count, _) in sorted(release.squares.items()))
        if len(release.sample):
            alike.setdefault((shape, len(release.sample)), []).append(release.sample)
    found: dict[str, Tensor] = {}
    for (sizes, kept), samples in alike.items():
        rows = torch.stack(law.select_evenly(samples, law.MAX_JOINT_RELEASES)).double()
        if sum(count for _, count in sizes) != kept or len(sizes) < 2:
            found[f"{WHOLE} of {kept} numbers ({len(found)})"] = rows
            continue
        at = 0
        parts = []
        for key, count in sizes:
            parts.append(rows[:, at : at + count])
            found[f"{key} ({len(found)})"] = parts[-1]
            at += count
        level = [
            part / max(1.0, float(part.square().mean().sqrt())) for part in parts if part.shape[1]
        ]
        found[f"{WHOLE} of {kept} numbers ({len(found)})"] = torch.cat(level, 1) if level else rows
    return found


def _name_release(watch: RoundLog, release: ReleaseLog) -> str:
    at = f"round {watch.round}, client {watch.client}"
    return f"{at}, {release.partition}" if release.partition else at


def _sums_over_rounds(releases: list[LoggedRelease]) -> dict[str, tuple[int, float]]:
    totals: dict[str, tuple[int, float]] = {}
    for _, release in releases:
        for key, (count, total) in release.squares.items():
            before = totals.get(key, (0, 0.0))
            totals[key] = (before[0] + count, before[1] + total)
    return {f"all rounds, {key}": sums for key, sums in totals.items()}


def _sums_of_other_clients(
    releases: list[LoggedRelease], victim: int
) -> dict[str, tuple[int, float]]:
    """Sums over the releases of each other client, since a single release may have too few numbers
    to test."""
    found = dict[str, tuple[int, float]]()
    for client in sorted({watch.client for watch, _ in releases} - {victim}):
        theirs = [one for one in releases if one[0].client == client]
        found |= {
            f"client {client}, {what}": sums for what, sums in _sums_over_rounds(theirs).items()
        }
    return found


def _sums_by_number(watches: list[RoundLog], name: str) -> dict[str, tuple[int, Tensor]]:
    """Tensor -> (releases, squares number by number) over all rounds in which it has the same
    shape."""
    found: dict[str, tuple[int, Tensor]] = {}
    for watch in watches:
        for (of, key), (count, total) in watch.columns.items():
            if of == name:
                kept, before = found.get(key, (0, torch.zeros_like(total)))
                if before.shape == total.shape:
                    found[key] = kept + count, before + total
    return found


def _sums_of_first_numbers(heads: list[Tensor]) -> dict[str, tuple[int, Tensor]]:
    """The same of the first numbers of every client's releases: the audited one may make a single
    release in a run."""
    sizes = sorted({len(head) for head in heads if len(head)})
    alike = {
        size: torch.stack([head.double() for head in heads if len(head) == size]) for size in sizes
    }
    return {
        f"all clients, the first {size}": (len(rows), rows.square().sum(0))
        for size, rows in alike.items()
    }


def _residuals_by_release(releases: list[LoggedRelease]) -> dict[str, Tensor]:
    """Which release -> its residuals; releases of a few numbers each are joined, client round by
    client round."""
    named = {
        f"{_name_release(watch, r)}, release {at}": r.sample
        for at, (watch, r) in enumerate(releases)
    }
    single = {which: sample for which, sample in named.items() if len(sample) >= law.MIN_RESIDUALS}
    if single:
        return single
    joined: dict[str, list[Tensor]] = {}
    for watch, release in releases:
        joined.setdefault(f"round {watch.round}, client {watch.client}", []).append(release.sample)
    return {which: torch.cat(parts) for which, parts in joined.items()}


def _first_residuals(record: NoiseLog, name: str = "") -> dict[str, Tensor]:
    """Name of a release -> its residuals, for the first releases of each mechanism (or of mechanism
    ``name``) in some rounds."""
    found: dict[str, Tensor] = {}
    watches = [watch for _, watch in sorted(record.rounds.items()) if watch.releases]
    by_client = ([w for w in watches if w.audited is audited] for audited in (True, False))
    for watch in (watch for of in by_client for watch in law.select_evenly(of, SHIFT_TEST_ROUNDS)):
        for of in dict.fromkeys(r.name for r in watch.releases):
            made = [r for r in watch.releases if r.name == of and len(r.sample)][
                :SHIFT_TEST_RELEASES
            ]
            for at, release in enumerate(made if name in ("", of) else ()):
                found[f"{_name_release(watch, release)}, {of!r} release {at}"] = release.sample
    return found


def _low_bits_outcome(releases: list[LoggedRelease]) -> CheckOutcome:
    """A number off the lattice betrays its clean value for certain: no error is spent on it."""
    off = sum(r.off_lattice for _, r in releases)
    judged = sum(r.low_bits_checked for _, r in releases)
    says = (
        f"{off} of {judged} released numbers are off any lattice: their low bits tell clean "
        "values apart"
    )
    return CheckOutcome(0.0 if off else 1.0, says)


def redrawn_noise_outcome(subject: GuaranteeSubject, record: NoiseLog, name: str) -> CheckOutcome:
    """Noise of the run, compared with a second run of the audited client's rounds: unless the
    source is ``seed``, the two must differ, since noise that is the same can be computed by anybody
    who knows the public seed."""
    found = []
    for t, again in repeat_rounds(subject, record, name):
        watches = (record.rounds[t, subject.plan.victim], again)
        pair = [torch.cat([r.sample for r in w.releases if r.name == name]) for w in watches]
        says = f"round {t}: drawn again, the noise is the same, so the public seed decides it"
        found.append(law.same_noise_test(pair[0], pair[1], says))
    return law.combine_outcomes(found)


def repeat_rounds(
    subject: GuaranteeSubject, record: NoiseLog, name: str
) -> Iterator[tuple[int, RoundLog]]:
    """(round, the audited client's round once more), as someone makes it who knows the seed and not
    the secret."""
    for t, snapshot in sorted(subject.snapshots.items()):
        watch = record.rounds.get((t, subject.plan.victim))
        if watch is not None and any(r.name == name for r in watch.releases):
            plan = replace(subject.plan, keys=replace(subject.plan.keys, secret=b"a guess"))
            task = ClientTask(
                plan, t, plan.victim, snapshot.broadcast, snapshot.memory, subject.shard
            )
            yield t, logged_step(task)[1]


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
    found = law.combine_outcomes(made)
    draws = sum(coins.name == name for watch in watches for coins in watch.samples)
    why = why or (
        "" if draws else "the method does not draw by ctx.sample, so who was taken is not known"
    )
    if why and found.p >= law.p_value_limit(subject.confidence):
        note = f"the sampling of this run was not looked at: {why}"
        return _unexamined_finding(subject, SAMPLING_TEST, name, draws, note, why)
    text = f"{draws} draw(s) of the run, of {len(watches)} client round(s)"
    sound = f"coins of probability {probability:.3g}, independent of each other"
    rounds = {watch.round for watch in watches if watch.audited}
    return _examined_finding(subject, SAMPLING_TEST, name, draws, found, (text, sound), rounds)


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
            look = law.same_coins_test(both, probability)
            found.append(
                (look.p, f"round {t}: tossed again, {look.says}, so the public seed decides")
            )
    return law.combine_outcomes(found)


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
    yield law.same_coins_test(named, probability)
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
    return law.sampling_rate_test(
        int(again.sum()), [len(again)], probability, "of those that the draw before took"
    )


def draw_outcomes(draws: list[Tensor], probability: float, what: str) -> Iterator[CheckOutcome]:
    """Tests of draws (n,) bool of one client: their rate, the sizes of batches, and each record's
    count."""
    sizes = [int(taken.sum()) for taken in draws]
    asked = [len(taken) for taken in draws]
    yield law.sampling_rate_test(sum(sizes), asked, probability, what)
    yield law.batch_size_test(sizes, asked, probability, what)
    for size in sorted(set(asked)):
        alike = [taken for taken in draws if len(taken) == size]
        counts = torch.stack(alike).sum(0)
        yield law.record_count_test(counts, len(alike), probability, what)
        # all alike where each is taken once in a pass over the data
        each = "the numbers of draws that take a record"
        yield law.batch_size_test(counts.tolist(), [len(alike)] * size, probability, what, each)


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
        yield law.sampling_rate_test(min(sum(sizes), sum(asked)), asked, probability, what)
        yield law.batch_size_test(sizes, asked, probability, what)


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
