"""What a planted fault is, and how code is swapped for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from privdd.auditing.guarantees.recording_context import Witness
from privdd.core.keys import Keys
from privdd.federated import channel
from privdd.methods.dp_psg import DPPSG
from privdd.methods.fedavg import FedAvg
from privdd.methods.feddm import FedDM
from privdd.methods.fedfed import FedFed
from privdd.methods.fedlgd import FedLGD
from privdd.methods.fedrd import FedRD
from privdd.methods.public_map import PublicMap
from privdd.planted.small_runs import NEEDS, Profile

Plant = Callable[[], AbstractContextManager[Any]]
LOCAL = tuple(kind for kind in (DPPSG, FedAvg, FedDM, FedFed, FedLGD, FedRD, PublicMap) if "local" in vars(kind))
ROUNDS = 3  # of a run with a fault that is in force in some of them
OTHER = 2  # a client that is not audited


@dataclass(frozen=True)
class Fault:
    """key: what it is called on the command line; says: what is wrong, in words; needs: of ``NEEDS``, what a
    profile must have; settings: of the run that it is planted in; rounds: in so many at least every mechanism must be
    used; refusal: words of the error that is the right answer to it (any other error is none); least: how often it must
    be in force to be told from chance (of numbers, records or messages), where its plant counts that (``Moment``).
    """

    key: str
    says: str
    plant: Plant
    needs: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    rounds: int = 1
    refusal: str = ""
    least: int = 0

    def not_applicable(self, profile: Profile) -> str:
        """Why it cannot be planted in a profile; "" where it can."""
        return next((NEEDS[need] for need in self.needs if need not in profile.has), "")


@dataclass(frozen=True)
class Scope:
    """When and where a fault is in force. round: all, first, middle or last; call: every release of a client round, its
    first one only (once), or all after its first (later); client: all, audited or other; numbers: of noise, all, the half
    of the places, the first, or one in a hundred anew each time."""

    round: str = "all"
    call: str = "every"
    client: str = "all"
    numbers: str = "all"

    def __str__(self) -> str:
        return "/".join((self.round, self.call, self.client, self.numbers))

    @property
    def everywhere(self) -> bool:
        return (self.round, self.call, self.client) == ("all", "every", "all")

    def holds(self, round: int, client: int, call: int) -> bool:
        when = {"all": True, "first": round == 0, "middle": 0 < round < ROUNDS - 1, "last": round == ROUNDS - 1}
        calls = {"every": True, "once": call <= 0, "later": call > 0}
        return (
            when[self.round]
            and calls[self.call]
            and {"all": True, "audited": client == 0, "other": client == OTHER}[self.client]
        )


AXES = {
    "round": ("all", "first", "middle", "last"),
    "call": ("every", "once", "later"),
    "client": ("all", "audited", "other"),
    "start": ("all", "first"),  # rounds after which others come
    "numbers": ("all", "half", "first", "hundredth"),
}


@dataclass
class Moment:
    """Where a run stands while a fault is planted in it: client and round, and the release of that round; -1: nowhere.

    touched: how often the fault was in force so far; kept: what it remembers.
    """

    scope: Scope
    round: int = -1
    client: int = -1
    call: int = -1
    touched: int = 0
    kept: dict[Any, Any] = field(default_factory=dict)
    generator: torch.Generator = field(default_factory=lambda: Keys(0).fold("planted").torch())

    def active(self, count: int = 0) -> bool:
        """Whether the fault is in force now; if so, ``count`` is added to ``touched``."""
        there = self.scope.everywhere or (self.round >= 0 and self.scope.holds(self.round, self.client, self.call))
        self.touched += count * there
        return there

    def numbers(self, count: int) -> Tensor:
        """Places (k,) of a draw of ``count`` numbers."""
        if self.scope.numbers == "hundredth":
            return (torch.rand(count, generator=self.generator) < 0.01).nonzero()[:, 0]
        if self.scope.numbers == "half":
            return torch.randperm(count, generator=Keys(count).torch())[: count // 2]
        return torch.arange(min(count, 1) if self.scope.numbers == "first" else count)

    @contextmanager
    def at(self, ctx: Any, call: int) -> Iterator[None]:
        before = self.round, self.client, self.call
        self.round, self.client, self.call = ctx.round, ctx.client, call
        try:
            yield
        finally:
            self.round, self.client, self.call = before

    def follow(self) -> AbstractContextManager[None]:
        """Plant that keeps the moment up to date."""

        @around("local", *LOCAL)
        def local(honest: Any, method: Any, broadcast: Any, memory: Any, shard: Any, ctx: Any) -> Any:
            with self.at(ctx, -1):
                return honest(method, broadcast, memory, shard, ctx)

        @around("mechanism", channel.ClientContext, Witness)
        def release(honest: Any, ctx: Any, *given: Any, **named: Any) -> Any:
            call = ctx.__dict__["released"] = ctx.__dict__.get("released", -1) + 1
            with self.at(ctx, call):
                return honest(ctx, *given, **named)

        @around("sample", channel.ClientContext)
        def sample(honest: Any, ctx: Any, *given: Any) -> Any:
            call = ctx.__dict__["tossed"] = ctx.__dict__.get("tossed", -1) + 1
            with self.at(ctx, call):
                return honest(ctx, *given)

        @around("_release", channel.Channel)
        def upload(honest: Any, way: Any, name: str, artifact: Any, ctx: Any, inner: Any) -> Any:
            with self.at(ctx, -1):
                return honest(way, name, artifact, ctx, inner)

        return together(local, release, sample, upload)()


@dataclass(frozen=True)
class Kind:
    """One thing that can be wrong, anywhere and at any time. axes: which parts of a ``Scope`` it can be limited to; limited:
    what a profile must have beside ``needs`` where it is limited."""

    says: str
    plant: Callable[[Moment], Plant]
    needs: tuple[str, ...] = ()
    axes: tuple[str, ...] = ("round",)
    least: int = 1
    rounds: int = 1
    limited: tuple[str, ...] = ()

    def fault(self, key: str, scope: Scope = Scope(), says: str = "") -> Fault:
        """The fault at one point of the grid."""

        @contextmanager
        def planted() -> Iterator[Moment]:
            moment = Moment(scope)
            with self.plant(moment)(), moment.follow():  # which is around the plant
                yield moment

        needs = [
            *self.needs,
            *(["long"] if scope.round != "all" else []),
            *(["counted"] if scope.call != "every" else []),
        ]
        rounds = ROUNDS if scope.round != "all" else self.rounds
        return Fault(key, says or f"{self.says} ({scope})", planted, tuple(needs), rounds=rounds, least=self.least)


def around(name: str, *places: Any) -> Callable[[Callable[..., Any]], Plant]:
    """Turns a function into a plant: it is called in place of ``name`` of each of the places, with what stood there as its
    first argument."""

    def plant(changed: Callable[..., Any]) -> Plant:
        def swap(place: Any) -> tuple[Any, str, Any]:
            honest = getattr(place, name)
            return place, name, lambda *given, **named: changed(honest, *given, **named)

        return lambda: swapped(*map(swap, places))

    return plant


def together(*plants: Plant) -> Plant:
    """All of them at once."""

    @contextmanager
    def planted() -> Iterator[None]:
        with ExitStack() as stack:
            for plant in plants:
                stack.enter_context(plant())
            yield

    return planted


@contextmanager
def swapped(*swaps: tuple[Any, str, Any]) -> Iterator[None]:
    """(module or class, name, what it is for a while) each; everything is put back, whatever happens.

    Raises AttributeError for a name that is not there: a fault in code that has moved would never be seen.
    """
    with ExitStack() as stack:
        for place, name, made in swaps:
            before = vars(place)[name] if name in vars(place) else getattr(place, name)
            inherited = name not in vars(place)
            setattr(place, name, made)
            stack.callback(_back, place, name, before, inherited)
        yield


def _back(place: Any, name: str, before: Any, inherited: bool) -> None:
    if inherited:
        delattr(place, name)
    else:
        setattr(place, name, before)
