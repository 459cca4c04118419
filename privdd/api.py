"""Everything that scripts, notebooks and extensions need, in one place.

The commands as functions:

>>> from privdd.api import audit
>>> found = audit(algo="fedavg", preset="smoke", out="runs/first")  # doctest: +SKIP
>>> found.verdict, found.to_frame(), found.plot("roc")  # doctest: +SKIP

For a class of your own, which a yaml file names in ``_target_`` (docs/tutorials/own-method.md):

- a method inherits from ``Method``, or from ``FedAvg`` where it averages models (its hooks take a
  ``ClientRound`` and return what was ``Trained`` in it); ``ReadsUploads``, ``StatesClaims``,
  ``FastReplay``, ``Distils`` and ``DiffersByClient`` give an audit further knowledge of it,
  ``check_method`` tests its contract;
- a mechanism inherits from ``Mechanism`` and returns an ``Output``; ``Noise`` is its only
  randomness, and ``Lattice`` adds it so that low bits tell nothing;
- an attack inherits from ``Attack``, or from ``MembershipAttack`` where it scores records: it turns
  a ``View`` into ``Evidence``, and the evidence, held against the ``Truth``, into a ``Finding``
  with the measures of its family (``MembershipMeasures``, ``ReconstructionMeasures``,
  ``LabelMeasures`` or ``GuaranteeMeasures``);
- a data set of your own is an npz file, a folder of pictures or a table (``data=npz``,
  ``data=folder``, ``data=table``), or a ``Dataset``;
- ``check`` looks for what refutes the stated epsilon of any function on arrays; ``assert_private``
  does so in a test;
- ``audit_model`` attacks a model that was trained elsewhere, of scikit-learn, torch or anything
  else, ``audit_synthetic`` a synthetic data set, and ``audit_message`` what a client sent, as
  ``ClientMessages`` keeps it in a training loop of your own;
- ``account`` gives the epsilon of a training that is described by its numbers, or the noise for an
  epsilon;
- ``reconstruction`` says from a ``Ledger`` how often a record could be named among k candidates;
- ``ModelSpec`` names a network, ``build`` makes it, ``initial`` draws its weights.

These names are imported on first use, so that ``import privdd.api`` stays quick.
"""

from __future__ import annotations

import importlib
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attacks.measures import (
        GuaranteeMeasures,
        LabelMeasures,
        MembershipMeasures,
        ReconstructionMeasures,
    )
    from attacks.membership.attack import MembershipAttack
    from attacks.membership.threshold import LossThreshold
    from attacks.types import (
        Adversary,
        Attack,
        Capture,
        Evidence,
        Family,
        Finding,
        Knowledge,
        Surface,
        Truth,
        View,
        Worlds,
    )
    from privdd.auditing.client_hooks import DiffersByClient
    from privdd.auditing.method_contract import BrokenContract, check_method
    from privdd.blackbox.check_verdict import Checked
    from privdd.blackbox.runner import assert_private, check
    from privdd.cli.main import config_of
    from privdd.core.rng import Keys
    from privdd.core.types import (
        Artifact,
        Problem,
        Received,
        Records,
        Shard,
        State,
        Tensors,
        Upload,
        pack,
        unpack,
    )
    from privdd.data.dataset import Dataset
    from privdd.external.runner import audit_message, audit_model, audit_synthetic
    from privdd.federated.aggregation import average
    from privdd.federated.audit_hooks import Distils, FastReplay, ReadsUploads, StatesClaims
    from privdd.federated.channel import ClientContext
    from privdd.federated.method import Method
    from privdd.methods.fedavg import FedAvg
    from privdd.models import ModelSpec, build, initial
    from privdd.privacy.account import Account, NoisedSteps, account
    from privdd.privacy.claims import Claim
    from privdd.privacy.lattice import Lattice
    from privdd.privacy.ledger import Ledger
    from privdd.privacy.mechanism import Mechanism, Output
    from privdd.privacy.noise import Noise
    from privdd.privacy.reconstruction import Naming, reconstruction
    from privdd.recording.client_messages import ClientMessages
    from privdd.reporting.notebook import AuditFindings
    from privdd.reporting.run_record import RunRecord
    from privdd.reporting.schema import Findings
    from privdd.training.sgd import ClientRound, Trained
    from privdd.verification.run_folder import compare, frontier
    from privdd.verification.run_folder import load_run as load_run

