"""T0: was the sampling of the run itself the independent coin flips that its accounting assumes?

Amplification by sampling is proven for coins that are independent from record to record and from draw to draw, of one
probability, whatever the records are. Noted in the run: who was taken in each draw, and how many records
contributed to each release (``privdd.federated.noise_record``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from attacks.types import Finding
from privdd.auditing.guarantees.own_noise import looked, not_looked_at, noted, repeated, unlooked
from privdd.auditing.guarantees.residual_law import Look, allowed, rate, same_coins, single_records, smallest, spread
from privdd.auditing.guarantees.statement import Subject
from privdd.federated.noise_record import Coins, NoiseRecord, Watch

SAMPLING = "t0_sampling"
DRAWN = 256  # further draws of the sampler, outside the run


def is_sampled(subject: Subject, name: str) -> bool:
    """Whether a mechanism's accounting counts on sampling."""
    return float(subject.plan.mechanisms[name].sampling_probability) < 1


def sampling_finding(subject: Subject, record: NoiseRecord, name: str) -> Finding:
    """One row for the sampling of a mechanism: what was looked at, and whether it refutes what is stated."""
    probability = float(subject.plan.mechanisms[name].sampling_probability)
    watches = [watch for _, watch in sorted(record.rounds.items()) if any(r.name == name for r in watch.releases)]
    why = not_looked_at(subject, name, noted(record, name))
    again = of_draws(_more(subject, name), probability, "ctx.sample")
    made = (*looks(watches, name, probability), *again, tossed_again(subject, record, name))
    found = smallest((look.p, look.says) for look in made)
    draws = sum(coins.name == name for watch in watches for coins in watch.coins)
    why = why or ("" if draws else "the method does not draw by ctx.sample, so who was taken is not known")
    if why and found.p >= allowed(subject.confidence):
        return unlooked(subject, SAMPLING, name, draws, f"the sampling of this run was not looked at: {why}", why)
    text = f"{draws} draw(s) of the run, of {len(watches)} client round(s)"
    sound = f"coins of probability {probability:.3g}, independent of each other"
    return looked(
        subject, SAMPLING, name, draws, found, text, sound, {watch.round for watch in watches if watch.audited}
    )


def _more(subject: Subject, name: str) -> list[Tensor]:
    """Further draws of the sampler that the method asks, for the audited client: a run may have too few to tell."""
    plan, held = subject.plan, len(subject.shard.train)
    contexts = (replace(plan, keys=subject.keys.fold("draws", at)).context(0, plan.victim) for at in range(DRAWN))
    return [ctx.sample(name, held).cpu() for ctx in contexts] if name in plan.method.queries else []


def tossed_again(subject: Subject, record: NoiseRecord, name: str) -> Look:
    """Coins of the run, and those that someone tosses who knows the seed and not the secret: under any source but
    ``seed`` they are others."""
    if subject.plan.noise_source == "seed":
        return Look(1.0)
    probability, found = float(subject.plan.mechanisms[name].sampling_probability), []
    for t, again in repeated(subject, record, name):
        pairs = zip(record.rounds[t, subject.plan.victim].coins, again.coins)
        taken = [(one.taken, other.taken) for one, other in pairs if one.name == other.name == name]
        if taken:
            both = {
                "the run": torch.cat([a for a, _ in taken]),
                "whoever knows the seed": torch.cat([b for _, b in taken]),
            }
            look = same_coins(both, probability)
            found.append((look.p, f"round {t}: tossed again, {look.says}, so the public seed decides"))
    return smallest(found)


def looks(watches: list[Watch], name: str, probability: float) -> Iterator[Look]:
    """Every test of the sampling of one name."""
    draws = [(watch, coins) for watch in watches for coins in watch.coins if coins.name == name]
    yield _beyond(watches, name)
    yield _thrown_away(watches, name)
    yield from _undrawn([w for w in watches if all(c.name != name for c in w.coins)], name, probability)
    for client in sorted({watch.client for watch, _ in draws}):
        yield from of_draws([c.taken for w, c in draws if w.client == client], probability, f"client {client}")
    yield same_coins(_named(draws), probability)


def of_draws(draws: list[Tensor], probability: float, what: str) -> Iterator[Look]:
    """Tests of draws (n,) bool of one client: their rate, the sizes of batches, and each record's count."""
    sizes, asked = [int(taken.sum()) for taken in draws], [len(taken) for taken in draws]
    yield rate(sum(sizes), asked, probability, what)
    yield spread(sizes, asked, probability, what)
    for size in sorted(set(asked)):
        alike = [taken for taken in draws if len(taken) == size]
        yield single_records(torch.stack(alike).sum(0), len(alike), probability, what)


def _named(draws: list[tuple[Watch, Coins]]) -> dict[str, Tensor]:
    return {f"round {w.round}, client {w.client}, draw {at}": c.taken for at, (w, c) in enumerate(draws)}


def _undrawn(watches: list[Watch], name: str, probability: float) -> Iterator[Look]:
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
            asked += [watch.held] * len(passes)
        what = f"client {client}, without ctx.sample"
        yield rate(min(sum(sizes), sum(asked)), asked, probability, what)
        yield spread(sizes, asked, probability, what)


def _thrown_away(watches: list[Watch], name: str) -> Look:
    """A draw after which nothing is released before the next one: what is used is chosen among draws."""
    for watch in watches:
        draws = [coins.at for coins in watch.coins if coins.name == name]
        for before, after in pairwise(draws):
            if not any(release.name == name for release in watch.releases[before:after]):
                return Look(0.0, f"round {watch.round}, client {watch.client}: a draw is thrown away and made again")
    return Look(1.0)


def _beyond(watches: list[Watch], name: str) -> Look:
    """More records contribute to the releases after a draw than it took."""
    for watch in watches:
        left: int | None = None
        draws = [coins for coins in watch.coins if coins.name == name]
        for at, release in enumerate(watch.releases):
            while draws and draws[0].at <= at:
                left = int(draws.pop(0).taken.sum())
            if release.name != name or release.records is None or left is None:
                continue
            left -= release.records
            if left < 0:
                says = f"round {watch.round}, client {watch.client}: more records contribute than were drawn"
                return Look(0.0, says)
    return Look(1.0)
