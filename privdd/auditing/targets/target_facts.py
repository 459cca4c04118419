"""What a reader has to know of a target's files before any number: equal records, and whether the comparison is fair."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from scipy.stats import norm
from torch import Tensor

from attacks.membership.readout import readout
from attacks.types import Family
from privdd.auditing.targets.coin_game import CoinGame
from privdd.auditing.targets.judged import NOT_ALIKE, Judged
from privdd.auditing.targets.labelled import LEAST, Labelled, complete
from privdd.auditing.targets.nearest import nearest
from privdd.reporting.words import share

COMPONENTS, MOST_CLASSIFIED = 24, 1000  # principal components and records of either file for the classifier of labels
MANY_ASKED = 10_000  # training records that a model is asked about for its accuracy
MOST_COMPARED, MOST_AMONG = 500, 2000  # held-out records that are compared with so many training records
CLOSE, MANY_CLOSE = (
    0.1,
    0.1,
)  # of the usual distance; and the share of held-out records so close from which nothing can be told
RARE = 1e-5  # a chance below which two files that were drawn alike do not look so different
UNREADABLE = "so neither a leak nor its absence can be read from these files"


def target_facts(
    kind: str,
    train: Labelled,
    heldout: Labelled,
    game: CoinGame,
    judged: Sequence[Judged],
    accuracies: tuple[float, float] | None = None,
    notes: Sequence[str] = (),
    **more: Any,
) -> dict[str, Any]:
    """``target`` of findings.json. accuracies: on training and held-out records; notes, more: what the caller knows."""
    repeats = game.repeats
    near = _near_copies(train.at(repeats.inside), heldout.at(repeats.outside))
    facts: dict[str, Any] = {
        "kind": kind, "training": len(train), "heldout": len(heldout), "repeated": repeats.training,
        "repeated_heldout": repeats.heldout, "shared": repeats.shared, "copies_together": not repeats.single,
        "notes": [*_repeats(game, len(train), len(heldout)), *near[:1], *notes],
        "doubts": [*near[1:], *_doubts(train, heldout, game, judged, accuracies)][:1],
    }  # fmt: skip
    if accuracies is not None:
        facts["accuracy_training"] = accuracies[0]
    return facts | more


def _doubts(
    train: Labelled, heldout: Labelled, game: CoinGame, judged: Sequence[Judged], accuracies: tuple[float, float] | None
) -> list[str]:
    """The files' own difference first; what the target shows of it only where these show none."""
    repeats = game.repeats
    own = [*_unlike(judged), *_labelled_otherwise(train.at(repeats.inside), heldout.at(repeats.outside))]
    return own or [*_less_accurate(accuracies, min(len(train), MANY_ASKED), len(heldout)), *_reversed(judged)][:1]


def _near_copies(train: Labelled, heldout: Labelled) -> list[str]:
    """That held-out records are nearly training records, more often than training records are nearly each other; as a
    second sentence what follows where these are many. Of the first records of each file, so that it costs little."""
    own, other = complete(train.x[:MOST_AMONG], heldout.x[:MOST_COMPARED])
    if len(own) < 2 * LEAST or len(other) < LEAST:
        return []
    spread = torch.cat([own, other]).std(0).clamp_min(1e-12)
    own, other = own / spread, other / spread
    between = nearest(own[:MOST_COMPARED], own, 2)[0][:, 1]
    close = CLOSE * float(between.median())
    among, found = int((between < close).sum()), int((nearest(other, own)[0][:, 0] < close).sum())
    if _chance(among / len(between), found / len(other), len(between), len(other)) > RARE:
        return []
    said = (
        f"{found} of {len(other)} held-out records that were compared with {len(own)} training records are near-copies of one: "
        f"nearer than a tenth of the usual distance, as {among} of {len(between)} training records are to another."
    )
    doubt = f"Held-out records are near-copies of training records ({found} of {len(other)}), {UNREADABLE}."
    return [said, doubt] if found >= MANY_CLOSE * len(other) else [said]