_BY_MODULE = {
    "attacks.measures": "GuaranteeMeasures LabelMeasures MembershipMeasures ReconstructionMeasures",
    "attacks.membership.attack": "MembershipAttack",
    "attacks.membership.threshold": "LossThreshold",
    "attacks.types": "Adversary Attack Capture Evidence Family Finding Knowledge Surface Truth "
    "View Worlds",
    "privdd.auditing.client_hooks": "DiffersByClient",
    "privdd.auditing.method_contract": "BrokenContract check_method",
    "privdd.external.runner": "audit_message audit_model audit_synthetic",
    "privdd.blackbox.runner": "assert_private check",
    "privdd.blackbox.check_verdict": "Checked",
    "privdd.cli.main": "config_of",
    "privdd.core.rng": "Keys",
    "privdd.core.types": "Artifact Problem Received Records Shard State Tensors Upload pack unpack",
    "privdd.data.dataset": "Dataset",
    "privdd.federated.aggregation": "average",
    "privdd.federated.channel": "ClientContext",
    "privdd.federated.audit_hooks": "Distils FastReplay ReadsUploads StatesClaims",
    "privdd.federated.method": "Method",
    "privdd.methods.fedavg": "FedAvg",
    "privdd.models": "ModelSpec build initial",
    "privdd.privacy.account": "Account NoisedSteps account",
    "privdd.privacy.claims": "Claim",
    "privdd.privacy.lattice": "Lattice",
    "privdd.privacy.ledger": "Ledger",
    "privdd.privacy.mechanism": "Mechanism Output",
    "privdd.privacy.noise": "Noise",
    "privdd.privacy.reconstruction": "Naming reconstruction",
    "privdd.recording.client_messages": "ClientMessages",
    "privdd.reporting.run_record": "RunRecord",
    "privdd.reporting.schema": "Findings",
    "privdd.training.sgd": "ClientRound Trained",
    "privdd.verification.run_folder": "load_run compare frontier",
}
PUBLIC: dict[str, str] = {}  # name -> its module
for _module, _names in _BY_MODULE.items():
    PUBLIC |= dict.fromkeys(_names.split(), _module)

__all__ = [
    "Account",
    "Adversary",
    "Artifact",
    "Attack",
    "BrokenContract",
    "Capture",
    "Checked",
    "Claim",
    "ClientContext",
    "ClientMessages",
    "ClientRound",
    "Dataset",
    "DiffersByClient",
    "Distils",
    "Evidence",
    "Family",
    "FastReplay",
    "FedAvg",
    "Finding",
    "Findings",
    "GuaranteeMeasures",
    "Keys",
    "Knowledge",
    "LabelMeasures",
    "Lattice",
    "Ledger",
    "LossThreshold",
    "Mechanism",
    "MembershipAttack",
    "MembershipMeasures",
    "Method",
    "ModelSpec",
    "Naming",
    "Noise",
    "NoisedSteps",
    "Output",
    "Problem",
    "ReadsUploads",
    "Received",
    "ReconstructionMeasures",
    "Records",
    "RunRecord",
    "Shard",
    "State",
    "StatesClaims",
    "Surface",
    "Tensors",
    "Trained",
    "Truth",
    "Upload",
    "View",
    "Worlds",
    "account",
    "assert_private",
    "audit",
    "audit_message",
    "audit_model",
    "audit_synthetic",
    "average",
    "build",
    "check",
    "check_method",
    "compare",
    "config_of",
    "frontier",
    "initial",
    "load_run",
    "pack",
    "reconstruction",
    "train",
    "unpack",
]


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


def audit(
    *overrides: str,
    out: Path | str | None = None,
    config_dir: Path | str | None = None,
    **settings: Any,
) -> AuditFindings:
    """Train, replay, attack and report, as ``privdd audit`` does.

    A folder that holds a part of the same run is gone on with.

    Args:
        *overrides: As on the command line, "privacy.epsilon=3".
        out: The run's folder; a new one under ./outputs by default.
        config_dir: A folder of your own yaml files.
        **settings: The same as keywords: algo="fedavg", attack=["lira"], privacy={"epsilon": 3}.

    Returns:
        What findings.json holds; ``to_frame()`` and ``plot()`` show it.

    Raises:
        ValueError: One line, for what cannot run.

    Example:
        >>> found = audit(algo="fedavg", preset="smoke", out="runs/first")  # doctest: +SKIP
        >>> found.verdict  # doctest: +SKIP
        'unprotected'
    """
    from privdd.reporting.notebook import with_views
    from privdd.reporting.run_record import read_run_record

    folder = _run_into("audit", overrides, out, config_dir, settings)
    return with_views(read_run_record(folder).findings, folder)


def train(
    *overrides: str,
    out: Path | str | None = None,
    config_dir: Path | str | None = None,
    **settings: Any,
) -> Mapping[str, Any]:
    """Train without attacks, as ``privdd train`` does.

    Args:
        *overrides: As of ``audit``.
        out: As of ``audit``.
        config_dir: As of ``audit``.
        **settings: As of ``audit``.

    Returns:
        What training.json holds: accuracy, accuracy_by_round, epsilon {"pld", "rdp"}, bytes.

    Raises:
        ValueError: One line, for what cannot run.
    """
    from privdd.runtime.files import read_json

    return read_json(_run_into("train", overrides, out, config_dir, settings) / "training.json")


def _run_into(
    command: str,
    overrides: tuple[str, ...],
    out: Path | str | None,
    config_dir: Path | str | None,
    settings: Mapping[str, Any],
) -> Path:
    """The folder of the run that ``python -m privdd.COMMAND`` makes."""
    from privdd.cli.compose import settings_to_overrides
    from privdd.cli.main import config_of
    from privdd.cli.run import run_audit, run_training
    from privdd.cli.secret import without_secret
    from privdd.runtime.process_pool import own_workers

    folder = _output_folder(out)
    typed = (*overrides, *settings_to_overrides(settings))
    run = {"audit": run_audit, "train": run_training}[command]
    with own_workers():
        config = config_of(command, *typed, config_dir=config_dir)
        run(config, folder, ["python", "-m", f"privdd.{command}", *without_secret(typed)])
    return folder


def _output_folder(out: Path | str | None) -> Path:
    if out is not None:
        return Path(out)
    return Path(time.strftime("outputs/%Y-%m-%d/%H-%M-%S-") + uuid.uuid4().hex[:6])
