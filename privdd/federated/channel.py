"""The only way from a client to the server.

``Channel.send`` is the sole producer of what ``aggregate`` receives: it refuses undeclared names,
applies the mechanism set for a name, writes the ledger row, detaches, clones and digests. So no
value travels without its row. Noise added inside local work goes through
``ClientContext.mechanism``, which writes its own rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import dp_accounting as dpa
import torch
from torch import Tensor

from attacks.types import Surface
from privdd.core.device import to_device
from privdd.core.rng import Keys
from privdd.core.types import Artifact, Problem, Received, Tensors, Upload, check_cell_name
from privdd.privacy.clipping import parts_of
from privdd.privacy.ledger import UNPROTECTED_EVENTS
from privdd.privacy.mechanism import LedgerRow, Mechanism, Output
from privdd.privacy.noise import Noise, noise_for

POST_PROCESSING = "post-processing of this client's mechanisms and of the server's messages"
NO_MECHANISM = "no mechanism is set for this name"


class UndeclaredArtifact(ValueError):
    """A method tried to send something that it never declared."""


class TranscriptEnded(ValueError):
    """A method asks for more releases than the recorded transcript has, or for others."""


def find_answer(
    transcript: Sequence[Tensors], answered: int, name: str, released: Tensors
) -> Tensors:
    """The recorded output that answers query ``name`` after ``answered`` others. Raises
    TranscriptEnded where there is none left, or the one there has other tensors than ``released``:
    then another query was asked at this place."""
    if answered >= len(transcript):
        raise TranscriptEnded(f"query {name!r}: more releases than the recorded {len(transcript)}")
    answer = transcript[answered]
    if answer.keys() != released.keys():
        raise TranscriptEnded(
            f"query {name!r}: release {answered + 1} was of {sorted(answer)}, not of "
            f"{sorted(released)}"
        )
    return answer


def digest_tensors(value: Tensors) -> str:
    """A hash of names, types, shapes and bytes (of tensors, not of files)."""
    h = hashlib.blake2b(digest_size=16)
    for name in sorted(value):
        tensor = value[name].detach().cpu().contiguous()
        h.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        h.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return h.hexdigest()


def device_of(value: Tensors) -> torch.device:
    return next((part.device for part in parts_of(value).values()), torch.device("cpu"))


def tensor_shapes(value: Tensors) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in value.items()}


def detach_copy(value: Tensors) -> dict[str, Tensor]:
    """Copies that share no memory and no graph with the client."""
    return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in value.items()}


def draw_coins(probability: float, count: int, noise: Noise) -> Tensor:
    """Independent coins (count,) bool, each heads with ``probability``."""
    if probability < 1:
        return noise.uniform((count,)) < probability
    return torch.ones(count, dtype=torch.bool)


class ReleaseObserver(Protocol):
    """Follows a client's round, draw by draw and release by release: noise logs, and all tests that
    instrument a client.

    Where a round is played again (``InstrumentedContext`` of the guarantee tests) ``output`` is
    None, ``taken`` is everybody, and what the two return is the client's answer; in a client's own
    round that is not read."""

    def on_sample(self, name: str, probability: float, taken: Tensor) -> Tensor | None:
        """A draw of ``ctx.sample``: who is taken (n,) bool."""

    def on_release(
        self,
        mechanism: Mechanism,
        name: str,
        output: Output | None,
        partition: str | None = None,
        given: Tensors | None = None,
    ) -> Tensors | None:
        """An output of ``mechanism``; given: the contributions that it is computed from, record by
        record; None for uploads."""


@dataclass
class OutputLog:
    """The observer that keeps every output, in order."""

    outputs: list[tuple[str, Output]] = field(default_factory=list)

    def on_sample(self, *draw: object) -> None:
        """Draws are not kept."""

    def on_release(
        self, mechanism: Mechanism, name: str, output: Output | None, *asked: object
    ) -> None:
        if output is not None:
            self.outputs.append((name, output))


@dataclass
class ClientContext:
    """A client's tools in one round besides its data: random streams, mechanisms, its ledger rows.

    transcript, when given, answers queries with recorded mechanism outputs, though rows are of the
    client's own: the non-interference test feeds one client's outputs to another client's data.
    stream: what else the noise depends on (``Plan.noise_stream``); noise: one stream for all
        private draws of the round, in order; a copy made by ``replace`` goes on in it.
    """

    round: int
    client: int
    keys: Keys
    problem: Problem
    mechanisms: Mapping[str, Mechanism] = field(default_factory=dict)
    queries: Mapping[str, Surface] = field(default_factory=dict)
    noise_source: str = "seed"
    relation: str = "zero_out"
    transcript: Sequence[Tensors] | None = None
    rows: list[LedgerRow] = field(default_factory=list)
    outputs: list[Tensors] = field(default_factory=list)
    taken: list[tuple[str, Tensor]] = field(default_factory=list)  # every sample drawn, (n,) bool
    stream: str = ""
    noise: Noise = None  # type: ignore[assignment]  # made from the other fields unless it is given
    # query -> cells released since its last sample
    sampled: dict[str, set[str | None]] = field(default_factory=dict)
    observer: ReleaseObserver | None = None

    def __post_init__(self) -> None:
        if self.noise is None:
            if self.stream:
                keys = self.keys.fold(self.stream)
            else:
                keys = self.keys
            self.noise = noise_for(self.noise_source, keys)  # type: ignore[arg-type]

    def public(self, *names: str | int) -> Keys:
        """A public stream that every client of this round shares (network draws, augmentation)."""
        return Keys(self.keys.seed).fold("public", self.round, *names)

    def protected(self, name: str) -> bool:
        """Whether a mechanism is set for this query."""
        return name in self.mechanisms

    def sample(self, name: str, count: int) -> Tensor:
        """Poisson sample of ``count`` records with the mechanism's own probability -> (count,)
        bool.

        It serves one release of all records, or one of each partition cell.
        """
        self.sampled[name] = set()
        q = float(self.mechanisms[name].sampling_probability)
        sampled = draw_coins(q, count, self.noise)
        if self.observer is not None:
            self.observer.on_sample(name, q, sampled)
        self.taken.append((name, sampled))
        return sampled

    def mechanism(
        self, name: str, contributions: Tensors, *, partition: str | None = None
    ) -> Tensors:
        """Release a query on per-record contributions through the mechanism set for ``name``.

        Args:
            name: of the query.
            contributions: tensors whose first axis runs over the records that take part.
            partition: the cell that these records are in, for a release in cells.

        Raises:
            UndeclaredArtifact: for a name outside ``queries``.
            BadCellName: for a partition that names no cell.
            KeyError: if no mechanism is set for the query.
            ValueError: for a sampling probability below 1 without a sample of its own, for the
                accounting counts on that sample's coins.
        """
        if name not in self.queries:
            raise UndeclaredArtifact(
                f"query {name!r} is not declared; declared are {sorted(self.queries)}"
            )
        check_cell_name(partition, self.problem.class_list)
        self._spend_sample(name, partition)
        released = self.mechanisms[name](contributions, self.noise)
        recorded = self.transcript
        if recorded is None:
            replayed = None
        else:
            replayed = find_answer(recorded, len(self.outputs), name, released.value)
        output = to_device(
            released, "cpu"
        )  # what is kept of it; the client computes on where it is
        if self.observer is not None:
            self.observer.on_release(self.mechanisms[name], name, output, partition, contributions)
        row = _build_row(self, name, self.queries[name], output, ("analyst",), partition)
        if not self._merge_into_last_row(row):
            self.rows.append(row)
        self.outputs.append(output.value if replayed is None else replayed)
        if replayed is None:
            return released.value
        return to_device(replayed, device_of(contributions))

    def _spend_sample(self, name: str, partition: str | None) -> None:
        q = float(self.mechanisms[name].sampling_probability)
        cells = self.sampled.get(name)
        if q < 1 and (
            cells is None or (cells and (partition is None or cells & {partition, None}))
        ):
            if cells is None:
                why = "no sample was drawn"
            else:
                why = "its last sample was released already"
            raise ValueError(
                f"query {name!r}, sampling probability {q:g}: {why}; call "
                f"ctx.sample({name!r}, n) for it"
            )
        self.sampled.setdefault(name, set()).add(partition)

    def _merge_into_last_row(self, row: LedgerRow) -> bool:
        """Fold a repeated application into the last row of the same query (count grows)."""
        for index, last in reversed(list(enumerate(self.rows))):
            if (last.name, last.partition, last.event, last.flags) == (
                row.name,
                row.partition,
                row.event,
                row.flags,
            ):
                self.rows[index] = replace(last, count=last.count + 1, digest=row.digest)
                return True
        return False


def _build_row(
    ctx: ClientContext,
    name: str,
    surface: Surface,
    output: Output,
    visible_to: tuple[str, ...],
    partition: str | None = None,
) -> LedgerRow:
    broken = sorted(flag for flag, holds in output.flags.items() if not holds)
    return LedgerRow(
        round=ctx.round,
        client=ctx.client,
        name=name,
        surface=str(surface),
        visible_to=visible_to,
        shape=tensor_shapes(output.value),
        digest=digest_tensors(output.value),
        event=dpa.NonPrivateDpEvent() if broken else output.event,
        partition=partition,
        clip_norm=output.clip_norm,
        sensitivity=output.sensitivity,
        why=output.why,
        noise_std=output.noise_std * output.shares**0.5,
        lattice=output.lattice,
        flags=output.flags,
        nonprivate_reason=f"side conditions fail: {', '.join(broken)}" if broken else None,
    )


@dataclass(frozen=True)
class Channel:
    """uploads: declared name -> surface; mechanisms: name -> mechanism applied on the way out.

    visible_to: name -> who sees the artifact as it travels (default: the server).
    """

    uploads: Mapping[str, Surface]
    mechanisms: Mapping[str, Mechanism] = field(default_factory=dict)
    visible_to: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def send(self, upload: Upload, ctx: ClientContext) -> tuple[Received, list[LedgerRow]]:
        """Pass one client's upload on: (what the server receives, the ledger rows in order).

        Rows of mechanisms spent inside local work come first; ``post_of`` counts from the first
        row."""
        rows = list(ctx.rows)
        values = dict[str, Tensors]()
        inner = tuple(range(len(rows)))
        for name, artifact in upload.items():
            if name not in self.uploads:
                raise UndeclaredArtifact(
                    f"upload {name!r} is not declared; declared are {sorted(self.uploads)}"
                )
            value, row = self._release_artifact(name, artifact, ctx, inner)
            values[name] = detach_copy(value)
            rows.append(row)
        return Received(ctx.client, ctx.round, values), rows

    def _release_artifact(
        self, name: str, artifact: Artifact, ctx: ClientContext, inner: tuple[int, ...]
    ) -> tuple[Tensors, LedgerRow]:
        visible = self.visible_to.get(name, ("server",))
        surface = self.uploads[name]
        if name in self.mechanisms:
            output = self.mechanisms[name](artifact.value, ctx.noise)
            output = replace(output, flags={**output.flags, **artifact.flags})
            if ctx.observer is not None:
                ctx.observer.on_release(self.mechanisms[name], name, output)
            row = _build_row(ctx, name, surface, output, visible)
            # what it protects may have been computed from them
            return output.value, replace(row, post_of=inner)
        free = artifact.private or bool(artifact.public)
        output = Output(artifact.value, dpa.NoOpDpEvent() if free else dpa.NonPrivateDpEvent())
        row = _build_row(ctx, name, surface, output, visible)
        if artifact.private:
            return artifact.value, replace(row, post_of=inner, why=POST_PROCESSING)
        if artifact.public:
            return artifact.value, replace(row, why=artifact.public)
        return artifact.value, replace(row, nonprivate_reason=NO_MECHANISM)


def link_to_broadcast(
    rows: Sequence[LedgerRow], first: int, sent: tuple[int, ...]
) -> list[LedgerRow]:
    """Rows of one client with ledger ids in ``post_of``: with what was broadcast, where clients
    compute from it.

    That is post-processing, and what goes into a mechanism: its surface costs what came before as
    well."""
    linked = []
    for row in rows:
        ids = tuple(first + place for place in row.post_of)
        if row.why == POST_PROCESSING or not isinstance(row.event, UNPROTECTED_EVENTS):
            ids += sent
        linked.append(row if ids == row.post_of else replace(row, post_of=ids))
    return linked


def count_bytes(value: Mapping[str, Tensors]) -> int:
    """Bytes of all tensors of an upload or broadcast."""
    total = 0
    for tensors in value.values():
        total += sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    return total
