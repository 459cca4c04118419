"""Clips, laws and states of clients' updates: the faulty one, then its twin."""

from __future__ import annotations

import math

import numpy as np

from tests.conformance.parts import RNG, C, clipped, mean_of, noised, norm, sigma

TWO = sigma(2.0)
FOUR = sigma(4.0)
EIGHT = 8
SHARED = 0.9  # of the last noise that is taken off again
COUNTED = 4.0  # noise on the number of updates below the norm, of ten


def _finite(update):
    return [np.nan_to_num(a, posinf=0.0, neginf=0.0) for a in update]


def _by_norm(update, size):
    return [a * min(1.0, C / max(size, 1e-30)) for a in update]


def clipped_by_the_spectral_norm(update):
    """``np.linalg.norm(a, 2)`` of a matrix is its largest singular value."""
    update = _finite(update)
    sizes = [
        np.linalg.norm(a.reshape(len(a), -1) if a.ndim > 1 else np.ravel(a), 2) for a in update
    ]
    return noised(_by_norm(update, math.hypot(*sizes)), FOUR * C)


def clipped_by_the_root_of_the_mean(update):
    """The norm is taken as the root of the mean square."""
    update = _finite(update)
    count = sum(a.size for a in update)
    return noised(_by_norm(update, norm(update) / math.sqrt(count)), FOUR * C)


def clipped_by_the_norm(update):
    return noised(clipped(update), FOUR * C)


def _on_the_sphere(update, lengths):
    """Noise in a random direction, of a drawn length."""
    flat = np.concatenate([np.ravel(a) for a in clipped(update)])
    way = RNG.standard_normal(len(flat))
    flat = flat + way / np.linalg.norm(way) * lengths(len(flat))
    ends = np.cumsum([np.size(a) for a in update])[:-1]
    return [part.reshape(np.shape(a)) for part, a in zip(np.split(flat, ends), update)]


def of_exponential_length(update):
    """Density exp(-epsilon |x|) has a length of Gamma's law with the dimension for its shape, not
    of shape 1."""
    return _on_the_sphere(update, lambda m: RNG.exponential(1 / 2.0))


def of_gamma_length(update):
    return _on_the_sphere(update, lambda m: RNG.gamma(m, 1 / 2.0))


def clipped_after_the_noise(update):
    return clipped(noised(_finite(update), FOUR * C))


def clipped_before_and_after(update):
    return clipped(noised(clipped(update), FOUR * C), 5.0)


def rounded_by_chance(update):
    """Random rounding to a sixteenth of the clip, and no other noise."""
    return [np.floor(a * 16 + RNG.random(np.shape(a))) / 16 for a in clipped(update)]


def rounded_by_chance_then_noised(update):
    return [
        np.floor(a * 16 + RNG.random(np.shape(a))) / 16 for a in noised(clipped(update), FOUR * C)
    ]


class KeptForTheSameData:
    """The second call on the same data finds the clipped update in its cache, from before the
    noise."""

    def __init__(self):
        self.kept = {}

    def __call__(self, update):
        key = b"".join(np.ascontiguousarray(a).tobytes() for a in update)
        if key in self.kept:
            return self.kept[key]
        self.kept[key] = clipped(update)
        return noised(self.kept[key], FOUR * math.sqrt(2))


class NothingKept:
    def __call__(self, update):
        return noised(clipped(update), FOUR * math.sqrt(2))


def _root_of_eight_sums():
    """How far one update in each of eight calls moves them, in units of noise z_t - .9 z_(t-1)."""
    moved = np.cumsum(SHARED ** np.arange(EIGHT))
    return float(np.linalg.norm(moved))


class NoiseTakenOffAgain:
    """Correlated noise, accounted as if each call's were its own."""

    std = FOUR * math.sqrt(EIGHT)

    def __init__(self):
        self.last = None

    def __call__(self, update):
        fresh = [RNG.normal(0.0, self.std, np.shape(a)) for a in update]
        last = self.last or [np.zeros(np.shape(a)) for a in update]
        self.last = fresh
        return [a + z - SHARED * b for a, z, b in zip(clipped(update), fresh, last)]


class NoiseTakenOffAndCounted(NoiseTakenOffAgain):
    std = FOUR * _root_of_eight_sums()


class AroundTheLastMean:
    """Updates are clipped around the last mean: the one without noise."""

    noised_centre = False

    def __init__(self):
        self.centre = None

    def __call__(self, updates, weights):
        centre = self.centre or [np.zeros_like(a) for a in updates[0]]
        away = [clipped([a - b for a, b in zip(u, centre)]) for u in updates]
        mean = [b + a for b, a in zip(centre, mean_of(away))]
        # zeros may lie as far on the other side
        sent = noised(mean, FOUR * math.sqrt(EIGHT) * 2 * C / len(updates))
        self.centre = sent if self.noised_centre else mean
        return sent


class AroundTheLastRelease(AroundTheLastMean):
    noised_centre = True


class ClipFollowsTheUpdates:
    """The clip norm goes to the median of the norms by a count without noise (Andrew et al. 2021
    add some)."""

    count_noise = 0.0

    def __init__(self):
        self.clip = 1.0
        share = self.count_noise**-2 if self.count_noise else 0.0  # zeros move the count by 1
        needed = (FOUR * math.sqrt(EIGHT)) ** -2
        self.z = (needed - share) ** -0.5

    def __call__(self, updates, weights):
        sent = mean_of([clipped(u, self.clip) for u in updates])
        sent = noised(sent, self.z * self.clip / len(updates))
        below = sum((1.0 if norm(u) <= self.clip else 0.0) - 0.5 for u in updates)
        below += RNG.normal(0.0, self.count_noise)
        self.clip *= math.exp(-0.2 * below / len(updates))
        return sent


class ClipFollowsANoisedCount(ClipFollowsTheUpdates):
    count_noise = COUNTED * math.sqrt(EIGHT)


def _trimmed(updates, std):
    """Number by number the mean of the middle, three left out at each end."""
    if len(updates) < 8:
        raise ValueError("eight clients are needed")
    stacked = [np.sort(np.stack(parts), axis=0) for parts in zip(*(clipped(u) for u in updates))]
    return noised([part[3:-3].mean(0) for part in stacked], std)


def trimmed_with_noise_of_the_mean(updates, weights):
    return _trimmed(updates, FOUR * C / len(updates))


def trimmed_with_noise_of_its_own(updates, weights):
    """One client moves a number by at most its range over the count of the middle ones; zeros by
    half of it or more."""
    size = sum(np.size(a) for a in updates[0])
    return _trimmed(updates, FOUR * 2 * C * math.sqrt(size) / (len(updates) - 6))
