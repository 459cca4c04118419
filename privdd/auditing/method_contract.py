"""Does a method keep the contract? Checks to run on a user's own class before it is audited.

Each check runs the method on a tiny federation of random images and names what it found, in one
line."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attacks.inversion.labels import CLASS_SURFACES, sent_class_counts
from attacks.types import Finding, Surface
from privdd.auditing.adversary_view import AdversaryView
from privdd.auditing.client_hooks import DiffersByClient, method_of_client
from privdd.auditing.coverage import MESSAGES_PART
from privdd.auditing.dp_tests.crafted_records import zero_out_others
from privdd.auditing.dp_tests.interference_audit import INTERFERENCE_TEST
from privdd.auditing.dp_tests.round_traces import MessageLeak, compare_traces, trace_round
from privdd.auditing.dp_tests.statement import GuaranteeSubject
from privdd.auditing.signal_extraction import (
    SEARCH_HOOKS,
    UnreadableUpload,
    extract_signals,
    missing_hooks,
    missing_map_hooks,
    reads_counts_alone,
    signal_group,
)
from privdd.auditing.upload_schema import unreadable_broadcasts, upload_faults
from privdd.core.rng import Keys
from privdd.core.types import (
    UNKNOWN_CELL,
    BadCellName,
    Problem,
    Received,
    Records,
    RecordShape,
    Shard,
    State,
    Tensors,
    Upload,
    Values,
    Work,
    class_of_cell,
)
from privdd.core.units import Relation
from privdd.federated.aggregation import sum_uploads
from privdd.federated.channel import TranscriptEnded, UndeclaredArtifact
from privdd.federated.method import Method
from privdd.federated.simulation import ClientTask, Plan, Snapshot, client_step
from privdd.privacy.mechanism import LedgerRow, Mechanism
from privdd.privacy.mechanisms.noise_share import share_count_of

# of the tiny federation; later rounds of a longer method are not run
CHECKED_CLIENTS = 2
CHECKED_ROUNDS = 3
BATCHED_TOLERANCE = 1e-4  # of each number of local_batched, from that of local
ROUNDING = 1e-6  # relative change of images, about that of sums in another order
# of what it moves in local, that local_batched may differ by: shipped methods differ by 3 at most
ROUNDING_FACTOR = 10.0
CHECKED_RECORDS = 4  # of each class, before an audit
DEFAULT_SHAPES = ((1, 8, 8), (3, 8, 8))  # of images that a method is tried on, grey and colour


class BrokenContract(ValueError):
    """A method that an audit could not be trusted with; one line for each fault. leaks: (line,
    message) of those faults that tell of the records, with the name of the message or query that
    tells it, "" where it is not one alone."""

    leaks: tuple[tuple[str, str], ...] = ()


class UnmappedUpload(UserWarning):
    """An upload whose rows no attack can compare with a record, as the method names no map to
    them."""


@dataclass(frozen=True)
class CheckedRound:
    """One round of one client, before it is run."""

    plan: Plan
    round: int
    server: State
    memory: State
    shard: Shard

    def run(self) -> Work:
        ctx = self.plan.client_context(self.round, self.shard.client)
        return self.plan.method.local(
            self.plan.method.broadcast(self.server), self.memory, self.shard.client_data, ctx
        )


def check_method(
    method: Method,
    *,
    mechanisms: Mapping[str, Mechanism] | None = None,
    shape: RecordShape | None = None,
    classes: int = 3,
    records: int = 24,
    seed: int = 0,
    relation: Relation = "zero_out",
) -> None:
    """Run a few rounds of a method and raise BrokenContract, one line for each thing that is wrong.

    Checked: it is a ``Method``; its uploads are declared and finite, can be read by an attack, and
    depend on nothing but their arguments; ``memory_after`` and ``local_batched`` agree with
    ``local``; what claims to be private depends on the records only through ``mechanisms``, and
    ledger rows not at all; ``predict`` gives one score a class. Images are random, (c, h, w) =
    ``shape``; None: grey and colour ones of 8 x 8 pixels, one after the other. The arguments must
    suit the method's settings. relation: of neighbouring data sets; under add_remove labels and the
    number of records are private too, and exchanged. Tensors are named and shaped as
    ``privdd.auditing.upload_schema`` says. Warns (UnmappedUpload) of uploads which no attack can
    compare with a record until a hook is defined: an audit runs, and says that they were not
    tested.
    """
    if not isinstance(method, Method):
        raise BrokenContract(f"{type(method).__name__} must inherit from privdd.api.Method")
    for line in unmapped_uploads(method):
        warnings.warn(line, UnmappedUpload, stacklevel=2)
    leaks: list[tuple[str, str]] = []
    faults = list(_unreadable_uploads(method))
    for images in DEFAULT_SHAPES if shape is None else (shape,):
        if faults:
            break
        plan = Plan(
            Keys(seed),
            Problem(images, classes, CHECKED_CLIENTS),
            method,
            mechanisms or {},
            relation=relation,
        )
        try:
            faults = list(_find_faults(plan, _random_shards(images, classes, records, seed), leaks))
        except Exception as problem:  # of a stranger's code
            if shape is not None:
                raise
            message = f"{type(problem).__name__}: {' '.join(str(problem).split())[:200]}"
            hint = "give shape=(c, h, w) if the method is written for images of one size"
            raise BrokenContract(f"on images of shape {images}: {message}; {hint}") from problem
    if faults:
        broken = BrokenContract("\n".join(dict.fromkeys(faults)))
        broken.leaks = tuple(leaks)
        raise broken


def contract_findings(subject: GuaranteeSubject) -> Iterator[Finding]:
    """The findings of ``check_method`` for a method that states a limit: a contradiction if a
    message depends on the records, and otherwise messages that count as untested; nothing where it
    finds nothing."""
    plan = subject.plan
    names = [name for name in subject.plan.mechanisms if subject.has_finite_epsilon(name)]
    shape = plan.problem.shape
    classes = plan.problem.classes
    try:
        if names:
            relation: Relation
            if subject.ledger.unit == "client":
                relation = "add_remove"
            else:
                relation = subject.ledger.relation
            check_method(
                plan.method,
                mechanisms=plan.mechanisms,
                shape=shape,
                classes=classes,
                relation=relation,
            )
        return
    except BrokenContract as broken:
        lines = str(broken).splitlines()
        leaks = list(broken.leaks)
    except Exception as problem:  # of a stranger's code, on data that it was not written for
        lines = [f"{type(problem).__name__}: {problem}"]
        leaks = []
    line, message = leaks[0] if leaks else (lines[0], "")
    note = f"on a small federation of random images: {line}"
    verdict: dict[str, Any]
    if leaks:
        verdict = {"refuted": True}
    else:
        verdict = {"untested": {MESSAGES_PART: note}}
    accused = message or ", ".join(names)
    yield subject.run_finding(INTERFERENCE_TEST, accused, 1, note, verdict).with_measures(
        signal=", ".join(names)
    )


def _random_shards(shape: RecordShape, classes: int, records: int, seed: int) -> list[Shard]:
    count = records * CHECKED_CLIENTS
    x = torch.rand((count, *shape), generator=Keys(seed).fold("images").torch())
    records_of_all = Records(x, torch.arange(count) % classes, torch.arange(count))
    parts = [
        records_of_all.take(range(k * records, (k + 1) * records)) for k in range(CHECKED_CLIENTS)
    ]
    return [Shard(k, part, part, parts[1 - k], classes) for k, part in enumerate(parts)]


def _unreadable_uploads(method: Method) -> Iterator[str]:
    for name, surface in method.uploads.items():
        if hooks := missing_hooks(method, surface):
            yield (
                f"uploads[{name!r}] is of surface {surface}, which no attack can read: define "
                f"{hooks}"
            )


def unmapped_uploads(method: Method) -> Iterator[str]:
    """One line for each upload that attacks read without a map to its rows."""
    for name, surface in method.uploads.items():
        if hooks := missing_map_hooks(method, surface):
            yield (
                f"uploads[{name!r}] is of surface {surface}: without a map from records "
                "to its rows most attacks have "
                f"nothing to read in it; define {hooks} (ReadsUploads)"
            )


def unsearched_statistics(
    method: Method, classes: int, values: Values, broadcast: Values
) -> Iterator[str]:
    """One line for each upload of statistics of which attacks read the class counts alone."""
    for name, value in values.items():
        if method.uploads[name] != Surface.STATISTICS:
            continue
        if reads_counts_alone(method, name, value, broadcast, classes):
            yield (
                f"uploads[{name!r}] is of surface statistics: attacks read its class counts "
                "alone, and search its other tensors for a record only if the method defines "
                f"{SEARCH_HOOKS} (ReadsUploads)"
            )


def check_foreign_uploads(plan: Plan) -> list[str]:
    """Before training: the faults of the first upload of a method that is not privdd's own, on a
    few random records.

    Raises BrokenContract, one line for each fault. Returns lines on what could not be checked,
    which attacks cannot map, and which messages of the server they cannot read."""
    method = plan.method
    if type(method).__module__.startswith("privdd."):
        return []
    unmapped = [*unmapped_uploads(method)]
    shard = _random_shards(
        plan.problem.shape, plan.problem.classes, CHECKED_RECORDS * plan.problem.classes, 0
    )[0]
    try:
        server = method.init(plan.problem, plan.keys.fold("public", "init"))
        broadcast = method.broadcast(server)
        task = ClientTask(plan, 0, shard.client, broadcast, {}, shard)
        received, rows, _ = client_step(task)
    except (UndeclaredArtifact, BadCellName) as problem:
        raise BrokenContract(str(problem)) from problem
    except Exception as problem:  # of a stranger's code, on data that it was not written for
        text = " ".join(f"{type(problem).__name__}: {problem}".split())
        return [
            *unmapped,
            "uploads were not checked before training, as random records do not suit the "
            f"method ({text})",
        ]
    if faults := list(upload_faults(method, plan.problem, received.values)):
        raise BrokenContract("\n".join(faults))
    unsearched = unsearched_statistics(method, plan.problem.classes, received.values, broadcast)
    unread = unreadable_broadcasts(method, plan.problem, broadcast).values()
    untested = [f"{reason}; no attack reads it" for reason in unread]
    return [*unmapped, *unsearched, *untested, *_unknown_cells(rows)]


def _unknown_cells(rows: Sequence[LedgerRow]) -> Iterator[str]:
    """A line for each query whose cells are no classes."""
    cells: dict[str, str] = {}
    for row in rows:
        if row.partition is not None and class_of_cell(row.partition) == UNKNOWN_CELL:
            cells.setdefault(row.name, row.partition)
    for query, cell in cells.items():
        yield (
            f"query {query!r}, partition={cell!r}: its cells are not classes, so the tests know a "
            "record by its contribution"
        )


def _find_faults(
    plan: Plan, shards: Sequence[Shard], leaks: list[tuple[str, str]]
) -> Iterator[str]:
    """Each fault in one line; leaks: is given those that tell of the records."""
    method = plan.method
    server = method.init(plan.problem, plan.keys.fold("public", "init"))
    memories: dict[int, State] = {}
    for t in range(min(method.rounds, CHECKED_ROUNDS)):
        trial = CheckedRound(plan, t, server, memories.get(0, {}), shards[0])
        faults = list(_local_faults(trial))
        with suppress(UndeclaredArtifact):  # which is one of the faults
            leaks.extend(_interference_faults(trial, shards[1]))
        faults += [line for line, _ in leaks]
        yield from faults
        if faults:  # later checks would only repeat the same fault in other words
            return
        inbox: list[Received] = []
        broadcast = method.broadcast(server)
        for shard in shards:
            task = ClientTask(
                plan, t, shard.client, broadcast, memories.get(shard.client, {}), shard
            )
            received, _, memories[shard.client] = client_step(task)
            if (
                max(map(share_count_of, plan.mechanisms.values()), default=1) > 1
            ):  # in double until they are added
                received = replace(received, values=sum_uploads([received], "sum").values)
            inbox.append(received)
        if t == 0:
            faults = [
                f"round {t}: {fault}"
                for fault in upload_faults(method, plan.problem, inbox[0].values)
            ]
            yield from faults
            if faults:
                return
        _warn_of_class_counts(plan, inbox[0], shards[0])
        # others only differ by their records
        clients = shards if isinstance(method, DiffersByClient) else shards[:1]
        for shard in clients:
            sent = inbox[shard.client]
            yield from _signal_faults(plan, t, server, memories[shard.client], sent, shards)
        server = method.aggregate(server, inbox, plan.keys.fold("round", t, "server"))
    logits = method.predict(server, memories[0] or None, shards[0].train.x[:2])
    if logits.shape != (2, plan.problem.classes):
        yield (
            f"predict: {tuple(logits.shape)} for two images of {plan.problem.classes} "
            "classes; (2, classes) is needed"
        )


def _local_faults(trial: CheckedRound) -> Iterator[str]:
    method = trial.plan.method
    round = trial.round
    state = torch.get_rng_state()
    before = _copy_arguments(trial)
    (sent, memory), (sent_again, kept_again) = trial.run(), trial.run()
    if undeclared := sorted(set(sent) - set(method.uploads)):
        yield from (
            f"local, round {round}: sends {name!r}, which uploads does not declare"
            for name in undeclared
        )
        return
    for name, artifact in sent.items():
        if not all(torch.isfinite(value).all() for value in artifact.value.values()):
            yield f"local, round {round}: {name!r} is not finite"
    if not (_is_same_upload(sent, sent_again) and _is_equal(memory, kept_again)):
        yield (
            f"local, round {round}: called twice, it gives two results; draw from ctx.keys "
            "and keep no state"
        )
    if not torch.equal(state, torch.get_rng_state()):
        yield f"local, round {round}: draws from torch's global generator; draw from ctx.keys"
    if not _is_equal(before, _copy_arguments(trial)):
        yield f"local, round {round}: changes its arguments in place"
    ctx = trial.plan.client_context(round, 0)
    if not _is_equal(
        memory,
        method.audit_hooks.memory_after(
            method.broadcast(trial.server), trial.memory, trial.shard.client_data, ctx
        ),
    ):
        yield f"memory_after, round {round}: keeps something else than local"
    yield from _batched_faults(trial, sent, memory)


def _copy_arguments(trial: CheckedRound) -> State:
    data = {"x": trial.shard.train.x, "y": trial.shard.train.y, "ids": trial.shard.train.ids}
    return {name: t.clone() for name, t in {**trial.server, **trial.memory, **data}.items()}


def _batched_faults(trial: CheckedRound, sent: Upload, kept: State) -> Iterator[str]:
    contexts = [trial.plan.client_context(trial.round, 0) for _ in range(2)]
    method = trial.plan.method
    broadcast = method.broadcast(trial.server)
    results = method.audit_hooks.local_batched(
        broadcast, [trial.memory] * 2, [trial.shard.client_data] * 2, contexts
    )
    nudged: Work | None = None
    for work in results or ():
        is_close = _is_close(work, (sent, kept), (sent, kept))
        if not is_close:
            nudged = nudged or _work_on_nudged_images(trial, broadcast)
            is_close = _is_close(work, (sent, kept), nudged)
        if not is_close:
            yield f"local_batched, round {trial.round}: gives something else than local"


def _work_on_nudged_images(trial: CheckedRound, broadcast: Values) -> Work:
    """What local gives of images that are changed by a rounding: an adaptive optimiser takes whole
    steps along a gradient that is zero but for that."""
    train = trial.shard.train
    nudged = trial.shard.with_train(replace(train, x=train.x * (1 + ROUNDING))).client_data
    ctx = trial.plan.client_context(trial.round, 0)
    return trial.plan.method.local(broadcast, trial.memory, nudged, ctx)


def _is_close(work: Work, expected: Work, nudged: Work) -> bool:
    """Whether two results of local work agree up to rounding, and up to what a rounding of the
    images moves."""
    upload, memory = work
    expected_upload, expected_memory = expected
    nudged_upload, nudged_memory = nudged
    if upload.keys() != expected_upload.keys():
        return False
    if not _are_tensors_close(memory, expected_memory, nudged_memory):
        return False
    for name, artifact in expected_upload.items():
        moved = nudged_upload[name].value if name in nudged_upload else artifact.value
        if not _are_tensors_close(upload[name].value, artifact.value, moved):
            return False
    return True


def _are_tensors_close(values: Tensors, expected: Tensors, nudged: Tensors) -> bool:
    if values.keys() != expected.keys():
        return False
    return all(
        _is_tensor_close(values[name], tensor, nudged.get(name, tensor))
        for name, tensor in expected.items()
    )


def _is_tensor_close(value: Tensor, expected: Tensor, nudged: Tensor) -> bool:
    """Whether a tensor agrees with the expected one in each number and in all together: a rounding
    is small in most numbers, and a wrong learning rate moves most of them."""
    # |v - e| <= t (1 + |e|) + f max |n - e|   for each number,
    # sum |v - e| <= sum r (1 + |e|) + f sum |n - e|
    if value.shape != expected.shape:
        return False
    if not expected.numel():
        return True
    expected = expected.double()
    gap = _distances(value.double(), expected)
    size = 1 + expected.abs().nan_to_num(posinf=0.0)
    moved = torch.zeros_like(gap)
    if nudged.shape == expected.shape:
        moved = _distances(nudged.double(), expected)
    each = gap <= BATCHED_TOLERANCE * size + ROUNDING_FACTOR * moved.max()
    together = gap.sum() <= ROUNDING * size.sum() + ROUNDING_FACTOR * moved.sum()
    return bool(each.all()) and bool(together)


def _distances(a: Tensor, b: Tensor) -> Tensor:
    """|a - b|, and 0 between two infinities of one sign: a client may keep a best loss so far."""
    return (a - b).abs().masked_fill(a == b, 0.0)


def _interference_faults(trial: CheckedRound, other: Shard) -> Iterator[tuple[str, str]]:
    """(line, message) of faults of messages that depend on the records: with other images of the
    same labels, and with most records zeroed out; under add_remove also with other labels, and with
    most records gone."""
    plan = trial.plan
    shard = trial.shard
    last_third = shard.train.take(range(2 * len(shard.train) // 3, len(shard.train)))
    sets = [
        shard.with_train(replace(shard.train, x=other.train.x)),
        zero_out_others(shard, last_third),
    ]
    if plan.relation == "add_remove":
        relabelled = replace(shard.train, y=(shard.train.y + 1) % shard.classes)
        sets += [shard.with_train(relabelled), shard.with_train(last_third)]
    place = trial.round, plan.method.broadcast(trial.server), trial.memory
    alone = trace_round(plan, *place, shard)
    for records in sets:
        try:
            leaks = list(compare_traces(alone, trace_round(plan, *place, records, alone.outputs)))
        except TranscriptEnded:
            leaks = [MessageLeak("how often mechanisms are applied depends on the records")]
        yield from ((f"round {trial.round}: {leak.says}", leak.message) for leak in leaks)


def _signal_faults(
    plan: Plan, round: int, server: State, memory: State, sent: Received, shards: Sequence[Shard]
) -> Iterator[str]:
    broadcast = plan.method.broadcast(server)
    method = method_of_client(plan.method, sent.client)
    snapshot = Snapshot(round, broadcast, memory, sent.values, method.audit_hooks.phase(round))
    records = shards[sent.client].train
    other_records = shards[sent.client - 1].train
    noise: dict[str, Any] = {}
    held = (snapshot, records, other_records, memory, frozenset[str](), noise)
    images = method.audit_hooks.public_images(plan.problem, plan.keys.seed)
    opening = method.audit_hooks.initial_classifier(plan.problem, plan.keys.seed)
    adversary = AdversaryView(method, plan.problem, *held, opening=opening, public_images=images)
    try:
        signals = extract_signals(adversary, sent.values)
    except UnreadableUpload as error:
        yield f"round {round}: {error}"
        return
    for name in sent.values:
        surface = plan.method.uploads[name]
        group = signal_group(plan.method, name)
        if surface in (Surface.COUNTS, Surface.LABELS):
            continue
        if missing_map_hooks(method, surface):  # already a warning
            continue
        names = [key for key in signals if key.startswith(f"{group}|")]
        if surface == Surface.STATISTICS and names == [f"{group}|count"]:  # equal in equal classes
            continue
        signals_of_group = [signals[key] for key in names]
        mine = [value.flatten(1) if value.ndim > 1 else value for value in signals_of_group]
        if not any(bool((value != value[:1]).any()) for value in mine):
            yield f"round {round}: every signal of surface {surface} is the same for all records"


def _warn_of_class_counts(plan: Plan, sent: Received, shard: Shard) -> None:
    """No fault of the method, and nothing that an author wants to learn after a training. Numbers
    that are not the client's own counts, such as which classes it has, need no warning."""
    true_counts = torch.bincount(shard.train.y, minlength=plan.problem.classes)
    for name, value in sent.values.items():
        open_surface = plan.method.uploads[name] in CLASS_SURFACES and name not in plan.mechanisms
        counts = sent_class_counts(value, plan.problem.classes)
        if open_surface and counts is not None and torch.equal(counts.cpu(), true_counts):
            warnings.warn(
                f"{name!r} holds how many records of each class a client has: the server "
                "reads them, and a class of one record "
                "is open, as its mean or sum is that record's own",
                stacklevel=2,
            )


def _is_same_upload(a: Upload, b: Upload) -> bool:
    return a.keys() == b.keys() and all(_is_equal(a[name].value, b[name].value) for name in a)


def _is_equal(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
