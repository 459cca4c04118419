"""Verdicts follow the ledger: what a refuting finding accuses, and what was computed from that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import dp_accounting as dpa
import pytest

from attacks.measures import GuaranteeMeasures
from attacks.types import Adversary, Family, Finding, Surface
from privdd.auditing.verdicts import RunVerdicts, SurfaceLimit, findings_on_surface, judge_run
from privdd.federated.channel import POST_PROCESSING
from privdd.privacy.ledger import SERVER, Ledger
from privdd.privacy.mechanism import LedgerRow

GAUSSIAN = dpa.GaussianDpEvent(1.0)
FREE = dpa.NoOpDpEvent()
BARE = dpa.NonPrivateDpEvent()
FINITE = {"pld": 4.0, "rdp": 4.5}
INFINITE = {"pld": math.inf, "rdp": math.inf}


def row(
    name: str,
    surface: str,
    event: Any = FREE,
    client: int = 0,
    of: Sequence[int] = (),
    seen: str = "server",
    **more: Any,
) -> LedgerRow:
    return LedgerRow(
        round=0,
        client=client,
        name=name,
        surface=surface,
        visible_to=(seen,),
        shape={},
        digest="",
        event=event,
        post_of=tuple(of),
        **more,
    )


def two_rounds() -> Ledger:
    """A head trained by noised gradients: query -> message -> model -> the next round, beside a
    count that is called public."""
    ledger = Ledger("add_remove")
    ledger.append(
        [
            row("head_gradient", "gradient", GAUSSIAN, seen="analyst"),  # 0
            row("gradient", "gradient", of=[0], why=POST_PROCESSING),  # 1
            row("count", "counts", why="public"),  # 2
            row("model", "global_model", client=SERVER, of=[0, 1, 2], seen="peer"),  # 3
            row("head_gradient", "gradient", GAUSSIAN, seen="analyst"),  # 4
            row("gradient", "gradient", of=[4, 3], why=POST_PROCESSING),  # 5
            row("model", "global_model", client=SERVER, of=[3, 4, 5], seen="public"),  # 6
        ],
        absolute=True,
    )
    return ledger


LIMITS = [
    SurfaceLimit("gradient", "client", FINITE, 4.0),
    SurfaceLimit("counts", "client", FINITE, 0.0),
    SurfaceLimit("global_model", "server", FINITE, 4.0),
]


def finding(
    message: str,
    surface: str = "update",
    refuted: bool = True,
    adversary: Adversary = Adversary.ANALYST,
) -> Finding:
    measures = GuaranteeMeasures(diagnostics={"refuted": True} if refuted else {})
    return Finding(
        Surface(surface), "t0_noise", Family.GUARANTEE, adversary, measures, message=message
    )


def judge(
    *findings: Finding, ledger: Ledger | None = None, limits: Sequence[SurfaceLimit] = LIMITS
) -> RunVerdicts:
    return judge_run(ledger or two_rounds(), limits, findings)


def verdicts_of(result: RunVerdicts) -> dict[str, str]:
    return {surface: verdict for (surface, _), verdict in result.surfaces.items()}


def test_a_refuted_query_contradicts_every_surface_computed_from_it_wherever_it_is_filed() -> None:
    for surface in ("update", "gradient", "prototypes"):
        result = judge(finding("head_gradient", surface))
        assert result.verdict == "contradiction" and result.refuting == (True,)
        assert verdicts_of(result) == {
            "gradient": "contradiction",
            "counts": "consistent",
            "global_model": "contradiction",
        }
        assert (
            result.refuted["global_model", "server"] == ("head_gradient",)
            and "count" in result.behind["global_model", "server"]
        )


def test_a_message_that_leaks_is_accused_itself_and_what_the_server_computes_from_it() -> None:
    result = judge(finding("count", "counts"))
    assert verdicts_of(result) == {
        "gradient": "consistent",
        "counts": "contradiction",
        "global_model": "contradiction",
    }


def test_a_finding_about_nothing_that_the_run_sends_contradicts_the_run_if_it_refutes() -> None:
    lost = finding("nothing_of_this_name", "prototypes")
    result = judge(lost)
    assert result.verdict == "contradiction" and {*result.surfaces.values()} == {"consistent"}
    quiet = judge(finding("nothing_of_this_name", "prototypes", refuted=False))
    assert quiet.verdict == "consistent" and quiet.refuting == (False,)


def test_what_states_no_limit_is_not_contradicted_by_what_it_was_computed_from() -> None:
    """Features whose claim is refuted, in a pool that holds them alone, and a model that bare
    updates went into as well."""
    ledger = Ledger("zero_out")
    ledger.append(
        [
            row("features", "features", BARE, nonprivate_reason="side conditions fail"),  # 0
            row("pool", "shared_features", client=SERVER, of=[0], seen="peer"),  # 1
            row("update", "update", BARE, nonprivate_reason="no mechanism"),  # 2
            row("model", "global_model", client=SERVER, of=[0, 1, 2], seen="public"),  # 3
        ],
        absolute=True,
    )
    limits = [
        SurfaceLimit(s, k, INFINITE)
        for s, k in (
            ("features", "client"),
            ("shared_features", "server"),
            ("update", "client"),
            ("global_model", "server"),
        )
    ]
    result = judge(finding("features", "features"), ledger=ledger, limits=limits)
    assert verdicts_of(result) == {
        "features": "contradiction",
        "shared_features": "contradiction",
        "update": "unprotected",
        "global_model": "unprotected",
    }


def test_untested_stays_and_a_contradiction_goes_first() -> None:
    limits = [SurfaceLimit("gradient", "client", FINITE, 4.0, ["noise: why"]), *LIMITS[1:]]
    assert verdicts_of(judge(limits=limits)) == {
        "gradient": "untested",
        "counts": "consistent",
        "global_model": "consistent",
    }
    assert judge(limits=limits).verdict == "untested"
    assert (
        verdicts_of(judge(finding("head_gradient"), limits=limits))["gradient"] == "contradiction"
    )


@pytest.mark.parametrize(
    ("adversary", "client", "server"),
    [
        (Adversary.SERVER, 1, 0),
        (Adversary.PEER, 0, 1),
        (Adversary.PUBLIC, 0, 1),
        (Adversary.ANALYST, 1, 0),
    ],
)
def test_two_messages_of_one_surface_do_not_share_a_finding(
    adversary: Adversary, client: int, server: int
) -> None:
    """A prototype of one client, and the mean of all that the server sends: who holds it tells
    which."""
    keys = [("prototypes", "client"), ("prototypes", "server")]
    found = [finding("prototypes", "prototypes", adversary=adversary)]
    assert [len(findings_on_surface(found, key, keys)) for key in keys] == [client, server]
    assert (
        len(findings_on_surface(found, keys[0], keys[:1])) == 1
    )  # where only one sends on it, all are its own
    ledger = Ledger("add_remove")
    ledger.append(
        [
            row("prototypes", "prototypes", GAUSSIAN),
            row("prototypes", "prototypes", client=SERVER, of=[0], seen="peer"),
        ],
        absolute=True,
    )
    limits = [SurfaceLimit(*key, FINITE, 4.0) for key in keys]
    verdicts = judge_run(ledger, limits, found).surfaces
    assert (
        verdicts[keys[0]] == ("contradiction" if client else "consistent")
        and verdicts[keys[1]] == "contradiction"
    )
