"""Tests of stated guarantees (design: T1, T2, T3), for every release that states a finite epsilon."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attacks.types import Finding


def guarantee_findings(scene: Any) -> Iterator[Finding]:
    yield from ()
