"""What leaves beside the releases: the same for other records, or told."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from privdd.auditing.guarantees.told import told_findings
from privdd.core.types import Artifact
from privdd.privacy.mechanism import Output
from privdd.privacy.mechanisms import ClippedSum
from tests.auditing.guarantees.subjects import Coupled, subject


@dataclass(frozen=True)
class Leaking(Coupled):
    """Beside the release, as post-processing of it, a trace of the first record."""

    coupled: bool = False

    def local(self, broadcast: Any, memory: Any, shard: Any, ctx: Any) -> Any:
        upload, kept = super().local(broadcast, memory, shard, ctx)
        rows = upload["prototypes"].value["rows"] + 1e-5 * shard.train.x[0].mean()
        return {"prototypes": Artifact({"rows": rows}, private=True)}, kept


@dataclass(frozen=True)
class Telling(ClippedSum):
    def __call__(self, value: Any, noise: Any) -> Output:
        return replace(super().__call__(value, noise), why=f"of {len(value['rows'])} records")


@pytest.mark.parametrize(
    ("method", "mechanism", "says"),
    [
        (Coupled(coupled=False), ClippedSum, ""),
        (Leaking(), ClippedSum, "'prototypes' tells about the records, in digest"),
        (Coupled(coupled=False), Telling, "'embedding' tells about the records, in why"),
    ],
)
def test_only_what_depends_on_the_records_is_told(method: Any, mechanism: Any, says: str) -> None:
    found = [f.measures for f in told_findings(subject(method, {"embedding": mechanism(5.0, 1.0, 1.0, 10.0)}))]
    assert [m["diagnostics"].get("refuted", False) for m in found] == [bool(says)]
    assert (says or "is the same for other records") in found[0]["note"]
    assert found[0]["diagnostics"]["covers"] == {"memory": [0], "messages": [0]}
