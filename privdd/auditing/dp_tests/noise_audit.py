"""T0: is the noise of the run itself what its releases state, and drawn anew each time?

The other tests run the method with noise of their own; this one looks at the residuals that were
noted while the run trained (``privdd.federated.noise_log``).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attacks.types import Finding
from privdd.auditing.dp_tests.joint_noise_statistics import (
    MAX_JOINT_RELEASES,
    block_variance_p_value,
    conditional_variance_p_value,
    direction_alignment_p_value,
    empty_frequency_p_value,
    normal_lengths,
    power_spectrum,
    weak_place_p_value,
)
from privdd.auditing.dp_tests.logged_releases import (
    LoggedRelease,
    examined_finding,
    logged_releases,
    repeat_rounds,
    unexamined_finding,
    why_not_examined,
)
from privdd.auditing.dp_tests.outcomes import (
    MAX_COMPARED_RELEASES,
    CheckOutcome,
    combine_outcomes,
    p_value_limit,
    select_evenly,
)
from privdd.auditing.dp_tests.residual_statistics import (
    MIN_RESIDUALS,
    autocorrelation_p_value,
    correlation_p_value,
    fewest_visible_zeros,
    least_visible_cut,
    magnitude_count_p_value,
    maximum_p_value,
    normality_p_value,
    same_noise_p_value,
    shifted_reuse_p_value,
    single_number_p_value,
    variance_p_value,
)
from privdd.auditing.dp_tests.statement import GuaranteeSubject
from privdd.auditing.dp_tests.summed_noise import sum_noise_outcomes, sum_residuals
from privdd.auditing.dp_tests.tie_statistics import near_tie_p_value, tie_p_value
from privdd.federated.noise_log import FIRST_RESIDUALS, NoiseLog, ReleaseLog, RoundLog

NOISE_TEST = "t0_noise"
# client rounds (audited, and others) and releases of a name in each
SHIFT_TEST_ROUNDS = 6
SHIFT_TEST_RELEASES = 2
ALIKE = 12  # releases of one shape that show noise in a fixed subspace of half of the dimensions
# whole releases beside their tensors; the fewest numbers in which few directions show
WHOLE = "releases"
WIDE = 64


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
        return unexamined_finding(subject, NOISE_TEST, name, len(mine), note, why)
    seen = [*noise_outcomes(subject, record, name, releases)]
    seen += sum_noise_outcomes(subject, name, sums) if sums else []
    found = combine_outcomes(seen)
    others = len({w.client for w, _ in releases} - {subject.plan.victim})
    rounds = {watch.round for watch, _ in mine}
    text = (
        f"{len(mine)} release(s) of the run in {len(rounds)} round(s), and {others} other client(s)"
    )
    sound = (
        "the noise is what is stated, and no two releases share it; "
        f"{_describe_blind_spots(subject, releases, len(seen))}"
    )
    return examined_finding(subject, NOISE_TEST, name, len(mine), found, (text, sound), rounds)


def _describe_blind_spots(
    subject: GuaranteeSubject, releases: list[LoggedRelease], tests: int
) -> str:
    """What so many numbers cannot show, whatever the tests."""
    seen = [release for _, release in releases if not release.missing]
    numbers = [r.number_count for r in seen]
    steps = [r.step for r in seen]
    p = p_value_limit(subject.confidence) / tests
    cut = least_visible_cut(sum(numbers), p)
    bare = fewest_visible_zeros(numbers, steps, p)
    alike = max((len(rows) for rows in residual_rows(releases).values()), default=0)
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


def noise_outcomes(
    subject: GuaranteeSubject, record: NoiseLog, name: str, releases: list[LoggedRelease]
) -> Iterator[CheckOutcome]:
    """Every test of the noise of one name."""
    mine = [one for one in releases if one[0].audited]
    seen = [one for one in releases if not one[1].missing]
    squares = {
        f"{_name_release(w, r)}, {key}": sums for w, r in seen for key, sums in r.squares.items()
    }
    yield variance_p_value(squares)
    yield variance_p_value(_sums_over_rounds(mine))
    yield variance_p_value(_sums_of_other_clients(seen, subject.plan.victim))
    yield single_number_p_value(
        _sums_by_number([watch for watch in record.rounds.values() if watch.audited], name)
    )
    heads = [r.sample[:FIRST_RESIDUALS] for _, r in seen]
    yield single_number_p_value(_sums_of_first_numbers(heads))
    for some in ([r.sample for _, r in mine], heads):
        yield normality_p_value(some)
        yield maximum_p_value(some)
    yield correlation_p_value(_residuals_by_release(mine))
    yield correlation_p_value(
        {w: sample[:FIRST_RESIDUALS] for w, sample in _residuals_by_release(seen).items()}
    )
    repeats = {
        f"{_name_release(w, r)}, release {at}": r.autocorrelation for at, (w, r) in enumerate(mine)
    }
    yield autocorrelation_p_value(repeats)
    yield shifted_reuse_p_value(_first_residuals(record, name), _first_residuals(record))
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
    return magnitude_count_p_value(
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
    for test in (tie_p_value, near_tie_p_value):
        yield test([r.sample for r in releases], steps, names, own)
    steps, names, own, releases = _labelled(chosen, name)
    share = min((r.share for r in releases), default=1.0)
    yield tie_p_value(
        [r.marked for r in releases], steps, names, own, [r.number_count for r in releases], share
    )


def _labelled(
    releases: list[LoggedRelease], name: str
) -> tuple[list[float], list[str], list[bool], list[ReleaseLog]]:
    """(steps, what each is called, whether it is of this name, the releases), of not too many."""
    some = select_evenly(releases, MAX_COMPARED_RELEASES)
    names = [f"{_name_release(w, r)}, {r.name!r} release {at}" for at, (w, r) in enumerate(some)]
    return [r.step for _, r in some], names, [r.name == name for _, r in some], [r for _, r in some]


def _joint_law_outcomes(what: str, releases: list[LoggedRelease]) -> Iterator[CheckOutcome]:
    """Noise that takes itself off: over releases, over places, and over blocks and frequencies of
    one tensor."""
    groups = residual_rows(releases)
    looks: dict[str, list[CheckOutcome]] = {}
    for key, rows in groups.items():
        where, (power, sums) = f"{what}, {key}", power_spectrum(rows)
        looks.setdefault("pivots", []).append(conditional_variance_p_value(rows, where))
        looks.setdefault("places", []).append(weak_place_p_value(rows, where))
        looks.setdefault("blocks", []).append(block_variance_p_value(rows.square(), 1, where))
        looks.setdefault("frequencies", []).append(
            block_variance_p_value(power, 2, f"{where}, frequencies")
        )
        looks.setdefault("empty", []).append(empty_frequency_p_value(power, where))
        for kind, numbers in (("sums", sums), ("lengths", normal_lengths(rows))):
            total = (len(numbers), float(numbers.square().sum()))
            looks.setdefault(kind, []).append(variance_p_value({f"the {kind} of {where}": total}))
    for found in looks.values():
        yield combine_outcomes(found)
    whole = {key: rows for key, rows in groups.items() if key.startswith(WHOLE)}
    yield direction_alignment_p_value(whole)
    wide = {key: rows for key, rows in groups.items() if key not in whole and rows.shape[1] >= WIDE}
    yield direction_alignment_p_value(wide)


def residual_rows(releases: list[LoggedRelease]) -> dict[str, Tensor]:
    """Releases of one shape as rows of residuals, whole and, where all of them were kept, tensor by
    tensor."""
    alike: dict[tuple[tuple[tuple[str, int], ...], int], list[Tensor]] = {}
    for _, release in releases:
        shape = tuple((key, count) for key, (count, _) in sorted(release.squares.items()))
        if len(release.sample):
            alike.setdefault((shape, len(release.sample)), []).append(release.sample)
    found: dict[str, Tensor] = {}
    for (sizes, kept), samples in alike.items():
        rows = torch.stack(select_evenly(samples, MAX_JOINT_RELEASES)).double()
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
    single = {which: sample for which, sample in named.items() if len(sample) >= MIN_RESIDUALS}
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
    for watch in (watch for of in by_client for watch in select_evenly(of, SHIFT_TEST_ROUNDS)):
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
        found.append(same_noise_p_value(pair[0], pair[1], says))
    return combine_outcomes(found)
