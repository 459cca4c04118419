"""The contract of methods, mechanisms and attacks: what is declared is known, what is not is
refused by name."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from attacks.types import Adversary, Attack, Family, Surface
from attacks.validation import check_hook_names, declared_hooks
from privdd.core.types import Artifact, Problem
from privdd.federated.audit_hooks import HOOK_NAMES, PROTOCOLS, ReadsUploads, overrides_hook
from privdd.federated.method import Method
from privdd.methods.fedavg import FedAvg
from privdd.privacy.accounting import epsilon
from privdd.privacy.mechanism import Mechanism, Output
from privdd.privacy.mechanisms import AggregateClip, ClientLevel, ClippedSum
from tests.federations import tiny

CONTEXT: Any = SimpleNamespace(problem=Problem((1, 2, 2), 2, 1))


class Least(Method):
    """Just what every method must define."""

    uploads: ClassVar = {"n": Surface.COUNTS}
    broadcasts: ClassVar = {"n": Surface.COUNTS}
    rounds: ClassVar = 1

    def init(self, problem: Any, keys: Any) -> Any:
        return {"n/n": torch.zeros(1)}

    def local(self, broadcast: Any, memory: Any, shard: Any, ctx: Any) -> Any:
        return {"n": Artifact({"n": torch.ones(1)})}, memory

    def aggregate(self, server: Any, inbox: Any, keys: Any) -> Any:
        return server

    def predict(self, server: Any, memory: Any, x: Any) -> Any:
        return x.flatten(1)[:, :2]


def test_what_must_be_defined_is_enough() -> None:
    method = Least()
    assert method.broadcast({"n/n": torch.ones(2), "other": torch.ones(1)}) == {
        "n": {"n": pytest.approx(torch.ones(2))}
    }
    assert (
        method.queries == {}
        and method.releases_per_round(0, {}) is None
        and method.client_private() is method
    )
    hooks = method.audit_hooks
    assert (
        hooks.claims(None, []) == []
        and hooks.classifier(None) is None
        and hooks.maps({}, {}, None) == {}
    )  # type: ignore[arg-type]
    assert hooks.accuracy_kind == "global" and hooks.local_batched({}, [], [], []) is None
    assert not hooks.upload_uses_memory(3, {}) and hooks.upload_uses_memory(3, {"x": torch.ones(1)})
    assert hooks.with_images_per_class(2) is method and hooks.memory_after(
        {}, {"k": torch.ones(1)}, None, CONTEXT
    ) == {"k": torch.ones(1)}  # type: ignore[arg-type]


def test_a_method_has_at_most_sixteen_hooks_and_audits_know_the_rest() -> None:
    assert len(declared_hooks(Method)) <= 16
    assert not declared_hooks(Method) & HOOK_NAMES
    assert len(HOOK_NAMES) == sum(len(declared_hooks(protocol)) for protocol in PROTOCOLS)


def test_a_method_answers_by_name_whether_it_inherits_a_protocol_or_not() -> None:
    class ByName(Least):
        shares_work: ClassVar = True

        def phase(self, round: int) -> str:
            return f"part {round}"

    class Reading(Least, ReadsUploads):
        def granted_knowledge(self, surface: Surface) -> str:
            return "all"

    hooks = ByName().audit_hooks
    assert hooks.phase(2) == hooks.timing_group(2) == "part 2"
    assert hooks.shares_work and hooks.granted_knowledge(Surface.COUNTS) == ""
    assert overrides_hook(ByName(), "phase")
    assert not overrides_hook(ByName(), "granted_knowledge")
    assert overrides_hook(Reading(), "granted_knowledge")
    assert not overrides_hook(Reading(), "classifier")
    hooks = Reading().audit_hooks
    assert hooks.granted_knowledge(Surface.COUNTS) == "all" and hooks.phase(3) == "train"
    assert not hasattr(Least(), "classifier")


@pytest.mark.parametrize("name", ["init", "local", "aggregate", "predict"])
def test_a_method_without_one_of_them_cannot_be_made(name: str) -> None:
    kept = {k: v for k, v in vars(Least).items() if not k.startswith("_") and k != name}
    with pytest.raises(TypeError, match=name):
        type("Half", (Method,), kept)()


@pytest.mark.parametrize("name", ["uploads", "broadcasts", "rounds"])
def test_a_method_says_what_it_sends_and_for_how_long(name: str) -> None:
    kept = {k: v for k, v in vars(Least).items() if not k.startswith("_") and k != name}
    with pytest.raises(TypeError, match=f"declares no {name}"):
        type("Silent", (Method,), kept)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            {"clasifier": lambda self, problem: None},
            "Odd.clasifier: no hook of a method; did you mean classifier?",
        ),
        ({"model_states": lambda self: None}, "did you mean model_state?"),
        ({"uses_memory": lambda self, round: True}, "did you mean upload_uses_memory?"),
        ({"local_worlds": lambda self: None}, "Odd.local_worlds: no hook"),
        ({"acuracy_kind": "personal"}, "did you mean accuracy_kind?"),
        ({"zebra": 3}, "known: accuracy_kind, aggregate, aggregation_kind"),
        ({"__annotations__": {"querries": "dict"}, "querries": None}, "did you mean queries?"),
        (
            {"__annotations__": {"memory_aftr": "ClassVar[int]"}, "memory_aftr": 1},
            "did you mean memory_after?",
        ),
    ],
)
def test_a_name_that_is_no_hook_is_refused(body: dict[str, Any], said: str) -> None:
    for base in (Least, FedAvg):
        with pytest.raises(
            TypeError, match=re.escape(said) if base is Least or "known" not in said else "no hook"
        ):
            type("Odd", (base,), {**body, "__qualname__": "Odd"})


def test_settings_private_names_and_a_familys_own_hooks_are_free() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Fine(Least, hooks=("zebra",)):
        learning: float = 0.1
        _cache: dict = field(default_factory=dict)  # type: ignore[type-arg]

        def zebra(self) -> int:
            return 1

        def _helper(self) -> int:
            return 2

    class Child(Fine):
        def zebra(self) -> int:
            return 3

    assert Child().zebra() == 3
    with pytest.raises(TypeError, match="zebra"):
        type("Stranger", (Least,), {"zebra": lambda self: 1})


def test_defines_tells_a_hook_from_its_default() -> None:
    assert overrides_hook(tiny("fedavg").plan.method, "classifier") and not overrides_hook(
        Least(), "classifier"
    )


# --- mechanisms -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plain(Mechanism):
    noise_multiplier: float = 1.0

    def __call__(self, value: Any, noise: Any) -> Output:
        raise NotImplementedError


def test_a_mechanisms_defaults_are_declared() -> None:
    one = Plain()
    assert one.sampling_probability == 1.0 and one.per_record and one.public_constants(9) == {}
    assert (
        not AggregateClip(1.0, 1.0).per_record
        and ClippedSum(1.0, 1.0, sampling_probability=0.25).sampling_probability == 0.25
    )
    for mechanism in (one, AggregateClip(1.0, 1.0)):
        with pytest.raises(
            ValueError,
            match=f"privacy.epsilon: {type(mechanism).__name__} .* set privacy.noise_multiplier",
        ):
            _ = mechanism.event
    assert epsilon(ClientLevel(2.0, 1.0).event, 1e-5) > 0


@pytest.mark.parametrize("name", ["sampling_probabilty", "sample_probability", "per_records"])
def test_a_misspelt_setting_of_a_mechanism_is_refused(name: str) -> None:
    """Taken silently, it would leave the sampling rate at 1 or the record's contribution unread."""
    with pytest.raises(TypeError, match=f"{name}: no hook of a mechanism; did you mean"):
        type("Odd", (Plain,), {"__annotations__": {name: "float"}, name: 0.5})
    with pytest.raises(TypeError, match="did you mean event"):
        type("Odd", (Plain,), {"evnt": property(lambda self: None)})


