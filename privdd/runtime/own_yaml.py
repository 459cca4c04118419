"""YAML that the user wrote, as nodes that know their lines: whatever is wrong with it is said as
FILE:LINE and one sentence."""

from __future__ import annotations

from pathlib import Path

import yaml

from privdd.core.validation import BadConfig

MAX_BYTES = 2**20
BYTE_ORDER_MARKS = (b"\xff\xfe", b"\xfe\xff")  # of UTF-16, and of UTF-32 but for its zeros


def compose_own_yaml(file: Path) -> yaml.MappingNode | None:
    """The mapping that a file holds, nothing of it built; None for an empty file. Raises BadConfig,
    one line."""
    text = _read_text(file)
    try:
        node = yaml.compose(text, yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        raise BadConfig(_say_where(file, text, error)) from None
    except yaml.YAMLError as error:  # a character that YAML does not know
        position = getattr(error, "position", 0)
        line = text.count("\n", 0, position) + 1
        raise BadConfig(f"{file}:{line}: a character that YAML does not allow") from None
    except RecursionError:
        raise BadConfig(f"{file}:1: mappings and lists are nested too deeply") from None
    if node is None or isinstance(node, yaml.MappingNode):
        return node
    raise BadConfig(f"{file}:{node.start_mark.line + 1}: lines of the form KEY: VALUE are needed")


def _read_text(file: Path) -> str:
    if file.is_dir():
        raise BadConfig(f"{file}: a file is needed, this is a folder")
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise BadConfig(f"{file}: {(error.strerror or 'cannot be read').lower()}") from None
    if len(data) > MAX_BYTES:
        raise BadConfig(
            f"{file}: more than {MAX_BYTES} bytes, the most that a file of settings may have"
        )
    if data.startswith(BYTE_ORDER_MARKS):
        raise BadConfig(f"{file}:1: text in UTF-16; save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadConfig(f"{file}:{line}: the file must be saved as UTF-8") from None


def _say_where(file: Path, text: str, error: yaml.MarkedYAMLError) -> str:
    """FILE:LINE: what is wrong there, in the user's words where they are better than the
    library's."""
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 1
    lines = text.splitlines()
    here = lines[line - 1] if line <= len(lines) else ""
    problem = " ".join(str(error.problem or "is not YAML").split())
    opened = str(error.context or "")
    if "\\t" in problem or here[: len(here) - len(here.lstrip())].count("\t"):
        return f"{file}:{line}: a tab begins this line; YAML is indented by spaces"
    if "flow" in opened and error.context_mark:
        begun = text[: error.context_mark.index + 1]
        place = max(begun.rfind("["), begun.rfind("{"))
        return (
            f"{file}:{begun.count(chr(10), 0, place) + 1}: the {begun[place]} of this line is "
            "not closed"
        )
    if "quoted scalar" in opened and error.context_mark:
        return f"{file}:{error.context_mark.line + 1}: the quote of this line is not closed"
    return f"{file}:{line}: {problem}"
