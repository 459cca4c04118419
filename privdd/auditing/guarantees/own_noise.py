"""T0: is the noise of the run itself what its releases state, and drawn anew each time?

The other tiers run the method with noise of their own; this one looks at the residuals that were noted while the run
trained (``privdd.federated.noise_record``): of the audited client in all of its rounds, and of the others too, for
noise that two releases share.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

import privdd.auditing.guarantees.residual_law as law
from attacks.types import Adversary, Family, Finding
from privdd.auditing.guarantees.residual_law import SHORT, Look
from privdd.auditing.guarantees.statement import Subject
from privdd.auditing.guarantees.summed_noise import sum_looks, summed
from privdd.auditing.looked_at import covered, left_out
from privdd.federated.noise_record import HEAD, NoiseRecord, Noted, Watch
from privdd.federated.simulation import Plan, Task, watched_step

NOISE = "t0_noise"
ROUNDS, FIRST = 6, 2  # for ``shifted``: client rounds, of the audited one and of others, and releases of a name in each
ALIKE = 12  # releases of one shape that show noise in a fixed subspace of half of the dimensions
WHOLE, WIDE = "releases", 64  # whole releases beside their tensors; the fewest numbers in which few directions show

Release = tuple[Watch, Noted]


def spent(subject: Subject, name: str) -> dict[int, int]:
    """Round -> how often the audited client's ledger rows say that ``name`` was released."""
    calls: dict[int, int] = {}
    for row in subject.ledger.releases:
        if row.name == name and row.client == subject.plan.victim and row.protected:
            calls[row.round] = calls.get(row.round, 0) + row.count
    return calls


def noted(record: NoiseRecord, name: str) -> list[Release]:
    """All releases of a name with the client round that they belong to, in order."""
    return [(watch, r) for _, watch in sorted(record.rounds.items()) for r in watch.releases if r.name == name]


def not_looked_at(subject: Subject, name: str, releases: list[Release]) -> str:
    """Why the audited client's noise was not seen in all of its rounds; "" where it was."""
    mine = [(watch, r) for watch, r in releases if watch.audited]
    silent = next((r.missing for _, r in mine if r.missing), "")
    if silent:
        return silent
    stated = spent(subject, name)
    seen = [watch.round for watch, _ in mine]
    gone = [t for t, count in sorted(stated.items()) if seen.count(t) != count]
    if gone:
        return f"the residuals of {len(gone)} of {len(stated)} rounds are not there (first: round {gone[0]})"
    return ""


def noise_finding(subject: Subject, record: NoiseRecord, name: str) -> Finding:
    """One row for the noise of a mechanism: what was looked at, and whether it refutes what is stated."""
    releases = noted(record, name)
    why = not_looked_at(subject, name, releases)
    sums: dict[str, Tensor] = {}
    if subject.plan.trust.summed and not why:
        sums, why = summed(subject, name, releases)
    mine = [one for one in releases if one[0].audited]
    if why:
        return unlooked(subject, NOISE, name, len(mine), f"the noise of this run was not looked at: {why}", why)
    seen = [*looks(subject, record, name, releases), *(sum_looks(subject, name, sums) if sums else [])]
    found = law.smallest((look.p, look.says) for look in seen)
    others = len({w.client for w, _ in releases} - {subject.plan.victim})
    text = (
        f"{len(mine)} release(s) of the run in {len({w.round for w, _ in mine})} round(s), and {others} other client(s)"
    )
    sound = f"the noise is what is stated, and no two releases share it; {_unseen(subject, releases, len(seen))}"
    return looked(subject, NOISE, name, len(mine), found, text, sound, {watch.round for watch, _ in mine})


def _unseen(subject: Subject, releases: list[Release], tests: int) -> str:
    """What so many numbers cannot show, whatever the tests."""
    seen = [release for _, release in releases if not release.missing]
    numbers, steps, p = [r.numbers for r in seen], [r.step for r in seen], law.allowed(subject.confidence) / tests
    cut, bare = law.least_cut(sum(numbers), p), law.fewest_bare(numbers, steps, p)
    alike = max((len(rows) for rows in _tensors(releases).values()), default=0)
    few = f", nor, of {alike} releases of one shape, noise in half of the directions" if alike < ALIKE else ""
    return (
        f"in {sum(numbers)} numbers, noise that is cut beyond {cut:.3g} standard deviations would not show, "
        f"nor fewer than {bare} numbers without noise{few}"
    )


