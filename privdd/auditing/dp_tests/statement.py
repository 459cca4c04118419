"""What guarantee tests know about a run, the statement that they test, and how their results become
findings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import dp_accounting as dpa
import numpy as np
from torch import Tensor

from attacks.certificates import bound_from_runs, likelihood_ratio_certificate
from attacks.measures import GuaranteeMeasures
from attacks.statistics import shared_confidence
from attacks.tradeoff import Curve, curve_test, most_testable_point
from attacks.types import Adversary, Family, Finding, Surface
from privdd.auditing.coverage import covered_diagnostics, untested_diagnostics
from privdd.auditing.dp_tests.likelihood_ratios import RatioTranscripts
from privdd.auditing.dp_tests.memory_history import MemoryHistory, memory_history_of
from privdd.core.rng import Keys
from privdd.core.types import Records, Shard
from privdd.federated.settings import GuaranteeBudget
from privdd.federated.simulation import Plan, Snapshot
from privdd.privacy.accounting import epsilon, epsilon_at
from privdd.privacy.ledger import SERVER, Ledger, Release
from privdd.privacy.trade_off import trade_off
from privdd.reporting.schema import exceeds_kappa

WHOLE_RUN_TEST = "t2_whole_run"
# units: what a release may seem to move by where it is rounded to a lattice
MAX_ROUNDED_KAPPA = 1.01
ORDER_STATISTIC = 5  # the k of T2's order statistic, fixed beforehand
NO_EVIDENCE_NOTE = "; a low bound on the final output does not support a claim"


@dataclass(frozen=True)
class ExaminedRounds:
    """The audited client's rounds. kept: those that can be run again; chosen: of them the first, a
    middle and the last of each phase; lost: those of which no state was kept."""

    kept: tuple[int, ...]
    chosen: tuple[int, ...]
    lost: tuple[int, ...]

    @property
    def last(self) -> int:
        """The last that was kept; -1 = none."""
        return max(self.kept, default=-1)

    def describe_rounds(self, looked_at: Sequence[int]) -> str:
        """Which rounds were examined, and which were not."""
        rest = sorted({*self.kept, *self.lost} - set(looked_at))
        rounds_text = f"round{'s' * (len(looked_at) > 1)} {format_ranges(looked_at)}"
        if rest:
            return f"{rounds_text}; not tested: {format_ranges(rest)}"
        return rounds_text


def format_ranges(numbers: Sequence[int]) -> str:
    """Increasing numbers as text: 0, 2 to 5, 9."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ", ".join(f"{r[0]} to {r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in runs)


