"""The contract of a federated method: sixteen hooks, four of which every method must define.

A method holds hyper-parameters only: state is passed in and returned. What more an audit can be
told (how a message is read, what is replayed and how fast) are ``AuditHooks``, which all have
defaults. Every hook is declared here once, and an unknown public name is refused.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import Generator, Tensor, nn

from attacks.types import Surface
from attacks.validation import check_hook_names, declared_hooks
from privdd.core.device import to_device
from privdd.core.rng import Keys
from privdd.core.types import (
    ClientData,
    Problem,
    Received,
    Shard,
    State,
    Tensors,
    Upload,
    Values,
    Work,
    unpack,
)
from privdd.federated.channel import ClientContext
from privdd.privacy.claims import Claim, ClaimedRun
from privdd.privacy.mechanism import Mechanism

Images = Callable[[Tensor], Tensor]  # (b, c, h, w) -> (b, ...)
RecordTransform = Callable[
    [Tensor, Generator], Tensor
]  # (b, c, h, w) -> (b, c, h, w), one draw for all


class AuditHooks:
    """Optional hooks through which a method informs an audit; a new method need not know them.

    A method that has some inherits from this class too (``class FedAvg(Method, AuditHooks)``), or
    names another object of it as its ``audit_hooks``.
    """

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if not issubclass(cls, Method):
            check_hook_names(cls, "an audit", AUDIT_HOOKS)
        _place_client_work(cls)

    # what a message says of a record

    visible_to: ClassVar[
        Mapping[str, tuple[str, ...]]
    ] = {}  # upload -> adversaries; without an entry, the server
    accuracy_kind: ClassVar[Literal["global", "personal"]] = (
        "global"  # personal: each client's own model is measured
    )

    def classifier(self, problem: Problem) -> nn.Module | None:
        """The architecture of the classifier whose parameters travel."""
        return None

    def sent_state(self, broadcast: Values) -> State | None:
        """The classifier's parameters and buffers as the server sent them, None where it sent
        none."""
        return None

    def model_state(self, name: str, value: Tensors, broadcast: Values) -> State | None:
        """The classifier's parameters and buffers that the upload ``name`` implies, None where it
        implies none."""
        return None

    def record_loss(
        self, name: str, value: Tensors, broadcast: Values, problem: Problem
    ) -> Callable[[Tensor, Tensor], Tensor] | None:
        """For an upload that implies no classifier: (x (n, c, h, w), y (n,)) -> loss (n,), smaller
        for members."""
        return None

    def opening(self, problem: Problem, seed: int) -> State | None:
        """The classifier that all clients start from and everybody knows, though no server sends
        it; None without one."""
        return None

    def maps(self, broadcast: Values, memory: State, problem: Problem) -> Mapping[str, Images]:
        """Maps from records to what is shared, by role: "feature", "embedding", "projection",
        "public"."""
        return {}

    def settings(self, shard_size: int) -> Mapping[str, Any]:
        """The protocol's public numbers for a client of so many records: lr, batch_size,
        local_steps, ..."""
        return {}

    def stand_ins(self, memory: State, problem: Problem) -> Tensor | None:
        """Images (m, c, h, w) that a client trains on in place of its records, None where it uses
        the records."""
        return None

    def record_transform(self, problem: Problem) -> RecordTransform | None:
        """How local work transforms the client's records at random before it reads them, None where
        it reads them as they are. Attacks ask about copies under draws of it."""
        return None

    def rows_are_records(self) -> bool:
        """Whether released features have one row for each record (in the order of ids), and noise
        on it covers the record."""
        return True

    def grants(self, surface: Surface) -> str:
        """Knowledge that attacks on a surface are granted beyond the protocol, as a sentence; "" =
        none."""
        return ""

    def images_per_class(self) -> int:
        """Synthetic examples a class in one upload."""
        return 1

    def with_images_per_class(self, count: int) -> Method:
        """This method with ``count`` synthetic examples a class, if that is a setting."""
        return self._method

    # what is promised

    def claims(self, plan: ClaimedRun, shards: Sequence[Shard]) -> list[Claim]:
        """The theorems printed in the method's paper, evaluated for this run."""
        return []

    def stated(self, plan: ClaimedRun, shards: Sequence[Shard]) -> Mapping[str, float]:
        """surface -> epsilon that the paper promises, where that differs from the ledger's
        total."""
        return {}

    def released(self, broadcast: Values, shard: ClientData, ctx: ClientContext) -> Upload:
        """The releases of ``local`` under a guarantee, without work that no message depends on."""
        return self._method.local(broadcast, {}, shard, ctx)[0]

    def steps(self, broadcast: Values, shard: ClientData, ctx: ClientContext) -> Any:
        """The public facts of a round's noised matching steps (``Steps``); None if there are
        none."""
        return None

    # replays of a client, each a shadow model

    worlds_per_pass: ClassVar[int] = 8  # client rounds in one call of ``local_batched``
    shares_work: ClassVar[bool] = (
        False  # K rounds at once cost little more than one: always batched
    )
    on_gpu: ClassVar[str] = (
        ""  # what ``device=cuda`` places on a GPU, in words; "" = nothing: the setting is refused
    )

    def remembers(self, round: int, memory: State) -> bool:
        """Whether the upload of ``round`` depends on what the client kept, ``memory``, from earlier
        rounds."""
        return bool(memory)

    def recall(
        self, broadcast: Values, memory: State, shard: ClientData, ctx: ClientContext
    ) -> State:
        """The memory that ``local`` would keep, without the work on an upload that nobody reads."""
        return self._method.local(broadcast, memory, shard, ctx)[1]

    def phase(self, round: int) -> str:
        """Which part of the method a round belongs to; updates of the phase "train" are
        inverted."""
        return "train"

    def workload(self, round: int) -> str:
        """A name that rounds of the same work share: a price times one of each."""
        return self.phase(round)

    def local_batched(
        self,
        broadcast: Values,
        memories: Sequence[State],
        shards: Sequence[ClientData],
        contexts: Sequence[ClientContext],
    ) -> Sequence[Work] | None:
        """K calls of ``local`` at once (up to rounding), or None where this round has no such form.

        The shards are of one client and differ by which records they hold; the broadcast is the
        same. A method whose rounds share their random draws may take the first context's for all.
        """
        return None

    @property
    def _method(self) -> Method:
        """The method that these hooks belong to."""
        if not isinstance(self, Method):
            raise TypeError(
                f"{type(self).__name__}: hooks beside a method must define recall and released"
            )
        return self


