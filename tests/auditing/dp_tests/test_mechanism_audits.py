"""Tests of ``privdd.auditing.dp_tests.query_audit`` and the other audits of mechanisms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import dp_accounting as dpa
import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent

from attacks.tradeoff import gaussian_epsilon
from attacks.types import Finding, Surface
from privdd.auditing.dp_tests import update_audit as clients
from privdd.auditing.dp_tests.prescribed_noise import (
    EmptyRelease,
    NoiseNotPrescribed,
    release_prescribed,
)
from privdd.auditing.dp_tests.query_audit import client_query_findings
from privdd.auditing.dp_tests.statement import GuaranteeSubject
from privdd.auditing.dp_tests.update_audit import runs_of_updates
from privdd.auditing.dp_tests.upload_audit import record_upload_findings
from privdd.auditing.verdicts import decide_verdict
from privdd.core.rng import Keys
from privdd.core.types import Artifact, Records, Tensors
from privdd.federated.simulation import Snapshot
from privdd.privacy.lattice import Lattice
from privdd.privacy.ledger import Ledger
from privdd.privacy.mechanism import Mechanism, Output
from privdd.privacy.mechanisms import ClientLevel, ClippedSum
from tests.auditing.dp_tests.subjects import (
    DELTA,
    Coupled,
    client,
    fedavg,
    mechanism_findings,
    subject,
)

# A query that clips record by record and says that it protects a client moves by as many units as
# there are records.


@dataclass(frozen=True)
class OfClients(ClippedSum):
    """It says that it protects a client; whole: and clips what all records add up to, so that it
    does."""

    whole: bool = False

    def __call__(self, value: Any, noise: Any) -> Output:
        if self.whole:
            value = {n: t.sum(0, keepdim=True) for n, t in value.items()}
        return replace(super().__call__(value, noise), flags={"unit:client": True})


def kappa(mechanism: ClippedSum) -> float:
    made = subject(Coupled(coupled=False), {"embedding": ClippedSum(1.0, 0.01)})
    ledger = Ledger("add_remove", "client", made.delta)
    rows = [
        replace(row, flags={"unit:client": True})
        for row in made.ledger.releases
        if row.is_protected
    ]
    ledger.append([replace(row, post_of=()) for row in rows])
    plan = replace(made.plan, mechanisms={"embedding": mechanism})
    (found,) = client_query_findings(replace(made, plan=plan, ledger=ledger))
    assert found.measures.kappa_allowed == 1.0 and found.diagnostics["unit"] == "client"
    return float(found.measures.kappa)


def test_records_that_are_clipped_one_by_one_do_not_protect_a_client() -> None:
    assert kappa(OfClients(1.0, 0.01)) > 1.5
    assert kappa(OfClients(1.0, 0.01, whole=True)) <= 1.0 + 1e-4


# Client-level guarantees: a sound mechanism stays within its bound, each fault is caught.


FINITE = {"pld": 1.0, "rdp": 1.0}


@dataclass(frozen=True)
class Quiet(ClientLevel):
    """A mutant: a third of the noise that it states."""

    def __call__(self, value: Tensors, noise: Any) -> Output:
        honest = super().__call__(value, noise)
        exact = honest.exact or {}
        return replace(
            honest, value={n: exact[n] + (t - exact[n]) / 3 for n, t in honest.value.items()}
        )


@dataclass(frozen=True)
class Loose(ClientLevel):
    """A mutant: it clips at twice the norm that its noise is meant for."""

    def __call__(self, value: Tensors, noise: Any) -> Output:
        return replace(
            super().__call__(value, noise),
            exact=ClientLevel(1.0, 2 * self.clip_norm)(value, noise).exact,
        )


@dataclass(frozen=True)
class Piecewise(ClientLevel):
    """A mutant: it clips each tensor by itself."""

    def __call__(self, value: Tensors, noise: Any) -> Output:
        exact = {
            n: (ClientLevel(1.0, self.clip_norm)({n: t}, noise).exact or {})[n]
            for n, t in value.items()
        }
        std = self.noise_multiplier * self.clip_norm
        noised = {n: t + std * noise.normal(tuple(t.shape)) for n, t in exact.items()}
        return replace(super().__call__(value, noise), exact=exact, value=noised)


@dataclass(frozen=True)
class Blind(ClientLevel):
    """A mutant: what is not a number passes."""

    def __call__(self, value: Tensors, noise: Any) -> Output:
        honest = super().__call__(value, noise)
        bad = {n: torch.where(t.isnan(), t, 0.0) for n, t in value.items()}
        return replace(honest, exact={n: t + bad[n] for n, t in (honest.exact or {}).items()})


@dataclass(frozen=True)
class Sparing(ClientLevel):
    """A mutant: a tensor that the client left as it was is not released."""

    def __call__(self, value: Tensors, noise: Any) -> Output:
        honest = super().__call__(value, noise)
        exact = honest.exact or {}
        kept = [n for n, t in exact.items() if float(t.norm()) > 0] or list(exact)[:1]
        released = {n: honest.value[n] for n in kept}
        return replace(honest, value=released, exact={n: exact[n] for n in kept})


def of_client(
    mechanism: ClientLevel, *, rounds: int = 1, relation: str = "zero_out", runs: int = 60
) -> GuaranteeSubject:
    """A client that sent its noised update so many times."""
    one = subject(fedavg().client_private(), {}, relation=relation, runs=runs)
    one = replace(one, plan=replace(one.plan, mechanisms={"update": mechanism}))
    ledger = Ledger(relation, "client", DELTA)  # type: ignore[arg-type]
    snapshots = {}
    for t in range(rounds):
        ctx = one.plan.client_context(t, 0)
        before = one.snapshots[0].broadcast
        upload, _ = one.plan.method.local(before, {}, client(0), ctx)
        received, rows = one.plan.channel.send(upload, ctx)
        ledger.append(rows)
        snapshots[t] = Snapshot(t, before, {}, received.values)
    return replace(one, ledger=ledger, snapshots=snapshots)


def by_name(found: list[Finding]) -> dict[str, Any]:
    return {f.attack: f.measures.to_row() for f in found}


@pytest.mark.parametrize(
    ("relation", "allowed"), [("zero_out", 1.0), ("add_remove", 1.0), ("replace", 2.0)]
)
def test_a_sound_update_reaches_its_bound_and_not_beyond(relation: str, allowed: float) -> None:
    found = list(mechanism_findings(of_client(ClientLevel(1.0, 0.5), rounds=3, relation=relation)))
    rows = by_name(found)
    assert list(rows) == ["t1_sensitivity", "t2_likelihood_ratio", "t3_transcript", "t3_curve"]
    assert 0.999 * allowed < rows["t1_sensitivity"]["kappa"] <= allowed * (1 + 1e-4)
    assert rows["t1_sensitivity"]["kappa_allowed"] == allowed
    assert all(
        0 < r["epsilon_shown"] <= r["epsilon_stated"] for n, r in rows.items() if n.startswith("t2")
    )
    assert all(
        r["diagnostics"]["unit"] == "client" and r["signal"] == "update" for r in rows.values()
    )
    assert "one client moves" in rows["t1_sensitivity"]["note"]
    assert decide_verdict(FINITE, None, found) == "consistent"


def test_what_is_stated_counts_every_round() -> None:
    for rounds in (1, 4):
        stated = by_name(list(mechanism_findings(of_client(ClientLevel(2.0, 0.5), rounds=rounds))))[
            "t2_likelihood_ratio"
        ]
        assert stated["epsilon_stated"] == pytest.approx(
            gaussian_epsilon(rounds**0.5 / 2, DELTA), rel=1e-2
        )


@dataclass(frozen=True)
class Closed(ClientLevel):
    """Shows nothing before its noise."""

    def __call__(self, value: Tensors, noise: Any) -> Output:
        return replace(super().__call__(value, noise), exact=None)


def test_what_cannot_be_tested_says_so() -> None:
    (row,) = mechanism_findings(of_client(Closed(1.0, 0.5)))
    assert row.measures.n == 0 and "Closed was not tested" in row.measures.note
    assert row.measures.kappa is None and row.measures.epsilon_stated > 0


@dataclass(frozen=True)
class Ours(Mechanism):
    """A user's own client-level mechanism: no relation of ``ClientLevel``. share: of the noise that
    it states."""

    share: float = 1.0
    clips: bool = True

    def __call__(self, value: Tensors, noise: Any) -> Output:
        finite = {n: t.double().nan_to_num(0, 0, 0) for n, t in value.items()}
        norm = (
            float(torch.cat([t.flatten() for t in finite.values()]).norm()) if self.clips else 0.0
        )
        exact = {n: t / max(1.0, norm / 0.5) for n, t in finite.items()}
        noised = {n: t + self.share * 0.5 * noise.normal(tuple(t.shape)) for n, t in exact.items()}
        flags = {"unit:client": True}
        return Output(
            noised,
            GaussianDpEvent(1.0),
            0.5,
            0.5,
            noise_std=self.share * 0.5,
            exact=exact,
            flags=flags,
        )


@pytest.mark.nightly(but=["mechanism1-contradiction"])
@pytest.mark.parametrize(
    ("mechanism", "expected"),
    [
        (Ours(), "consistent"),
        (Ours(share=0.4), "contradiction"),
        (Ours(clips=False), "contradiction"),
    ],
)
def test_a_mechanism_of_ones_own_is_tested_like_ours(mechanism: Mechanism, expected: str) -> None:
    """By what it declares, not by its class: one that never clips, or adds less noise than it
    states, is contradicted."""
    one = of_client(mechanism, runs=200)  # type: ignore[arg-type]
    found = list(mechanism_findings(one))
    assert {row.attack for row in found} >= {"t1_sensitivity"}
    stated = found[0].measures.epsilon_stated
    assert decide_verdict({"pld": stated, "rdp": stated}, stated, found) == expected


def test_large_updates_are_noised_fewer_times(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    real = clients.runs_of_updates
    monkeypatch.setattr(clients, "runs_of_updates", lambda *a: counts.append(a[4]) or real(*a))
    one = of_client(ClientLevel(1.0, 0.5), runs=60)
    list(mechanism_findings(one))
    monkeypatch.setattr(clients, "MAX_RATIO_NUMBERS", 10)
    list(mechanism_findings(one))
    assert counts == [60, one.budget.slow_runs] and one.budget.slow_runs < 60


@pytest.mark.nightly(cases=["0.0"])
@pytest.mark.parametrize("factor", [0.0, -1.0])
def test_log_ratios_follow_the_closed_form(factor: float) -> None:
    """T updates at the clip norm: ln P/Q ~ N(+-mu^2/2, mu^2) with mu = sqrt(T) / z, twice that for
    opposites."""
    update = {"a": torch.full((3, 2), 7.0), "b": torch.full((5,), -9.0)}
    other = {name: factor * t for name, t in update.items()}
    runs = runs_of_updates(ClientLevel(1.5, 0.3), update, other, 4, 400, Keys(0))
    mu2 = 4 / 1.5**2 * (1 - factor) ** 2
    for ratios, sign in ((runs.ratios[:400], 1), (runs.ratios[400:], -1)):
        assert float(ratios.mean()) == pytest.approx(sign * mu2 / 2, abs=4 * (mu2 / 400) ** 0.5)
        assert float(ratios.var()) == pytest.approx(mu2, rel=0.35)


@pytest.mark.parametrize(
    ("mutant", "least"),
    [(Quiet, 2.5), (Loose, 1.9), (Piecewise, 1.5), (Blind, 100.0), (Sparing, 100.0)],
)
def test_a_fault_is_a_contradiction(mutant: type[ClientLevel], least: float) -> None:
    found = list(mechanism_findings(of_client(mutant(4.0, 0.1), runs=20)))
    assert found[0].measures.kappa > least
    assert decide_verdict(FINITE, None, found) == "contradiction"


def test_a_release_of_changing_size_has_no_certificate() -> None:
    mechanism = Sparing(4.0, 0.1)
    update = {"a": torch.ones(3), "b": torch.ones(2)}
    nobody = {name: torch.zeros_like(tensor) for name, tensor in update.items()}
    empty = EmptyRelease.from_mechanism(mechanism, nobody)
    with pytest.raises(NoiseNotPrescribed, match="how many numbers"):
        release_prescribed(mechanism, empty, [update], update, np.zeros(1), Keys(0).torch(), nobody)


# Uploads that mechanisms of one's own protect record by record.


@dataclass(frozen=True)
class Rows(Coupled):
    """A row for each record, zeroed-out ones too, as it is or as their mean."""

    mean: bool = False
    queries: ClassVar = {}

    def local(self, broadcast: Any, memory: Any, shard: Any, ctx: Any) -> Any:
        whole = shard.train if shard.nulls is None else Records.concat([shard.train, shard.nulls])
        rows = 9 * whole.x.flatten(1) @ broadcast["model"]["w"]
        return {"prototypes": Artifact({"rows": rows.mean(0) if self.mean else rows})}, {}


@dataclass(frozen=True)
class OwnRows(Mechanism):
    """Noise on each row, clipped to 1 by itself unless ``clips`` is false."""

    clips: bool = True

    def __call__(self, value: Any, noise: Any) -> Output:
        rows = value["rows"]
        if self.clips:
            rows = rows / rows.norm(dim=1, keepdim=True).clamp_min(1.0)
        return Output(
            event=dpa.GaussianDpEvent(2.0),
            **Lattice.under(2.0, 1e3).released({"rows": rows}, 2.0, noise.normal),
        )


@dataclass(frozen=True)
class Unflagged(ClientLevel):
    """It clips an upload as a whole, and does not say that its unit is a client."""

    def __call__(self, value: Any, noise: Any) -> Output:
        return replace(super().__call__(value, noise), flags={})


def kappa_uploads(method: Any, mechanism: Any, relation: str = "zero_out") -> float:
    assert method.uploads["prototypes"] == Surface.PROTOTYPES
    (found,) = record_upload_findings(
        subject(method, {"prototypes": mechanism}, relation=relation), "prototypes"
    )
    return float(found.measures.kappa)


def test_rows_that_are_clipped_one_by_one_move_by_one_unit() -> None:
    assert 0.5 < kappa_uploads(Rows(), OwnRows()) <= 1 + 1e-4


def test_rows_that_are_not_clipped_move_further() -> None:
    assert kappa_uploads(Rows(), OwnRows(clips=False)) > 2


def test_the_number_of_rows_is_private_under_add_remove() -> None:
    assert kappa_uploads(Rows(), OwnRows(), "add_remove") > 1e5


def test_under_replace_one_record_is_exchanged_for_another() -> None:
    """So the number of rows stays, and a row may move by two units at most."""
    assert 0.5 < kappa_uploads(Rows(), OwnRows(), "replace") <= 2 + 1e-4
    assert kappa_uploads(Rows(), OwnRows(clips=False), "replace") > 3
    rows = {"prototypes": OwnRows(clips=False)}
    (found,) = record_upload_findings(subject(Rows(), rows, relation="replace"), "prototypes")
    assert found.measures.kappa_allowed == 2


def test_an_upload_that_is_clipped_as_a_whole_may_move_across_the_ball() -> None:
    assert kappa_uploads(Rows(mean=True), Unflagged(2.0, 1.0)) == pytest.approx(2.0, rel=1e-3)
