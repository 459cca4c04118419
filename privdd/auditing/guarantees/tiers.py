"""The three tiers over a finished run, as findings of family ``guarantee``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import chain
from typing import Any

from attacks.types import Finding
from privdd.auditing.guarantees.aggregate_clip_theorem import printed_findings
from privdd.auditing.guarantees.certificate import certificate_findings
from privdd.auditing.guarantees.client_updates import client_findings
from privdd.auditing.guarantees.feature_noise import feature_findings
from privdd.auditing.guarantees.queries import query_findings
from privdd.auditing.guarantees.statement import Subject
from privdd.federated.method import defines
from privdd.privacy.mechanisms import AggregateClip, FeatureNoise


def guarantee_findings(scene: Any) -> Iterator[Finding]:
    """T1, T2 and T3 for every mechanism of the run that states a finite epsilon.

    scene: ``privdd.auditing.views.Scene``. Nothing is yielded for a run without mechanisms. Raises what a method
    raises on crafted records: a test that cannot run has not been passed.
    """
    privacy, audit = scene.experiment.privacy, scene.experiment.audit
    if not scene.plan.mechanisms:
        return
    subject = Subject(
        scene.plan,
        scene.shard,
        scene.progress.snapshots,
        scene.progress.ledger,
        privacy.delta,
        audit.confidence,
        audit.guarantee,
        scene.plan.keys.fold("audit", "guarantee"),
    )
    began = time.monotonic()
    for finding in chain(all_findings(subject), certificate_findings(subject)):
        yield finding.with_measures(seconds=time.monotonic() - began)
        began = time.monotonic()


def all_findings(subject: Subject) -> Iterator[Finding]:
    """Findings for every mechanism of the plan; if the unit is a client, only for those set for an upload."""
    kinds = {name: type(mechanism) for name, mechanism in subject.plan.mechanisms.items()}
    if subject.ledger.unit == "client":
        for name in [n for n in kinds if n in subject.plan.method.uploads]:
            yield from client_findings(subject, name)
        return
    yield from query_findings(
        subject, [n for n, k in kinds.items() if n in subject.plan.method.queries and k is not AggregateClip]
    )
    for name, kind in kinds.items():
        if kind is AggregateClip and defines(subject.plan.method, "steps"):
            yield from printed_findings(subject, name)
        elif kind is FeatureNoise:
            yield from feature_findings(subject, name)
