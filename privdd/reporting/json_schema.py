"""The JSON Schema of ``findings.json``, made from the typed model: published as docs/findings.schema.json.

python -m privdd.reporting.json_schema > docs/findings.schema.json
"""

from __future__ import annotations

import json

from privdd.reporting.schema import SCHEMA, Findings


def text() -> str:
    """The schema as indented JSON, with a line end."""
    made = Findings.model_json_schema(by_alias=True)
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"privdd findings.json, schema {SCHEMA}",
    }
    return json.dumps({**head, **{k: v for k, v in made.items() if k != "title"}}, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(text(), end="")