def unlooked(subject: Subject, attack: str, name: str, count: int, note: str, why: str) -> Finding:
    """A row of T0 that could look at nothing, for the reason ``why``."""
    return _row(subject, attack, name, count, note, left_out(attack, why))


def looked(
    subject: Subject, attack: str, name: str, count: int, found: Look, what: str, sound: str, rounds: set[int]
) -> Finding:
    """A row of T0. what: at what it looked, and in which rounds; sound: what it says where it refutes nothing."""
    limit = law.allowed(subject.confidence)
    wrong = {"refuted": True} if found.p < limit else {}
    note = f"{what}: {found.says if wrong else sound}"
    return _row(
        subject, attack, name, count, note, {"p_value": found.p, "p_allowed": limit, **wrong, **covered(attack, rounds)}
    )


def _row(subject: Subject, attack: str, name: str, count: int, note: str, more: dict[str, object]) -> Finding:
    diagnostics = {"unit": subject.ledger.unit, **more}
    measures = {"signal": name, "n": count, "note": note, "diagnostics": diagnostics}
    return Finding(subject.surface(name), attack, Family.GUARANTEE, Adversary.ANALYST, measures)


def looks(subject: Subject, record: NoiseRecord, name: str, releases: list[Release]) -> Iterator[Look]:
    """Every test of the noise of one name."""
    mine = [one for one in releases if one[0].audited]
    seen = [one for one in releases if not one[1].missing]
    yield law.scale({f"{_which(*one)}, {key}": sums for one in seen for key, sums in one[1].squares.items()})
    yield law.scale(_totals(mine))
    yield law.scale(_of_others(seen, subject.plan.victim))
    yield law.single_numbers(_columns([watch for watch in record.rounds.values() if watch.audited], name))
    heads = [r.sample[:HEAD] for _, r in seen]
    yield law.single_numbers(_at_one_place(heads))
    for some in ([r.sample for _, r in mine], heads):
        yield law.shape(some)
        yield law.extremes(some)
    yield law.reuse(_samples(mine))
    yield law.reuse({which: sample[:HEAD] for which, sample in _samples(seen).items()})
    yield law.echoes({f"{_which(watch, r)}, release {at}": r.echo for at, (watch, r) in enumerate(mine)})
    yield law.shifted(_first(record, name), _first(record))
    yield _low_bits(mine)
    yield _size_counts(seen, subject.plan.victim)
    yield from _tie_looks(record, name)
    for what, these in (("the audited client", mine), ("all clients", seen)):
        yield from _relations(what, these)
    if subject.plan.noise_source != "seed":
        yield drawn_again(subject, record, name)


def _size_counts(releases: list[Release], victim: int) -> Look:
    """Residuals near zero and far from it: release by release, round by round, client by client, and all together."""
    groups: dict[str, list[int]] = {}
    for at, (watch, release) in enumerate(releases):
        for what in (
            f"release {at} ({_which(watch, release)})",
            f"round {watch.round}",
            f"client {watch.client}",
            "all clients",
        ):
            groups.setdefault(what, []).append(at)
    noted = [release for _, release in releases]
    near, far = (torch.tensor([counts(one) for one in noted]) for counts in (lambda r: r.near, lambda r: r.far))
    return law.size_counts([r.numbers for r in noted], [r.step for r in noted], near, far, groups)


def _tie_looks(record: NoiseRecord, name: str) -> Iterator[Look]:
    """Noise of this name that comes back, in any release of the run, at any place and with any sign."""
    every = [(w, r) for _, w in sorted(record.rounds.items()) for r in w.releases]
    kept, chosen = ([one for one in every if len(held(one[1]))] for held in (lambda r: r.sample, lambda r: r.marked))
    steps, names, own, releases = _labelled(kept, name)
    for test in (law.ties, law.near_ties):
        yield test([r.sample for r in releases], steps, names, own)
    steps, names, own, releases = _labelled(chosen, name)
    share = min((r.share for r in releases), default=1.0)
    yield law.ties([r.marked for r in releases], steps, names, own, [r.numbers for r in releases], share)


