"""Averages and sums of what clients sent, and who sees it: every upload (local), or sums alone
(secure aggregation).

Secure aggregation is the ideal functionality: the server is handed the sum over the clients that
stay, if they are enough, and nothing else. The protocol (Bonawitz et al. 2017) is not run;
``tests/system/test_flower_secagg.py`` runs Flower's over the same uploads. Clients deal the noise
among themselves (``privdd.privacy.mechanisms.noise_share``): each adds a share that reaches the
target over ``least - colluding`` clients, so that the sum has it however many drop out or tell
the server their shares. The ledger states what the sum costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import dp_accounting as dpa
import torch
from torch import Tensor

from attacks.types import Surface
from privdd.core.rng import Keys
from privdd.core.types import Received, State, Tensors
from privdd.core.validation import BadConfig, check_choice, check_integer, is_number, setting_error
from privdd.federated.channel import digest_tensors, tensor_shapes
from privdd.privacy.mechanism import LedgerRow, Mechanism
from privdd.privacy.mechanisms.noise_share import noise_share_of

SUM_CLIENT = -2  # in the place of a client's number: the sum over a round's clients
# who holds a single upload that is added up before the server sees it: nobody
ANALYST_ONLY = ("analyst",)
NO_SHUFFLE = (
    "trust=shuffle: not offered. Amplification by shuffling (Feldman, McMillan and "
    "Talwar 2021) needs uploads that say "
    "little about all of a client's data; under privacy.unit=record an upload hides one "
    "record, and under unit=client its "
    "Gaussian noise has no pure local epsilon. Allowed are local, secagg"
)


def sort_by_client(inbox: Sequence[Received]) -> list[Received]:
    """The inbox by client number. Raises ValueError when it is empty."""
    if not inbox:
        raise ValueError("inbox=[]: a round needs at least one client")
    return sorted(inbox, key=lambda received: received.client)


def client_weights(inbox: Sequence[Received]) -> Tensor:
    """Weights (clients,) float64 that sum to 1, in client order.

    By "count" where every client sent one, else uniform.
    """
    clients = sort_by_client(inbox)
    if all("count" in received.values for received in clients):
        counts = torch.stack([received.values["count"]["n"].double().sum() for received in clients])
        return counts / counts.sum()
    return torch.full((len(clients),), 1 / len(clients), dtype=torch.float64)


def check_alike(clients: Sequence[Received], name: str) -> None:
    """Raises ValueError, one line, for a client whose upload ``name`` has other tensors than that
    of the first."""
    first = clients[0]
    if absent := [message.client for message in clients if name not in message.values]:
        raise ValueError(
            f"round {first.round}, client {absent[0]}: sent no {name!r}, which the server "
            "needs of each"
        )
    for message in clients[1:]:
        missing = sorted(first.values[name].keys() - message.values[name].keys())
        extra = sorted(message.values[name].keys() - first.values[name].keys())
        if missing or extra:
            says = [f"lacks {missing[0]!r}"] if missing else []
            if extra:
                says += [f"also has {extra[0]!r}"]
            what = f"round {message.round}, client {message.client}: {name!r} {' and '.join(says)}"
            raise ValueError(
                f"{what}, unlike that of client {first.client}: all must send the same tensors"
            )


def average(inbox: Sequence[Received], name: str, weights: Tensor | None = None) -> State:
    """Weighted mean of upload ``name``, tensor by tensor, in float64 -> {tensor name: float64
    tensor}.

    weights: (clients,) in client order, default ``client_weights``; they are used as given.
    """
    clients = sort_by_client(inbox)
    check_alike(clients, name)
    if weights is None:
        weights = client_weights(inbox)
    uploads = [client.values[name] for client in clients]
    return {key: _weighted_sum(weights, [u[key] for u in uploads]) for key in uploads[0]}


def _weighted_sum(weights: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    """sum_k w_k t_k in float64, in the clients' order."""
    total = torch.zeros(())
    for weight, tensor in zip(weights, tensors):
        total = total + weight * tensor.double()
    return total


TrustModel = Literal["local", "secagg", "shuffle"]


def check_trust(trust: Trust) -> None:
    """Raises BadConfig for the first setting that is out of its range."""
    check_choice("trust", trust.name, ("local", "secagg", "shuffle"))
    if trust.name == "shuffle":
        raise BadConfig(NO_SHUFFLE)
    if trust.least is not None:
        check_integer(
            "trust.least",
            trust.least,
            2,
            "a whole number from 2 is needed, or null for all clients of a round",
        )
    check_integer("trust.colluding", trust.colluding)
    if not is_number(trust.dropout) or not 0 <= trust.dropout < 1:
        raise setting_error("trust.dropout", trust.dropout, "a number in [0, 1) is needed")
    if trust.name != "secagg" and (trust.least, trust.dropout, trust.colluding) != (None, 0.0, 0):
        raise BadConfig("trust.least, trust.dropout, trust.colluding: these need trust=secagg")


