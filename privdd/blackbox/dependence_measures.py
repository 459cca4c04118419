"""How much of a release depends on the record, measured on replays of one pair of neighbours."""

from __future__ import annotations

import numpy as np

from privdd.blackbox.paired_replays import PairedReplays

# kinds of dependence
SHAPE = "names and shapes"
NOISELESS = "numbers that never change"
SCALE = "size of the noise"
SHARED = "shared noise"
SPREAD = "spread of the releases"  # no look of its own: the pair is searched like those that shift

FEWEST_SEEDS = 3  # from fewer, two noises of one shape are not told from two that are linear
SAME = 1e-6  # relative: two noises of one size
SAME_CORRELATION = SAME**1.5  # of a correlation to 1: two numbers with one noise
WIDEST = 64  # numbers of which each two are compared for noise that they share
LEAST_COMBINED_SHIFT = 1e-3  # of a combination of numbers without noise, in deviations


def dependence_sizes(replays: PairedReplays) -> dict[str, float]:
    """Kind of dependence -> how much of it a pair shows, above 0."""
    noiseless = noiseless_numbers(replays)
    moved = 0.0
    if noiseless.any():
        moved = float(np.abs(replays.present[0] - replays.absent[0])[noiseless].max())
    ratio = noise_ratio(replays)
    sizes = {
        SHAPE: float(not set(replays.codes[0]) & set(replays.codes[1])),
        NOISELESS: moved,
        SCALE: 0.0 if ratio is None else float(np.abs(np.log(ratio)).max()),
        SHARED: shared_noise(replays),
        SPREAD: spread_ratio(replays),
    }
    return {kind: size for kind, size in sizes.items() if size > 0}


def shared_noise(replays: PairedReplays) -> float:
    """How much further, in deviations, the record moves one of two numbers than the other, which
    has the same noise; 0 for none.

    The largest |s_i / sigma_i - sign(rho_ij) s_j / sigma_j| over numbers i, j with |rho_ij| = 1:
    there the noise cancels and this difference is left. Two numbers at a time, as their combination
    is read off directly; ``noiseless_combination`` looks at more, and needs more seeds.
    """
    shift = replays.shift()
    noise = replays.noise
    if shift is None or not shift.any() or not 1 < np.count_nonzero(noise) <= WIDEST:
        return 0.0
    noised = noise > 0
    residuals = (replays.absent - replays.absent.mean(0))[:, noised] / noise[noised]
    correlation = residuals.T @ residuals / len(residuals)
    over_noise = shift[noised] / noise[noised]
    gaps = np.abs(over_noise[:, None] - np.sign(correlation) * over_noise)
    is_shared = np.abs(np.abs(correlation) - 1) < SAME_CORRELATION
    return float(np.where(is_shared, gaps, 0.0).max())


def noiseless_numbers(replays: PairedReplays) -> np.ndarray:
    """(M,) bool: numbers that every seed leaves as they are, and the record does not."""
    if not replays.has_same_codes:
        return np.zeros(0, bool)
    constant_present = np.ptp(replays.present, axis=0) == 0
    constant_absent = np.ptp(replays.absent, axis=0) == 0
    moved = replays.present[0] != replays.absent[0]
    return np.asarray(constant_present & constant_absent & moved)


def noise_ratio(replays: PairedReplays) -> np.ndarray | None:
    """(M,): how much wider each number's noise is with the record, exactly (1 if a number is no
    such case); None if none is.

    By least squares over seeds, r_j = sum a_j b_j / sum b_j^2 of the centred numbers a (with the
    record) and b: under the same noise a_j = r_j b_j holds to rounding, or the ratio is not said.
    No test of variances is needed, as nothing is random between the sides.
    """
    if not replays.has_same_codes or len(replays.present) < FEWEST_SEEDS:
        return None
    present = replays.present - replays.present.mean(0)
    absent = replays.absent - replays.absent.mean(0)
    squares = np.square(absent).sum(0)
    noised = (np.ptp(replays.present, axis=0) > 0) & (np.ptp(replays.absent, axis=0) > 0)
    slopes = (present * absent).sum(0) / np.where(squares > 0, squares, 1.0)
    ratio = np.where(noised, slopes, 1.0)
    is_linear = np.abs(present - ratio * absent).max(0) <= SAME * np.abs(present).max(0)
    is_other = np.abs(ratio - 1) > SAME
    ratio = np.where(noised & is_linear & (ratio > 0) & is_other, ratio, 1.0)
    return ratio if (ratio != 1).any() else None


def spread_ratio(replays: PairedReplays) -> float:
    """The largest |ln(range with the record / range without it)| of a number over seeds, if the
    record does not just add to it."""
    if not replays.has_same_codes or replays.shift() is not None:
        return 0.0
    present = np.ptp(replays.present, axis=0)
    absent = np.ptp(replays.absent, axis=0)
    noised = (present > 0) & (absent > 0)
    return float(np.abs(np.log(present[noised] / absent[noised])).max(initial=0.0))


def noiseless_combination(replays: PairedReplays) -> float:
    """How much the record moves a combination of unit length of the noised numbers that no seed
    moves; 0 if there is none.

    Right singular vectors v of the (S, k) noise in deviations whose singular value is 0 relative to
    the largest; the largest |v . s| over them. The null space as a whole, as noise may be shared by
    more than two numbers.
    """
    noise = replays.absent - replays.absent.mean(0)
    shift = np.median(replays.present - replays.absent, axis=0)
    spread = noise.std(0)
    noised = np.ptp(replays.absent, axis=0) > 0
    if len(noise) < 3 * noised.sum() or not noised.any():
        return 0.0
    residuals = noise[:, noised] / spread[noised]
    _, sizes, directions = np.linalg.svd(residuals, full_matrices=False)
    noiseless = directions[sizes <= SAME * sizes[0]]
    if not len(noiseless):
        return 0.0
    moved = float(np.abs(noiseless @ (shift[noised] / spread[noised])).max())
    return moved if moved > LEAST_COMBINED_SHIFT else 0.0