def _labelled(releases: list[Release], name: str) -> tuple[list[float], list[str], list[bool], list[Noted]]:
    """(steps, what each is called, whether it is of this name, the releases), of not too many."""
    some = law.spread_over(releases, law.COMPARED)
    names = [f"{_which(w, r)}, {r.name!r} release {at}" for at, (w, r) in enumerate(some)]
    return [r.step for _, r in some], names, [r.name == name for _, r in some], [r for _, r in some]


def _relations(what: str, releases: list[Release]) -> Iterator[Look]:
    """Noise that takes itself off: over releases, over places, and over blocks and frequencies of one tensor."""
    groups = _tensors(releases)
    looks: dict[str, list[Look]] = {}
    for key, rows in groups.items():
        where, (power, sums) = f"{what}, {key}", law.spectrum(rows)
        looks.setdefault("pivots", []).append(law.pivots(rows, where))
        looks.setdefault("places", []).append(law.weak_places(rows, where))
        looks.setdefault("blocks", []).append(law.bands(rows.square(), 1, where))
        looks.setdefault("frequencies", []).append(law.bands(power, 2, f"{where}, frequencies"))
        looks.setdefault("empty", []).append(law.empty_frequencies(power, where))
        for kind, numbers in (("sums", sums), ("lengths", law.norms(rows))):
            total = (len(numbers), float(numbers.square().sum()))
            looks.setdefault(kind, []).append(law.scale({f"the {kind} of {where}": total}))
    for found in looks.values():
        yield law.smallest((look.p, look.says) for look in found)
    whole = {key: rows for key, rows in groups.items() if key.startswith(WHOLE)}
    yield law.alignment(whole)
    yield law.alignment({key: rows for key, rows in groups.items() if key not in whole and rows.shape[1] >= WIDE})


def _tensors(releases: list[Release]) -> dict[str, Tensor]:
    """Releases of one shape as rows of residuals, whole and, where all of them were kept, tensor by tensor."""
    alike: dict[tuple[tuple[tuple[str, int], ...], int], list[Tensor]] = {}
    for _, release in releases:
        shape = tuple((key, count) for key, (count, _) in sorted(release.squares.items()))
        if len(release.sample):
            alike.setdefault((shape, len(release.sample)), []).append(release.sample)
    found: dict[str, Tensor] = {}
    for (sizes, kept), samples in alike.items():
        rows = torch.stack(law.spread_over(samples, law.TOGETHER)).double()
        if sum(count for _, count in sizes) != kept or len(sizes) < 2:
            found[f"{WHOLE} of {kept} numbers ({len(found)})"] = rows
            continue
        at, parts = 0, []
        for key, count in sizes:
            parts.append(rows[:, at : at + count])
            found[f"{key} ({len(found)})"] = parts[-1]
            at += count
        level = [part / max(1.0, float(part.square().mean().sqrt())) for part in parts if part.shape[1]]
        found[f"{WHOLE} of {kept} numbers ({len(found)})"] = torch.cat(level, 1) if level else rows
    return found


def _which(watch: Watch, release: Noted) -> str:
    at = f"round {watch.round}, client {watch.client}"
    return f"{at}, {release.partition}" if release.partition else at


def _totals(releases: list[Release]) -> dict[str, tuple[int, float]]:
    totals: dict[str, tuple[int, float]] = {}
    for _, release in releases:
        for key, (count, total) in release.squares.items():
            before = totals.get(key, (0, 0.0))
            totals[key] = (before[0] + count, before[1] + total)
    return {f"all rounds, {key}": sums for key, sums in totals.items()}


def _of_others(releases: list[Release], victim: int) -> dict[str, tuple[int, float]]:
    """The same for each of the other clients: one release of theirs may have too few numbers to tell."""
    others = sorted({watch.client for watch, _ in releases} - {victim})
    return {
        f"client {client}, {what}": sums
        for client in others
        for what, sums in _totals([one for one in releases if one[0].client == client]).items()
    }


