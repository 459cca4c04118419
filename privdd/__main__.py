"""``privdd NAME ...``: one door to every command; each is ``python -m privdd.NAME`` as well.

Nothing of a command is imported before it was chosen, so that the list is quick.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Sequence

from privdd import __version__

COMMANDS = {
    "audit": "train federated clients, attack the messages of one, test the stated guarantee",
    "train": "train federated clients and account for their releases, without attacks",
    "attack": "attack a finished run again, or with further attacks; nothing is trained again",
    "resume": "go on with a run that was stopped",
    "target": "audit a model, synthetic data, updates or a recording that were made elsewhere",
    "scores": "audit membership scores that were computed elsewhere",
    "check": "search for inputs that refute the epsilon that a mechanism states",
    "account": "the epsilon of a training that is described by its numbers, or the noise for one",
    "report": "write the page of one run, a comparison of several, or a card",
    "verify": "compute a run's numbers again from its own files",
    "gate": "hold finished runs against the limits of a policy",
    "canary": "sealed canaries for a real federation: issue, open, verify",
    "reproduce": "train a table or figure of a paper, and compare",
    "selftest": "plant faults in small runs, and see which test catches each",
    "list": "the methods, attacks, data sets and other choices of an audit",
}
MODULES = {"canary": "privdd.canary.__main__", "reproduce": "privdd.reproduce.__main__"}
USAGE_ERROR = 1


def help_text() -> str:
    """The commands with one line each."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {does}" for name, does in COMMANDS.items()]
    usage = "usage: privdd COMMAND [...]        (or python -m privdd.COMMAND [...])"
    return "\n".join([usage, "", *lines, "", "privdd COMMAND --help says what each takes.", ""])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the first argument names.

    Args:
        argv: The arguments; those of this process by default.

    Returns:
        The exit status of the command; 1 with one line on stderr for an unknown one.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(help_text(), end="")
        return 0 if arguments else USAGE_ERROR
    name, *rest = arguments
    if name == "--version":
        print(f"privdd {__version__}")
        return 0
    if name not in COMMANDS:
        print(f"privdd: error: {name}: {_suggest_command(name)}", file=sys.stderr)
        return USAGE_ERROR
    module = importlib.import_module(MODULES.get(name, f"privdd.{name}"))
    sys.argv = [f"privdd-{name}", *rest]
    return int(module.main() or 0)


def _suggest_command(name: str) -> str:
    close = difflib.get_close_matches(name, COMMANDS, 1)
    if close:
        return f"unknown command; did you mean privdd {close[0]}?"
    if "=" in name:
        return f"a command is needed; did you mean privdd audit {name}?"
    return f"unknown command; known are {', '.join(COMMANDS)}"


if __name__ == "__main__":
    sys.exit(main())
