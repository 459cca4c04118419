"""Read and write ``findings.json`` (one-line errors, atomic writes, no NaN, no ``null``), and its published JSON Schema,
which ``python -m privdd.reporting.findings_file > docs/findings.schema.json`` writes anew."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from privdd.reporting.schema import READABLE, SCHEMA, Findings
from privdd.runtime import files
from privdd.runtime.files import DamagedRun, write_bytes


class FindingsError(DamagedRun):
    """A run folder that cannot be read; the message is one line."""


def _refuse_null(value: Any, path: str = "") -> None:
    if value is None:
        raise ValueError(f"{path}: null is not allowed (a key that does not apply is left out)")
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        _refuse_null(inner, f"{path}.{key}" if path else str(key))


def first_error_line(error: ValidationError) -> str:
    """One line for the first of pydantic's errors, with the number of the others."""
    errors = error.errors(include_url=False, include_context=False)
    where = ".".join(str(part) for part in errors[0]["loc"])
    rest = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    message = errors[0]["msg"].removeprefix("Value error, ")
    return f"{where}: {message}{rest}" if where else f"{message}{rest}"


def read_findings_json(path: Path) -> Any:
    """``files.read_json``. Raises FindingsError with one line."""
    try:
        return files.read_json(path)
    except DamagedRun as error:
        raise FindingsError(str(error)) from None


def validate_findings(data: Any, where: str = "findings") -> Findings:
    """A checked value from plain data. Raises FindingsError with one line."""
    if not isinstance(data, dict):
        raise FindingsError(f"{where}: an object is needed, got {type(data).__name__}")
    schema = data.get("schema")
    if isinstance(schema, bool) or schema not in READABLE:
        raise FindingsError(
            f"{where}: schema {schema!r}, this version reads schemas {' and '.join(map(str, READABLE))}"
        )
    try:
        _refuse_null(data)
        return Findings.model_validate(data)
    except ValidationError as error:
        raise FindingsError(f"{where}: {first_error_line(error)}") from None
    except ValueError as error:
        raise FindingsError(f"{where}: {error}") from None


def load_findings(path: Path | str) -> Findings:
    """Read findings.json, or the one inside a run folder. Raises FindingsError with one line."""
    path = Path(path)
    path = path / "findings.json" if path.is_dir() else path
    found = validate_findings(read_findings_json(path), str(path))
    found._origin.folder = path.parent
    return found


def dump_findings(findings: Findings) -> str:
    """The file's text: keys in the schema's order, absent keys left out, NaN refused."""
    data = findings.model_dump(mode="json", by_alias=True, exclude_none=True)
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_findings(findings: Findings | Mapping[str, Any], path: Path | str) -> Path:
    """Check, then replace the file in one step, so that no reader ever sees half of it.

    Raises FindingsError if a mapping does not follow the schema.
    """
    checked = findings if isinstance(findings, Findings) else validate_findings(dict(findings), str(path))
    try:
        text = dump_findings(checked)
    except ValueError as error:
        raise FindingsError(f"{path}: {error}") from None
    write_bytes(Path(path), text.encode())
    return Path(path)


def schema_text() -> str:
    """The schema as indented JSON, with a line end."""
    made = Findings.model_json_schema(by_alias=True)
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"privdd findings.json, schema {SCHEMA}",
    }
    return json.dumps({**head, **{k: v for k, v in made.items() if k != "title"}}, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(schema_text(), end="")
