"""A synthetic data set from outside: membership, copies, singling out, linkability and inference."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attacks.membership.attack import MembershipAttack
from attacks.membership.lira import Lira
from attacks.membership.records_alone import records_alone
from attacks.membership.rmia import Rmia
from attacks.membership.threshold import LossThreshold
from attacks.types import Adversary, Family, Finding, Knowledge, Surface, View, Worlds
from privdd.auditing.error_budget import error_budget
from privdd.auditing.targets.coin_game import CoinGame, coin_game
from privdd.auditing.targets.judged import Judged, judged_all, not_attacked, said_of
from privdd.auditing.targets.labelled import Labelled, alike, check_complete, labelled
from privdd.auditing.targets.model_target import GLOBAL_DRAWS, Settings
from privdd.auditing.targets.near_copies import copies
from privdd.auditing.targets.nearest import flat, spread
from privdd.auditing.targets.outside_run import Held, OutsideRun
from privdd.auditing.targets.predictor import SPARSE
from privdd.auditing.targets.shadow_training import SEEDS, Fit, called, run_all
from privdd.auditing.targets.stated_limit import StatedLimit
from privdd.auditing.targets.synthetic_signals import signals_of
from privdd.auditing.targets.table_risks import Risk, inference, linkability, singling_out
from privdd.auditing.targets.target_facts import target_facts
from privdd.core.keys import Keys

NOTE = "the synthetic set as it was brought"
NO_GENERATOR = "needs the function that makes such a set (target.generator, in Python generator=)"
NO_TABLE = "singling out, linkability and inference are defined for tables, x (n, columns)"
SOURCE = "Giomi et al. 2023"
SHOWN = 16  # pairs of pictures that the page shows


@dataclass(frozen=True)
class OneGeneration:
    """One shadow set: the generator, and what it is given."""

    generator: Fit
    records: Labelled
    seed: int


def synthetic_run(
    synthetic: Labelled,
    train: Labelled,
    heldout: Labelled,
    generator: Fit | None,
    stated: StatedLimit,
    settings: Settings,
    about: Mapping[str, Any],
) -> OutsideRun:
    """The audit of a synthetic set. Raises BadConfig, one line, for sets that do not fit together."""
    began = time.monotonic()
    train, heldout, synthetic = _comparable(train, heldout, synthetic)
    keys = Keys(settings.seed).fold("target")
    shadows = settings.shadows if generator is not None else 0
    game = coin_game(train, heldout, settings.records, shadows, keys)
    sets, drew = _shadow_sets(generator, game, keys, settings) if generator is not None and shadows else ([], False)
    made = time.monotonic()
    pictures = train.pictures and heldout.pictures
    scale = spread(game.reference.x, pictures)
    view = _view([synthetic, *sets], game, scale, pictures, stated, keys)
    attacks, missing = _attacks(view, shadows, settings.confidence), [] if shadows else ["lira", "rmia"]
    budget = error_budget(settings.confidence, len(attacks) + len(missing), 0)
    judged = judged_all(view, attacks, game, Keys(settings.seed), budget, NOTE)
    judged += not_attacked(view.surface, missing, NO_GENERATOR, NOTE)
    apart = heldout.at(game.repeats.outside)
    judged += _copied(view.surface, synthetic, train, apart, scale, pictures, keys)
    judged += _risks(view.surface, synthetic, train, apart, scale, keys)
    facts = target_facts("synthetic", train, heldout, game, judged)
    done = time.monotonic()
    notes = {"note": GLOBAL_DRAWS.replace("training function", "generator")} if drew else {}
    return OutsideRun(
        str(about.get("name", "synthetic set")), str(about.get("data", "arrays")), settings.seed,
        [Held(view.surface, "synthetic set", {"x": synthetic.x, "y": synthetic.y})], judged, stated, budget,
        {"worlds": made - began, "attacks": done - made, "total": done - began}, facts, None,
        {**about, **notes, "records": [len(synthetic), len(train), len(heldout)], "shape": list(train.shape)},
    )  # fmt: skip


def _comparable(*sets: Labelled) -> list[Labelled]:
    """Training, held-out and synthetic records with columns and labels coded alike. Raises BadConfig where they are not alike."""
    keys = ("target.train", "target.heldout", "target.synthetic")
    made = alike(dict(zip(keys, sets)))
    for key, one in zip(keys, made):
        check_complete(key, one)
    names = np.unique(np.concatenate([one.labels() for one in made]))
    if all(one.names is None for one in made) and names[-1] <= SPARSE * len(names):
        return made
    return [one.numbered(names, key) for key, one in zip(keys, made)]


def _shadow_sets(generator: Fit, game: CoinGame, keys: Keys, settings: Settings) -> tuple[list[Labelled], bool]:
    tasks = [
        OneGeneration(generator, game.shadow_set(k), keys.fold("shadow", k).integer() % SEEDS)
        for k in range(1, len(game.masks))
    ]
    found = run_all(generated, tasks, "generate shadow sets", settings.engine)
    made, names = [], game.records.names
    for one, _ in found:
        one = alike({"target.train": game.records, "target.generator": one})[1]
        check_complete("target.generator", one)
        made.append(one if names is None else one.numbered(names, "target.generator"))
    return made, any(drew for _, drew in found)


def generated(task: OneGeneration) -> tuple[Labelled, bool]:
    """What the generator makes of one world's records: (x, y), or x alone."""
    made, drew = called(task.generator, "target.generator", task.records, task.seed)
    pair = made if isinstance(made, tuple | list) and len(made) == 2 else (made, None)
    return labelled("target.generator", *pair, least=1), drew