def _labelled_otherwise(train: Labelled, heldout: Labelled) -> list[str]:
    """A ridge classifier of half of the training records is right on the others as often as on held-out ones, if the labels
    of both files were given alike."""
    size = min(MOST_CLASSIFIED, len(train))
    classes = 1 + max(int(train.y.max()), int(heldout.y.max()))
    if classes < 2 or size < 2 * LEAST or len(heldout) < LEAST:
        return []
    x, other = complete(train.x[:size], heldout.x[:size])
    centre, spread = x.mean(0), x.std(0).clamp_min(1e-12)
    x, other = ((one - centre) / spread for one in (x, other))
    if x.shape[1] > COMPONENTS:
        axes = torch.linalg.svd(x, full_matrices=False).Vh[:COMPONENTS].T
        x, other = x @ axes, other @ axes
    half = torch.arange(size) % 2 == 0
    asked = _with_one(torch.cat([x[~half], other]))
    guess = readout(_with_one(x[half]).float(), train.y[:size][half], asked.float(), classes).argmax(1)
    right = guess == torch.cat([train.y[:size][~half], heldout.y[:size]])
    count = int((~half).sum())
    own, apart = float(right[:count].double().mean()), float(right[count:].double().mean())
    if _chance(own, apart, count, len(other)) > RARE and _chance(apart, own, len(other), count) > RARE:
        return []
    return [
        f"The labels of the two files do not fit their records alike: a classifier of training records is right on {share(own)} of "
        f"other training records, and on {share(apart)} of held-out ones. Until this is understood, {UNREADABLE[3:]}."
    ]


def _with_one(x: Tensor) -> Tensor:
    return torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)


def _chance(less: float, more: float, first: int, second: int) -> float:
    """Of two shares of so many, drawn alike, to lie so far apart in this direction (two proportions, one-sided)."""
    both = (less * first + more * second) / (first + second)
    spread = math.sqrt(both * (1 - both) * (1 / first + 1 / second))
    return float(norm.sf((more - less) / spread)) if spread else 1.0


def _repeats(game: CoinGame, training: int, heldout: int) -> list[str]:
    found, said = game.repeats, []
    if found.shared:
        said.append(
            f"{found.shared} of {heldout} held-out records equal a training record: they say nothing of records that were not "
            "used, and were left out with these training records."
        )
    then = (
        "only records that occur once were audited"
        if found.single
        else "each was audited once for all its copies, and no bound on ε is given, since it would be for all copies together"
    )
    for count, whole, what in ((found.training, training, "training"), (found.heldout, heldout, "held-out")):
        if count:
            said.append(f"{count} of {whole} {what} records repeat another one of their file: {then}.")
    return said


def _unlike(judged: Sequence[Judged]) -> list[str]:
    found = [one.finding.measures for one in judged if NOT_ALIKE in str(one.finding.measures.get("note", ""))]
    if not found:
        return []
    auc = max(float(one.get("blind_auc", 0.5)) for one in found)
    return [
        f"Training and held-out records can be told apart without the target (blind control, AUC {share(auc)}): the files "
        f"differ in more than in what was used, {UNREADABLE}."
    ]


def _reversed(judged: Sequence[Judged]) -> list[str]:
    """Attacks that rank held-out records above training records, beyond chance over all of them."""
    rows = [
        one.finding for one in judged if one.finding.family == Family.MEMBERSHIP and "auc_ci" in one.finding.measures
    ]
    wide = norm.isf(RARE / max(1, len(rows))) / norm.isf(0.025)
    below = [one for one in rows if _auc(one.measures) + wide * (one.measures["auc_ci"][1] - _auc(one.measures)) < 0.5]
    if not below:
        return []
    least = min(_auc(one.measures) for one in below)
    return [
        f"An attack ranks held-out records above training records (AUC {share(least)}, where guessing gives 50 %): are the two "
        f"files exchanged, or the labels not those of the records? Until this is known, {UNREADABLE[3:]}."
    ]


def _auc(measures: Mapping[str, Any]) -> float:
    return float(measures["auc"])


def _less_accurate(accuracies: tuple[float, float] | None, training: int, heldout: int) -> list[str]:
    """A model that is right less often on what it was trained on."""
    if accuracies is None:
        return []
    own, other = accuracies
    if _chance(own, other, training, heldout) > RARE:
        return []
    return [
        f"The model is right on {share(own)} of the training records and on {share(other)} of the held-out ones: are the two "
        f"files exchanged, or the labels not those of the records? Until this is known, {UNREADABLE[3:]}."
    ]
