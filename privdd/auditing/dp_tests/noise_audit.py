"""T0: is the noise of the run itself what its releases state, and drawn anew each time?

The other tests run the method with noise of their own; this one looks at the residuals that were
noted while the run trained (``privdd.federated.noise_log``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

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
    RunLook,
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
# Client rounds (audited, and others), and releases of a name in each, compared at any shift.
SHIFT_TEST_ROUNDS = 6
SHIFT_TEST_RELEASES = 2
MIN_ALIGNED_RELEASES = 12  # of one shape, that show noise in a subspace of half of the dimensions
WHOLE_RELEASES = "releases"  # the name of rows that are whole releases, beside their tensors
MIN_ALIGNED_NUMBERS = 64  # the fewest numbers of a tensor in which few directions show

NumberSums = dict[str, tuple[int, float]]  # what -> (numbers, their sum of squares)


def noise_finding(subject: GuaranteeSubject, record: NoiseLog, name: str) -> Finding:
    """One row for the noise of a mechanism: what was examined, and whether it refutes what is
    stated.

    Args:
        subject: the run.
        record: the noise log of the run.
        name: of the releases.
    """
    releases = logged_releases(record, name)
    why = why_not_examined(subject, name, releases)
    sums: dict[str, Tensor] = {}
    if subject.plan.trust.is_summed and not why:
        sums, why = sum_residuals(subject, name, releases)
    audited = _audited_releases(releases)
    run_look = RunLook(NOISE_TEST, name, len(audited))
    if why:
        note = f"the noise of this run was not tested: {why}"
        return unexamined_finding(subject, run_look, note, why)
    outcomes = list(noise_outcomes(subject, record, name, releases))
    if sums:
        outcomes += sum_noise_outcomes(subject, name, sums)
    clients = {round_log.client for round_log, _ in releases} - {subject.plan.victim}
    rounds = {round_log.round for round_log, _ in audited}
    text = (
        f"{len(audited)} release(s) of the run in {len(rounds)} round(s), and {len(clients)} other "
        "client(s)"
    )
    sound = (
        "the noise is as stated, and no two releases share it; "
        f"{_describe_blind_spots(subject, releases, len(outcomes))}"
    )
    return examined_finding(subject, run_look, combine_outcomes(outcomes), text, sound, rounds)


def _audited_releases(releases: list[LoggedRelease]) -> list[LoggedRelease]:
    return [(round_log, release) for round_log, release in releases if round_log.audited]


def _describe_blind_spots(
    subject: GuaranteeSubject, releases: list[LoggedRelease], tests: int
) -> str:
    """What so many numbers cannot show, whatever the tests."""
    logged = [release for _, release in releases if not release.missing]
    numbers = [release.number_count for release in logged]
    steps = [release.step for release in logged]
    p = p_value_limit(subject.confidence) / tests
    cut = least_visible_cut(sum(numbers), p)
    zeros = fewest_visible_zeros(numbers, steps, p)
    aligned = max((len(rows) for rows in residual_rows(releases).values()), default=0)
    text = (
        f"in {sum(numbers)} numbers, noise that is cut beyond {cut:.3g} standard deviations would "
        f"not show, nor fewer than {zeros} numbers without noise"
    )
    if aligned < MIN_ALIGNED_RELEASES:
        text += f", nor, of {aligned} releases of one shape, noise in half of the directions"
    return text


def noise_outcomes(
    subject: GuaranteeSubject, record: NoiseLog, name: str, releases: list[LoggedRelease]
) -> Iterator[CheckOutcome]:
    """Every test of the noise of one name.

    Args:
        subject: the run.
        record: the noise log of the run.
        name: of the releases.
        releases: all of this name.
    """
    audited = _audited_releases(releases)
    logged = [(round_log, release) for round_log, release in releases if not release.missing]
    yield from _scale_outcomes(subject, record, name, audited, logged)
    heads = [release.sample[:FIRST_RESIDUALS] for _, release in logged]
    for samples in ([release.sample for _, release in audited], heads):
        yield normality_p_value(samples)
        yield maximum_p_value(samples)
    yield from _reuse_outcomes(record, name, audited, logged)
    yield _low_bits_outcome(audited)
    yield _magnitude_count_outcome(logged)
    yield from _tie_outcomes(record, name)
    for what, group in (("the audited client", audited), ("all clients", logged)):
        yield from _joint_law_outcomes(what, group)
    if subject.plan.noise_source != "seed":
        yield redrawn_noise_outcome(subject, record, name)


def _scale_outcomes(
    subject: GuaranteeSubject,
    record: NoiseLog,
    name: str,
    audited: list[LoggedRelease],
    logged: list[LoggedRelease],
) -> Iterator[CheckOutcome]:
    """The size of the noise: of each tensor of each release, over all rounds, of each other client,
    and number by number."""
    squares: NumberSums = {}
    for round_log, release in logged:
        for key, sums in release.squares.items():
            squares[f"{_name_release(round_log, release)}, {key}"] = sums
    yield variance_p_value(squares)
    yield variance_p_value(_sums_over_rounds(audited))
    yield variance_p_value(_sums_of_other_clients(logged, subject.plan.victim))
    round_logs = [round_log for round_log in record.rounds.values() if round_log.audited]
    yield single_number_p_value(_sums_by_number(round_logs, name))
    heads = [release.sample[:FIRST_RESIDUALS] for _, release in logged]
    yield single_number_p_value(_sums_of_first_numbers(heads))


def _reuse_outcomes(
    record: NoiseLog, name: str, audited: list[LoggedRelease], logged: list[LoggedRelease]
) -> Iterator[CheckOutcome]:
    """Noise that comes back: at the same place of two releases, in one release, at any shift."""
    yield correlation_p_value(_residuals_by_release(audited))
    first_numbers = {
        which: sample[:FIRST_RESIDUALS] for which, sample in _residuals_by_release(logged).items()
    }
    yield correlation_p_value(first_numbers)
    peaks = {}
    for place, (round_log, release) in enumerate(audited):
        which = f"{_name_release(round_log, release)}, release {place}"
        peaks[which] = release.autocorrelation
    yield autocorrelation_p_value(peaks)
    yield shifted_reuse_p_value(_first_residuals(record, name), _first_residuals(record))


def _magnitude_count_outcome(releases: list[LoggedRelease]) -> CheckOutcome:
    """Residuals near zero and far from it: release by release, round by round, client by client,
    and all together."""
    groups: dict[str, list[int]] = {}
    for place, (round_log, release) in enumerate(releases):
        which = f"release {place} ({_name_release(round_log, release)})"
        for what in (
            which,
            f"round {round_log.round}",
            f"client {round_log.client}",
            "all clients",
        ):
            groups.setdefault(what, []).append(place)
    near = torch.tensor([release.near for _, release in releases])
    far = torch.tensor([release.far for _, release in releases])
    numbers = [release.number_count for _, release in releases]
    steps = [release.step for _, release in releases]
    return magnitude_count_p_value(numbers, steps, near, far, groups)


def _tie_outcomes(record: NoiseLog, name: str) -> Iterator[CheckOutcome]:
    """Whether a noise number of this mechanism occurs twice in the run: in any two releases, at any
    place and with any sign."""
    releases = _compared_releases(record, lambda release: release.sample)
    samples = [release.sample for _, release in releases]
    steps = [release.step for _, release in releases]
    names = _name_compared(releases)
    is_of_mechanism = [release.name == name for _, release in releases]
    yield tie_p_value(samples, steps, names, is_of_mechanism)
    yield near_tie_p_value(samples, steps, names, is_of_mechanism)
    # The same of all numbers, of which those of some sizes are kept.
    releases = _compared_releases(record, lambda release: release.marked)
    yield tie_p_value(
        [release.marked for _, release in releases],
        [release.step for _, release in releases],
        _name_compared(releases),
        [release.name == name for _, release in releases],
        [release.number_count for _, release in releases],
        min((release.share for _, release in releases), default=1.0),
    )


def _compared_releases(
    record: NoiseLog, residuals: Callable[[ReleaseLog], Tensor]
) -> list[LoggedRelease]:
    """The run's releases, of any name, of which such residuals were kept; not too many."""
    releases = []
    for _, round_log in sorted(record.rounds.items()):
        for release in round_log.releases:
            if len(residuals(release)):
                releases.append((round_log, release))
    return select_evenly(releases, MAX_COMPARED_RELEASES)


