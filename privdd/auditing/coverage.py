"""Before anything is trained: is every released surface read by some attack, or waived with a written reason?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

from attacks.types import Adversary, Attack, Family, Finding, Surface
from privdd.auditing.readers import missing_hooks
from privdd.core.errors import BadConfig
from privdd.federated.experiment import Experiment
from privdd.federated.method import Method
from privdd.federated.settings import AuditSettings

# Attacks read signals off models (losses, gradients), which are NaN where the model is; a rate worked out from those would
# look like an attack that failed, so none is run.
NOT_RUN = "not run: training diverged, so there is no model whose signals could be read"
NOT_READ = "not read by the attacks asked for"  # why a surface is not attacked where audit.require=some


def not_read(findings: Sequence[Finding]) -> str | Literal[False]:
    """That a surface was not attacked, where an attack tried and its own scores told it nothing; else False."""
    silent = [one for one in findings if one.measures.get("status") == "nothing_to_read"]
    why = f"{silent[0].attack} could not read it; {silent[0].measures.get('note', '')}" if silent else ""
    return f"not attacked: {why}" if why else False


def on_what_was_sent(family: Family, adversary: Adversary) -> bool:
    """Whether such an attack looks at what this run released: not a guarantee test, nor a run with a chosen model."""
    return family != Family.GUARANTEE and adversary != Adversary.MALICIOUS_SERVER


def not_attacked(reason: str) -> str:
    """What findings say of a surface that ``audit.waive`` names with this reason."""
    return f"not attacked: {reason}" if reason.startswith(NOT_READ) else f"waived: {reason}"


def reads(attack: Attack, surface: Surface, adversary: Adversary, worlds: int) -> bool:
    """Whether an attack reads this kind of view. worlds: replays (shadow models) in it, 0 = a view without any."""
    if surface not in attack.surfaces or adversary not in attack.adversaries:
        return False
    if attack.family == Family.MEMBERSHIP:
        return worlds >= attack.least_worlds
    if attack.family == Family.GRADIENT_INVERSION and not attack.whole_client:
        return worlds == 0  # these attack single-record probes, the worst case, instead of the real update
    return worlds > 0


def expected_views(method: Method, audit: AuditSettings) -> Iterator[tuple[Surface, Adversary, int]]:
    """Surface, adversary and number of worlds (replays) of every view that an audit of this method will have."""
    worlds, federations = audit.worlds, min(audit.federations, audit.worlds)
    for surface in method.uploads.values():
        yield surface, Adversary.SERVER, worlds
        if surface == Surface.UPDATE and audit.victims > 0:
            yield surface, Adversary.SERVER, 0
    for surface in method.broadcasts.values():
        adversary = Adversary.PUBLIC if surface == Surface.GLOBAL_MODEL else Adversary.PEER
        yield surface, adversary, worlds if surface == Surface.SHARED_FEATURES else max(1, federations)


def check_coverage(
    method: Method,
    attacks: Mapping[str, Attack],
    audit: AuditSettings,
    shipped: Callable[[], Mapping[str, Attack]] = dict,
) -> None:
    """Every surface is attacked or waived in writing, before any training. Raises BadConfig.

    audit: its number of worlds (replays) decides what membership attacks can read; shipped: the attacks that
    the message may suggest.
    """
    for name, surface in method.uploads.items():
        hooks = "" if str(surface) in audit.waive else missing_hooks(method, surface)
        if hooks:
            raise BadConfig(
                f"algo: {type(method).__name__} sends {name!r} (surface {surface}), in which no attack can look for a "
                f"record: it must define {hooks} (see privdd.api.Method), or waive it: audit.waive.{surface}='reason'"
            )
    if missing := uncovered(method, attacks, audit):
        more = _helpful(method, attacks, shipped(), missing, audit)
        adding = f"ask for attack=[{','.join([*attacks, *more])}], or " if more else ""
        waiving = " ".join(f"audit.waive.{surface}='reason'" for surface in missing)
        raise BadConfig(
            f"attack=[{','.join(attacks)}]: no attack for {', '.join(missing)} with audit.worlds={audit.worlds}, "
            f"audit.federations={audit.federations}; {adding}waive {'them' if len(missing) > 1 else 'it'}: {waiving}"
        )


def uncovered(method: Method, attacks: Mapping[str, Attack], audit: AuditSettings) -> list[str]:
    """The method's surfaces that no attack reads and no reason waives, sorted."""
    surfaces = {str(s) for s in (*method.uploads.values(), *method.broadcasts.values())}
    return sorted(surfaces - _covered(method, attacks, audit) - set(audit.waive))


def _covered(method: Method, attacks: Mapping[str, Attack], audit: AuditSettings) -> set[str]:
    return {str(s) for s, who, n in expected_views(method, audit) if any(reads(a, s, who, n) for a in attacks.values())}


def _helpful(
    method: Method,
    attacks: Mapping[str, Attack],
    known: Mapping[str, Attack],
    missing: Sequence[str],
    audit: AuditSettings,
) -> list[str]:
    """A small set of known attacks that covers all of ``missing``; empty if no such set exists."""
    reach = {name: _covered(method, {name: attack}, audit) for name, attack in known.items() if name not in attacks}
    left, chosen = set(missing), []
    while left and reach:
        best = max(sorted(reach), key=lambda name: len(reach[name] & left))
        if not reach[best] & left:
            return []
        chosen.append(best)
        left -= reach.pop(best)
    return chosen if not left else []


def unmeasured(experiment: Experiment, attacks: Mapping[str, Attack]) -> tuple[Finding, ...]:
    """What an audit finds of a run whose training diverged: without a measure, for every surface and attack that would
    have read it."""
    found: dict[tuple[str, str, str], Finding] = {}
    for surface, adversary, worlds in expected_views(experiment.plan.method, experiment.audit):
        for name, attack in attacks.items():
            if reads(attack, surface, adversary, worlds):
                row = Finding(
                    surface, name, attack.family, adversary, {"n": 0, "status": "not_attacked", "note": NOT_RUN}
                )
                found.setdefault((surface, name, adversary), row)
    return tuple(found.values())
