"""A user's own method: what the contract check finds, each fault planted in a copy of FedAvg; what
assembly refuses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Any

import pytest
import torch

from attacks.types import Surface
from privdd.auditing.coverage import check_coverage
from privdd.auditing.method_contract import (
    BrokenContract,
    _are_tensors_close,
    check_method,
    contract_findings,
)
from privdd.auditing.signal_extraction import UnreadableUpload, extract_signals, missing_hooks
from privdd.cli.build import build_attacks
from privdd.cli.settings import audit_settings
from privdd.core.types import Artifact
from privdd.core.validation import BadConfig
from privdd.federated.method import Method
from privdd.methods.fedavg import FedAvg
from privdd.methods.fedfed import FedFed
from privdd.methods.fedproto import FedProto
from privdd.models import ModelSpec
from privdd.privacy.mechanisms import ClippedSum
from tests.auditing.dp_tests.subjects import Coupled, subject
from tests.federations import ALGOS, tiny, tiny_config

SMALL = {
    "model": ModelSpec("mlp", width=8),
    "rounds": 2,
    "lr": 0.05,
    "batch_size": 8,
    "local_epochs": 1,
}


@pytest.mark.nightly(
    cases=[
        "dp_merf",
        "fedfed_flbench",
        "fedrd_printed",
        "dp_psg",
        "fedmd_dp",
        "fedlgd",
        "dp_votes",
        "own_training",
        "fedrd_personal_dp",
        "fedlgd_dp",
        "fedrd_dp",
        "fedfed_virtual",
        "fedfed_dp",
        "feddm_guided_scattering",
        "feddm_guided_dp",
        "dp_head_scattering",
        "fedadam",
        "fedavgm",
        "fednova",
        "fedfed_raw",
        "dp_head_random",
    ]
)
@pytest.mark.parametrize(
    "algo", [a for a in ALGOS if a not in ("feddm_public_dp", "fedfed_released", "fedlgd_released")]
)
def test_shipped_methods_pass(algo: str) -> None:
    plan = tiny(algo).plan
    check_method(plan.method, mechanisms=plan.mechanisms)
    assert not any(missing_hooks(plan.method, surface) for surface in plan.method.uploads.values())


@pytest.mark.nightly(cases=["dp_means", "dp_moments"])
@pytest.mark.parametrize("algo", ["fedavg_adaptive", "dp_head", "dp_means", "dp_moments", "fedcgs"])
def test_shipped_methods_pass_where_a_server_gets_sums_alone(algo: str) -> None:
    plan = tiny(algo, "trust=secagg").plan
    check_method(plan.method, mechanisms=plan.mechanisms)


class Forgets(FedAvg):
    def local(self, broadcast: Any, memory: Any, shard: Any, ctx: Any) -> Any:
        upload, memory = super().local(broadcast, memory, shard, ctx)
        return {**upload, "extra": Artifact({"n": torch.ones(1)})}, memory


class Random(FedAvg):
    def outcome(self, turn: Any, trained: Any) -> Any:
        values, memory = super().outcome(turn, trained)
        return {
            **values,
            "update": {n: t + torch.randn(t.shape) for n, t in values["update"].items()},
        }, memory


class InPlace(FedAvg):
    def local(self, broadcast: Any, memory: Any, shard: Any, ctx: Any) -> Any:
        for value in broadcast["model"].values():
            value.mul_(0.99)
        return super().local(broadcast, memory, shard, ctx)


class Forgetful(FedAvg):
    def outcome(self, turn: Any, trained: Any) -> Any:
        return super().outcome(turn, trained)[0], {"last": trained.params["head.bias"]}

    def memory_after(self, broadcast: Any, memory: Any, shard: Any, ctx: Any) -> Any:
        return {"last": torch.zeros(3)}


class Infinite(FedAvg):
    def outcome(self, turn: Any, trained: Any) -> Any:
        values, memory = super().outcome(turn, trained)
        return {**values, "count": {"n": torch.tensor([torch.inf])}}, memory


class Doubled(FedAvg):
    """Says that its clients train as one network, with a correction over whole gradients."""

    vectorisable = True

    def correction(self, turn: Any) -> Any:
        return lambda params, grads: {
            n: g / (1 + sum(v.norm() for v in grads.values())) for n, g in grads.items()
        }


class Blind(FedAvg):
    def model_state(self, name: str, value: Any, broadcast: Any) -> Any:
        return None


class Headless(FedAvg):
    """Its updates can be read, but not what they started from: gradient inversion would be left out
    in silence."""

    def sent_state(self, broadcast: Any) -> Any:
        return None


class Constant(FedAvg):
    def model_state(self, name: str, value: Any, broadcast: Any) -> Any:
        return {n: torch.zeros_like(t) for n, t in value.items()} if name == "update" else None

    def sent_state(self, broadcast: Any) -> Any:
        return {n: torch.zeros_like(t) for n, t in broadcast["model"].items()}


class Flat(FedAvg):
    def predict(self, server: Any, memory: Any, x: Any) -> Any:
        return super().predict(server, memory, x)[:, 0]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Forgets, "sends 'extra', which uploads does not declare"),
        (Random, "draws from torch's global generator"),
        (InPlace, "changes its arguments in place"),
        (Forgetful, "memory_after, round 0: keeps something else"),
        (Infinite, "'count' is not finite"),
        (Doubled, "local_batched, round 0: gives something else"),
        (Blind, "no attack can search for a record"),
        (
            Headless,
            "no attack can search for a record: it must define classifier, sent_state and "
            "model_state",
        ),
        (Constant, "every signal of surface update is the same"),
        (Flat, "predict"),
    ],
)
def test_a_fault_is_named(kind: type[FedAvg], said: str) -> None:
    with pytest.raises(BrokenContract, match=said):
        check_method(kind(**SMALL))


@pytest.mark.parametrize("times", [1.0, 1.01])
def test_batched_adaptive_steps_may_differ_by_what_a_rounding_moves(
    monkeypatch: pytest.MonkeyPatch, times: float
) -> None:
    """AdamW takes whole steps along gradients that are zero but for rounding; one hundredth more of
    all weights is no rounding."""
    plan = tiny("fedfed").plan
    batched = FedFed.local_batched

    def scaled(self: FedFed, *given: Any) -> Any:
        done = batched(self, *given)
        if done is None:
            return None
        return [
            (
                {**up, "update": Artifact({n: times * v for n, v in up["update"].value.items()})},
                kept,
            )
            for up, kept in done
        ]

    monkeypatch.setattr(FedFed, "local_batched", scaled)
    if times == 1.0:
        check_method(plan.method, mechanisms=plan.mechanisms)
        return
    with pytest.raises(BrokenContract, match="local_batched, round 0: gives something else"):
        check_method(plan.method, mechanisms=plan.mechanisms)


@pytest.mark.parametrize(("algo", "rate"), [("fedavg", "lr"), ("fedfed", "distill_lr")])
def test_batched_steps_of_a_smaller_learning_rate_are_noticed(
    monkeypatch: pytest.MonkeyPatch, algo: str, rate: str
) -> None:
    """A tenth less moves every number by a tenth of its steps, which one number may differ by."""
    plan = tiny(algo).plan
    kind = type(plan.method)
    batched = kind.local_batched

    def slower(self: Any, *arguments: Any) -> Any:
        return batched(replace(self, **{rate: 0.9 * getattr(self, rate)}), *arguments)

    monkeypatch.setattr(kind, "local_batched", slower)
    with pytest.raises(BrokenContract, match="local_batched, round 0: gives something else"):
        check_method(plan.method, mechanisms=plan.mechanisms)


@pytest.mark.parametrize(("value", "is_close"), [(inf, True), (-inf, False), (3.0, False)])
def test_infinities_that_a_client_keeps_are_compared(value: float, is_close: bool) -> None:
    expected = {"best_loss": torch.tensor([inf, 0.5])}
    kept = {"best_loss": torch.tensor([value, 0.5])}
    assert _are_tensors_close(kept, expected, expected) == is_close


class Peeks(FedAvg):
    def outcome(self, turn: Any, trained: Any) -> Any:
        values, memory = super().outcome(turn, trained)
        return {
            "update": {n: t + 1e-3 * turn.shard.train.x.mean() for n, t in values["update"].items()}
        }, memory


class SendsMoreForMore(FedAvg):
    def local(self, broadcast: Any, memory: Any, shard: Any, ctx: Any) -> Any:
        upload, memory = super().local(broadcast, memory, shard, ctx)
        bright = bool(shard.train.x[0].mean() > shard.train.x[1].mean())
        return (
            {**upload, "count": Artifact({"n": torch.ones(1)}, private=True)} if bright else upload
        ), memory


def test_a_private_claim_is_tried_on_other_records() -> None:
    noised = {"dpsgd": ClippedSum(1.0, 1.0, sampling_probability=0.5, normaliser=12.0)}
    check_method(FedAvg(**SMALL), mechanisms=noised)
    with pytest.raises(
        BrokenContract, match="'update' claims to be private and depends on the records"
    ):
        check_method(Peeks(**SMALL), mechanisms=noised)
    with pytest.raises(BrokenContract, match="whether 'count' is sent"):
        for seed in range(6):  # one of these pairs of clients differs in which image is brighter
            check_method(SendsMoreForMore(**SMALL), mechanisms=noised, seed=seed)


@dataclass(frozen=True)
class Ticking(Coupled):
    """Draws from the global generator, or tells its first pixel, beside its release."""

    coupled: bool = False
    tells: bool = False

    def local(self, broadcast: Any, memory: Any, shard: Any, ctx: Any) -> Any:
        upload, memory = super().local(broadcast, memory, shard, ctx)
        more = shard.train.x[0, 0, 0, 0] if self.tells else 0 * torch.rand(())
        return {
            "prototypes": Artifact(
                {"rows": upload["prototypes"].value["rows"] + more}, private=True
            )
        }, memory


@pytest.mark.parametrize(
    ("method", "said"), [(Ticking(), "untested"), (Ticking(tells=True), "refuted")]
)
def test_an_audit_says_what_the_check_of_an_own_method_finds(method: Ticking, said: str) -> None:
    (found,) = contract_findings(subject(method, {"embedding": ClippedSum(5.0, 1.0, 1.0, 10.0)}))
    assert said in found.diagnostics and "small federation" in found.measures.note


class Half(FedAvg):
    def outcome(self, turn: Any, trained: Any) -> Any:
        values, memory = super().outcome(turn, trained)
        return {**values, "update": {n: t.half() for n, t in values["update"].items()}}, memory


def test_a_model_in_half_precision_is_read_like_any_other() -> None:
    check_method(Half(**SMALL))


def test_no_method_at_all() -> None:
    with pytest.raises(BrokenContract, match=r"dict must inherit from privdd\.api\.Method"):
        check_method({})  # type: ignore[arg-type]


# --- what assembly refuses
# --------------------------------------------------------------------------


class Nine(Method):
    """FedAvg seen through the nine members that every method has: the same bits leave the
    client."""

    def __init__(self, inner: FedAvg) -> None:
        self._inner = inner
        # type: ignore[misc]
        self.uploads = inner.uploads
        self.broadcasts = inner.broadcasts
        self.queries = inner.queries
        self.rounds = inner.rounds

    # type: ignore[assignment, var-annotated]
    uploads = {}
    broadcasts = {}
    rounds = 1

    def init(self, problem: Any, keys: Any) -> Any:
        return self._inner.init(problem, keys)

    def broadcast(self, server: Any) -> Any:
        return self._inner.broadcast(server)

    def local(self, broadcast: Any, memory: Any, shard: Any, ctx: Any) -> Any:
        return self._inner.local(broadcast, memory, shard, ctx)

    def aggregate(self, server: Any, inbox: Any, keys: Any) -> Any:
        return self._inner.aggregate(server, inbox, keys)

    def predict(self, server: Any, memory: Any, x: Any) -> Any:
        return self._inner.predict(server, memory, x)


def test_a_method_that_hides_its_model_is_refused_by_the_missing_hooks() -> None:
    config = tiny_config(
        "fedavg", "attack=[lira,loss_threshold,label_counts,gradient_inversion]", command="audit"
    )
    settings = audit_settings(config)
    attacks = build_attacks(config)
    assert settings is not None
    audit = replace(settings, waive={"global_model": "not now"})
    plain = tiny("fedavg").plan.method
    check_coverage(plain, attacks, audit)
    line = (
        r"Nine sends 'update' \(surface update\).*must define classifier and sent_state and "
        r"model_state .*audit.waive.update="
    )
    with pytest.raises(BadConfig, match=line):
        check_coverage(Nine(plain), attacks, audit)
    more = {
        "global_model": "not now",
        "statistics": "none sent",
        "update": "read by nobody, knowingly",
    }
    check_coverage(Nine(plain), attacks, replace(audit, waive=more))


def test_every_surface_says_what_it_needs() -> None:
    bare = Nine(tiny("fedavg").plan.method)
    needs = {surface: missing_hooks(bare, surface) for surface in Surface}
    assert (
        needs[Surface.UPDATE]
        and needs[Surface.GRADIENT]
        and needs[Surface.CONTROL_VARIATE]
        and needs[Surface.FEATURES]
    )
    assert all(
        "only a server sends" in needs[s]
        for s in (
            Surface.GLOBAL_MODEL,
            Surface.GLOBAL_IMAGES,
            Surface.SHARED_FEATURES,
            Surface.GENERATOR,
        )
    )
    assert not any(
        needs[s]
        for s in (Surface.COUNTS, Surface.LABELS, Surface.PROTOTYPES, Surface.SYNTHETIC_IMAGES)
    )


def test_only_counts_may_say_the_same_of_every_record() -> None:
    """A statistic or an update that implies no model stops the audit, where the sum of its numbers
    was read before."""
    from tests.auditing.test_adversary_view import worlds_of

    lens, _, (values,) = worlds_of("fedavg", 1)
    found = extract_signals(lens, values)
    assert {key for key in found if key.startswith("counts|")} == {"counts|count"}
    assert bool((found["update|confidence"] != found["update|confidence"][0]).any())
    bare = replace(lens, method=Nine(lens.method))  # type: ignore[arg-type]
    with pytest.raises(UnreadableUpload, match="Nine sends 'update'"):
        extract_signals(bare, {"update": values["update"]})
    assert extract_signals(replace(bare, waived=frozenset({"update"})), values).keys() == {
        "counts|count"
    }


def test_prototypes_are_read_by_class() -> None:
    """FedProto: the count of the record's own class, and how far its class's mean lies out; no
    constant."""
    from tests.auditing.test_adversary_view import worlds_of

    lens, _, (values,) = worlds_of("fedproto", 1)
    assert isinstance(lens.method, FedProto)
    found = extract_signals(lens, values)
    sent = values["prototypes"]
    y = lens.candidates.y
    assert torch.equal(found["prototypes|count"], sent["count"][y])
    assert torch.allclose(
        found["prototypes|row"], torch.stack([sent["mean"][int(c)].norm() for c in y])
    )
    one_less = {**sent, "count": sent["count"] - torch.eye(10)[int(y[0])]}
    moved = (
        extract_signals(lens, {"prototypes": one_less})["prototypes|count"]
        - found["prototypes|count"]
    )
    assert torch.equal(moved, -(y == y[0]).float())