@dataclass(frozen=True)
class Trust:
    """name: what the server sees; least: fewest clients whose sum it learns, None = as many as a
    round asks;
    dropout: chance that a client drops out of a round, in [0, 1); colluding: clients that may give
        their noise away."""

    name: TrustModel = "local"
    least: int | None = None
    dropout: float = 0.0
    colluding: int = 0

    def __post_init__(self) -> None:
        check_trust(self)
        for name in ("least", "colluding"):  # 12.0 is 12
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, int(value))

    @property
    def is_summed(self) -> bool:
        """Whether the server sees nothing but sums."""
        return self.name == "secagg"

    def min_clients(self, asked: int) -> int:
        """The fewest clients whose sum is revealed, of a round that asks so many. Raises BadConfig
        if it cannot be."""
        if self.least is None and self.dropout:
            raise BadConfig(
                f"trust.dropout={self.dropout:g}: set trust.least, the fewest clients "
                "whose sum is revealed"
            )
        fewest = asked if self.least is None else int(self.least)
        if not 2 <= fewest <= asked:
            raise BadConfig(
                f"trust.least={fewest}: a round asks {asked} client(s); a number from 2 "
                "to that is needed"
            )
        return fewest

    def noise_shares(self, asked: int) -> int:
        """Over how many clients the noise is dealt. Raises BadConfig where nobody is left to add
        any."""
        parts = self.min_clients(asked) - self.colluding
        if parts < 1:
            raise BadConfig(
                f"trust.colluding={self.colluding}: fewer than "
                f"trust.least={self.min_clients(asked)} is needed"
            )
        return parts

    def remaining_clients(self, asked: Sequence[int], keys: Keys) -> list[int]:
        """The clients that remain in a round after public coins; none if they are too few for a
        sum."""
        if not self.is_summed or not self.dropout:
            return list(asked)
        coins = torch.rand(len(asked), generator=keys.fold("dropouts").torch(), dtype=torch.float64)
        remaining = [client for client, coin in zip(asked, coins.tolist()) if coin >= self.dropout]
        if len(remaining) >= self.min_clients(len(asked)):
            return remaining
        return []

    def split_mechanisms(
        self, mechanisms: Mapping[str, Mechanism], asked: int
    ) -> dict[str, Mechanism]:
        """The mechanisms as each client applies them. Raises BadConfig for one whose noise cannot
        be dealt."""
        if not self.is_summed:
            return dict(mechanisms)
        parts = self.noise_shares(asked)
        try:
            return {
                name: noise_share_of(mechanism, parts) for name, mechanism in mechanisms.items()
            }
        except ValueError as why:
            raise BadConfig(f"trust={self.name}: {why}") from None


LOCAL = Trust()


def sum_uploads(inbox: Sequence[Received], kind: Literal["sum", "mean"]) -> Received:
    """The server's input from a round: the sum of all uploads, or their mean (their number is
    public); float32."""
    clients = sort_by_client(inbox)
    divisor = len(inbox) if kind == "mean" else 1
    for name in inbox[0].values:
        check_alike(clients, name)
    values: dict[str, Tensors] = {}
    for name in inbox[0].values:
        uploads = [received.values[name] for received in clients]
        values[name] = {
            key: _divided_sum([upload[key] for upload in uploads], divisor) for key in uploads[0]
        }
    return Received(SUM_CLIENT, inbox[0].round, values)


def _divided_sum(tensors: Sequence[Tensor], divisor: int) -> Tensor:
    """The sum of the tensors over ``divisor``, added in float64."""
    total = torch.stack([tensor.double() for tensor in tensors]).sum(0)
    return (total / divisor).float()


def sum_ledger_rows(
    total: Received,
    uploads: Mapping[str, Surface],
    visible_to: Mapping[str, tuple[str, ...]],
    ids: Mapping[str, Sequence[int]],
) -> list[LedgerRow]:
    """The ledger rows of what the server is handed; ids: name -> rows of the single uploads that
    were added."""
    return [
        LedgerRow(
            round=total.round,
            client=SUM_CLIENT,
            name=name,
            surface=str(uploads[name]),
            visible_to=visible_to.get(name, ("server",)),
            shape=tensor_shapes(value),
            digest=digest_tensors(value),
            event=dpa.NoOpDpEvent(),
            why=f"the sum of {len(ids[name])} clients' uploads: the server sees no single one",
            post_of=tuple(ids[name]),
        )
        for name, value in total.values.items()
    ]
