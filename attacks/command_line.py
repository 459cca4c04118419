"""The parser of every command whose options begin with dashes."""

from __future__ import annotations

import argparse
import sys
from typing import Any, NoReturn

ERROR_PREFIX = "privdd: error"
USAGE_ERROR = 1  # 2 says that what a command tests is refuted


class CommandParser(argparse.ArgumentParser):
    """argparse's, but a mistake is one line on stderr with exit status 1, and no option may be
    abbreviated."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        print(f"{ERROR_PREFIX}: {message}; see --help", file=sys.stderr)
        raise SystemExit(USAGE_ERROR)
