"""Plans over several calls, shares of noise, choices and matrices: the faulty one, then its
twin."""

from __future__ import annotations

import math

import numpy as np

from tests.conformance.parts import RNG, C, clipped, noised, norm, rows_clipped, sigma

TWO = sigma(2.0)
FOUR = sigma(4.0)
Q = 0.1
# of epsilon 1 once and 1.5 in ten calls, sampled at the rate Q: test_corpus.py
RATE = 1.2589377624993159
CYCLE = 1.384749873391651
# eight calls with one update: the nodes' squared norms
TREE = math.sqrt(8 * 1**2 + 4 * 2**2 + 2 * 4**2 + 8**2) * FOUR


def _flat(arrays):
    return np.concatenate([np.ravel(a) for a in arrays])


def _as(flat, arrays):
    ends = np.cumsum([a.size for a in arrays])
    return [part.reshape(a.shape) for part, a in zip(np.split(flat, ends[:-1]), arrays)]


def differences_of_noise(update):
    """Each number's noise is the difference of two neighbours of one row: in their sum it
    cancels."""
    v = _flat(clipped(update))
    e = RNG.normal(0.0, TWO, len(v) + 1)
    return _as(v + (e[1:] - e[:-1]) / math.sqrt(2), update)


def noise_of_its_own(update):
    return noised(clipped(update), TWO)


class TopNodePlain:
    """Binary-tree prefix sums; the root's sum has no noise."""

    root_noised = False

    def __init__(self):
        self.sums = []
        self.nodes = {}

    def __call__(self, update):
        self.sums.append(clipped(update))
        out = [np.zeros_like(a) for a in update]
        start = 0
        for level in (3, 2, 1, 0):
            if not len(self.sums) >> level & 1:
                continue
            if (level, start) not in self.nodes:
                total = [sum(parts) for parts in zip(*self.sums[start : start + 2**level])]
                plain = level == 3 and not self.root_noised
                self.nodes[level, start] = total if plain else noised(total, TREE)
            out = [a + b for a, b in zip(out, self.nodes[level, start])]
            start += 2**level
        return out


class EveryNodeNoised(TopNodePlain):
    root_noised = True


class RestartedWithItsSeed:
    """After four calls the noise starts anew, with the seed that it had."""

    keeps_its_seed = True

    def __init__(self):
        self.at = 0
        self.seed = int(RNG.integers(2**60))

    def __call__(self, update):
        if self.at % 4 == 0:
            self.rng = np.random.default_rng(self.seed if self.keeps_its_seed else None)
        self.at += 1
        return [a + self.rng.normal(0.0, math.sqrt(8) * FOUR, a.shape) for a in clipped(update)]


class RestartedAnew(RestartedWithItsSeed):
    keeps_its_seed = False


class RateByTheClip:
    """The learning rate is halved for good where a call was clipped."""

    def __init__(self):
        self.rate = 1.0

    def __call__(self, update):
        sent = [self.rate * a for a in noised(clipped(update), math.sqrt(8) * FOUR)]
        self.rate *= 0.5 if norm(update) > C else 1.0
        return sent


class RateByTheCall(RateByTheClip):
    def __call__(self, update):
        sent = [self.rate * a for a in noised(clipped(update), math.sqrt(8) * FOUR)]
        self.rate *= 0.5
        return sent


def rounded_up(update):
    """After the clip, to the next half: sensitivity is still taken to be the clip."""
    return [np.ceil(2 * a) / 2 + RNG.normal(0.0, TWO, a.shape) for a in clipped(update)]


def rounded_up_and_counted(update):
    most = C + 0.5 * math.sqrt(sum(a.size for a in update))
    return [np.ceil(2 * a) / 2 + RNG.normal(0.0, TWO * most, a.shape) for a in clipped(update)]


def shares_of_who_stayed(updates, weights):
    """Every client adds its share of the noise; those who drop out take theirs along."""
    return _survivors(updates, len(updates))


def shares_made_up_for(updates, weights):
    return _survivors(updates, None)


def _survivors(updates, among):
    stays = RNG.random(len(updates)) < 0.5
    stays[0] = True
    share = FOUR * C / math.sqrt(among or int(stays.sum()))
    return [
        sum(parts)
        for parts in zip(*(noised(clipped(u), share) for u, s in zip(updates, stays) if s))
    ]


def the_quietest_group(updates, weights):
    """Three group means are noised, and the group with the smallest mean is released: which one has
    no noise."""
    means = _groups(updates)
    best = int(np.argmin([np.linalg.norm(m) for m in means]))
    return _as(
        means[best] + RNG.normal(0.0, 3 * C / len(updates) * FOUR, means[best].shape), updates[0]
    )


