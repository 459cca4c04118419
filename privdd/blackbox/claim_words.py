"""The words that a claim about a mechanism is stated in. Imports nothing, so that help is quick."""

from __future__ import annotations

from typing import Literal

Kind = Literal["update", "aggregate", "records"]
Neighbours = Literal["add_remove", "replace", "zero_out"]
Law = Literal["gaussian", "laplace"]
Inputs = Literal["finite", "any"]
Sampling = Literal["shuffled", "balls_in_bins"]
