"""The kinds of values in ``findings.json``: what a number, a text or a file's name may be."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema

Verdict = Literal["unprotected", "untested", "consistent", "contradiction"]
Status = Literal["measured", "nothing_to_read", "not_attacked"]
TargetKind = Literal["model", "synthetic", "updates", "recording", "scores"]
Relation = Literal["add_remove", "zero_out", "replace"]


def _to_float(value: Any) -> Any:
    return math.inf if value == "inf" else value


def _to_json(value: float) -> float | str:
    return "inf" if math.isinf(value) else value


Finite = Annotated[float, Field(allow_inf_nan=False)]
Unit = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Positive = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
Epsilon = Annotated[
    float,
    BeforeValidator(_to_float),
    Field(ge=0),
    PlainSerializer(_to_json, return_type=float | str),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0}, {"const": "inf"}]}),
]
Decibel = Annotated[
    float,
    BeforeValidator(_to_float),
    Field(gt=-math.inf),
    PlainSerializer(_to_json, return_type=float | str),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"const": "inf"}]}),
]
# No control characters: these texts reach terminals, drawings and pages.
Text = Annotated[str, Field(max_length=4000, pattern=r"^[^\x00-\x08\x0b-\x1f\x7f-\x9f]*$")]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.\-]*\.safetensors$")]


class Part(BaseModel):
    """Immutable, and no key beyond those named."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


@dataclass
class Origin:
    """Which folder findings were read from, and what kind of target they are of ("" for a simulation): no part of what
    they say, so any two are equal."""

    folder: Path | None = field(default=None, compare=False)
    target: TargetKind | Literal[""] = field(default="", compare=False)


@dataclass
class Looks:
    """What a row has to know of its file: at how many rates the page looks for an attack that works, and the unit of
    privacy. No part of what the row says, so any two are equal."""

    count: int = field(default=1, compare=False)
    unit: str = field(default="record", compare=False)
