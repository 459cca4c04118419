"""The settings that a paper prints, compared with those of its rows at preset=paper."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from omegaconf import DictConfig, OmegaConf

from privdd.cli.compose import config_dir, group_choices
from tests.configs.experiment_terms import columns_of, rows_of

SELECTORS = {"experiments", "columns", "rows", "unless"}


@dataclass(frozen=True)
class PaperRow:
    experiment: str
    column: str
    row: str
    config: DictConfig

    def value(self, key: str) -> Any:
        """None for a key that it lacks; ``local``: the local training of whichever method it
        has."""
        if key.startswith("local."):
            inner = next(
                (f"algo.{name}" for name in ("base", "inner") if name in self.settings["algo"]),
                "algo",
            )
            key = f"{inner}.{key.removeprefix('local.')}"
        found: Any = self.settings
        for part in key.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        return found

    @cached_property
    def settings(self) -> Any:
        """The config as plain values: one is looked up a hundred times."""
        return OmegaConf.to_container(self.config, resolve=True)

    def is_meant(self, statement: Mapping[str, Any]) -> bool:
        words = {*self.row.split()}
        return (
            self.experiment in statement.get("experiments", [self.experiment])
            and any(
                re.search(rf"(^|, ){re.escape(part)}($|[, ])", self.column)
                for part in statement.get("columns", [self.column])
            )
            and any(words >= {*one.split()} for one in statement.get("rows", [self.row]))
            and not any(words >= {*one.split()} for one in statement.get("unless", []))
        )


def rows_of_paper(paper: str) -> list[PaperRow]:
    names = [
        name for name in group_choices("experiment", [config_dir()]) if name.startswith(f"{paper}_")
    ]
    return [row for name in names for row in rows_of_experiment(name)]


def rows_of_experiment(name: str) -> list[PaperRow]:
    return [
        PaperRow(name, column, row, config)
        for column in columns_of(name)
        for row, config in rows_of(name, column, "preset=paper").items()
    ]


def compare_settings(details: Mapping[str, Any], rows: list[PaperRow]) -> list[str]:
    """What is wrong, one line each: a setting that is neither the paper's nor listed, a statement
    or a listed deviation that no row has (any more)."""
    return list(
        dict.fromkeys(
            [*_unlisted(details, rows), *_without_rows(details, rows), *_not_there(details, rows)]
        )
    )


def _unlisted(details: Mapping[str, Any], rows: list[PaperRow]) -> Iterator[str]:
    for row in rows:
        for key, (where, printed) in _printed(details, row).items():
            if not _is_as_printed(key, printed, row, rows, details) and row.value(
                key
            ) not in _listed_values(details, row, key):
                yield (
                    f"{row.experiment}, {row.column}, {row.row}: {key} is {row.value(key)}, "
                    f"{where} has {printed}"
                )


def _without_rows(details: Mapping[str, Any], rows: list[PaperRow]) -> Iterator[str]:
    for statement in [*details["printed"], *details["deviations"]]:
        if not any(row.is_meant(statement) for row in rows):
            yield f"{statement.get('where') or statement['what']}: no row is meant"


def _not_there(details: Mapping[str, Any], rows: list[PaperRow]) -> Iterator[str]:
    """A deviation's values are those of every row meant that has such a setting, and are not what
    the paper prints there."""
    for one in details["deviations"]:
        for key, ours in one.get("settings", {}).items():
            held = [row for row in rows if row.is_meant(one) and row.value(key) is not None]
            printed = [_printed(details, row).get(key) for row in held]
            if not held or any(row.value(key) != ours for row in held):
                yield (
                    f"{one['what']}: {key} is "
                    f"{sorted({str(row.value(key)) for row in held})}, not {ours}"
                )
            elif any(
                found and _is_as_printed(key, found[1], row, rows, details)
                for row, found in zip(held, printed, strict=True)
            ):
                yield f"{one['what']}: {key} is as the paper prints it"


def _printed(details: Mapping[str, Any], row: PaperRow) -> dict[str, tuple[str, Any]]:
    """key -> (where, value): the last statement that names it counts."""
    return {
        key: (one["where"], value)
        for one in details["printed"]
        if row.is_meant(one)
        for key, value in one["settings"].items()
    }


def _is_as_printed(
    key: str, printed: Any, row: PaperRow, rows: list[PaperRow], details: Mapping[str, Any]
) -> bool:
    if isinstance(printed, dict):  # one of these, and each is a row's
        same = [
            other
            for other in rows
            if other.experiment == row.experiment
            and _printed(details, other).get(key, (0, 0))[1] == printed
        ]
        return row.value(key) in printed["tuned"] and {*printed["tuned"]} <= {
            other.value(key) for other in same
        }
    return bool(row.value(key) == printed)


def _listed_values(details: Mapping[str, Any], row: PaperRow, key: str) -> list[Any]:
    return [
        one["settings"][key]
        for one in details["deviations"]
        if key in one.get("settings", {}) and row.is_meant(one)
    ]
