"""Flower's mods and strategies as an app uses them: a ``ClientApp`` with its mods, and
``Strategy.start`` over its nodes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dp_accounting as dpa
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp.strategy import FedAvg

from privdd.core.validation import BadConfig, check_integer
from privdd.integrations.library_components import DELTA, Adapted, number_argument

Arrays = Sequence[np.ndarray]
EQUAL_WEIGHT = 100  # examples of a client: any number, the same for all
STRATEGY_MODS = {  # that every client of a strategy has, as its documentation asks for
    "DifferentialPrivacyClientSideFixedClipping": (fixedclipping_mod,),
    "DifferentialPrivacyClientSideAdaptiveClipping": (adaptiveclipping_mod,),
}


def _array_record(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({str(index): Array(np.array(array)) for index, array in enumerate(arrays)})


class _Federation:
    """An app of one process, its nodes, and the grid that a strategy sends its messages through."""

    def __init__(self, mods: Sequence[Any]) -> None:
        self.app = ClientApp(mods=list(mods))
        self.replies = dict[int, tuple[Arrays, int]]()

        @self.app.train()
        def train(message: Message, context: Context) -> Message:
            arrays, weight = self.replies[message.metadata.dst_node_id]
            sent: dict[str, Any] = {
                "arrays": _array_record(arrays),
                "metrics": MetricRecord({"num-examples": weight}),
            }
            return Message(content=RecordDict(sent), reply_to=message)

    def get_node_ids(self) -> list[int]:
        return list(self.replies)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        return [self.send_message(message) for message in messages]

    def send_message(self, message: Message) -> Message:
        context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
        reply = self.app(message, context)
        if reply.has_error():
            raise ValueError(reply.error.reason)
        return reply


def _begin_run() -> None:
    """Messages need a task that they belong to; in an app Flower sets it. Its log is several lines
    a call."""
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id = 1
    TaskIdentity.node_id = 0
    TaskIdentity.task_id = 1
    logging.getLogger("flwr").setLevel(logging.CRITICAL)


def _construct_component(target: type, given: Mapping[str, Any]) -> Any:
    try:
        return target(**given)
    except (TypeError, ValueError) as error:
        raise BadConfig(f"{target.__name__}: {error}") from error


def adapt_local_dp(target: type, args: Mapping[str, Any], stated: Mapping[str, Any]) -> Adapted:
    """``ClientApp(mods=[LocalDpMod(...)])`` between a server's zeros and a client's update.

    It states its epsilon and delta, one message at a time.
    """
    _begin_run()
    stated_limit = {key: stated[key] for key in ("epsilon", "delta") if key in stated}
    settings = {"delta": DELTA, **stated_limit, **args}
    _construct_component(target, settings)

    class LocalDp:
        def __init__(self) -> None:
            self.federation = _Federation([target(**settings)])

        def __call__(self, update: Arrays) -> list[np.ndarray]:
            self.federation.replies[1] = (update, 100)
            sent = RecordDict({"arrays": _array_record([np.zeros_like(array) for array in update])})
            reply = self.federation.send_message(
                Message(content=sent, dst_node_id=1, message_type="train")
            )
            return next(iter(reply.content.array_records.values())).to_numpy_ndarrays()

    return LocalDp, {
        "epsilon": settings["epsilon"],
        "delta": settings["delta"],
        "kind": "update",
        "relation": "zero_out",
    }


def _make_accountant(clients: int, delta: float) -> Any:
    """The accountant that Flower's strategies take from 1.42 on."""
    from flwr import serverapp

    if not hasattr(serverapp, "PrivacyConfig"):
        raise BadConfig("args.accountant=true: Flower 1.42 or later is needed")
    relation = serverapp.NeighboringRelation
    sampling = serverapp.SamplingMethod
    config = serverapp.PrivacyConfig(
        target_delta=delta,
        population_size=clients,
        neighboring_relation=relation.ADD_OR_REMOVE_ONE,
        sampling_method=sampling.NO_AMPLIFICATION,
    )
    return serverapp.RdpAccountant(config)


class _StrategyRound:
    """One round of a strategy over updates that clients would have sent.

    target, settings: the strategy's class, and what it is made with; with_accountant: whether
        Flower's own accountant counts along, at ``delta``.
    """

    def __init__(
        self, target: type, settings: Mapping[str, Any], delta: float, with_accountant: bool
    ) -> None:
        self.target = target
        self.settings = settings
        self.delta = delta
        self.with_accountant = with_accountant
        self.federation = _Federation(STRATEGY_MODS.get(target.__name__, ()))
        self.strategy: Any = None
        self.accountant: Any = None

    def __call__(self, updates: Sequence[Arrays], weights: Sequence[int]) -> list[np.ndarray]:
        if self.strategy is None:
            self.construct_strategy(len(updates))
        if self.with_accountant:  # its accountant refuses unequal weights
            weights = [EQUAL_WEIGHT for _ in weights]
        self.federation.replies.clear()
        self.federation.replies.update(enumerate(zip(updates, weights), 1))
        zeros = _array_record([np.zeros_like(array) for array in updates[0]])
        total = self.strategy.start(
            grid=self.federation,
            initial_arrays=zeros,
            num_rounds=1,
            train_config=ConfigRecord(),
        )
        if not total.arrays:
            raise ValueError("the strategy did not aggregate")
        return total.arrays.to_numpy_ndarrays()

    def construct_strategy(self, clients: int) -> None:
        """Make the strategy for this many clients, and its accountant if it has one."""
        average = FedAvg(
            fraction_evaluate=0.0,
            min_train_nodes=1,
            min_evaluate_nodes=0,
            min_available_nodes=1,
        )
        arguments: dict[str, Any] = {"num_sampled_clients": clients, "strategy": average}
        if self.with_accountant:
            self.accountant = _make_accountant(clients, self.delta)
            arguments["accountant"] = self.accountant
        self.strategy = _construct_component(self.target, {**arguments, **self.settings})


def adapt_strategy(target: type, args: Mapping[str, Any], stated: Mapping[str, Any]) -> Adapted:
    """One round of ``Strategy.start``, with Flower's mods in every client where it clips there.

    args: of the strategy; accountant=true: Flower's own accountant counts along, and all clients
    weigh the same. Its statement is what its accountant says after the round, else the Gaussian
    mechanism's for its noise multiplier, for one client zeroed.
    """
    _begin_run()
    noise_multiplier = number_argument(args, "noise_multiplier")
    clients = check_integer("args.clients", args.get("clients", 10), 1, most=1000)
    delta = float(stated.get("delta", DELTA))
    with_accountant = bool(args.get("accountant", False))
    settings = {
        name: value for name, value in args.items() if name not in ("accountant", "clients")
    }

    class Strategy(_StrategyRound):
        def __init__(self) -> None:
            super().__init__(target, settings, delta, with_accountant)

    first = Strategy()
    first([[np.ones(4)] for _ in range(clients)], [EQUAL_WEIGHT for _ in range(clients)])
    if first.accountant is None:
        epsilon = float(dpa.get_epsilon_gaussian(noise_multiplier, delta))
    else:
        epsilon = float(first.accountant.get_privacy_spent().epsilon)
    return Strategy, {
        "epsilon": epsilon,
        "delta": delta,
        "kind": "aggregate",
        "relation": "zero_out",
    }
