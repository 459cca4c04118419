"""Epsilon and its cost: this stack's accounting beside dp-accounting's and Opacus's accountants.

    python -m benchmarks.accounting [--delta 1e-5] [--prv]

Rows are Poisson-sampled Gaussians (q, z, steps). PLD is exact up to its grid, PRV is within 0.01
above it, RDP is looser. The last part times noise calibration and a ledger of 10,000 rows.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import dp_accounting as dpa
from dp_accounting.pld import PLDAccountant
from opacus.accountants import PRVAccountant, RDPAccountant

from attacks.command_line import CommandParser
from privdd.privacy.accounting import epsilon
from privdd.privacy.calibration import calibrate
from privdd.privacy.ledger import Ledger
from privdd.privacy.mechanism import LedgerRow

POINTS = [
    (0.001, 1.0, 10_000),
    (0.01, 1.0, 1000),
    (0.05, 1.0, 1000),
    (0.05, 2.0, 1000),
    (0.256, 5.0, 1000),
    (1.0, 50.0, 1000),
]


def timed(work: Callable[[], float]) -> str:
    start = time.perf_counter()
    value = work()
    return f"{value:9.4f} {time.perf_counter() - start:6.2f}s"


def event(q: float, z: float, steps: int) -> dpa.DpEvent:
    return dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(q, dpa.GaussianDpEvent(z)), steps)


def opacus(
    accountant: RDPAccountant | PRVAccountant, q: float, z: float, steps: int, delta: float
) -> float:
    accountant.history = [(z, q, steps)]
    return float(accountant.get_epsilon(delta))


def compare(delta: float, prv: bool) -> None:
    print(
        f"{'q, z, steps':>22} {'PLD here':>17} {'dp-accounting':>17} {'RDP here':>17} "
        f"{'Opacus RDP':>17}" + " Opacus PRV" * prv
    )
    for q, z, steps in POINTS:
        e = event(q, z, steps)
        cells = [
            timed(lambda e=e: epsilon(e, delta)),  # type: ignore[misc]
            timed(lambda e=e: PLDAccountant().compose(e).get_epsilon(delta)),  # type: ignore[misc]
            timed(lambda e=e: epsilon(e, delta, accountant="rdp")),  # type: ignore[misc]
            timed(lambda p=(q, z, steps): opacus(RDPAccountant(), *p, delta)),  # type: ignore[misc]
        ]
        if prv:
            cells.append(timed(lambda p=(q, z, steps): opacus(PRVAccountant(), *p, delta)))  # type: ignore[misc]
        print(f"{f'{q}, {z}, {steps}':>22} " + " ".join(f"{cell:>17}" for cell in cells))


def calibration(delta: float) -> None:
    for target in (1.0, 3.0, 10.0):
        for name, make in (
            ("1000 Poisson steps", lambda z: event(0.05, z, 1000)),
            ("400 Gaussians", lambda z: event(1.0, z, 400)),
        ):
            found = timed(lambda make=make, target=target: calibrate(make, target, delta))  # type: ignore[misc]
            print(f"epsilon {target:4} by {name:>18}: noise multiplier {found}")


def large_ledger(delta: float) -> None:
    ledger = Ledger(delta=delta)
    rows = [
        LedgerRow(
            t,
            t % 10,
            "q",
            "gradient",
            ("analyst",),
            {"g": (10,)},
            "",
            event(0.05, 2.0, 1),
            partition=f"label:{t % 7}",
        )
        for t in range(10_000)
    ]
    print(f"append 10,000 rows: {timed(lambda: float(len(ledger.append(rows))))}")
    print(f"epsilon of the worst client: {timed(ledger.epsilon)}")


def main() -> None:
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument(
        "--prv", action="store_true", help="Opacus's PRV accountant too: slow at large epsilon"
    )
    options = parser.parse_args()
    compare(options.delta, options.prv)
    calibration(options.delta)
    large_ledger(options.delta)


if __name__ == "__main__":
    main()
