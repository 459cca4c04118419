"""The share of one-line faults in privdd and attacks that the first suite notices.

    python tools/mutate.py [--count 60] [--seed 0] [--seconds 90] [--tests 8] [--only N ...]

Draws lines that run (each package in turn) and changes one of them: a comparison, a constant, a
sign, an arithmetic operator, a boolean, a call whose value nobody takes, a condition. The fault is
planted in a temporary clone, in which the tests named after the module run first, then those that
import it (but for nightly ones), until one fails: killed. A fault that no test notices within
its time survived. Prints one line a fault, then the share."""

from __future__ import annotations

import ast
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from attacks.command_line import CommandParser

ROOT = Path(__file__).resolve().parents[1]
NIGHTLY_FILE = re.compile(r"^pytestmark = .*mark\.nightly\b", re.MULTILINE)
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


def swap(node: ast.AST) -> ast.AST | None:
    """The node with one thing wrong; None where there is nothing to change."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return ast.Compare(node.left, [SWAPS[type(node.ops[0])]()], node.comparators)  # type: ignore[list-item]
    if isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
        return ast.BinOp(node.left, SWAPS[type(node.op)](), node.right)  # type: ignore[arg-type]
    if isinstance(node, ast.BoolOp):
        return ast.BoolOp(SWAPS[type(node.op)](), node.values)  # type: ignore[arg-type]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
        return node.operand
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return ast.Constant(not node.value)
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return ast.Constant(
            node.value + 1 if isinstance(node.value, int) else node.value * 1.5 + 0.1
        )
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return ast.Pass()
    return None


def mutants(text: str) -> Iterator[tuple[int, str, str]]:
    """(line, old, new) of every change within one line of a function; texts of errors and
    annotations are left alone."""
    lines = text.split("\n")
    tree = ast.parse(text)
    quiet = {id(part) for node in ast.walk(tree) for part in left_alone(node)}
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in (part for statement in function.body for part in ast.walk(statement)):
            new = None if id(node) in quiet else swap(node)
            if new is None or node.lineno != node.end_lineno:  # type: ignore[attr-defined]
                continue
            line = lines[node.lineno - 1].encode()  # type: ignore[attr-defined]
            # type: ignore[attr-defined]
            old = line.decode()
            start = node.col_offset
            end = node.end_col_offset
            if isinstance(new, ast.Constant | ast.Pass):
                code = ast.unparse(new)
            else:
                code = f"({ast.unparse(new)})"
            changed = (line[:start] + code.encode() + line[end:]).decode()
            try:
                ast.parse("\n".join([*lines[: node.lineno - 1], changed, *lines[node.lineno :]]))  # type: ignore[attr-defined]
            except SyntaxError:  # inside an f-string, say
                continue
            yield node.lineno, old, changed  # type: ignore[attr-defined]


def left_alone(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert):
        yield from ast.walk(node)
    if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
        yield from ast.walk(node.annotation)


def drawn(root: Path, count: int, seed: int) -> list[tuple[Path, int, str, str]]:
    """Faults from every package in turn; a file in proportion to its lines."""
    packages: dict[str, list[Path]] = defaultdict(list)
    for path in sorted([*root.glob("privdd/**/*.py"), *root.glob("attacks/**/*.py")]):
        packages[path.parent.relative_to(root).as_posix()].append(path)
    rng = random.Random(seed)
    found = []
    names = sorted(
        name
        for name, files in packages.items()
        if any("def " in file.read_text(encoding="utf-8") for file in files)
    )
    rng.shuffle(names)
    while len(found) < count:
        files = packages[names[len(found) % len(names)]]
        path = rng.choices(files, [file.stat().st_size for file in files])[0]
        choices = list(mutants(path.read_text(encoding="utf-8")))
        if choices:
            found.append((path.relative_to(root), *rng.choice(choices)))
    return found


def tests_of(root: Path, module: Path, limit: int) -> list[str]:
    """Files of tests named after the module, then those that import it, then those beside it that
    import what imports it."""
    name = module.with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
    files = {
        path: path.read_text(encoding="utf-8") for path in sorted(root.glob("tests/**/test_*.py"))
    }
    files = {path: text for path, text in files.items() if not NIGHTLY_FILE.search(text)}

    def imports(text: str, dotted: str) -> bool:
        package, _, stem = dotted.rpartition(".")
        named = rf"\b{re.escape(dotted)}\b|from {re.escape(package)} import [^\n]*\b{stem}\b"
        return re.search(named, text) is not None

    users = [
        path.relative_to(root)
        .with_suffix("")
        .as_posix()
        .replace("/", ".")
        .removesuffix(".__init__")
        for path in [*root.glob("privdd/**/*.py"), *root.glob("attacks/**/*.py")]
        if imports(path.read_text(encoding="utf-8"), name)
    ]

    folder = (
        root / "tests" / module.parent.relative_to("privdd" if module.parts[0] == "privdd" else ".")
    )

    def rank(path: Path) -> tuple[bool, bool, bool, int]:
        beside = path.parent == folder or path == folder.parent / f"test_{folder.name}.py"
        named = path.stem.startswith((f"test_{module.stem}", f"test_{folder.name}"))
        return (
            not (beside and named),
            not imports(files[path], name),
            not beside,
            path.stat().st_size,
        )

    found = [
        path
        for path in files
        if not rank(path)[0] or any(imports(files[path], user) for user in [name, *users])
    ]
    return [path.relative_to(root).as_posix() for path in sorted(found, key=rank)][:limit]


def killed(clone: Path, fault: tuple[Path, int, str, str], seconds: int, limit: int) -> str:
    """The first test that fails with the fault in place, or how it went on."""
    module, line, _, new = fault
    place = clone / module
    tests = tests_of(clone, module, limit)
    whole = place.read_text(encoding="utf-8")
    lines = whole.split("\n")
    place.write_text("\n".join([*lines[: line - 1], new, *lines[line:]]), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-m",
        "not nightly",
        "-p",
        "no:cacheprovider",
        *tests,
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(clone),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    environment["PRIVDD_TEST_ORDER"] = "given"  # the tests named after the module first
    try:
        done = subprocess.run(
            command, cwd=clone, env=environment, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return "OUT OF TIME"  # slow tests or an endless loop: not counted as noticed
    finally:
        place.write_text(whole, encoding="utf-8")
    if done.returncode in (0, 5):
        return "SURVIVED"
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return failed[1] if failed else f"exit status {done.returncode}"


def main() -> int:
    parser = CommandParser(description=(__doc__ or "").splitlines()[0])
    for name, value in (("count", 60), ("seed", 0), ("seconds", 90), ("tests", 8)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--only", type=int, nargs="+", help="numbers of single faults")
    given = parser.parse_args()
    seen = total = 0
    with tempfile.TemporaryDirectory(prefix="privdd-mutants-") as place:
        clone = Path(place) / "clone"
        subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(clone)], check=True)
        for number, fault in enumerate(drawn(clone, given.count, given.seed)):
            if given.only and number not in given.only:
                continue
            found = killed(clone, fault, given.seconds, given.tests)
            total = total + 1
            seen = seen + (not found.isupper())
            print(
                f"{number} {fault[0].as_posix()}:{fault[1]}: {fault[2].strip()}  ->  "
                f"{fault[3].strip()}  {found}",
                flush=True,
            )
    print(f"{seen} of {total} faults were noticed")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
