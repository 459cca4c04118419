"""The profiles in which faults are planted, by name: a run for each mechanism and each way to use
it."""

from __future__ import annotations

from privdd.core.validation import BadConfig
from privdd.selftest_faults.fault import FaultProfile

EMBEDDING_TRAITS = frozenset(
    {"records", "sampled", "counted", "classes", "clipped", "normalised", "rounds", "names"}
)
_SHORT_SETTINGS = (
    "algo.rounds=2",
    "algo.matching.iterations=2",
    "algo.server.epochs=1",
    "privacy.sampling_probability=0.25",
)
PROFILES = {
    profile.name: profile
    for profile in (
        FaultProfile.with_traits(
            "feddm_dp", EMBEDDING_TRAITS | {"labels"}, "algo=feddm_dp", *_SHORT_SETTINGS
        ),
        FaultProfile.with_traits(
            "fedrd_dp",
            EMBEDDING_TRAITS | {"labels"},
            "algo=fedrd_dp",
            "model.width=4",
            "algo.projection_epochs=1",
            "privacy.clip_norm=0.5",
            *_SHORT_SETTINGS,
        ),
        FaultProfile.with_traits(
            "fedrd_personal_dp",
            EMBEDDING_TRAITS | {"labels", "several", "steps"},
            "algo=fedrd_personal_dp",
            "model.width=4",
            "algo.projection_epochs=1",
            "privacy.projection_sampling=0.25",
            *_SHORT_SETTINGS,
        ),
        FaultProfile.with_traits(
            "fedlgd_dp",
            EMBEDDING_TRAITS,
            "algo=fedlgd_dp",
            "algo.rounds=2",
            "algo.local_epochs=1",
            "algo.global_iterations=2",
            "algo.virtual.warmup.iterations=2",
            "algo.virtual.refine.iterations=2",
            "algo.tau_step=1",
            "privacy.sampling_probability=0.25",
        ),
        FaultProfile.with_traits(
            "fedfed_dp",
            {
                "records",
                "sampled",
                "several",
                "counted",
                "features",
                "channel",
                "steps",
                "clipped",
                "normalised",
                "rounds",
            },
            "algo=fedfed_dp",
            "algo.distill_rounds=1",
            "algo.base.rounds=1",
            "algo.base.local_epochs=1",
            "privacy.sampling_probability=0.2",
            rounds="algo.distill_rounds",
        ),
        FaultProfile.with_traits(
            "feddm_public_dp",
            EMBEDDING_TRAITS - {"counted"} | {"labels"},
            "algo=feddm_public_dp",
            "algo.rounds=2",
            "algo.fitting.steps=2",
            "algo.server.epochs=1",
            "privacy.sampling_probability=0.25",
        ),
        FaultProfile.with_traits(
            "dp_head",
            {"records", "sampled", "several", "clipped", "rounds"},
            "algo=dp_head",
            "algo.rounds=2",
            "algo.rows.width=150",
            "privacy.sampling_probability=0.25",
        ),
        FaultProfile.with_traits(
            "feddm_guided_dp",
            {"records", "sampled", "several", "classes", "clipped", "rounds", "names"},
            "algo=feddm_guided_dp",
            "algo.rounds=2",
            "algo.read_rounds=2",
            "algo.varied_rounds=1",
            "algo.rows.width=20",
            "algo.guiding.images=40",
            "algo.server.epochs=1",
            "privacy.sampling_probability=0.25",
            rounds="",
        ),
        FaultProfile.with_traits(
            "dp_means",
            {"records", "sampled", "classes"},
            "algo=dp_means",
            "algo.rows.width=150",
            "privacy.sampling_probability=0.25",
        ),
        FaultProfile.with_traits(
            "dp_moments",
            {"records", "sampled", "several"},
            "algo=dp_moments",
            "algo.rows.width=60",
            "privacy.sampling_probability=0.25",
        ),
        FaultProfile.with_traits(
            "dp_votes",
            {"records", "sampled"},
            "algo=dp_votes",
            "algo.images=40",
            "privacy.sampling_probability=0.25",
        ),
        FaultProfile.with_traits(
            "fedmd_dp",
            {"records", "sampled", "several", "counted", "steps", "clipped", "rounds"},
            "algo=fedmd_dp",
            "algo.rounds=2",
            "algo.images=40",
            "model=mlp",
            "model.width=8",
            "privacy.sampling_probability=0.25",
        ),
        FaultProfile.with_traits(
            "dp_merf",
            EMBEDDING_TRAITS - {"counted", "rounds"} | {"labels"},
            "algo=dp_merf",
            "algo.extractor.count=150",
            "algo.fitting.steps=2",
            "algo.server.epochs=1",
            "privacy.sampling_probability=0.25",
        ),
        FaultProfile.with_traits(
            "dp_psg",
            {"records", "sampled", "several", "counted", "steps", "clipped"},
            "algo=dp_psg",
            "algo.ipc=1",
            "algo.generation.networks=2",
            "algo.generation.steps=1",
            "model.width=4",
            "algo.server.epochs=1",
            "privacy.sampling_probability=0.25",
            "privacy.clip_norm=1",
        ),
        FaultProfile.with_traits(
            "fedavg_client",
            {"several", "channel", "client", "clipped", "rounds"},
            "algo=fedavg",
            "privacy=client",
            "algo.rounds=2",
            "algo.local_epochs=1",
        ),
        FaultProfile.with_traits(
            "fedgen_client",
            {"several", "channel", "client", "clipped", "rounds", "class_counts"},
            "algo=fedgen",
            "privacy=client",
            "algo.rounds=2",
            "algo.local_epochs=1",
            "algo.generator_steps=2",
        ),
        FaultProfile.with_traits(
            "fedavg_adaptive",
            {"several", "channel", "client", "clipped", "rounds"},
            "algo=fedavg_adaptive",
            "trust=local",
            "algo.rounds=2",
            "algo.local_epochs=1",
        ),
        FaultProfile.with_traits(
            "fedavg_dpsgd",
            {
                "records",
                "sampled",
                "several",
                "counted",
                "steps",
                "clipped",
                "normalised",
                "rounds",
                "trained",
            },
            "algo=fedavg",
            "privacy=dpsgd",
            "algo.rounds=2",
            "algo.local_epochs=1",
            "privacy.sampling_probability=0.1",
        ),
    )
}


def select_profiles(names: str) -> list[FaultProfile]:
    """The profiles of "all", or of names separated by commas. Raises BadConfig for an unknown
    name."""
    if names == "all":
        wanted = list(PROFILES)
    else:
        wanted = names.split(",")
    unknown = sorted(set(wanted) - set(PROFILES))
    if unknown:
        raise BadConfig(f"profile={','.join(unknown)}: allowed are all, {', '.join(PROFILES)}")
    return [PROFILES[name] for name in wanted]
