"""The tiers over a finished run, as findings of family ``guarantee``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from attacks.types import Finding
from privdd.auditing.guarantees.aggregate_clip_theorem import printed_findings
from privdd.auditing.guarantees.certificate import certificate_findings
from privdd.auditing.guarantees.client_queries import client_query_findings
from privdd.auditing.guarantees.client_updates import client_findings
from privdd.auditing.guarantees.feature_noise import feature_findings
from privdd.auditing.guarantees.own_ledger import ledger_findings
from privdd.auditing.guarantees.own_noise import noise_finding
from privdd.auditing.guarantees.own_sampling import is_sampled, sampling_finding
from privdd.auditing.guarantees.queries import query_findings
from privdd.auditing.guarantees.record_uploads import record_upload_findings
from privdd.auditing.guarantees.statement import Subject
from privdd.auditing.guarantees.summed_noise import ADDS_UP
from privdd.auditing.guarantees.told import told_findings
from privdd.federated.method import defines
from privdd.federated.noise_record import NoiseRecord
from privdd.privacy.mechanisms import AggregateClip, FeatureNoise
from privdd.privacy.mechanisms.noise_share import whole_of


@dataclass(frozen=True)
class GuaranteeTest:
    """A part of the tests that depends on no other, so that an engine may run it: findings(subject, *names)."""

    subject: Subject
    findings: Callable[..., Iterator[Finding]]
    names: tuple[Any, ...] = ()

    def run(self) -> list[Finding]:
        return list(self.each())

    def each(self) -> Iterator[Finding]:
        """Finding by finding: those before an error are kept by whoever iterates."""
        found = _timed(self.findings(self.subject, *self.names))
        yield from map(_said_of_sums, found) if self.subject.plan.trust.summed else found

    @property
    def what(self) -> str:
        """For a line of progress."""
        return self.findings.__name__.removesuffix("_findings").replace("_", " ")


def guarantee_findings(scene: Any, confidence: float) -> Iterator[Finding]:
    """T0 to T3 for every mechanism of the run that states a finite epsilon, one test after the other.

    Arguments as of ``subject_of``. Nothing is yielded for a run without mechanisms. Raises what a method raises on
    crafted records: a test that cannot run has not been passed.
    """
    subject = subject_of(scene, confidence)
    rest = (finding for test in guarantee_tests(subject) for finding in test.each())
    yield from without_single_ratios(subject, chain(own_tests(subject, scene.record), rest))


def subject_of(scene: Any, confidence: float) -> Subject:
    """The finished run as the tests see it.

    scene: ``privdd.auditing.views.Scene``; confidence: of each bound (its share of the run's error budget).
    """
    privacy, budget = scene.experiment.privacy, scene.experiment.audit.guarantee
    keys = scene.plan.keys.fold("audit", "guarantee")
    ran = (scene.plan, scene.shard, scene.progress.snapshots, scene.progress.ledger)
    return Subject(*ran, privacy.delta, confidence, budget, keys)


def guarantee_tests(subject: Subject) -> list[GuaranteeTest]:
    """All tests but those of the run's own noise, in the order of their findings."""
    if not subject.plan.mechanisms:
        return []
    shown = of_sums(subject) if subject.plan.trust.summed else subject
    told, whole = GuaranteeTest(shown, told_findings), GuaranteeTest(shown, certificate_findings)
    return [told, *_of_mechanisms(shown), whole]


def own_tests(subject: Subject, record: NoiseRecord | None) -> list[Finding]:
    """T0, on what this process noted of the run itself."""
    return list(_timed(own_findings(subject, record))) if subject.plan.mechanisms else []


def of_sums(subject: Subject) -> Subject:
    """The subject as the server's sums show it: one client's contribution under the noise of all shares together."""
    whole = {name: whole_of(mechanism) for name, mechanism in subject.plan.mechanisms.items()}
    return replace(subject, plan=replace(subject.plan, mechanisms=whole))


def _said_of_sums(finding: Finding) -> Finding:
    diagnostics = finding.measures.get("diagnostics", {})
    if certificate := diagnostics.get("certificate"):
        certificate = {**certificate, "trusts": [*certificate["trusts"], ADDS_UP]}
        finding = finding.with_measures(diagnostics={**diagnostics, "certificate": certificate})
    return finding.with_measures(note=f"{finding.measures.get('note', '')}; of the sum: {ADDS_UP}")


def _timed(findings: Iterable[Finding]) -> Iterator[Finding]:
    began = time.monotonic()
    for finding in findings:
        yield finding.with_measures(seconds=time.monotonic() - began)
        began = time.monotonic()


def without_single_ratios(subject: Subject, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Likelihood ratios of single queries come last, and only where they say what no certificate does: of a run that
    has none (Laplace noise, or noise of another form), or of a printed epsilon for which nothing is accounted."""
    held, certified = list[Finding](), False
    for finding in findings:
        certified |= finding.attack == "t2_whole_run" and "epsilon_measured" in finding.measures
        if finding.attack == "t2_likelihood_ratio" and subject.spends(finding.measures["signal"]):
            held.append(finding)
        else:
            yield finding
    for finding in [] if certified else held:
        yield finding.with_measures(note=f"{finding.measures['note']}; the whole run has no certificate")


def own_findings(subject: Subject, record: NoiseRecord | None) -> Iterator[Finding]:
    """T0: the ledger, and for every mechanism that it accounts for the noise and the sampling of the run itself."""
    noted = record or NoiseRecord(subject.plan.victim)
    yield from ledger_findings(subject, noted)
    for name in [name for name in subject.plan.mechanisms if subject.spends(name)]:
        yield noise_finding(subject, noted, name)
        if is_sampled(subject, name):
            yield sampling_finding(subject, noted, name)


def all_findings(subject: Subject) -> Iterator[Finding]:
    """Findings for every mechanism of the plan, one after the other."""
    for test in _of_mechanisms(subject):
        yield from test.findings(subject, *test.names)


def _of_mechanisms(subject: Subject) -> list[GuaranteeTest]:
    """Tests for every mechanism of the plan; if the unit is a client, of what a whole client moves."""
    kinds = {name: type(mechanism) for name, mechanism in subject.plan.mechanisms.items()}
    if subject.ledger.unit == "client":
        sent = [name for name in kinds if name in subject.plan.method.uploads]
        each = [GuaranteeTest(subject, client_findings, (name,)) for name in sent]
        return [*each, GuaranteeTest(subject, client_query_findings)]
    asked = [n for n, k in kinds.items() if n in subject.plan.method.queries and k is not AggregateClip]
    tests = [GuaranteeTest(subject, query_findings, (asked,))]
    for name, kind in kinds.items():
        if kind is AggregateClip and defines(subject.plan.method, "steps"):
            tests.append(GuaranteeTest(subject, printed_findings, (name,)))
        elif kind is FeatureNoise:
            tests.append(GuaranteeTest(subject, feature_findings, (name,)))
        elif name in subject.plan.method.uploads:
            tests.append(GuaranteeTest(subject, record_upload_findings, (name,)))
    return tests
