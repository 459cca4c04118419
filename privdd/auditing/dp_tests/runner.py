"""The tests of stated guarantees over a finished run, as findings of family ``guarantee``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from attacks.types import Finding
from privdd.auditing.dp_tests.feature_audit import feature_findings
from privdd.auditing.dp_tests.interference_audit import interference_findings
from privdd.auditing.dp_tests.ledger_audit import ledger_findings
from privdd.auditing.dp_tests.noise_audit import noise_finding
from privdd.auditing.dp_tests.noise_use_audit import noise_use_findings
from privdd.auditing.dp_tests.printed_theorem_audit import printed_theorem_findings
from privdd.auditing.dp_tests.query_audit import client_query_findings, query_findings
from privdd.auditing.dp_tests.run_certificate import certificate_findings
from privdd.auditing.dp_tests.sampling_audit import is_sampled, sampling_finding
from privdd.auditing.dp_tests.statement import GuaranteeSubject
from privdd.auditing.dp_tests.summed_noise import SUM_ASSUMPTION
from privdd.auditing.dp_tests.update_audit import client_update_findings
from privdd.auditing.dp_tests.upload_audit import record_upload_findings
from privdd.federated.audit_hooks import overrides_hook
from privdd.federated.noise_log import NoiseLog
from privdd.privacy.mechanisms.noise_share import unshared_mechanism


@dataclass(frozen=True)
class GuaranteeTest:
    """A part of the tests that depends on no other, so that an engine may run it: findings(subject,
    *names)."""

    subject: GuaranteeSubject
    findings: Callable[..., Iterator[Finding]]
    names: tuple[Any, ...] = ()

    def run(self) -> list[Finding]:
        return list(self.iterate_findings())

    def iterate_findings(self) -> Iterator[Finding]:
        """Finding by finding: those before an error are kept by whoever iterates."""
        findings = _add_seconds(self.findings(self.subject, *self.names))
        yield from map(_note_sums, findings) if self.subject.plan.trust.is_summed else findings

    @property
    def progress_label(self) -> str:
        """For a line of progress."""
        return self.findings.__name__.removesuffix("_findings").replace("_", " ")


def guarantee_findings(run: Any, confidence: float) -> Iterator[Finding]:
    """T0 to T3 for every mechanism of the run that states a finite epsilon, one test after the
    other. Arguments as of ``guarantee_subject``. Raises what a method raises on crafted records: a
    test that cannot run has not been passed."""
    subject = guarantee_subject(run, confidence)
    rest = (finding for test in guarantee_tests(subject) for finding in test.iterate_findings())
    yield from without_single_ratios(subject, chain(run_log_tests(subject, run.record), rest))


def guarantee_subject(run: Any, confidence: float) -> GuaranteeSubject:
    """The finished run (``privdd.auditing.views.FinishedRun``) as the tests see it. confidence: of
    each bound (its share of the run's error budget)."""
    privacy = run.experiment.privacy
    budget = run.experiment.audit_settings.guarantee
    keys = run.plan.keys.fold("audit", "guarantee")
    ran = (run.plan, run.shard, run.progress.snapshots, run.progress.ledger)
    return GuaranteeSubject(*ran, privacy.delta, confidence, budget, keys)


def guarantee_tests(subject: GuaranteeSubject) -> list[GuaranteeTest]:
    """All tests but those of the run's own noise, in the order of their findings."""
    if not subject.plan.mechanisms:
        return []
    if subject.plan.trust.is_summed:
        analysed = subject_of_sums(subject)
    else:
        analysed = subject
    interference = GuaranteeTest(analysed, interference_findings)
    certificate = GuaranteeTest(analysed, certificate_findings)
    return [
        interference,
        GuaranteeTest(analysed, noise_use_findings),
        *mechanism_tests(analysed),
        certificate,
    ]


def run_log_tests(subject: GuaranteeSubject, record: NoiseLog | None) -> list[Finding]:
    """T0, on what this process noted of the run itself."""
    if subject.plan.mechanisms:
        return list(_add_seconds(log_findings(subject, record)))
    return []


def subject_of_sums(subject: GuaranteeSubject) -> GuaranteeSubject:
    """The subject as the server's sums show it: one client's contribution under the noise of all
    shares together."""
    sums = {
        name: unshared_mechanism(mechanism) for name, mechanism in subject.plan.mechanisms.items()
    }
    return replace(subject, plan=replace(subject.plan, mechanisms=sums))


def _note_sums(finding: Finding) -> Finding:
    if certificate := finding.diagnostics.get("certificate"):
        certificate = {**certificate, "trusts": [*certificate["trusts"], SUM_ASSUMPTION]}
        finding = finding.with_diagnostics(certificate=certificate)
    note = f"{finding.measures.note or ''}; of the sum: {SUM_ASSUMPTION}"
    return finding.with_measures(note=note)


def _add_seconds(findings: Iterable[Finding]) -> Iterator[Finding]:
    began = time.monotonic()
    for finding in findings:
        yield finding.with_measures(seconds=time.monotonic() - began)
        began = time.monotonic()


def without_single_ratios(
    subject: GuaranteeSubject, findings: Iterable[Finding]
) -> Iterator[Finding]:
    """Likelihood ratios of single queries come last, and only where they say what no certificate
    does: of a run that has none (Laplace noise, or noise of another form), or of a printed epsilon
        for which nothing is accounted."""
    held = list[Finding]()
    has_certificate = False
    for finding in findings:
        if finding.attack == "t2_whole_run" and finding.measures.epsilon_shown is not None:
            has_certificate = True
        query = finding.measures.signal or ""
        if finding.attack == "t2_likelihood_ratio" and subject.has_finite_epsilon(query):
            held.append(finding)
        else:
            yield finding
    for finding in [] if has_certificate else held:
        note = f"{finding.measures.note}; the whole run has no certificate"
        yield finding.with_measures(note=note)


def log_findings(subject: GuaranteeSubject, record: NoiseLog | None) -> Iterator[Finding]:
    """T0: the ledger, and for every mechanism that it accounts for the noise and the sampling of
    the run itself."""
    noted = record or NoiseLog(subject.plan.victim)
    yield from ledger_findings(subject, noted)
    for name in [name for name in subject.plan.mechanisms if subject.has_finite_epsilon(name)]:
        yield noise_finding(subject, noted, name)
        if is_sampled(subject, name):
            yield sampling_finding(subject, noted, name)


def mechanism_tests(subject: GuaranteeSubject) -> list[GuaranteeTest]:
    """Tests for every mechanism of the plan, by what it says that it releases
    (``Mechanism.sensitivity_kind``); if the unit is a client, of what a whole client moves."""
    method = subject.plan.method
    mechanisms = subject.plan.mechanisms
    if subject.ledger.unit == "client":
        uploads = [name for name in mechanisms if name in method.uploads]
        tests = [GuaranteeTest(subject, client_update_findings, (name,)) for name in uploads]
        return [*tests, GuaranteeTest(subject, client_query_findings)]
    queries = [
        name
        for name, mechanism in mechanisms.items()
        if name in method.queries and mechanism.sensitivity_kind != "batch_mean"
    ]
    tests = [GuaranteeTest(subject, query_findings, (queries,))]
    for name, mechanism in mechanisms.items():
        kind = mechanism.sensitivity_kind
        if kind == "batch_mean" and overrides_hook(method, "matching_steps"):
            tests.append(GuaranteeTest(subject, printed_theorem_findings, (name,)))
        elif kind == "rows":
            tests.append(GuaranteeTest(subject, feature_findings, (name,)))
        elif name in method.uploads:
            tests.append(GuaranteeTest(subject, record_upload_findings, (name,)))
    return tests
