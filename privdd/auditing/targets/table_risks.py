"""Singling out, linkability and inference of a synthetic table: the three risks that European data protection names.

Giomi, Boenisch, Wehmeyer and Tasnadi, "A unified framework for quantifying privacy risk in synthetic data" (PoPETs 2023),
sections 4.1 to 4.3, reimplemented in their simplest form. Each attack is run against training records, and in the same
way against held-out ones (the control); only what it does better on the first is the synthetic set's doing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.inversion.synthetic import proportion_interval
from privdd.auditing.targets.nearest import nearest

WORDS = 12  # a column with at most so many different values holds kinds, and is compared for equality
CLOSE = 0.05  # of a number's value: nearer guesses are right, as in the source's implementation
PREDICATES, COLUMNS, TRIES = 500, 3, 4  # predicates that are kept, columns in each, and draws for each that is kept


@dataclass(frozen=True)
class Risk:
    """hits: attacks that were right, of ``attacks``; control: the same against held-out records."""

    hits: int
    control: int
    attacks: int

    @property
    def rate(self) -> float:
        return self.hits / max(1, self.attacks)

    @property
    def chance(self) -> float:
        """The most that an attack may do without the synthetic set: upper end of the control's 95 % interval."""
        return proportion_interval(self.control, self.attacks)[1]

    @property
    def risk(self) -> float:
        """Equation 3 of the source: how much of what the control leaves is found, at least 0."""
        base = self.control / max(1, self.attacks)
        return max(0.0, (self.rate - base) / (1 - base)) if base < 1 else 0.0


def _kinds(*sets: Tensor) -> Tensor:
    """Which columns hold kinds, by all records: a few synthetic ones hold few values of anything."""
    return torch.tensor([len(column.unique()) <= WORDS for column in torch.cat(sets).T])


def singling_out(synthetic: Tensor, train: Tensor, heldout: Tensor, generator: torch.Generator) -> Risk:
    """Section 4.1, multivariate: predicates that name one synthetic record of (m, d); a hit names exactly one of the
    training records (n, d). Both sides have as many records."""
    size = min(len(train), len(heldout))
    inside, outside = (x[torch.randperm(len(x), generator=generator)[:size]] for x in (train, heldout))
    kinds = _kinds(synthetic, train, heldout)
    middle = synthetic.median(0).values
    hits = control = made = 0
    for _ in range(PREDICATES * TRIES):
        if made == PREDICATES:
            break
        row = synthetic[int(torch.randint(len(synthetic), (1,), generator=generator))]
        columns = torch.randperm(len(row), generator=generator)[:COLUMNS]
        picked = [int(_selected(x, row, columns, kinds, middle).sum()) for x in (synthetic, inside, outside)]
        if picked[0] == 1:
            made += 1
            hits, control = hits + (picked[1] == 1), control + (picked[2] == 1)
    return Risk(hits, control, made)


def _selected(x: Tensor, row: Tensor, columns: Tensor, kinds: Tensor, middle: Tensor) -> Tensor:
    """(n,) bool: equal in columns of kinds; elsewhere at least as far from the middle as the record, on its side."""
    values, at = x[:, columns], row[columns]
    beyond = torch.where(at >= middle[columns], values >= at, values <= at)
    return torch.where(kinds[columns], values == at, beyond).all(1)


def linkability(synthetic: Tensor, train: Tensor, heldout: Tensor, generator: torch.Generator, near: int = 1) -> Risk:
    """Section 4.2: an attacker holds two halves of the columns of each of (n, d) records, apart from each other, and links
    them where both halves' ``near`` nearest synthetic records (m, d) have one in common. At least 2 columns."""
    if synthetic.shape[1] < 2:
        raise ValueError("linkability: at least 2 columns are needed")
    size = min(len(train), len(heldout))
    order = torch.randperm(synthetic.shape[1], generator=generator)
    halves = order[: len(order) // 2], order[len(order) // 2 :]
    found = []
    for x in (train, heldout):
        asked = x[torch.randperm(len(x), generator=generator)[:size]]
        first, second = (nearest(asked[:, half], synthetic[:, half], min(near, len(synthetic)))[1] for half in halves)
        found.append(int((first[:, :, None] == second[:, None]).flatten(1).any(1).sum()))
    return Risk(found[0], found[1], size)


def inference(synthetic: Tensor, train: Tensor, heldout: Tensor, generator: torch.Generator) -> Risk:
    """Section 4.3: an attacker knows all columns but one of each of (n, d) records and takes that one from the nearest
    synthetic record (m, d). Right is the same kind, or a value within ``CLOSE`` of the true one. The secret column is drawn
    anew for each record, so records are asked about once. At least 2 columns."""
    if synthetic.shape[1] < 2:
        raise ValueError("inference: at least 2 columns are needed")
    size = min(len(train), len(heldout))
    kinds = _kinds(synthetic, train, heldout)
    found = []
    for x in (train, heldout):
        asked = x[torch.randperm(len(x), generator=generator)[:size]]
        secret = torch.randint(x.shape[1], (size,), generator=generator)
        found.append(sum(_guessed(asked[secret == c], synthetic, c, bool(kinds[c])) for c in secret.unique().tolist()))
    return Risk(found[0], found[1], size)


def _guessed(asked: Tensor, synthetic: Tensor, column: int, kind: bool) -> int:
    others = torch.arange(synthetic.shape[1]) != column
    guess = synthetic[nearest(asked[:, others], synthetic[:, others])[1][:, 0], column]
    true = asked[:, column]
    return int((guess == true if kind else (guess - true).abs() <= CLOSE * true.abs()).sum())