@dataclass(frozen=True)
class GuaranteeSubject:
    """A finished run: the audited client's data as it trained, snapshots of its rounds, and what it
    spent."""

    plan: Plan
    shard: Shard
    snapshots: Mapping[int, Snapshot]
    ledger: Ledger
    delta: float
    confidence: float
    budget: GuaranteeBudget
    keys: Keys

    def own_releases(self, *names: str) -> list[Release]:
        """The audited client's ledger rows, all or those of these names."""
        rows = [row for row in self.ledger.releases if row.client == self.plan.victim]
        if names:
            return [row for row in rows if row.name in names]
        return rows

    def has_finite_epsilon(self, name: str) -> bool:
        """Whether the audited client's releases of this name have a finite epsilon in the
        ledger."""
        rows = self.own_releases(name)
        return bool(rows) and all(row.is_protected for row in rows)

    def client_rounds(self, name: str | None = None) -> ExaminedRounds:
        """Rounds in which the client sent something, or released what is called ``name``."""
        rounds = sorted({row.round for row in self.own_releases(*filter(None, [name]))})
        replayable = tuple(t for t in rounds if t in self.snapshots)
        phases = dict[str, list[int]]()
        for t in replayable:
            phases.setdefault(self.snapshots[t].phase, []).append(t)
        chosen: set[int] = set()
        for rounds_of_phase in phases.values():
            middle = rounds_of_phase[len(rounds_of_phase) // 2]
            chosen |= {rounds_of_phase[0], middle, rounds_of_phase[-1]}
        return ExaminedRounds(
            replayable, tuple(sorted(chosen)), tuple(t for t in rounds if t not in replayable)
        )

    def memory_history(self, other: Records) -> MemoryHistory:
        """The client's memory before each round; other: records whose effect on that memory is
        looked for."""
        return memory_history_of(
            self.plan, self.snapshots, self.shard, replace(self.shard, train=other, nulls=None)
        )

    def surface_of(self, name: str) -> Surface:
        """The surface of a message, or that on which the outputs of a query are first sent: of the
        uploads that the ledger says were computed from it, the first that the method declares. A
        query that nothing sent follows from has its own."""
        method = self.plan.method
        if name in method.uploads:
            return method.uploads[name]
        sent = self.messages_from(name)
        if sent:
            return method.uploads[sent[0]]
        return method.queries.get(name, next(iter(method.uploads.values())))

    def messages_from(self, name: str) -> list[str]:
        """The uploads, in the order in which the method declares them, that were computed from a
        client's query ``name``."""
        rows = [row for row in self.ledger.releases if row.client != SERVER]
        ids = {row.id for row in rows if row.name == name}
        sent = {row.name for row in rows if ids.intersection(row.post_of)}
        return [message for message in self.plan.method.uploads if message in sent]

    @property
    def allowed_units(self) -> float:
        """By how many units one record (or client) may move a release: one is exchanged for
        another, or comes and goes."""
        return 2.0 if self.plan.relation == "replace" else 1.0

    def proven_epsilon(self, event: dpa.DpEvent) -> float:
        return epsilon(event, self.delta, relation=self.plan.relation)  # type: ignore[arg-type]

    def run_finding(
        self, attack: str, name: str, count: int, note: str, diagnostics: Mapping[str, Any]
    ) -> Finding:
        """A row about the run itself (T0, messages): of the releases ``name`` (several are joined
        by ", "), ``count`` of which were examined."""
        facts = {"unit": self.ledger.unit, **diagnostics}
        measures = GuaranteeMeasures(signal=name, n=count, note=note, diagnostics=facts)
        surface = self.surface_of(name.split(", ")[-1])
        return Finding(surface, attack, Family.GUARANTEE, Adversary.ANALYST, measures, message=name)

    def statement(self, name: str, stated: float, source: str, unit: str = "record") -> Statement:
        """What ``source`` states of the releases ``name``."""
        return Statement(self, self.surface_of(name), stated, source, name, unit)

    def plan_with_few_images(self) -> Plan:
        """The plan with as few synthetic images per class as the guarantee settings say."""
        hooks = self.plan.method.audit_hooks
        images = min(hooks.images_per_class(), self.budget.images)
        return replace(self.plan, method=hooks.with_images_per_class(images))


@dataclass(frozen=True)
class Statement:
    """A claim to be tested: an epsilon, who states it, and the surface where the tested release
    ends up. name: the query or upload whose mechanism is tested, which tells apart findings on one
    surface; unit: what is in or out, a record or a client."""

    subject: GuaranteeSubject
    surface: Surface
    epsilon: float
    source: str
    name: str
    unit: str = "record"

    def guarantee_finding(
        self,
        attack: str,
        note: str,
        *,
        adversary: Adversary = Adversary.ANALYST,
        looks: Mapping[str, Any] | None = None,
        **measures: Any,
    ) -> Finding:
        """looks: diagnostics beside the unit."""
        stated = GuaranteeMeasures(
            epsilon_stated=self.epsilon,
            signal=self.name,
            diagnostics={"unit": self.unit, **(looks or {})},
            note=note,
        )
        return Finding(
            self.surface,
            attack,
            Family.GUARANTEE,
            adversary,
            replace(stated, **measures),
            message=self.name,
        )

    def bound_finding(
        self,
        attack: str,
        value: float,
        method: str,
        validity: str,
        runs: int,
        note: str,
        **more: Any,
    ) -> Finding:
        """A row with a lower bound on epsilon."""
        return self.guarantee_finding(
            attack,
            note,
            epsilon_shown=value,
            epsilon_method=method,
            epsilon_validity=validity,
            confidence=self.subject.confidence,
            n=runs,
            **more,
        )

    def untested_sensitivity(self, why: str) -> Finding:
        """T1's row where it could not look."""
        return self.guarantee_finding("t1_sensitivity", why, n=0)

    def sensitivity_finding(
        self,
        kappa: float,
        searched: int,
        note: str,
        rounds: Sequence[int],
        allowed: float | None = None,
    ) -> Finding:
        """T1's row; rounds: that were examined; allowed: units, by the relation unless given."""
        if allowed is None:
            allowed = self.subject.allowed_units
        comparison = "more" if exceeds_kappa(kappa, allowed) else "no more"
        text = (
            f"{note}: one {self.unit} moves the value before noise by {kappa:.3g} units, "
            f"{comparison} than {allowed:g}"
        )
        return self.guarantee_finding(
            "t1_sensitivity",
            text,
            looks=covered_diagnostics("t1_sensitivity", rounds),
            kappa=kappa,
            kappa_allowed=allowed,
            n=searched,
        )

    def whole_run_finding(
        self, epsilon: float, runs: int, kappas: np.ndarray, trusts: Sequence[str], what: str
    ) -> Finding:
        """T2's row for the run as a whole; kappas (runs, T): what one record moves each release by,
        in units."""
        energy = float(np.square(kappas).mean())
        most = float(kappas.max())
        kappa = {"min": float(kappas.min()), "mean": float(kappas.mean()), "energy": energy}
        played = (
            f"{runs} runs of all {kappas.shape[1]} releases with {what}; kappa^2 is "
            f"{energy:.4g} on average"
        )
        certificate = {"tier": "T2", "trusts": list(trusts), "runs": runs, "kappa": kappa}
        looks = {
            "certificate": certificate,
            **covered_diagnostics(WHOLE_RUN_TEST, self._tested_rounds()),
        }
        if (
            most > MAX_ROUNDED_KAPPA
        ):  # a single release is enough, however little it adds to the whole
            looks["refuted"] = True
            played += (
                f"; release {int(kappas.max(0).argmax()) + 1} moves by {most:.3g} units, more "
                "than 1"
            )
        note = f"{played}; {self._describe_verdict(epsilon)}"
        method = "tilted_likelihood_ratio"
        return self.bound_finding(
            WHOLE_RUN_TEST, epsilon, method, "finite_sample", runs, note, looks=looks
        )

    def untested_run_finding(self, why: str) -> Finding:
        """T2's row where the run could not be played."""
        looks = untested_diagnostics(WHOLE_RUN_TEST, why)
        return self.guarantee_finding(
            WHOLE_RUN_TEST, f"the whole run was not tested: {why}", looks=looks, n=0
        )

    def _tested_rounds(self) -> set[int]:
        """The rounds in which the audited client made the releases that are tested."""
        return {row.round for row in self.subject.own_releases(*self.name.split(", "))}

    def likelihood_ratio_findings(
        self,
        transcripts: RatioTranscripts,
        note: str,
        *,
        final: RatioTranscripts | None = None,
        event: dpa.DpEvent | None = None,
    ) -> Iterator[Finding]:
        """T2, and T3 on the transcript, on what is finally sent, of the runs ``final`` (None: not
        that), and against the accountant's curve of ``event``, which the releases of a run are
        accounted as (None: nothing is accounted)."""
        confidence = self.subject.confidence
        delta = self.subject.delta
        best = self._ratio_bound(transcripts)
        text = f"{note}; {self._describe_verdict(best)}"
        runs = 2 * transcripts.run_count
        yield self.bound_finding(
            "t2_likelihood_ratio", best, "likelihood_ratio", "finite_sample", runs, text
        )
        looks = [
            (
                "t3_transcript",
                Adversary.ANALYST,
                transcripts.ratios.unsqueeze(1),
                transcripts.run_count,
            )
        ]
        if final:
            looks += [("t3_final", Adversary.SERVER, final.final, final.run_count)]
        for attack, adversary, rows, runs in looks:
            rng = self.subject.keys.fold(attack, self.surface).numpy()
            bound = bound_from_runs(
                rows[:runs], rows[runs:], delta=delta, generator=rng, confidence=confidence
            )
            ceiling = f"a perfect attack on so many runs reaches {math.log(runs / 2 / 3.7):.2g}"
            text = f"{note}; {ceiling}; {self._describe_verdict(bound.value)}"
            if attack == "t3_final":
                text += NO_EVIDENCE_NOTE
            found_by = (bound.value, bound.method, bound.validity, 2 * runs)
            yield self.bound_finding(attack, *found_by, text, adversary=adversary)
        if event is not None:
            yield curve_finding(
                self,
                transcripts.ratios[: transcripts.run_count],
                transcripts.ratios[transcripts.run_count :],
                event,
                note,
            )

    def _ratio_bound(self, transcripts: RatioTranscripts) -> float:
        """T2's bound in both orders of the pair, each at half of the error probability.

        delta(epsilon) >= P(L >= epsilon + ln 2) / 2, and the k-th largest L of R runs bounds that
        chance from below at a finite sample: not (L_(k) - ln 2, delta)-DP for any delta below
        BetaInv(1 - confidence; k, R - k + 1) / 2
        (``attacks.certificates.likelihood_ratio_certificate``). k is fixed beforehand: the maximum
        (k = 1) would give the largest epsilon, at the smallest delta.
        """
        each = shared_confidence(self.subject.confidence, 2)
        orders = (
            transcripts.ratios[: transcripts.run_count],
            -transcripts.ratios[transcripts.run_count :],
        )
        bounds = [
            likelihood_ratio_certificate(r, k=ORDER_STATISTIC, confidence=each) for r in orders
        ]
        return max((c.epsilon for c in bounds if self.subject.delta < c.delta_below), default=0.0)

    def _describe_verdict(self, value: float) -> str:
        if value > self.epsilon:
            beyond = "contradicts"
        else:
            beyond = "does not contradict"
        return (
            f"not ({value:.3g}, {self.subject.delta:g})-DP, which {beyond} {self.epsilon:.3g} "
            f"({self.source})"
        )


def curve_finding(
    statement: Statement, inside: Tensor, outside: Tensor, event: dpa.DpEvent, note: str
) -> Finding:
    """The finding ``t3_curve``, of log likelihood ratios L = ln P/Q of runs.

    The test "L > t" has type I error alpha = Q(L > t) and type II error beta = P(L <= t); a sound
    accountant's curve f has beta >= f(alpha) for every t (Dong, Roth and Su 2022, Definition 2.3).
    The curve is refuted if upper confidence limits of both errors lie below it. The threshold t
    comes from the accounted curve and the number of runs alone, so no run is spent on choosing it:
    errors below the curve refute the accountant, whatever the mechanism's true law is.

    Its ``epsilon_shown`` is above the statement's epsilon exactly if the curve is refuted at the
    subject's confidence. Below it, it is the epsilon of the least noise that the runs refute: no
    bound for other mechanisms.

    Args:
        statement: what is tested.
        inside: L (R,) of independent runs with the record.
        outside: L (R',) of runs without it.
        event: what the releases of a run are accounted as.
        note: which runs these are, in words.
    """
    subject = statement.subject
    relation = statement.subject.ledger.relation

    @cache
    def curve_at_scale(scale: float) -> Curve:
        return trade_off(event, relation=relation, scale=scale)

    runs = min(len(inside), len(outside))
    point = most_testable_point(curve_at_scale(1.0), runs, confidence=subject.confidence)
    ratios = inside.double().numpy(), outside.double().numpy()
    test = curve_test(
        *ratios, curve_at_scale, threshold=point.threshold, confidence=subject.confidence
    )
    implied = epsilon_at(event, subject.delta, relation=relation, scale=test.scale)
    # both epsilons are rounded: the curve decides which one is the larger
    above = statement.epsilon * (1 + 1e-9)
    if test.refuted:
        implied = max(implied, above)
    else:
        implied = min(implied, statement.epsilon)
    where = f"false alarms at most {test.fpr:.3g} and misses at most {test.fnr:.3g}"
    lies = "below" if test.refuted else "not below"
    text = (
        f"{note}; {where}, {lies} the accountant's curve; refuted is {_describe_scale(test.scale)}"
    )
    return statement.bound_finding("t3_curve", implied, "curve", "curve", test.runs, text)


def _describe_scale(scale: float) -> str:
    if scale:
        return f"noise of {1 / scale:.3g} times the stated scale or more"
    return "no noise of any scale"