def _columns(watches: list[Watch], name: str) -> dict[str, tuple[int, Tensor]]:
    """Tensor -> (releases, squares number by number) over all rounds in which it has the same shape."""
    found: dict[str, tuple[int, Tensor]] = {}
    for watch in watches:
        for (of, key), (count, total) in watch.columns.items():
            if of == name:
                kept, before = found.get(key, (0, torch.zeros_like(total)))
                if before.shape == total.shape:
                    found[key] = kept + count, before + total
    return found


def _at_one_place(heads: list[Tensor]) -> dict[str, tuple[int, Tensor]]:
    """The same of the first numbers of every client's releases: the audited one may make a single release in a run."""
    sizes = sorted({len(head) for head in heads if len(head)})
    alike = {size: torch.stack([head.double() for head in heads if len(head) == size]) for size in sizes}
    return {f"all clients, the first {size}": (len(rows), rows.square().sum(0)) for size, rows in alike.items()}


def _samples(releases: list[Release]) -> dict[str, Tensor]:
    """Which release -> its residuals; releases of a few numbers each are joined, client round by client round."""
    single = {
        f"{_which(watch, r)}, release {at}": r.sample
        for at, (watch, r) in enumerate(releases)
        if len(r.sample) >= SHORT
    }
    if single:
        return single
    joined: dict[str, list[Tensor]] = {}
    for watch, release in releases:
        joined.setdefault(f"round {watch.round}, client {watch.client}", []).append(release.sample)
    return {which: torch.cat(parts) for which, parts in joined.items()}


def _first(record: NoiseRecord, name: str = "") -> dict[str, Tensor]:
    """Which release -> its residuals: the first of each mechanism, or of the one with this name, in some client rounds."""
    found: dict[str, Tensor] = {}
    watches = [watch for _, watch in sorted(record.rounds.items()) if watch.releases]
    chosen = (law.spread_over([w for w in watches if w.audited is audited], ROUNDS) for audited in (True, False))
    for watch in chain.from_iterable(chosen):
        for of in dict.fromkeys(r.name for r in watch.releases):
            made = [r for r in watch.releases if r.name == of and len(r.sample)][:FIRST]
            for at, release in enumerate(made if name in ("", of) else ()):
                found[f"{_which(watch, release)}, {of!r} release {at}"] = release.sample
    return found


def _low_bits(releases: list[Release]) -> Look:
    """A number off the lattice betrays its clean value for certain: no error is spent on it."""
    off, judged = sum(r.off for _, r in releases), sum(r.judged for _, r in releases)
    says = f"{off} of {judged} released numbers are off any lattice: their low bits tell clean values apart"
    return Look(0.0 if off else 1.0, says)


def drawn_again(subject: Subject, record: NoiseRecord, name: str) -> Look:
    """The audited client's rounds once more: noise that no public seed decides comes out another way.

    That is so under any source but ``seed``; noise that comes out the same can be worked out by whoever knows
    the seed, which is public.
    """
    found = []
    for t, again in repeated(subject, record, name):
        watches = (record.rounds[t, subject.plan.victim], again)
        pair = [torch.cat([r.sample for r in w.releases if r.name == name]) for w in watches]
        says = f"round {t}: drawn again, the noise is the same, so the public seed decides it"
        found.append(law.same_noise(pair[0], pair[1], says))
    return law.smallest((look.p, look.says) for look in found)


def repeated(subject: Subject, record: NoiseRecord, name: str) -> Iterator[tuple[int, Watch]]:
    """(round, the audited client's round once more), as someone makes it who knows the seed and not the secret."""
    for t, snapshot in sorted(subject.snapshots.items()):
        watch = record.rounds.get((t, subject.plan.victim))
        if watch is not None and any(r.name == name for r in watch.releases):
            task = (t, subject.plan.victim, snapshot.broadcast, snapshot.memory, subject.shard)
            yield t, watched_step(Task(unkeyed(subject.plan), *task))[1]


def unkeyed(plan: Plan) -> Plan:
    """The plan as someone has it who knows the seed and not the secret."""
    return replace(plan, keys=replace(plan.keys, secret=b"a guess"))
