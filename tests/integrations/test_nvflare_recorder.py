"""NVFlare's filter chain with a tap in it: arrays are kept as they are, and pass on unchanged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare")

from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.filter import FilterChainType, FilterContextKey
from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

from privdd.integrations.nvflare_recorder import PrivddTap, client_number
from privdd.recording.recording import read_recordings
from privdd.runtime.files import DamagedRun


def passed(run: Path, dxo: DXO, chain: str, round: int | None) -> Shareable:
    """Through the tap of site-1."""
    shareable, context, tap = dxo.to_shareable(), FLContext(), PrivddTap(str(run))
    if round is not None:
        shareable.set_header("current_round", round)
    context.set_prop(ReservedKey.IDENTITY_NAME, "site-1", private=True, sticky=False)
    tap.set_prop(FilterContextKey.CHAIN_TYPE, chain)
    return tap.process(shareable, context)


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("kind", [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF])
def test_messages_are_recorded_and_unchanged(kind: str, told: bool, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    sent = [{"w": draw.normal(size=(3, 2)), "b": draw.normal(size=2)} for _ in range(2)]
    back = [{"w": draw.normal(size=(3, 2)), "b": draw.normal(size=2)} for _ in range(2)]
    for round in (0, 1):
        passed(tmp_path, DXO(DataKind.WEIGHTS, sent[round]), FilterChainType.TASK_DATA_CHAIN, round if told else None)
        out = passed(
            tmp_path, DXO(kind, back[round], {"NUM_STEPS_CURRENT_ROUND": 7}), FilterChainType.TASK_RESULT_CHAIN, round if told else None
        )
        assert all(np.array_equal(from_shareable(out).data[k], back[round][k]) for k in back[round])
    (recording,) = read_recordings(tmp_path)
    assert recording.client_nodes == (client_number("site-1"),)
    for round, reply in enumerate(recording.replies_of(client_number("site-1"))):
        assert reply.heading.round == round and reply.heading.partition == 1
        assert np.array_equal(reply.read_arrays()["w"], back[round]["w"])
        before = recording.broadcast_before(reply).read_arrays()
        assert np.array_equal(before["w"], sent[round]["w"])
        whole = back[round]["w"] + (sent[round]["w"] if kind == DataKind.WEIGHT_DIFF else 0)
        assert np.allclose(recording.replied_parameters(reply)["w"], whole)


def test_what_cannot_be_kept_is_marked(tmp_path: Path) -> None:
    passed(tmp_path, DXO(DataKind.METRICS, {"a": 1.0}), FilterChainType.TASK_RESULT_CHAIN, 0)
    passed(tmp_path, DXO(DataKind.WEIGHTS, {"w": np.ones(2)}), FilterChainType.TASK_RESULT_CHAIN, 0)
    with pytest.raises(DamagedRun, match="incomplete recording"):
        read_recordings(tmp_path)
