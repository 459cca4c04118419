"""Flower's client mods and server strategies with differential privacy, called as they are on made-up messages."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import dp_accounting as dpa
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp.strategy import FedAvg

from privdd.core.validation import BadConfig

Arrays = Sequence[np.ndarray]
DEFAULT_DELTA = 1e-5
EXAMPLES_KEY = "num-examples"


def _silence_flower() -> None:
    """Messages need a task to belong to, and each call logs several lines."""
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1
    logging.getLogger("flwr").setLevel(logging.CRITICAL)


def _array_record(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({str(at): Array(np.array(one)) for at, one in enumerate(arrays)})


def _train_message(arrays: Arrays, config: Mapping[str, float] | None = None) -> Message:
    parts: dict[str, Any] = {"arrays": _array_record(arrays)}
    if config:
        parts["config"] = ConfigRecord(dict(config))
    return Message(content=RecordDict(parts), dst_node_id=1, message_type="train")


def _reply_message(to: Message, arrays: Arrays, weight: int) -> Message:
    parts = RecordDict({"arrays": _array_record(arrays), "metrics": MetricRecord({EXAMPLES_KEY: weight})})
    return Message(content=parts, reply_to=to)


def _message_arrays(message: Message) -> list[np.ndarray]:
    if message.has_error():
        raise ValueError(message.error.reason)
    return next(iter(message.content.array_records.values())).to_numpy_ndarrays()


def _construct_component(target: type, given: Mapping[str, Any]) -> Any:
    try:
        return target(**given)
    except (TypeError, ValueError) as error:
        raise BadConfig(f"{target.__name__}: {error}") from error


def adapt_local_dp(target: type, args: Mapping[str, Any], stated: Mapping[str, Any]) -> tuple[type, dict[str, Any]]:
    """The mod between a server's zeros and a client's update. It states its epsilon and delta, one message at a time."""
    _silence_flower()
    said = {key: stated[key] for key in ("epsilon", "delta") if key in stated}
    given = {"delta": DEFAULT_DELTA, **said, **args}
    _construct_component(target, given)

    class LocalDp:
        def __init__(self) -> None:
            self.mod = target(**given)

        def __call__(self, update: Arrays) -> list[np.ndarray]:
            message = _train_message([np.zeros_like(a) for a in update])
            return _message_arrays(self.mod(message, None, lambda m, c: _reply_message(m, update, 100)))

    # the classical formula, noise = sensitivity sqrt(2 ln(1.25/delta)) / epsilon, is its noise multiplier
    multiplier = float(np.sqrt(2 * np.log(1.25 / given["delta"])) / given["epsilon"])
    return LocalDp, {"epsilon": given["epsilon"], "delta": given["delta"], "kind": "update", "relation": "zero_out",
                     "noise_multiplier": multiplier}  # fmt: skip


def _gaussian_statement(args: Mapping[str, Any], stated: Mapping[str, Any]) -> dict[str, Any]:
    """The statement of a noise multiplier: that of the Gaussian mechanism, for one client zeroed."""
    if "noise_multiplier" not in args:
        raise BadConfig("args.noise_multiplier= is needed")
    delta, z = float(stated.get("delta", DEFAULT_DELTA)), float(args["noise_multiplier"])
    return {"epsilon": float(dpa.get_epsilon_gaussian(z, delta)), "delta": delta, "kind": "aggregate",
            "relation": "zero_out", "noise_multiplier": z}  # fmt: skip


class _StrategyServer:
    """A strategy over FedAvg, made for as many clients as first reply, or as its arguments say."""

    def __init__(self, target: type, args: Mapping[str, Any]) -> None:
        self.target, self.args, self.strategy, self.round = target, dict(args), None, 0

    def aggregate_replies(self, replies: Sequence[Message], zeros: Arrays) -> list[np.ndarray]:
        if self.strategy is None:
            self.strategy = _construct_component(
                self.target, {"num_sampled_clients": len(replies), **self.args, "strategy": FedAvg()}
            )
        strategy: Any = self.strategy
        strategy.current_arrays = _array_record(zeros)
        self.round += 1
        arrays, _ = strategy.aggregate_train(self.round, list(replies))
        if arrays is None:
            raise ValueError("the strategy did not aggregate")
        return arrays.to_numpy_ndarrays()


def _adapt_strategy(
    target: type, args: Mapping[str, Any], stated: Mapping[str, Any], clip: Any
) -> tuple[type, dict[str, Any]]:
    _silence_flower()
    defaults = _gaussian_statement(args, stated)

    class Strategy:
        def __init__(self) -> None:
            self.server = _StrategyServer(target, args)

        def __call__(self, updates: Sequence[Arrays], weights: Sequence[int]) -> list[np.ndarray]:
            zeros = [np.zeros_like(a) for a in updates[0]]
            norm = getattr(self.server.strategy, "clipping_norm", None)
            norm = norm if norm is not None else args.get("clipping_norm", args.get("initial_clipping_norm", 0.1))
            replies = []
            for update, weight in zip(updates, weights):
                message = _train_message(zeros, {"clipping_norm": float(norm)})
                reply = lambda m, c, update=update, weight=weight: _reply_message(m, update, weight)  # noqa: E731
                replies.append(clip(message, None, reply) if clip else reply(message, None))
            return self.server.aggregate_replies(replies, zeros)

    return Strategy, defaults


def adapt_server_side(target: type, args: Mapping[str, Any], stated: Mapping[str, Any]) -> tuple[type, dict[str, Any]]:
    """Fixed or adaptive clipping at the server."""
    return _adapt_strategy(target, args, stated, None)


def adapt_client_side_fixed(
    target: type, args: Mapping[str, Any], stated: Mapping[str, Any]
) -> tuple[type, dict[str, Any]]:
    """With Flower's ``fixedclipping_mod`` in every client."""
    return _adapt_strategy(target, args, stated, fixedclipping_mod)


def adapt_client_side_adaptive(
    target: type, args: Mapping[str, Any], stated: Mapping[str, Any]
) -> tuple[type, dict[str, Any]]:
    """With Flower's ``adaptiveclipping_mod`` in every client."""
    return _adapt_strategy(target, args, stated, adaptiveclipping_mod)