def _name_compared(releases: list[LoggedRelease]) -> list[str]:
    return [
        f"{_name_release(round_log, release)}, {release.name!r} release {place}"
        for place, (round_log, release) in enumerate(releases)
    ]


def _joint_law_outcomes(what: str, releases: list[LoggedRelease]) -> Iterator[CheckOutcome]:
    """Noise that takes itself off: over releases, over places, and over blocks and frequencies of
    one tensor."""
    groups = residual_rows(releases)
    outcomes: dict[str, list[CheckOutcome]] = {}
    for key, rows in groups.items():
        for kind, outcome in _joint_outcomes_of(rows, f"{what}, {key}"):
            outcomes.setdefault(kind, []).append(outcome)
    for kind_outcomes in outcomes.values():
        yield combine_outcomes(kind_outcomes)
    releases_rows = {}
    tensor_rows = {}
    for key, rows in groups.items():
        if key.startswith(WHOLE_RELEASES):
            releases_rows[key] = rows
        elif rows.shape[1] >= MIN_ALIGNED_NUMBERS:
            tensor_rows[key] = rows
    yield direction_alignment_p_value(releases_rows)
    yield direction_alignment_p_value(tensor_rows)


def _joint_outcomes_of(rows: Tensor, where: str) -> Iterator[tuple[str, CheckOutcome]]:
    """(kind of test, outcome) of releases of one shape (R, n)."""
    power, sums = power_spectrum(rows)
    yield "pivots", conditional_variance_p_value(rows, where)
    yield "places", weak_place_p_value(rows, where)
    yield "blocks", block_variance_p_value(rows.square(), 1, where)
    yield "frequencies", block_variance_p_value(power, 2, f"{where}, frequencies")
    yield "empty", empty_frequency_p_value(power, where)
    for kind, numbers in (("sums", sums), ("lengths", normal_lengths(rows))):
        total = (len(numbers), float(numbers.square().sum()))
        yield kind, variance_p_value({f"the {kind} of {where}": total})


