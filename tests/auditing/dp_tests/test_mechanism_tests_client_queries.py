"""A query that clips record by record and says that it protects a client moves by as many units as there are records."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from privdd.auditing.dp_tests.mechanism_tests import client_query_findings
from privdd.privacy.ledger import Ledger
from privdd.privacy.mechanism import Output
from privdd.privacy.mechanisms import ClippedSum
from tests.auditing.dp_tests.subjects import Coupled, subject


@dataclass(frozen=True)
class OfClients(ClippedSum):
    """It says that it protects a client; whole: and clips what all records add up to, so that it does."""

    whole: bool = False

    def __call__(self, value: Any, noise: Any) -> Output:
        if self.whole:
            value = {n: t.sum(0, keepdim=True) for n, t in value.items()}
        return replace(super().__call__(value, noise), flags={"unit:client": True})


def kappa(mechanism: ClippedSum) -> float:
    made = subject(Coupled(coupled=False), {"embedding": ClippedSum(1.0, 0.01)})
    ledger = Ledger("add_remove", "client", made.delta)
    rows = [replace(row, flags={"unit:client": True}) for row in made.ledger.releases if row.is_protected]
    ledger.append([replace(row, post_of=()) for row in rows])
    plan = replace(made.plan, mechanisms={"embedding": mechanism})
    (found,) = client_query_findings(replace(made, plan=plan, ledger=ledger))
    assert found.measures["kappa_allowed"] == 1.0 and found.measures["diagnostics"]["unit"] == "client"
    return float(found.measures["kappa"])


def test_records_that_are_clipped_one_by_one_do_not_protect_a_client() -> None:
    assert kappa(OfClients(1.0, 0.01)) > 1.5
    assert kappa(OfClients(1.0, 0.01, whole=True)) <= 1.0 + 1e-4
