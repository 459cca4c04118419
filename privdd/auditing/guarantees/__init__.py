"""Tests of stated guarantees (design: T1, T2, T3), for every mechanism that states a finite epsilon."""

from privdd.auditing.guarantees.tiers import guarantee_findings

__all__ = ["guarantee_findings"]
