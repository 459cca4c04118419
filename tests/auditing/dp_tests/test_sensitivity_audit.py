"""Tests of ``privdd.auditing.dp_tests.sensitivity_audit``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from attacks.canaries import Canaries, join_canaries, out_of_distribution_canaries, pattern_canary
from privdd.auditing.dp_tests.forced_runs import ExaminedRound
from privdd.auditing.dp_tests.presence_trials import (
    PresenceEffects,
    change_of_others,
    measure_presence,
)
from privdd.auditing.dp_tests.sensitivity_audit import (
    UNBOUNDED,
    SensitivityTally,
    measure_sensitivity,
)
from privdd.core.rng import Keys
from privdd.core.types import Artifact, Problem, Records, Shard
from privdd.federated.simulation import Plan, Snapshot
from privdd.privacy.mechanism import Mechanism, Output
from privdd.privacy.mechanisms import ClippedSum
from tests.auditing.dp_tests.subjects import Coupled

# A guest that joins or leaves: its own unit is all that may change.


Rows = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Sends(Coupled):
    """One query over ``rows`` of the records, ``times`` of them, and beside its result whatever
    ``extra`` says."""

    rows: Rows = lambda x: x.flatten(1)
    times: Callable[[int], int] = lambda n: 1
    extra: Callable[[int], float] = lambda n: 0.0

    def local(self, broadcast: Any, memory: Any, shard: Shard, ctx: Any) -> Any:
        x = shard.train.x
        sent = [
            ctx.mechanism("embedding", {"rows": self.rows(x)}) for _ in range(self.times(len(x)))
        ]
        total = {"rows": sum(one["rows"] for one in sent) + self.extra(len(x))}
        return {"prototypes": Artifact(total, private=True)}, {}


def changed(method: Sends, count: int = 20) -> tuple[float, float, str]:
    """(total, moved, words) of one white guest beside ``count`` random records; the clip norm is
    1."""
    g = torch.Generator().manual_seed(0)
    base = Records(
        torch.rand(count, 1, 2, 2, generator=g), torch.zeros(count).long(), torch.arange(count)
    )
    shard = Shard(0, base, base.take([0]), base.take([1]), 2)
    guest = Records(torch.ones(1, 1, 2, 2), torch.zeros(1).long(), torch.zeros(1).long())
    plan = Plan(Keys(0), Problem((1, 2, 2), 2, 1), method, {"embedding": ClippedSum(1.0, 1.0)})
    few = base.take(torch.arange(6))
    examined = ExaminedRound(plan, Snapshot(0, {}, {}), shard, Keys(1))
    return presence_of(measure_presence(examined, few, guest, {"embedding": 1}))


def presence_of(effects: PresenceEffects) -> tuple[float, float, str]:
    """(total, moved, words) of the query "embedding"."""
    effect = effects.by_query["embedding"]
    words = [effects.leak, *effects.message_leaks.values()]
    return effect.total, effect.moved, "; ".join(word for word in words if word)


def test_a_guest_of_norm_two_is_clipped_to_one_unit() -> None:
    total, others, said = changed(Sends())
    assert total == pytest.approx(1.0, abs=1e-3) and others == 0.0 and said == ""


def test_a_guest_within_the_norm_changes_the_sum_by_itself() -> None:
    total, others, _ = changed(Sends(rows=lambda x: 0.25 * x.flatten(1)))
    assert total == pytest.approx(0.5, abs=1e-3) and others == 0.0


def test_others_that_shrink_with_the_number_of_records_are_seen() -> None:
    """Rows times 0.1 / n: in the sum of unit-free closed form, n others move by |x| (0.1/n - 0.1/(n
    + 1)) each."""
    _, others, _ = changed(Sends(rows=lambda x: x.flatten(1) * 0.1 / len(x)))
    x = torch.rand(20, 1, 2, 2, generator=torch.Generator().manual_seed(0)).flatten(1)
    by_hand = [float(x[:n].norm(dim=1).sum()) * 0.1 * (1 / n - 1 / (n + 1)) for n in (20, 6)]
    # at most, of one record beside another: pairs of few records are looked at as well
    few = 0.1 * float(x.norm(dim=1).max()) / 2
    assert max(by_hand) * 0.99 <= others <= few


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (Sends(times=lambda n: 2 if n % 2 else 1), "how many releases"),
        (Sends(times=lambda n: 1 if n % 2 else 2), "how many releases"),
        (Sends(extra=lambda n: float(n)), "'prototypes' is sent as post-processing"),
    ],
)
def test_a_count_that_leaves_in_another_way_is_told(method: Sends, words: str) -> None:
    assert words in changed(method)[2]


def test_an_own_record_that_leaves_shows_a_rank_that_no_guest_shows() -> None:
    """The largest record counts ten times; a guest of no size is never the largest."""

    def largest(x):
        return (rows := x.flatten(1) * 0.05) * (
            1 + 9 * (rows.norm(dim=1, keepdim=True) >= rows.norm(dim=1).max())
        )

    assert changed(Sends(rows=largest))[1] > 0.2
    first = lambda x: x.flatten(1) * 0.05 * torch.tensor([10.0] + [1.0] * (len(x) - 1)).unsqueeze(1)  # noqa: E731
    assert changed(Sends(rows=first))[1] > 0.2


def test_records_in_another_order_have_not_moved() -> None:
    rows = torch.rand(6, 3, generator=torch.Generator().manual_seed(0))
    assert change_of_others([rows[1:]], [rows.flip(0)]) == 0.0
    assert change_of_others([rows[1:]], [2 * rows.flip(0)]) > 0.1


def test_rounding_is_no_movement() -> None:
    rows = torch.rand(5, 3)
    assert (
        change_of_others([rows], [rows + 1e-7]) == 0.0
        and change_of_others([rows], [rows + 0.1]) > 0.5
    )


@dataclass(frozen=True)
class Drawing(Coupled):
    """Records in the order that ``order`` gives them; of each draw, those contribute that
    ``chosen`` makes of its coins."""

    order: Callable[[Tensor, Any], Tensor] = lambda x, ctx: torch.arange(len(x))
    chosen: Callable[[Tensor, Tensor], Tensor] = lambda taken, x: taken
    parts: int = 1

    def local(self, broadcast: Any, memory: Any, shard: Shard, ctx: Any) -> Any:
        x = shard.train.x[self.order(shard.train.x, ctx)]
        for _ in range(2):
            drawn = torch.cat([ctx.sample("embedding", len(part)) for part in x.chunk(self.parts)])
            sent = ctx.mechanism("embedding", {"rows": 0.25 * x[self.chosen(drawn, x)].flatten(1)})
        return {"prototypes": Artifact(sent, private=True)}, {}


def drawn(method: Drawing, seed: int = 0) -> tuple[float, float, str]:
    g = torch.Generator().manual_seed(seed)
    base = Records(torch.rand(13, 1, 2, 2, generator=g), torch.arange(13) % 2, torch.arange(13))
    guest = Records(torch.ones(1, 1, 2, 2), torch.zeros(1).long(), torch.zeros(1).long())
    plan = Plan(
        Keys(seed), Problem((1, 2, 2), 2, 1), method, {"embedding": ClippedSum(1.0, 1.0, 0.5)}
    )
    shard = Shard(0, base, base.take([0]), base.take([1]), 2)
    few = base.take(torch.arange(6))
    examined = ExaminedRound(plan, Snapshot(0, {}, {}), shard, Keys(seed + 1))
    return presence_of(measure_presence(examined, few, guest, {"embedding": 2}))


ORDERS: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "as they are": lambda x, ctx: torch.arange(len(x)),
    "reversed": lambda x, ctx: torch.arange(len(x)).flip(0),
    "sorted by brightness": lambda x, ctx: x.flatten(1).sum(1).argsort(),
    "shuffled": lambda x, ctx: torch.randperm(len(x), generator=torch.Generator().manual_seed(7)),
    "shuffled by a key": lambda x, ctx: torch.randperm(
        len(x), generator=ctx.keys.fold("order").torch()
    ),
}
MISUSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "all contribute": lambda taken, x: torch.ones_like(taken),
    "as many as were drawn, the first": lambda taken, x: torch.arange(len(taken)) < taken.sum(),
    "as many as were drawn, the brightest": lambda taken, x: (
        x.flatten(1).sum(1).argsort(descending=True).argsort() < taken.sum()
    ),
    "one of them always": lambda taken, x: taken | (torch.arange(len(taken)) == 3),
    "pairs share a coin": lambda taken, x: taken[torch.arange(len(taken)) // 2 * 2],
    "half of those drawn": lambda taken, x: taken & (torch.arange(len(taken)) % 2 == 0),
}


@pytest.mark.nightly(but=["1-as they are", "3-as they are"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("parts", [1, 3])
def test_records_may_be_drawn_in_any_order_and_part_by_part(order: str, parts: int) -> None:
    for seed in range(3):
        total, others, said = drawn(Drawing(order=ORDERS[order], parts=parts), seed)
        assert total == pytest.approx(0.5, abs=1e-2) and others == 0.0 and said == ""


@pytest.mark.nightly(
    but=[
        "as many as were drawn, the first-as they are",
        "as many as were drawn, the brightest-as they are",
        "one of them always-as they are",
        "pairs share a coin-as they are",
        "half of those drawn-as they are",
        "half of those drawn-reversed",
        "half of those drawn-sorted by brightness",
        "half of those drawn-shuffled",
        "half of those drawn-shuffled by a key",
    ]
)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("misuse", MISUSES)
def test_whatever_the_order_those_contribute_that_were_drawn(order: str, misuse: str) -> None:
    _, others, said = drawn(Drawing(order=ORDERS[order], chosen=MISUSES[misuse]))
    assert "that were drawn" in said or others > 0.1


def test_the_own_record_that_contributes_most_leaves_wherever_it_was_put() -> None:
    """The brightest counts ten times, and all are reversed: only that it leaves shows it."""

    def rank(x: Tensor) -> Tensor:
        rows = x.flip(0).flatten(1) * 0.05
        return rows * (1 + 9 * (rows.norm(dim=1, keepdim=True) >= rows.norm(dim=1).max()))

    assert changed(Sends(rows=rank))[1] > 0.2


def test_near_copies_that_are_left_out_are_seen() -> None:
    """The first of those that look alike contributes, the others do not: which class it has depends
    on who is there."""

    def first(x: Tensor) -> Tensor:
        near = torch.cdist(x.flatten(1), x.flatten(1)) < 0.1
        return x.flatten(1) * ~near.tril(-1).any(1, keepdim=True)

    def by_class(shard: Shard) -> Tensor:
        return first(shard.train.x) * (1 - 2 * (shard.train.y % 2)).unsqueeze(1)

    @dataclass(frozen=True)
    class Deduplicated(Coupled):
        def local(self, broadcast: Any, memory: Any, shard: Shard, ctx: Any) -> Any:
            return {
                "prototypes": Artifact(
                    ctx.mechanism("embedding", {"rows": by_class(shard)}), private=True
                )
            }, {}

    total, others, _ = changed(Deduplicated())  # type: ignore[arg-type]
    assert total + others > 1.5


def far_ones_left_out(x: Tensor) -> Tensor:
    gaps = (x - x.mean(0)).flatten(1).norm(dim=1)
    far = (
        gaps > gaps.mean() + 2.5 * gaps.std()
        if len(x) > 3
        else torch.zeros(len(x), dtype=torch.bool)
    )
    return x.flatten(1) * ~far.unsqueeze(1)


DECISIONS: dict[
    str, Rows
] = {  # with which no pair of neighbours beside the client's own 20 records differs
    "fewer than 15 records contribute nothing": lambda x: x.flatten(1) * (len(x) >= 15),
    "more than 25 records contribute nothing": lambda x: x.flatten(1) * (len(x) <= 25),
    "fewer than 15 records contribute twice": lambda x: x.flatten(1).repeat(
        2 if len(x) < 15 else 1, 1
    ),
    "records far from the mean are left out": far_ones_left_out,
}
LOCAL_RULES: dict[str, Rows] = {
    "by brightness": lambda x: x[x.flatten(1).mean(1).argsort()].flatten(1),
    "dark ones are left out": lambda x: x[x.flatten(1).mean(1) > 0.5].flatten(1),
    "sizes decide": lambda x: x.flatten(1) / (1 + x.flatten(1).norm(dim=1, keepdim=True)),
    "bright ones count twice": lambda x: (
        x.flatten(1) * (1 + (x.flatten(1).mean(1, keepdim=True) > 0.5)) / 4
    ),
}


@pytest.mark.parametrize("rule", DECISIONS)
def test_what_a_record_contributes_may_not_depend_on_which_others_there_are(rule: str) -> None:
    total, others, _ = changed(Sends(rows=DECISIONS[rule]))
    assert total > 1.05 or others > 0.5  # one white record, clipped, changes the sum by one


@pytest.mark.parametrize("rule", LOCAL_RULES)
def test_what_a_record_contributes_may_depend_on_itself(rule: str) -> None:
    total, others, said = changed(Sends(rows=LOCAL_RULES[rule]))
    assert total <= 1.0 and others == 0.0 and said == ""


# T1 as the audit runs it, against queries whose sensitivity has a closed form.


BATCH = 256
SYNTHETIC = 10


@dataclass(frozen=True)
class RowsSensitivity(Coupled):
    """A method that releases one query over ``rows`` of its images (n, p)."""

    rows: Callable[[Tensor], Tensor] = lambda x: x.flatten(1)

    def local(self, broadcast: Any, memory: Any, shard: Shard, ctx: Any) -> Any:
        sent = ctx.mechanism("embedding", {"rows": self.rows(shard.train.x)})
        return {"prototypes": Artifact(sent, private=True)}, {}


@dataclass(frozen=True)
class Aggregate(ClippedSum):
    """The papers' equation as printed: the batch's mean is clipped, and the noise is that of
    clipped records."""

    def __call__(self, value: Any, noise: Any) -> Output:
        honest = super().__call__(value, noise)
        means = {name: rows.sum(0) / self.normaliser for name, rows in value.items()}
        norm = math.sqrt(sum(float(mean.square().sum()) for mean in means.values()))
        exact = {
            name: mean * min(1.0, self.clip_norm / max(norm, 1e-30)) for name, mean in means.items()
        }
        drawn = {name: honest.value[name] - rows for name, rows in (honest.exact or {}).items()}
        return replace(
            honest, exact=exact, value={name: mean + drawn[name] for name, mean in exact.items()}
        )


def matching_gradient(x: Tensor) -> Tensor:
    """Per-record gradient of ||mean(x) - mean(S)||^2 in S for S = 0 and identity embedding, (n, 10
    p)."""
    return (-2 / SYNTHETIC) * x.flatten(1).repeat(1, SYNTHETIC)


@dataclass(frozen=True)
class Repeats(Coupled):
    """Once more where the records are bright, or where they are dark."""

    bright: bool = True

    def local(self, broadcast: Any, memory: Any, shard: Shard, ctx: Any) -> Any:
        x = shard.train.x
        times = 1 + ((float(x.mean()) > 0.5) == self.bright)
        sent = [ctx.mechanism("embedding", {"rows": x.flatten(1)})["rows"] for _ in range(times)]
        return {"prototypes": Artifact({"rows": sent[0]}, private=True)}, {}


@pytest.mark.parametrize("bright", [True, False])
def test_a_number_of_releases_that_the_records_decide_is_told_and_does_not_stop_the_test(
    bright: bool,
) -> None:
    """The white guest's run asks for one release more, or less, than that of its negative, whose
    releases it is given."""
    guests = pattern_canary("white", (1, 2, 2), 0)
    seen = tally_of(
        Repeats(bright=bright), ClippedSum(1.0, 1.0), torch.full((6, 1, 2, 2), 0.5), guests
    )
    assert (
        "how many releases" in seen.describe_faults()
        and seen.worst_guest("add_remove")[0] >= UNBOUNDED
    )


def tally(
    rows: Callable[[Tensor], Tensor], mechanism: Mechanism, x: Tensor, guests: Canaries
) -> SensitivityTally:
    """T1 of one release over the records ``x`` of class 0 and over each guest beside them."""
    return tally_of(RowsSensitivity(rows=rows), mechanism, x, guests)


def tally_of(
    method: Coupled, mechanism: Mechanism, x: Tensor, guests: Canaries
) -> SensitivityTally:
    shape = (x.shape[1], x.shape[2], x.shape[3])
    base = Records(x, torch.zeros(len(x), dtype=torch.long), torch.arange(len(x)))
    shard = Shard(0, base, base.take([0]), base.take([1]), 2)
    plan = Plan(Keys(0), Problem(shape, 2, 1), method, {"embedding": mechanism})
    return measure_sensitivity(
        ExaminedRound(plan, Snapshot(0, {"model": {}}, {}, {}), shard, Keys(1)), base, guests, [0]
    )["embedding"]


# contributions are rounded towards zero: at most sqrt(3072) steps of 5 * 2**-16 of their norm
ROUNDED = 3e-3


def test_clipping_the_aggregate_has_its_closed_form() -> None:
    """Matched synthetic set, black records, one white: kappa = 2 sqrt(3072 / 10) / C = 35.05 at C =
    1."""
    black = torch.zeros(20, 3, 32, 32)
    guests = out_of_distribution_canaries((3, 32, 32), 0, Keys(2).torch())
    printed = tally(matching_gradient, Aggregate(5.0, 1.0, 1.0, BATCH), black, guests)
    white = guests.names.index("white")
    assert (
        printed.changes[white]
        == max(printed.changes.values())
        == pytest.approx(2 * math.sqrt(3072 / 10), rel=1e-4)
    )
    assert printed.unclipped == pytest.approx(
        BATCH, rel=1e-4
    )  # the mean of a batch of any length, clipped to C
    sound = tally(matching_gradient, ClippedSum(5.0, 1.0, 1.0, BATCH), black, guests)
    assert (
        sound.worst_guest("add_remove")[0] == pytest.approx(1.0, rel=ROUNDED)
        and sound.describe_faults() == ""
    )


def test_an_exchange_of_opposite_records_is_two_units() -> None:
    guests = join_canaries(
        pattern_canary("black", (3, 32, 32), 0), pattern_canary("white", (3, 32, 32), 0)
    )
    seen = tally(
        lambda x: (x - 0.5).flatten(1),
        ClippedSum(5.0, 1.0, 1.0, BATCH),
        torch.ones(20, 3, 32, 32),
        guests,
    )
    assert seen.worst_guest("add_remove")[0] == pytest.approx(1.0, rel=ROUNDED)
    assert seen.worst_guest("replace")[0] == pytest.approx(2.0, rel=ROUNDED)


@dataclass(frozen=True)
class MeanNorm(ClippedSum):
    """All records are scaled by the mean of their norms, where a clip norm of each is stated."""

    def __call__(self, value: Any, noise: Any) -> Output:
        honest = super().__call__(value, noise)
        rows = {name: t.double() for name, t in value.items()}
        mean = (
            sum(t.norm(dim=1).mean() for t in rows.values())
            if len(next(iter(rows.values())))
            else 0.0
        )
        total = {
            name: t.sum(0) * min(1.0, self.clip_norm / max(float(mean), 1e-9)) / self.normaliser
            for name, t in rows.items()
        }
        drawn = {name: honest.value[name] - t for name, t in (honest.exact or {}).items()}
        return replace(
            honest, exact=total, value={name: t + drawn[name] for name, t in total.items()}
        )


def test_a_mechanism_that_states_a_clip_norm_clips_what_no_crafted_record_reaches() -> None:
    """Every image contributes less than the clip norm: only a contribution beyond it shows that
    nothing is clipped by itself."""
    x = torch.rand(20, 1, 4, 4, generator=Keys(3).torch())
    white = pattern_canary("white", (1, 4, 4), 0)
    seen = [
        tally(lambda x: x.flatten(1), kind(5.0, 100.0, 1.0, 1.0), x, white)
        for kind in (MeanNorm, ClippedSum)
    ]
    assert (
        seen[0].worst_guest("add_remove")[0] > 10
        and "beyond the clip norm" in seen[0].describe_faults()
    )
    assert seen[1].unclipped == 0 and seen[1].describe_faults() == ""


def test_a_batch_statistic_is_caught_because_the_others_move() -> None:
    """Though the record's own change is small: the rows of the others are no longer their own."""
    x = torch.rand(20, 1, 4, 4, generator=Keys(3).torch())
    white = pattern_canary("white", (1, 4, 4), 0)
    mechanism = ClippedSum(5.0, 100.0, 1.0, 1.0)
    centred = tally(lambda x: (x - x.mean(0)).flatten(1), mechanism, x, white)
    assert (
        centred.changes[0] < 1
        and centred.moved > 0.01
        and "other records' contributions" in centred.describe_faults()
    )
    assert centred.worst_guest("add_remove")[0] == pytest.approx(centred.changes[0] + centred.moved)
    alone = tally(lambda x: (x - 0.5).flatten(1), mechanism, x, white)
    assert alone.moved == 0 and alone.describe_faults() == ""
