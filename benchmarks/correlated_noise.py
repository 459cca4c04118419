"""Would noise that is correlated over rounds (matrix factorisation) beat independent noise in
DP-FedAvg with few rounds?

    python -m benchmarks.correlated_noise

Measured is the error of the sums over rounds 1 to t, which is how far noise moves the model after
round t: root mean square over t, in clip norms, by arithmetic alone (no training). A = B C: C x +
noise is released, B of it are the sums, and the noise is scaled to how far one client moves C x
(Denisov et al. 2022).

Every client in every round: a client may move each x_t by 1. For any positive semidefinite R with a
unit diagonal, no factorisation has an error below the nuclear norm of A R^(1/2) times the noise
multiplier; a search for the R with the largest one bounds what any could gain. Diagonal C (other
noise in other rounds, still independent) comes to sum_t sqrt(t) / sqrt(T).

Each client in one of b rounds: independent noise with Poisson sampling at rate 1 / b, which
amplifies, against clients in turns and C with up to b bands, the coefficients of (1 - x)^(-1/2)
(Choquette-Choo et al. 2023), one Gaussian event. Noise multipliers are calibrated with
dp-accounting's PLD accountant.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from dp_accounting import dp_event, mechanism_calibration, pld

from benchmarks.machine import hardware

DELTA = 1e-5
ROUNDS = (5, 10, 20, 60)
# (rounds T, every client in one of b of them)
TURNS = ((10, 5), (20, 5), (20, 10), (60, 10), (60, 30))


def error_of_sums(inverse: np.ndarray) -> float:
    """Root mean square error of the sums over rounds, for unit noise on C x; inverse: C^-1 (T,
    T)."""
    return float(np.linalg.norm(np.tril(np.ones_like(inverse)) @ inverse) / math.sqrt(len(inverse)))


def least_error(rounds: int, steps: int = 1500) -> float:
    """A bound that no factorisation comes below, every client in every round, for a noise
    multiplier of 1."""
    sums = torch.ones(rounds, rounds, dtype=torch.float64).tril()
    rows = torch.randn(
        rounds, rounds, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ).requires_grad_()
    optimiser = torch.optim.Adam([rows], lr=0.05)
    best = 0.0
    for _ in range(steps):
        bound = torch.linalg.svdvals(sums @ torch.nn.functional.normalize(rows, dim=1)).sum()
        optimiser.zero_grad()
        (-bound).backward()
        optimiser.step()
        best = max(best, float(bound.detach()))
    return best / math.sqrt(rounds)


def multiplier(event: object, epsilon: float) -> float:
    """The least noise multiplier z for which event(z) has this epsilon."""
    return float(
        mechanism_calibration.calibrate_dp_mechanism(
            pld.PLDAccountant, event, epsilon, DELTA, tol=1e-3
        )
    )


def sampled_error(rounds: int, turns: int, epsilon: float) -> float:
    """Independent noise, every client in each round with chance 1 / turns."""
    one = lambda z: dp_event.PoissonSampledDpEvent(1 / turns, dp_event.GaussianDpEvent(z))  # noqa: E731
    return multiplier(
        lambda z: dp_event.SelfComposedDpEvent(one(z), rounds), epsilon
    ) * error_of_sums(np.eye(rounds))


def banded_error(rounds: int, turns: int, epsilon: float) -> tuple[float, int]:
    """Correlated noise, clients in turns: the best error and its number of bands."""
    z = multiplier(dp_event.GaussianDpEvent, epsilon)
    takes_part = math.ceil(rounds / turns)
    found = []
    for bands in range(1, turns + 1):
        column = np.cumprod([1.0, *((2 * k - 1) / (2 * k) for k in range(1, bands))])
        matrix = sum(value * np.eye(rounds, k=-k) for k, value in enumerate(column))
        found.append(
            (
                z
                * math.sqrt(takes_part)
                * float(np.linalg.norm(column))
                * error_of_sums(np.linalg.inv(matrix)),
                bands,
            )
        )
    return min(found)


def main() -> None:
    torch.set_num_threads(1)
    print(hardware())
    print(
        "every client in every round, noise multiplier 1: rounds, independent, diagonal, "
        "bound of any factorisation"
    )
    for rounds in ROUNDS:
        diagonal = sum(math.sqrt(t) for t in range(1, rounds + 1)) / math.sqrt(rounds)
        print(
            f"{rounds:4d} {math.sqrt(rounds) * error_of_sums(np.eye(rounds)):9.3f} "
            f"{diagonal:9.3f} {least_error(rounds):9.3f}",
            flush=True,
        )
    print(
        "each client in one of b rounds: rounds, b, epsilon, sampled and independent, in "
        "turns and banded (bands)"
    )
    for rounds, turns in TURNS:
        for epsilon in (1.0, 3.0, 10.0):
            error, bands = banded_error(rounds, turns, epsilon)
            print(
                f"{rounds:4d} {turns:4d} {epsilon:5g} "
                f"{sampled_error(rounds, turns, epsilon):9.2f} {error:9.2f} ({bands})",
                flush=True,
            )


if __name__ == "__main__":
    main()
