"""T1: does a mechanism use the noise that it is given? One that draws from a generator of its own,
seeded by whatever it likes, gives the same numbers under two streams, and nothing that T0 logs of
the streams says anything of its noise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from attacks.types import Finding
from privdd.auditing.dp_tests.clean_values import flatten_tensors
from privdd.auditing.dp_tests.contributions import EnoughReleases
from privdd.auditing.dp_tests.instrumentation import RecordedRelease, recording_context
from privdd.auditing.dp_tests.statement import GuaranteeSubject
from privdd.core.types import Tensors
from privdd.privacy.mechanism import Mechanism
from privdd.privacy.noise import SeededNoise

NOISE_USE_TEST = "t1_noise_use"
STREAMS = 3  # a value that is rounded to a lattice may be the same under two of them by chance


@dataclass
class _FirstInputs:
    """The first input of each query in a client's round. wanted: the names of the queries."""

    wanted: frozenset[str]
    inputs: dict[str, Tensors] = field(default_factory=dict)

    def __call__(self, mechanism: Mechanism, release: RecordedRelease) -> None:
        self.inputs.setdefault(release.name, release.rows)
        if self.inputs.keys() >= self.wanted:
            raise EnoughReleases


def noise_use_findings(subject: GuaranteeSubject) -> Iterator[Finding]:
    """One finding for each mechanism with a finite epsilon that gives the same numbers whatever
    stream of noise it is given."""
    names = [name for name in subject.plan.mechanisms if subject.has_finite_epsilon(name)]
    for name, value in _first_inputs(subject, names).items():
        if ignores_noise(subject.plan.mechanisms[name], value, subject):
            note = (
                f"it gives the same numbers under {STREAMS} streams of noise: it ignores "
                "its noise argument, and "
                "any noise of its own was not tested"
            )
            yield subject.run_finding(NOISE_USE_TEST, name, STREAMS, note, {"refuted": True})


def ignores_noise(mechanism: Mechanism, value: Tensors, subject: GuaranteeSubject) -> bool:
    """Whether a mechanism's output is the same, bit by bit, under streams that differ."""
    generators = [subject.keys.fold(NOISE_USE_TEST, stream).torch() for stream in range(STREAMS)]
    outputs = [
        flatten_tensors(mechanism(value, SeededNoise(generator)).value) for generator in generators
    ]
    return outputs[0].numel() > 0 and all(torch.equal(outputs[0], again) for again in outputs[1:])


def _first_inputs(subject: GuaranteeSubject, names: list[str]) -> dict[str, Tensors]:
    """Name -> what its mechanism was first given in the last round that was kept: contributions of
    records, or an upload."""
    queries = frozenset(name for name in names if name in subject.plan.method.queries)
    inputs = dict[str, Tensors]()
    for round in sorted({subject.client_rounds(name).last for name in names} - {-1}):
        snapshot = subject.snapshots[round]
        first_inputs = _FirstInputs(queries if queries == {*names} else frozenset({""}))
        ctx = recording_context(
            subject.plan, round, subject.keys.fold(NOISE_USE_TEST), first_inputs
        )
        try:
            upload, _ = subject.plan.method.local(
                snapshot.broadcast, dict(snapshot.memory), subject.shard.client_data, ctx
            )
        except EnoughReleases:
            upload = {}
        sent = {name: artifact.value for name, artifact in upload.items() if name in names}
        inputs = {**inputs, **first_inputs.inputs, **sent}
    return {name: value for name, value in inputs.items() if name in names}
