"""Membership read from outputs on public images alone (Jagielski et al. 2023, section 5): a record
moves the outputs on images that resemble it, whether or not it is ever asked about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attacks.membership.lira import Lira
from attacks.types import Surface

INDIRECT_SIGNAL = "joint"  # of ``attacks.membership.signals.LogitInfluence``


@dataclass(frozen=True)
class IndirectQueries(Lira):
    """LiRA on a record's part in how the outputs on public images change.

    Each public image counts by how much one step on the record would change its outputs, so the
    images nearest to the record in the map of the student say most. Jagielski et al. choose such
    images by shadow models and add up one LiRA for each; here all images are weighted at once, and
    the parts of all records are solved for together."""

    signal: str = INDIRECT_SIGNAL
    queries: int = 1  # the record itself is not asked about, so it has no copies
    name: ClassVar[str] = "indirect_queries"
    surfaces: ClassVar[frozenset[Surface]] = frozenset({Surface.LOGITS})