def the_median_group(updates, weights):
    noisy = [m + RNG.normal(0.0, 3 * C / len(updates) * FOUR, m.shape) for m in _groups(updates)]
    return _as(np.median(noisy, axis=0), updates[0])


def _groups(updates):
    rows = [_flat(clipped(u)) for u in updates]
    return [3 * np.sum(rows[at::3], axis=0) / len(rows) for at in range(min(3, len(rows)))]


def at_twice_the_rate(x):
    return rows_clipped(x)[RNG.random(len(x)) < 2 * Q].sum(0) + RNG.normal(0.0, RATE, x.shape[1])


def at_the_rate(x):
    return rows_clipped(x)[RNG.random(len(x)) < Q].sum(0) + RNG.normal(0.0, RATE, x.shape[1])


class EachTenthInTurn:
    """Ten batches in a fixed order, accounted as coins."""

    def __init__(self):
        self.at = -1

    def __call__(self, x):
        self.at += 1
        return rows_clipped(x)[np.arange(len(x)) % 10 == self.at % 10].sum(0) + RNG.normal(
            0.0, CYCLE, x.shape[1]
        )


class CoinsInEachCall:
    def __call__(self, x):
        return rows_clipped(x)[RNG.random(len(x)) < Q].sum(0) + RNG.normal(0.0, CYCLE, x.shape[1])


def _bins(x):
    return np.histogram(np.clip(np.nan_to_num(x[:, 0]), 0, 1), 4, (0, 1))[0]


def _chosen(counts, epsilon):
    odds = np.exp(epsilon * (counts - counts.max()) / 2)
    return np.array([float(RNG.choice(len(counts), p=odds / odds.sum()))])


def chosen_at_half_as_much_again(x):
    return _chosen(_bins(x), 3.0)


def chosen_with_room(x):
    """A count has sensitivity 1, and epsilon / 2 leaves room."""
    return _chosen(_bins(x), 1.0)


def told_how_clear_it_was(x):
    """Noisy votes, and beside the winner what they cost: a number of the plain votes."""
    votes = np.clip(np.nan_to_num(x), 0, 1).sum(0)
    first = np.sort(votes)[-1]
    second = np.sort(votes)[-2] if len(votes) > 1 else 0.0
    return np.array(
        [
            float(np.argmax(votes + RNG.laplace(0.0, 4.0, len(votes)))),
            math.exp(-(first - second) / 4),
        ]
    )


def told_the_winner(x):
    votes = np.clip(np.nan_to_num(x), 0, 1).sum(0)
    return np.array([float(np.argmax(votes + RNG.laplace(0.0, 2.0, len(votes))))])


def threshold_noised_only(x):
    """Sparse vector: one noise for the threshold, none for what is compared with it."""
    counts = np.clip(np.nan_to_num(x), 0, 1).sum(0)
    return (counts > 2.0 + RNG.laplace(0.0, 1.0)).astype(float)


def threshold_and_queries_noised(x):
    counts = np.clip(np.nan_to_num(x), 0, 1).sum(0)
    threshold = 2.0 + RNG.laplace(0.0, 2.0)
    above = np.flatnonzero(counts + RNG.laplace(0.0, 4.0, len(counts)) > threshold)
    return np.array([float(above[0]) if len(above) else -1.0])


def middle_by_noised_rank(x):
    """The rank is noised, the value at it is the record's own."""
    values = np.sort(np.clip(np.nan_to_num(x[:, 0]), 0, 1))
    return np.array(
        [np.interp(0.5 + RNG.laplace(0.0, 0.05), np.linspace(0, 1, len(values)), values)]
    )


def middle_of_a_grid(x):
    values = np.clip(np.nan_to_num(x[:, 0]), 0, 1)
    grid = np.linspace(0, 1, 11)
    return np.array(
        [grid[int(_chosen(-np.abs((values[:, None] <= grid).sum(0) - len(values) / 2), 1.0)[0])]]
    )


def half_the_noise_on_a_symmetric_matrix(x):
    """Sum of outer products; entries above and below the diagonal are noised each, at half."""
    rows = rows_clipped(x)
    return rows.T @ rows + RNG.normal(0.0, TWO / 2, (x.shape[1],) * 2)


def one_noise_on_each_pair(x):
    rows = rows_clipped(x)
    e = np.triu(RNG.normal(0.0, TWO, (x.shape[1],) * 2))
    return rows.T @ rows + e + np.triu(e, 1).T
