"""Values as they are typed."""

from __future__ import annotations

from typing import Any

import pytest

from privdd.core.validation import parse_literal


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("null", None), ("1e-5", 1e-5), ("[4,3]", [4, 3]), ("net:Net", "net:Net"), ("os.system('x')", "os.system('x')"), ("", "")],
)
def test_a_literal_is_read_and_all_else_is_text(text: str, value: Any) -> None:
    found = parse_literal(text)
    assert found == value and type(found) is type(value)