class Method(ABC):
    """A federated method. Subclasses are usually frozen dataclasses whose fields are their
    settings.

    uploads: name -> surface of everything a client may send; broadcasts: name -> surface of
        everything the server sends; rounds: how many rounds the whole method takes, phases
        included. A family of
    methods may add hooks of its own: ``class FedAvg(Method, AuditHooks, hooks=("loss",))``.
    """

    if TYPE_CHECKING:  # a class variable, a field or a property, as it suits the method

        @property
        def uploads(self) -> Mapping[str, Surface]: ...
        @property
        def broadcasts(self) -> Mapping[str, Surface]: ...
        @property
        def rounds(self) -> int: ...
    else:
        uploads: Mapping[str, Surface]
        broadcasts: Mapping[str, Surface]
        rounds: int

    queries: ClassVar[
        Mapping[str, Surface]
    ] = {}  # what goes through ``ctx.mechanism`` in local work: name -> surface

    _hooks: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, hooks: Sequence[str] = (), **more: Any) -> None:
        super().__init_subclass__(**more)
        cls._hooks = cls._hooks | frozenset(hooks)
        check_hook_names(cls, "a method", cls._hooks)
        _place_client_work(cls)
        if all(getattr(cls, name) is not getattr(Method, name) for name in REQUIRED_HOOKS):
            _check_declarations(cls)

    @abstractmethod
    def init(self, problem: Problem, keys: Keys) -> State:
        """The server's state before the first round, from public ``keys`` alone."""

    @abstractmethod
    def local(
        self, broadcast: Values, memory: State, shard: ClientData, ctx: ClientContext
    ) -> Work:
        """One client's round: (what it hands to the channel, what it remembers).

        ctx: the client's random streams and mechanisms. All tensors
        are on the problem's device; what is returned is brought back from there. No result of
        training may stay in a
        cache of the process: a price comes before a run and trains for a moment only, and the run
            would read it."""

    @abstractmethod
    def aggregate(self, server: State, inbox: Sequence[Received], keys: Keys) -> State:
        """The server's state after a round."""

    @abstractmethod
    def predict(self, server: State, memory: State | None, x: Tensor) -> Tensor:
        """Logits (n, C) of images (n, c, h, w); memory: a client's own, None for the global
        model."""

    def broadcast(self, server: State) -> Values:
        """The server's messages: the entries of its state below each declared name, if there are
        any."""
        groups = {name: unpack(name, server) for name in self.broadcasts}
        return {name: group for name, group in groups.items() if group}

    def everyone(self, round: int) -> bool:
        """Whether all clients take part in a round, whatever ``participation`` is: one that
        collects from each of them."""
        return False

    def spends(self, round: int, mechanisms: Mapping[str, Mechanism]) -> Mapping[str, int] | None:
        """How often one client applies each mechanism in a round; None = unknown, so noise cannot
        be calibrated."""
        return None

    def check_mechanisms(self, mechanisms: Mapping[str, Mechanism]) -> None:
        """Raises ValueError, before anything is computed, where the settings do not fit the
        mechanisms."""
        return None  # they fit

    def released_through(self, mechanisms: Mapping[str, Mechanism], problem: Problem) -> Method:
        """This method adapted to uploads that go through these mechanisms, whose noise it may have
        to know;
        or refuses them: raises ValueError, one line, where it cannot work with them on this
            problem."""
        return self

    def client_private(self) -> Method:
        """This method adapted to client-level privacy: it sends changes of the model, and no record
        counts."""
        return self

    def adds_up(self, mechanisms: Mapping[str, Mechanism]) -> Literal["sum", "mean"] | None:
        """Either "sum" or "mean" if the server needs no more of the uploads, name by name and
        number by number; else None.

        Then secure aggregation may stand between (``privdd.federated.aggregation``). Where there
        are mechanisms, an upload must moreover be a linear function of their outputs, for their
        noise is dealt among the clients."""
        return None

    @property
    def audit_hooks(self) -> AuditHooks:
        """The method itself where it inherits from ``AuditHooks``; else those hooks that it defines
        by name, and defaults."""
        return self if isinstance(self, AuditHooks) else _NamedHooks(self)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Hooks of audits by the method itself, as earlier versions had them."""
            if name in AUDIT_HOOKS:
                return getattr(self.audit_hooks, name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


DEVICE_MARK = "at_the_device"  # marks such work, so that it has one door
CLIENT_WORK = {
    "local",
    "local_batched",
    "recall",
    "released",
}  # what is handed tensors on the problem's device
REQUIRED_HOOKS = ("init", "local", "aggregate", "predict")


def _place_client_work(cls: type) -> None:
    for name in vars(cls).keys() & CLIENT_WORK:
        setattr(cls, name, _run_at_device(vars(cls)[name]))


def _check_declarations(cls: type) -> None:
    """Raises TypeError if a complete method does not declare what it sends or how many rounds it
    takes."""
    bases = cls.__mro__[: cls.__mro__.index(Method)]
    known = {
        name for base in bases for name in (*vars(base), *vars(base).get("__annotations__", {}))
    }
    missing = [name for name in ("uploads", "broadcasts", "rounds") if name not in known]
    if missing:
        raise TypeError(
            f"{cls.__name__}: declares no {', '.join(missing)}, which every method must"
        )


def _run_at_device(work: Callable[..., Any]) -> Callable[..., Any]:
    """Client work with all that it is given on the problem's device, and what it gives back on the
    CPU. Of a client's data it is handed what it trains on (``ClientData``), whoever calls it.

    Work that is part of other client work is given tensors that are there, and its results stay.
    """
    if DEVICE_MARK in vars(work):  # another class's, taken over as it is
        return work

    @functools.wraps(work)
    def run_at_device(self: object, *given: Any) -> Any:
        *passed, context = given
        held = [_hand_over(value) for value in passed]
        first = context[0] if isinstance(context, Sequence) else context
        there = to_device(held, first.problem.device)
        found = work(self, *there, context)
        return found if there is held else to_device(found, "cpu")

    vars(run_at_device)[DEVICE_MARK] = True
    return run_at_device


def _hand_over(value: Any) -> Any:
    """A client's data without what it does not train on; anything else as it is."""
    if isinstance(value, Shard):
        return value.client_data
    if isinstance(value, list | tuple) and any(isinstance(one, Shard) for one in value):
        return [_hand_over(one) for one in value]
    return value


def overrides_hook(method: Method, hook: str) -> bool:
    """Whether a method overrides one of ``AuditHooks``."""
    own = getattr(method.audit_hooks, hook)
    return getattr(own, "__func__", own) is not vars(AuditHooks)[hook]


AUDIT_HOOKS = declared_hooks(AuditHooks)
Method._hooks = declared_hooks(Method) | AUDIT_HOOKS


class _NamedHooks(AuditHooks):
    """The hooks of a method that does not inherit from ``AuditHooks``, as methods of earlier
    versions do not."""

    def __init__(self, method: Method) -> None:
        self._named = method
        known = {*dir(type(method)), *vars(method)}
        vars(self).update({name: getattr(self._named, name) for name in AUDIT_HOOKS & known})

    @property
    def _method(self) -> Method:
        return self._named
