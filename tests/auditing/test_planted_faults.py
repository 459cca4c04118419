"""Faults planted in a run that is otherwise audited as usual: each must end in a contradiction, and none without one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attacks.types import Adversary, Attack, Evidence, Family, Finding, Surface, Truth, View
from privdd.auditing.findings import findings_json
from privdd.auditing.pipeline import audit
from privdd.cli.assemble import assemble
from privdd.distillation import noisy_embedding
from privdd.federated import channel
from privdd.privacy.noise import Noise, SeededNoise, noise_for
from privdd.runtime.run_folder import RunFolder
from tests.federations import tiny_config

SMALL = (
    "audit.records=20", "audit.worlds=1", "audit.victims=0", "audit.guarantee.runs=20", "audit.guarantee.slow_runs=20",
    "audit.guarantee.images=1",
)  # fmt: skip
PROFILES = {
    "client": ("fedavg", "privacy=client"),
    "dpsgd": ("fedavg", "privacy=dpsgd", "privacy.sampling_probability=0.1"),
    "feddm_dp": ("feddm_dp",),
    "fedrd_dp": ("fedrd_dp", "algo.model.width=4"),
    "fedlgd_dp": ("fedlgd_dp",),
    "fedfed_dp": ("fedfed_dp", "privacy.sampling_probability=0.2"),
}
Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Idle(Attack):
    """Reads every surface and finds nothing, at no cost."""

    family: Family = Family.RECONSTRUCTION
    surfaces: frozenset[Surface] = frozenset(Surface)
    adversaries: frozenset[Adversary] = frozenset(Adversary)

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        return Evidence()

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        return Finding(view.surface, "idle", self.family, view.adversary, {"identified": 0.0})


def audited(profile: str, folder: Path, *more: str) -> tuple[str, list[Finding]]:
    """(verdict, guarantee findings) of one small audit."""
    algo, *settings = PROFILES[profile]
    config = tiny_config(algo, *settings, *SMALL, *more, command="audit")
    found = audit(assemble(config), {"idle": Idle()}, RunFolder(folder))
    return findings_json(found)["verdict"], [f for f in found.findings if f.family == Family.GUARANTEE]


@pytest.mark.parametrize("profile", PROFILES)
def test_a_healthy_run_is_consistent(profile: str, tmp_path: Path) -> None:
    verdict, findings = audited(profile, tmp_path)
    assert verdict == "consistent", [f.measures.get("note") for f in findings]


# --- noise -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scaled:
    """Noise of another size than it should have."""

    inner: Noise
    size: float

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        return self.inner.normal(shape) * self.size

    def laplace(self, shape: tuple[int, ...]) -> Tensor:
        return self.inner.laplace(shape) * self.size

    def uniform(self, shape: tuple[int, ...]) -> Tensor:
        return self.inner.uniform(shape)


def of_size(size: float) -> Plant:
    return lambda patch: patch.setattr(channel, "noise_for", lambda *a: Scaled(noise_for(*a), size))


def one_stream(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(channel, "noise_for", lambda *a: SeededNoise(torch.Generator().manual_seed(3)))


def by_public_seed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(channel, "noise_for", lambda source, keys: noise_for("seed", keys))


def one_tensor_bare(patch: pytest.MonkeyPatch) -> None:
    """The last tensor of each release has no noise."""
    send = channel.ClientContext.mechanism

    def bare(self: Any, name: str, contributions: Any, **kw: Any) -> Any:
        made = self.mechanisms[name]

        class Bare(type(made)):  # type: ignore[misc]
            def __call__(self, value: Any, noise: Any) -> Any:
                output = super().__call__(value, noise)
                last = sorted(output.value)[-1]
                return replace(output, value={**output.value, last: output.exact[last]})

        self.mechanisms = {**self.mechanisms, name: Bare(**vars(made))}
        return send(self, name, contributions, **kw)

    patch.setattr(channel.ClientContext, "mechanism", bare)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_run_without_noise_is_a_contradiction(profile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_size(0.0)(monkeypatch)
    assert audited(profile, tmp_path)[0] == "contradiction"


NOISE_FAULTS = {
    "half the noise": (of_size(0.5), ()),
    "0.9 of the noise": (of_size(0.9), ()),
    "one stream for all rounds and clients": (one_stream, ()),
    "the public seed in place of the operating system": (by_public_seed, ("privacy.noise_source=os",)),
    "one tensor without noise": (one_tensor_bare, ()),
}


@pytest.mark.parametrize("fault", NOISE_FAULTS)
@pytest.mark.parametrize("profile", ["client", "dpsgd", "feddm_dp"])
def test_faulty_noise_is_a_contradiction(
    profile: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant, settings = NOISE_FAULTS[fault]
    if plant is one_tensor_bare and profile == "client":
        pytest.xfail("its mechanism acts on what is sent, not through the context")
    plant(monkeypatch)
    verdict, findings = audited(profile, tmp_path, *settings)
    assert verdict == "contradiction"
    assert any(f.attack == "t0_noise" and f.measures["diagnostics"].get("refuted") for f in findings)


def test_noise_of_the_operating_system_is_consistent(tmp_path: Path) -> None:
    assert audited("feddm_dp", tmp_path, "privacy.noise_source=os")[0] == "consistent"


# --- sampling --------------------------------------------------------------------------------------


def coins_of(draw: Callable[[float, int, Any], Tensor]) -> Plant:
    return lambda patch: patch.setattr(channel, "coins", draw)


def everyone(q: float, count: int, noise: Any) -> Tensor:
    return torch.ones(count, dtype=torch.bool)


def doubled(q: float, count: int, noise: Any) -> Tensor:
    return noise.uniform((count,)) < 2 * q


def fixed_size(q: float, count: int, noise: Any) -> Tensor:
    at = noise.uniform((count,)).argsort()[: round(q * count)]
    return torch.zeros(count).index_fill(0, at, 1).bool()


def always_the_last(q: float, count: int, noise: Any) -> Tensor:
    return (noise.uniform((count,)) < q) | (torch.arange(count) == count - 1)


def always_the_same(q: float, count: int, noise: Any) -> Tensor:
    return torch.rand(count, generator=torch.Generator().manual_seed(1)) < q


def not_asked(self: Any, name: str, count: int) -> Tensor:
    return torch.ones(count, dtype=torch.bool)


SAMPLING_FAULTS: dict[str, Plant] = {
    "everyone": coins_of(everyone),
    "twice the rate": coins_of(doubled),
    "batches of one size": coins_of(fixed_size),
    "one record always": coins_of(always_the_last),
    "the same records always": coins_of(always_the_same),
    "a method that draws nobody": lambda patch: patch.setattr(channel.ClientContext, "sample", not_asked),
}


@pytest.mark.parametrize("fault", SAMPLING_FAULTS)
@pytest.mark.parametrize("profile", ["dpsgd", "fedfed_dp"])
def test_faulty_sampling_is_a_contradiction(
    profile: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SAMPLING_FAULTS[fault](monkeypatch)
    verdict, findings = audited(profile, tmp_path)
    assert verdict == "contradiction"
    assert any(f.attack == "t0_sampling" and f.measures["diagnostics"].get("refuted") for f in findings)


# --- sensitivity: what one record does to the others' contributions ---------------------------------


def embeddings(factor: Callable[[int], float]) -> Plant:
    """Every embedding times a number that depends on how many records the client has."""
    honest = noisy_embedding.embedded
    return lambda patch: patch.setattr(
        noisy_embedding, "embedded", lambda embed, x, chunk: honest(embed, x, chunk) * factor(len(x))
    )


def centred(patch: pytest.MonkeyPatch) -> None:
    honest = noisy_embedding.embedded

    def around_the_mean(embed: Any, x: Tensor, chunk: int) -> Tensor:
        rows = honest(embed, x, chunk)
        return rows - rows.mean(0)

    patch.setattr(noisy_embedding, "embedded", around_the_mean)


SENSITIVITY_FAULTS: dict[str, Plant] = {
    "a hundredth where the number of records is odd": embeddings(lambda n: 0.01 if n % 2 else 1.0),
    "50 over the number of records": embeddings(lambda n: 50 / max(n, 1)),
    "centred by the client's own mean": centred,
}


@pytest.mark.parametrize("fault", SENSITIVITY_FAULTS)
def test_faulty_sensitivity_is_a_contradiction(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SENSITIVITY_FAULTS[fault](monkeypatch)
    verdict, findings = audited("feddm_dp", tmp_path)
    assert verdict == "contradiction"
    assert any(f.measures.get("kappa", 0) > 1.01 for f in findings)
