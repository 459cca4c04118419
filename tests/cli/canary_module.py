"""Writes a file when it is imported, or when one of its functions is called: what a hostile config
would like to do."""

from __future__ import annotations

import os
from pathlib import Path

from privdd.methods.fedavg import FedAvg
from privdd.methods.own_training import OwnTraining


def sing(*_: object, **__: object) -> None:
    Path(os.environ["PRIVDD_CANARY"]).write_text("sung")


if "PRIVDD_CANARY" in os.environ:
    sing()


class Own(FedAvg):
    """A method of a user's own package."""


class Trains(OwnTraining):
    """Under a name that says nothing of what it is."""
