"""``training.json`` of a run that was only trained, against the ledger of its last round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from privdd.privacy.ledger import Ledger
from privdd.reporting.folder import RunRecord, read_config
from privdd.reporting.trained import read_training
from privdd.runtime.files import DamagedRun, read_json, safe_name
from privdd.runtime.plain_folder import check_folder
from privdd.runtime.run_folder import RunFolder
from privdd.runtime.seal import FILES
from privdd.verifying.disagreement import Disagreement, Unverified, differing
from privdd.verifying.file_digests import check_drawn_from
from privdd.verifying.ledger_numbers import epsilons

FILE = "training.json"


def verified_training(folder: Path) -> RunRecord:
    """A finished training whose epsilons follow from its ledger. Raises DamagedRun, or Unverified for one that differs."""
    check_folder(folder)
    record = read_training(folder)
    manifest = read_json(RunFolder(folder).manifest) if RunFolder(folder).manifest.is_file() else {}
    wrong = list(check_drawn_from(folder, manifest)) if FILES in manifest else []
    wrong = wrong or list(check_training(folder))
    if wrong:
        raise Unverified(f"{folder}: {wrong[0]}")
    return record


def check_training(folder: Path) -> Iterator[Disagreement]:
    """Epsilon, delta, unit, relation and accuracy. Raises DamagedRun for a damaged state."""
    stored, head = (_object(file) for file in (folder / FILE, RunFolder(folder).checkpoint))
    place = folder / "state" / safe_name(str(head.get("state"))) / "ledger.json"
    try:
        ledger = Ledger.from_json(read_json(place))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedRun(f"{place}: {' '.join(str(error).split())[:200]}") from None
    found: dict[str, Any] = {"delta": ledger.delta, "unit": ledger.unit, "relation": ledger.relation}
    found |= {"epsilon": epsilons(ledger), "accuracy_by_round": head.get("accuracy")}
    by_round = stored.get("accuracy_by_round")
    if isinstance(by_round, list) and by_round:
        found["accuracy"] = by_round[-1]
    for key, value in found.items():
        yield from differing(FILE, key, stored.get(key), value)
    seed, manifest = read_config(folder / "config.yaml").get("seed"), _object(RunFolder(folder).manifest)
    yield from differing("manifest.json", "seed", manifest.get("seed"), seed)


def _object(file: Path) -> Mapping[str, Any]:
    found = read_json(file)
    if not isinstance(found, dict):
        raise DamagedRun(f"{file}: an object is needed")
    return found