def _view(sets: list[Labelled], game: CoinGame, scale: Tensor, pictures: bool, stated: StatedLimit, keys: Keys) -> View:
    classes = int(torch.cat([game.records.y, game.reference.y, game.rest.y]).max()) + 1
    found = [signals_of(one, game.records, game.reference, scale, classes) for one in sets]
    names = [name for name in found[0] if all(name in one for one in found)]
    signals = {name: torch.stack([one[name] for one in found]) for name in names}
    blind = records_alone(game.records.x, game.records.y, game.member, keys.fold("blind").torch())
    worlds = Worlds(signals, game.masks, blind, game.records.y)
    known = Knowledge(
        (1, 1, 1), classes, game.reference.x.double(), game.reference.y, settings={"delta": stated.exchanged()[1]}
    )
    surface = Surface.SYNTHETIC_IMAGES if pictures else Surface.SYNTHETIC_REPRESENTATIONS
    return View(surface, Adversary.PUBLIC, (), known, worlds)


def _attacks(view: View, shadows: int, confidence: float) -> dict[str, MembershipAttack]:
    """Each attack with the signal that it reads, settled before any score is seen."""
    readable = () if view.worlds is None else tuple(view.worlds.signals)
    found: dict[str, MembershipAttack] = {
        "nearest_synthetic": LossThreshold("distance", confidence),
        "density_ratio": LossThreshold("density", confidence),
    }
    if "confidence" in readable:
        found["loss_threshold"] = LossThreshold("confidence", confidence)
    if shadows:
        found |= {"lira": Lira("distance", confidence), "rmia": Rmia("distance", confidence)}
    return found


def _copied(
    surface: Surface, synthetic: Labelled, train: Labelled, heldout: Labelled, scale: Tensor, pictures: bool, keys: Keys
) -> list[Judged]:
    made, own, other = (flat(one.x, scale) for one in (synthetic, train, heldout))
    found = copies(made, own, other, keys.fold("copies").torch())
    measures: dict[str, Any] = {
        "identified": found.closer, "identified_chance": 0.5, "n": found.compared,
        "diagnostics": {
            "closer_interval": list(found.interval),
            "exact_copies": found.exact, "exact_copies_of_heldout": found.exact_heldout,
            "near_copies": found.near, "near_copies_of_heldout": found.near_heldout,
            "distance_member": float(found.distance.mean()),
        },
    }  # fmt: skip
    said = (
        f"of {len(synthetic)} synthetic records {found.exact} equal a training record ({found.exact_heldout} a held-out "
        f"one) and {found.near} lie nearer to one than any held-out record does ({found.near_heldout} the other way round)"
    )
    told = "identified: share that is nearer to a training record than to any held-out one"
    finding = Finding(surface, "copy_detection", Family.RECONSTRUCTION, Adversary.PUBLIC, measures)
    kept: dict[str, Tensor] = {"distance": found.distance, "place": found.place}
    if pictures:
        shown = found.distance.argsort(stable=True)[:SHOWN]
        kept |= {"real": train.x[found.place[shown]].float(), "reconstructed": synthetic.x[shown].float().clamp(0, 1)}
    return [Judged(said_of(finding, "copy_detection", NOTE, said, told), kept)]


def _risks(
    surface: Surface, synthetic: Labelled, train: Labelled, heldout: Labelled, scale: Tensor, keys: Keys
) -> list[Judged]:
    """Of tables; the class is a column like any other."""
    names = ("singling_out", "linkability", "inference")
    if train.x.ndim != 2:
        return not_attacked(surface, names, NO_TABLE, NOTE, Family.RECONSTRUCTION)
    made, own, other = (torch.cat([flat(s.x, scale), s.y[:, None].double()], 1) for s in (synthetic, train, heldout))
    found = (
        singling_out(made, own, other, keys.fold(names[0]).torch()),
        linkability(made, own, other, keys.fold(names[1]).torch()),
        inference(made, own, other, keys.fold(names[2]).torch()),
    )
    return [_risk(surface, name, risk) for name, risk in zip(names, found)]


def _risk(surface: Surface, name: str, risk: Risk) -> Judged:
    if not risk.attacks:
        return not_attacked(
            surface, [name], "no predicate named a single synthetic record", NOTE, Family.RECONSTRUCTION
        )[0]
    measures: dict[str, Any] = {
        "identified": risk.rate, "identified_chance": risk.chance, "n": risk.attacks,
        "diagnostics": {"risk": risk.risk, "hits": risk.hits, "control_hits": risk.control},
    }  # fmt: skip
    said = f"{SOURCE}: {risk.hits} of {risk.attacks} attacks right on training records, {risk.control} on held-out ones"
    told = "chance: upper end of the control's 95 % interval"
    finding = Finding(surface, name, Family.RECONSTRUCTION, Adversary.PUBLIC, measures)
    return Judged(said_of(finding, name, NOTE, said, told), {"hits": torch.tensor([risk.hits, risk.control])})
