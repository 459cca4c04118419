"""What an audit finds of a run whose training diverged: nothing, and why.

Attacks read signals off models (losses, gradients), which are NaN where the model is; a rate worked out from those
would look like an attack that failed, so none is run.
"""

from __future__ import annotations

from collections.abc import Mapping

from attacks.types import Attack, Finding
from privdd.auditing.coverage import expected_views, reads
from privdd.federated.experiment import Experiment

NOTE = "not run: training diverged, so there is no model whose signals could be read"


def unmeasured(experiment: Experiment, attacks: Mapping[str, Attack]) -> tuple[Finding, ...]:
    """A finding without a measure for every surface and attack that would have read it."""
    found: dict[tuple[str, str, str], Finding] = {}
    for surface, adversary, worlds in expected_views(experiment.plan.method, experiment.audit):
        for name, attack in attacks.items():
            if reads(attack, surface, adversary, worlds):
                row = Finding(surface, name, attack.family, adversary, {"n": 0, "status": "not_attacked", "note": NOTE})
                found.setdefault((surface, name, adversary), row)
    return tuple(found.values())
