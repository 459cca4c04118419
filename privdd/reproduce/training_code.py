"""A digest of the code that decides the numbers of one row of a table: the modules of the core that
its settings name, and those that they import, one from another.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from privdd.cli.paper_rows import row_config
from privdd.cli.plain_config import children, to_plain_settings
from privdd.reproduce.code_digest import ALWAYS, code_digest, is_deciding
from privdd.runtime.yaml_files import TARGET


@cache
def training_code(overrides: tuple[str, ...]) -> str:
    """The digest for one row of a table, as eight hexadecimal digits."""
    settings = to_plain_settings(row_config(overrides))
    modules = {name.rpartition(".")[0] for name in _named_targets(settings)}
    return code_digest(tuple(sorted({*ALWAYS, *filter(is_deciding, modules)})))


def _named_targets(node: Any) -> Iterator[str]:
    """Every class that settings name, at or below ``node``."""
    for key, part in children(node):
        if key == TARGET and isinstance(part, str):
            yield part
        yield from _named_targets(part)
