"""A filter that records a federation of someone else's on NVFlare, for ``python -m privdd.audit
recording=DIR``.

``PrivddTap("run")`` stands last among a client's task result filters, so that it sees what really
leaves, and first among its task data filters. It changes nothing; whatever goes wrong is logged and
marked in the recording. None of NVFlare's own
privacy filters is recognised: everything counts as unprotected. Needs ``pip install nvflare``.
"""

from __future__ import annotations

import hashlib
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.dxo import DataKind, from_shareable
from nvflare.apis.filter import Filter, FilterChainType, FilterContextKey
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

from privdd.recording import CLIENTS_FOLDER, HEAD_FILE
from privdd.recording.recording import (
    BROADCAST,
    DIFFERENCE_KEY,
    REPLY,
    MessageHeading,
    MessageRecorder,
)

NVFLARE = f"nvflare {version('nvflare')}"
ROUND_HEADERS = ("current_round", "contribution_round")


def client_number(name: str) -> int:
    """A client's number: of its name, the same on every machine."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1


class PrivddTap(Filter):
    """run: the folder of the recording; a client's own part lies in RUN/clients/NUMBER."""

    def __init__(self, run: str) -> None:
        super().__init__()
        self.run = run

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """The message as it came, recorded."""
        name = str(fl_ctx.get_identity_name() or "client")
        folder = Path(self.run) / CLIENTS_FOLDER / str(client_number(name))
        recorder = MessageRecorder(folder, "client", {"library": NVFLARE, "claims": []})
        recorder.run_safely(
            "a message", lambda: self._record_message(recorder, name, shareable, fl_ctx)
        )
        return shareable

    def _record_message(
        self, recorder: MessageRecorder, name: str, shareable: Shareable, fl_ctx: FLContext
    ) -> None:
        if shareable.get_return_code() != ReturnCode.OK or "DXO" not in shareable:
            return
        out = self.get_prop(FilterContextKey.CHAIN_TYPE) == FilterChainType.TASK_RESULT_CHAIN
        dxo = from_shareable(shareable)
        if dxo.data_kind not in (DataKind.WEIGHTS, DataKind.WEIGHT_DIFF):
            raise ValueError(
                f"a message of kind {dxo.data_kind}: weights or their differences are recorded"
            )
        if not (recorder.folder / HEAD_FILE).is_file():
            recorder.write_head()
        numbers = {
            f"meta/{key}": value
            for key, value in dxo.meta.items()
            if out and type(value) in (int, float)
        }
        if dxo.data_kind == DataKind.WEIGHT_DIFF:
            numbers[DIFFERENCE_KEY] = 1
        last = re.search(r"(\d+)$", name)
        heading = MessageHeading(
            _message_round(recorder.folder, shareable, out),
            client_number(name),
            "train",
            REPLY if out else BROADCAST,
            0,
            int(last[1]) if last else None,
            numbers,
        )
        recorder.record_message(heading, {key: _to_array(value) for key, value in dxo.data.items()})


def _to_array(value: Any) -> np.ndarray:
    if hasattr(value, "detach"):
        return value.detach().cpu().numpy()
    return np.asarray(value)


def _message_round(folder: Path, shareable: Shareable, out: bool) -> int:
    """The round as NVFlare's workflows state it; a reply without a round answers the last one
    sent."""
    for name in ROUND_HEADERS:
        value = shareable.get_header(name)
        if isinstance(value, int):
            return value
    rounds = [int(path.name.removeprefix("round-")) for path in folder.glob("round-*")]
    latest = max(rounds, default=-1)
    return max(latest, 0) if out else latest + 1
