"""What the released queries of a run say about canaries: the client's own local work, gone through by an onlooker.

The onlooker knows all that the analyst of the guarantee knows: the client's other records and which of them were
sampled, every canary, the public maps, and every released output. It runs the method's local work with all
canaries present, is handed the real outputs in turn, and notes for each release what each canary would have added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import dp_accounting as dpa
import numpy as np
import torch
from torch import Tensor

from attacks.one_run_canaries import CanaryScores
from privdd.auditing.guarantees.recording_context import Silence, exact, flat
from privdd.core.placement import placed
from privdd.core.types import Records, Shard, Tensors
from privdd.federated.channel import ClientContext, place_of
from privdd.federated.heard import Heard
from privdd.federated.simulation import Plan
from privdd.privacy.mechanism import Mechanism


@dataclass(frozen=True)
class Overheard:
    """One release. rows: contributions, the canaries' last; taken: (n,) bool of the client that really ran, or None
    where nothing was sampled; value: what was released.
    """

    name: str
    partition: str | None
    rows: Tensors
    taken: Tensor | None
    value: Tensors


@dataclass
class Onlooker(ClientContext):
    """A context that returns the outputs of a run that is over, and tells ``note`` what was asked for them."""

    heard: Heard | None = None
    note: Callable[[Overheard], None] = lambda asked: None
    drawn: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._coins: Iterator[tuple[str, Tensor]] = iter(self.heard.taken if self.heard else ())

    def sample(self, name: str, count: int) -> Tensor:
        """All records: which of them took part in the run is looked up later."""
        if self.heard is not None:
            asked, coins = next(self._coins, ("nothing", torch.zeros(0)))
            if asked != name:
                raise ValueError(f"{asked} was sampled in the run and {name} in its repetition: local work must repeat")
            self.drawn[name] = coins
        return torch.ones(count, dtype=torch.bool)

    def mechanism(self, name: str, contributions: Tensors, *, partition: str | None = None) -> Tensors:
        where, contributions = place_of(contributions), placed(contributions, "cpu")
        if self.heard is None:
            value = self.mechanisms[name](contributions, Silence()).value
        else:
            value = self.heard.outputs[len(self.outputs)]
        self.note(Overheard(name, partition, contributions, self.drawn.get(name), value))
        self.outputs.append(value)
        return placed(value, where)


def onlooker(plan: Plan, round: int, heard: Heard | None, note: Callable[[Overheard], None]) -> Onlooker:
    """The audited client's context in ``round``, public streams as in the run; heard: None for noiseless outputs."""
    ctx = plan.context(round, plan.victim)
    return Onlooker(
        round, plan.victim, ctx.keys, ctx.problem, ctx.mechanisms, ctx.queries, "seed", plan.relation, heard=heard, note=note
    )  # fmt: skip


def readable(mechanism: Mechanism) -> bool:
    """Whether its releases are sums over records with Gaussian noise, which the regression is for."""
    if not mechanism.per_record:
        return False
    event = mechanism.event
    inner = event.event if isinstance(event, dpa.PoissonSampledDpEvent) else event
    return isinstance(inner, dpa.GaussianDpEvent)


def scored(plan: Plan, shard: Shard, canaries: Records, present: int, transcript: Sequence[Heard]) -> CanaryScores:
    """Scores of all canaries from the rounds of ``transcript``.

    shard: the client without canaries; present: how many of them were in, after its own records, which tells their
    sampling coins apart. Releases that are no noised sums are left out: that costs strength, not validity.
    """
    found, base = CanaryScores(len(canaries)), shard.train
    whole = shard.with_train(Records.concat([base, canaries]))

    def note(asked: Overheard) -> None:
        mechanism = plan.mechanisms[asked.name]
        if readable(mechanism):
            _add(found, mechanism, asked, base, canaries, present)

    for heard in transcript:
        ctx = onlooker(plan, heard.round, heard, note)
        plan.method.local(heard.broadcast, dict(heard.memory), whole, ctx)
    return found


def _add(
    found: CanaryScores, mechanism: Mechanism, asked: Overheard, base: Records, canaries: Records, present: int
) -> None:
    coins = asked.taken
    if coins is not None and len(coins) == len(base) + present:
        asked = replace(asked, taken=coins[: len(base)])
    release = contributed(mechanism, asked, base, canaries)
    if release is not None:
        found.add(*release)


Release = tuple[np.ndarray, np.ndarray, np.ndarray, float, float]


def contributed(mechanism: Mechanism, asked: Overheard, base: Records, candidates: Records) -> Release | None:
    """One release as a noised sum over candidates; None where none of them is in its class.

    asked.taken: of ``base``, or of its records in this partition first. (which candidates (g,), what each adds (g, p), the release less what
    ``base`` adds (p,), noise scale, chance to be sampled.) Raises ValueError where contributions are not one a record,
    ``base`` first.
    """
    label = None if asked.partition is None else int(asked.partition.removeprefix("label:"))
    own = torch.ones(len(base), dtype=torch.bool) if label is None else (base.y == label).cpu()
    theirs = torch.ones(len(candidates), dtype=torch.bool) if label is None else (candidates.y == label).cpu()
    at = theirs.nonzero()[:, 0].numpy()
    rows, size = asked.rows, int(own.sum())
    if not len(at):
        return None
    if len(next(iter(rows.values()))) != size + len(at):
        raise ValueError(f"{asked.name}: {len(next(iter(rows.values())))} contributions of {size} + {len(at)} records")
    taken = torch.ones(size, dtype=torch.bool)
    if asked.taken is not None:  # one coin for each of the client's records, or for each of this partition
        taken = asked.taken[own] if len(asked.taken) == len(base) else asked.taken[:size]
    silent = mechanism({name: t[:size][taken.to(t.device)] for name, t in rows.items()}, Silence())
    effects = [flat(exact(mechanism, {n: t[size + i : size + i + 1] for n, t in rows.items()})) for i in range(len(at))]
    observed = flat(asked.value).double() - flat(silent.exact or {}).double()
    stack: np.ndarray = torch.stack(effects).double().cpu().numpy()
    return at, stack, observed.cpu().numpy(), silent.noise_std, float(mechanism.sampling_probability)
