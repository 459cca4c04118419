"""What was kept of the values that clients sent, against the digests in the ledger."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from privdd.core.state import unpack
from privdd.federated.channel import digest
from privdd.federated.trust import SUM
from privdd.privacy.ledger import Ledger
from privdd.reporting.folder import RunRecord
from privdd.runtime.plain_folder import plain_files
from privdd.runtime.run_folder import read_tensors
from privdd.verifying.disagreement import Disagreement

KEPT = re.compile(r"artifacts/round_(\d+)/(?:client_(\d+)|sum)\.safetensors")


def check_sent(record: RunRecord, ledger: Ledger | None) -> Iterator[Disagreement]:
    """Every kept value is the one that a row of the ledger was written for, bit by bit.

    Raises DamagedRun for a file that is not readable as safetensors.
    """
    if ledger is not None:
        yield from check_kept(record.path, ledger)


def check_kept(folder: Path, ledger: Ledger) -> Iterator[Disagreement]:
    """The same for a folder of artifacts, whatever else it holds."""
    rows = {(r.round, r.client, r.name): r.digest for r in ledger.releases if r.visible_to != ("analyst",)}
    for name in sorted(plain_files(folder)):
        at = KEPT.fullmatch(name)
        if at is None:
            continue
        whole = read_tensors(folder / name)
        for sent in dict.fromkeys(key.split("/", 1)[0] for key in whole):
            stored = rows.get((int(at[1]), SUM if at[2] is None else int(at[2]), sent))
            found = digest(unpack(sent, whole))
            if stored != found:
                yield Disagreement(name, sent, f"{stored} in ledger.json", found)
