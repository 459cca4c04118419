"""What a page says about the noise of a run, and of several runs together."""

from __future__ import annotations

from collections.abc import Iterable

from privdd.reporting.schema_privacy import NoiseRow, Privacy

SEED = "Simulation, not for release: anyone who knows the seed can regenerate the noise and subtract it."
PAIRED = "Paired noise: a second run with this seed holds the same noise, and two of them published undo it."
SOURCE = {
    "seed": "drawn from the public seed",
    "secret": "drawn from a secret that is not in this folder",
    "os": "drawn by the operating system, once",
}
SEVERAL = (
    "These runs were made with paired noise, so that their differences show the settings and not the noise: "
    "publish one of them at most, or their ε hold for none."
)


def marks(privacy: Privacy) -> list[str]:
    """Sentences that stand at the top of a run's page; none where the noise may be released."""
    noise = privacy.noise
    if noise is None or noise.for_release:
        return []
    return [text for text, applies in ((SEED, noise.source == "seed"), (PAIRED, noise.paired)) if applies]


def simulation(privacy: Privacy) -> bool:
    """Whether the run's noise is known not to be fit for release: whoever holds the seed, or a twin, can take it off."""
    return privacy.noise is not None and not privacy.noise.for_release


def source(noise: NoiseRow) -> str:
    """Where the noise came from, in words."""
    return SOURCE[noise.source] + (", the same in every run with this seed" if noise.paired else "")


def several(runs: Iterable[Privacy]) -> list[str]:
    """What is to be said of runs that are shown side by side."""
    return [SEVERAL] if sum(one.noise is not None and one.noise.paired for one in runs) > 1 else []