def residual_rows(releases: list[LoggedRelease]) -> dict[str, Tensor]:
    """Releases of one shape as rows of residuals.

    Returns:
        What the rows are of -> (R, n): whole releases and, if all residuals were kept, tensor by
        tensor. In whole releases, tensors of more noise than stated are scaled back to it.
    """
    by_shape: dict[tuple[tuple[tuple[str, int], ...], int], list[Tensor]] = {}
    for _, release in releases:
        sizes = tuple((key, count) for key, (count, _) in sorted(release.squares.items()))
        if len(release.sample):
            by_shape.setdefault((sizes, len(release.sample)), []).append(release.sample)
    groups: dict[str, Tensor] = {}
    for (sizes, width), samples in by_shape.items():
        rows = torch.stack(select_evenly(samples, MAX_JOINT_RELEASES)).double()
        scaled = []
        if sum(count for _, count in sizes) == width and len(sizes) >= 2:
            start = 0
            for key, count in sizes:
                part = rows[:, start : start + count]
                groups[f"{key} ({len(groups)})"] = part
                if count:
                    scaled.append(part / max(1.0, float(part.square().mean().sqrt())))
                start += count
        name = f"{WHOLE_RELEASES} of {width} numbers ({len(groups)})"
        groups[name] = torch.cat(scaled, 1) if scaled else rows
    return groups


def _name_release(round_log: RoundLog, release: ReleaseLog) -> str:
    place = f"round {round_log.round}, client {round_log.client}"
    if release.partition:
        return f"{place}, {release.partition}"
    return place


def _sums_over_rounds(releases: list[LoggedRelease]) -> NumberSums:
    totals: NumberSums = {}
    for _, release in releases:
        for key, (count, total) in release.squares.items():
            earlier_count, earlier_total = totals.get(key, (0, 0.0))
            totals[key] = (earlier_count + count, earlier_total + total)
    return {f"all rounds, {key}": sums for key, sums in totals.items()}


def _sums_of_other_clients(releases: list[LoggedRelease], victim: int) -> NumberSums:
    """Sums over the releases of each other client, since a single release may have too few numbers
    to test."""
    totals: NumberSums = {}
    for client in sorted({round_log.client for round_log, _ in releases} - {victim}):
        client_releases = [pair for pair in releases if pair[0].client == client]
        for what, sums in _sums_over_rounds(client_releases).items():
            totals[f"client {client}, {what}"] = sums
    return totals


