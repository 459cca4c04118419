"""Tests of stated guarantees, for every mechanism that states a finite epsilon.

T0 looks at the run's own noise, sampling and ledger, T1 measures sensitivity, T2 certifies the
whole run from likelihood ratios (single queries where that cannot be done), T3 attacks (see
``attacks.certificates``). A "guest" is a crafted record (a canary) that is added to a client's data
and that a mechanism is run with and without."""

from privdd.auditing.dp_tests.runner import guarantee_findings

__all__ = ["guarantee_findings"]
