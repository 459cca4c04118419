"""The contract of a federated method: sixteen hooks, four of which every method must define.

A method holds hyper-parameters only: state is passed in and returned. What more an audit may ask is
in ``privdd.federated.audit_hooks``, with defaults for all. Every hook is declared once, and an
unknown public name is refused.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import Tensor

from attacks.types import Surface
from attacks.validation import check_hook_names, declared_hooks
from privdd.core.rng import Keys
from privdd.core.types import ClientData, Problem, Received, State, Values, Work, unpack
from privdd.federated.audit_hooks import HOOK_NAMES, AnsweredHooks, AuditHooks
from privdd.federated.channel import ClientContext
from privdd.federated.client_work import place_client_work
from privdd.privacy.mechanism import Mechanism

REQUIRED_HOOKS = ("init", "local", "aggregate", "predict")
DECLARED_NAMES = ("uploads", "broadcasts", "rounds")


class Method(ABC):
    """A federated method: subclasses are usually frozen dataclasses, their fields the settings.

    A family of methods may add hooks of its own: ``class FedAvg(Method, hooks=("loss",))``.

    Attributes:
        uploads: name -> surface of everything that a client may send.
        broadcasts: name -> surface of everything that the server sends.
        rounds: how many rounds the whole method takes, phases included.
        queries: name -> surface of what goes through ``ctx.mechanism`` in local work.
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

    queries: ClassVar[Mapping[str, Surface]] = {}

    _hooks: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, hooks: Sequence[str] = (), **more: Any) -> None:
        super().__init_subclass__(**more)
        cls._hooks = cls._hooks | frozenset(hooks)
        check_hook_names(cls, "a method", cls._hooks)
        place_client_work(cls)
        if all(getattr(cls, name) is not getattr(Method, name) for name in REQUIRED_HOOKS):
            _check_declarations(cls)

    @abstractmethod
    def init(self, problem: Problem, keys: Keys) -> State:
        """The server's state before the first round, from public ``keys`` alone."""

    @abstractmethod
    def local(
        self, broadcast: Values, memory: State, shard: ClientData, ctx: ClientContext
    ) -> Work:
        """One client's round.

        All tensors are on the problem's device, and results are brought back from there. No result
        of training may stay in a cache of the process: an estimate of cost trains for a moment
        before a run, and the run would read it.

        Args:
            broadcast: what the server sent, by name.
            memory: what this client kept from its last round.
            shard: the client's records.
            ctx: its random streams and mechanisms.

        Returns:
            (what it hands to the channel, what it remembers).
        """

    @abstractmethod
    def aggregate(self, server: State, inbox: Sequence[Received], keys: Keys) -> State:
        """The server's state after a round."""

    @abstractmethod
    def predict(self, server: State, memory: State | None, x: Tensor) -> Tensor:
        """Logits (n, C) of records (n, ...); memory: a client's own, None for the global
        model."""

    def broadcast(self, server: State) -> Values:
        """The server's messages: the entries of its state below each declared name, if any."""
        groups = {name: unpack(name, server) for name in self.broadcasts}
        return {name: group for name, group in groups.items() if group}

    def needs_all_clients(self, round: int) -> bool:
        """Whether a round collects from all clients, whatever ``participation`` is."""
        return False

    def releases_per_round(
        self, round: int, mechanisms: Mapping[str, Mechanism]
    ) -> Mapping[str, int] | None:
        """How often one client applies each mechanism in a round; None if that is unknown, so that
        noise cannot be calibrated."""
        return None

    def check_mechanisms(self, mechanisms: Mapping[str, Mechanism]) -> None:
        """Checks, before anything is computed, that the settings fit the mechanisms.

        Raises:
            ValueError: one line, if they do not.
        """
        return None

    def released_through(self, mechanisms: Mapping[str, Mechanism], problem: Problem) -> Method:
        """This method adapted to uploads through these mechanisms, whose noise it may have to know.

        Raises:
            ValueError: one line, if it cannot work with them on this problem.
        """
        return self

    def client_private(self) -> Method:
        """This method adapted to client-level privacy: it sends changes of the model, and no record
        counts."""
        return self

    def aggregation_kind(
        self, mechanisms: Mapping[str, Mechanism]
    ) -> Literal["sum", "mean"] | None:
        """All that the server needs of the uploads, name by name and number by number.

        If that is their "sum" or "mean", secure aggregation may stand between
        (``privdd.federated.aggregation``). With mechanisms, an upload must moreover be a linear
        function of their outputs, for their noise is dealt among the clients.
        """
        return None

    @property
    def audit_hooks(self) -> AuditHooks:
        """What an audit asks: the method's own answers, by name, and the defaults."""
        return AnsweredHooks(self)


def _check_declarations(cls: type) -> None:
    """Raises TypeError if a complete method does not declare what it sends or how many rounds it
    takes."""
    declared: set[str] = set()
    for base in cls.__mro__[: cls.__mro__.index(Method)]:
        declared |= vars(base).keys() | vars(base).get("__annotations__", {}).keys()
    missing = [name for name in DECLARED_NAMES if name not in declared]
    if missing:
        raise TypeError(
            f"{cls.__name__}: declares no {', '.join(missing)}, which every method must"
        )


Method._hooks = declared_hooks(Method) | HOOK_NAMES
