"""NVFlare's filter chain with a tap in it: arrays are kept as they are, and pass on unchanged."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from privdd.recording.recording import read_recordings
from privdd.runtime.files import DamagedRun
from tests.integrations import stand_in_nvflare

TAP = "privdd.integrations.nvflare_recorder"
SITE = "site-1"
KINDS = ("WEIGHTS", "WEIGHT_DIFF")


@pytest.fixture(params=["stand-in", pytest.param("itself", marks=pytest.mark.extra("nvflare"))])
def flare(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """NVFlare's names, and the tap's, by one namespace."""
    if request.param == "stand-in":
        for name, module in stand_in_nvflare.stand_in_modules().items():
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr(importlib.metadata, "version", lambda name: stand_in_nvflare.VERSION)
    monkeypatch.delitem(sys.modules, TAP, raising=False)
    names: dict[str, Any] = vars(importlib.import_module(TAP)).copy()
    monkeypatch.delitem(sys.modules, TAP)
    for place in stand_in_nvflare.PLACES:
        names |= vars(importlib.import_module(f"nvflare.apis.{place}"))
    return SimpleNamespace(**names)


def passed(flare: SimpleNamespace, run: Path, dxo: Any, chain: str, round: int | None) -> Any:
    """Through the tap of site-1."""
    shareable = dxo.to_shareable()
    context = flare.FLContext()
    tap = flare.PrivddTap(str(run))
    if round is not None:
        shareable.set_header("current_round", round)
    context.set_prop(flare.ReservedKey.IDENTITY_NAME, SITE, private=True, sticky=False)
    tap.set_prop(flare.FilterContextKey.CHAIN_TYPE, chain)
    return tap.process(shareable, context)


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_messages_are_recorded_and_unchanged(
    flare: SimpleNamespace, kind: str, told: bool, tmp_path: Path
) -> None:
    chains = flare.FilterChainType
    draw = np.random.default_rng(0)
    sent = [{"w": draw.normal(size=(3, 2)), "b": draw.normal(size=2)} for _ in range(2)]
    back = [{"w": draw.normal(size=(3, 2)), "b": draw.normal(size=2)} for _ in range(2)]
    kinds = {"WEIGHTS": flare.DataKind.WEIGHTS, "WEIGHT_DIFF": flare.DataKind.WEIGHT_DIFF}
    for round in (0, 1):
        stated = round if told else None
        passed(
            flare,
            tmp_path,
            flare.DXO(flare.DataKind.WEIGHTS, sent[round]),
            chains.TASK_DATA_CHAIN,
            stated,
        )
        reply = flare.DXO(kinds[kind], back[round], {"NUM_STEPS_CURRENT_ROUND": 7})
        out = passed(flare, tmp_path, reply, chains.TASK_RESULT_CHAIN, stated)
        assert all(
            np.array_equal(flare.from_shareable(out).data[k], back[round][k]) for k in back[round]
        )
    (recording,) = read_recordings(tmp_path)
    number = flare.client_number(SITE)
    assert recording.client_nodes == (number,)
    for round, reply in enumerate(recording.replies_of(number)):
        assert reply.heading.round == round and reply.heading.partition == 1
        assert np.array_equal(reply.read_arrays()["w"], back[round]["w"])
        before = recording.broadcast_before(reply).read_arrays()
        assert np.array_equal(before["w"], sent[round]["w"])
        whole = back[round]["w"] + (sent[round]["w"] if kind == "WEIGHT_DIFF" else 0)
        assert np.allclose(recording.replied_parameters(reply)["w"], whole)


def test_what_cannot_be_kept_is_marked(flare: SimpleNamespace, tmp_path: Path) -> None:
    chain = flare.FilterChainType.TASK_RESULT_CHAIN
    passed(flare, tmp_path, flare.DXO(flare.DataKind.METRICS, {"a": 1.0}), chain, 0)
    passed(flare, tmp_path, flare.DXO(flare.DataKind.WEIGHTS, {"w": np.ones(2)}), chain, 0)
    with pytest.raises(DamagedRun, match="incomplete recording"):
        read_recordings(tmp_path)