def _sums_by_number(round_logs: list[RoundLog], name: str) -> dict[str, tuple[int, Tensor]]:
    """Tensor -> (releases, squares number by number) over all rounds in which it has the same
    shape."""
    totals: dict[str, tuple[int, Tensor]] = {}
    for round_log in round_logs:
        for (release_name, key), (count, squares) in round_log.columns.items():
            if release_name != name:
                continue
            earlier_count, earlier = totals.get(key, (0, torch.zeros_like(squares)))
            if earlier.shape == squares.shape:
                totals[key] = earlier_count + count, earlier + squares
    return totals


def _sums_of_first_numbers(heads: list[Tensor]) -> dict[str, tuple[int, Tensor]]:
    """The same of the first numbers of every client's releases: the audited one may make a single
    release in a run."""
    totals = {}
    for size in sorted({len(head) for head in heads if len(head)}):
        rows = torch.stack([head.double() for head in heads if len(head) == size])
        totals[f"all clients, the first {size}"] = (len(rows), rows.square().sum(0))
    return totals


def _residuals_by_release(releases: list[LoggedRelease]) -> dict[str, Tensor]:
    """Which release -> its residuals; releases of a few numbers each are joined, client round by
    client round."""
    samples = {
        f"{_name_release(round_log, release)}, release {place}": release.sample
        for place, (round_log, release) in enumerate(releases)
    }
    single = {which: sample for which, sample in samples.items() if len(sample) >= MIN_RESIDUALS}
    if single:
        return single
    by_round: dict[str, list[Tensor]] = {}
    for round_log, release in releases:
        which = f"round {round_log.round}, client {round_log.client}"
        by_round.setdefault(which, []).append(release.sample)
    return {which: torch.cat(parts) for which, parts in by_round.items()}


def _first_residuals(record: NoiseLog, name: str = "") -> dict[str, Tensor]:
    """Name of a release -> its residuals, for the first releases of each mechanism (or of mechanism
    ``name``) in some rounds."""
    residuals: dict[str, Tensor] = {}
    round_logs = [round_log for _, round_log in sorted(record.rounds.items()) if round_log.releases]
    chosen = []
    for is_audited in (True, False):
        group = [round_log for round_log in round_logs if round_log.audited is is_audited]
        chosen += select_evenly(group, SHIFT_TEST_ROUNDS)
    for round_log in chosen:
        for release_name in dict.fromkeys(release.name for release in round_log.releases):
            if name not in ("", release_name):
                continue
            first_residuals = [
                release
                for release in round_log.releases
                if release.name == release_name and len(release.sample)
            ]
            for place, release in enumerate(first_residuals[:SHIFT_TEST_RELEASES]):
                which = f"{_name_release(round_log, release)}, {release_name!r} release {place}"
                residuals[which] = release.sample
    return residuals


def _low_bits_outcome(releases: list[LoggedRelease]) -> CheckOutcome:
    """A number off the lattice betrays its clean value for certain: no error is spent on it."""
    off = sum(release.off_lattice for _, release in releases)
    judged = sum(release.low_bits_checked for _, release in releases)
    says = (
        f"{off} of {judged} released numbers are off any lattice: their low bits distinguish "
        "clean values"
    )
    return CheckOutcome(0.0 if off else 1.0, says)


def redrawn_noise_outcome(subject: GuaranteeSubject, record: NoiseLog, name: str) -> CheckOutcome:
    """Noise of the run, compared with a second run of the audited client's rounds.

    Unless the source is ``seed``, the two must differ: anybody who knows the public seed can
    compute noise that is the same.
    """
    outcomes = []
    for t, repeated in repeat_rounds(subject, record, name):
        first = _residuals_of_name(record.rounds[t, subject.plan.victim], name)
        second = _residuals_of_name(repeated, name)
        says = f"round {t}: drawn again, the noise is the same, so the public seed decides it"
        outcomes.append(same_noise_p_value(first, second, says))
    return combine_outcomes(outcomes)


def _residuals_of_name(round_log: RoundLog, name: str) -> Tensor:
    return torch.cat([release.sample for release in round_log.releases if release.name == name])