# --- attacks --------------------------------------------------------------------------------------


def test_an_attacks_names_are_checked_too() -> None:
    with pytest.raises(TypeError, match="did you mean adversaries"):
        type("Odd", (Attack,), {"adversarys": frozenset(Adversary)})
    with pytest.raises(TypeError, match="least_world: no hook of an attack"):
        type("Odd", (Attack,), {"least_world": 3})
    with pytest.raises(TypeError, match="abstract"):
        type(
            "Half",
            (Attack,),
            {
                "name": "half",
                "family": Family.LABEL,
                "surfaces": frozenset(),
                "adversaries": frozenset(),
            },
        )()


def test_hooks_are_the_public_names_of_the_role() -> None:
    assert {"uploads", "rounds", "local", "queries"} <= declared_hooks(Method)
    assert {"classifier", "local_batched", "claims"} <= HOOK_NAMES
    assert not any(name.startswith("_") for name in declared_hooks(Method) | HOOK_NAMES)
    with pytest.raises(TypeError, match=r"Thing\.hat: no hook of a thing; did you mean hats\?"):
        check_hook_names(type("Thing", (), {"hat": 1}), "a thing", {"hats"})


def test_default_hooks_call_local() -> None:
    calls: list[str] = []

    class Counting(Least):
        def local(self, broadcast: Any, memory: Any, shard: Any, ctx: Any) -> Any:
            calls.append("local")
            return super().local(broadcast, {"kept": torch.ones(1)}, shard, ctx)

    hooks = Counting().audit_hooks
    assert set(hooks.memory_after({}, {}, None, CONTEXT)) == {"kept"} and set(
        hooks.protected_upload({}, None, CONTEXT)
    ) == {"n"}  # type: ignore[arg-type]
    assert calls == ["local", "local"]
