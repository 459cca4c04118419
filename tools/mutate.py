"""The share of one-line faults in privdd and attacks that the first suite notices.

    python tools/mutate.py [--count 60] [--seed 0] [--seconds 60] [--tests 8] [--only N ...]

Draws lines that run (each package in turn) and changes one of them: a comparison, a constant, a
sign, an arithmetic operator, a boolean, a call whose value nobody takes, a condition.

All of it happens in a temporary clone. For half of ``--seconds`` a fault meets the tests that are
named after its module, then those that import it and those beside it (but for nightly ones), until
one fails. For the faults that none of them noticed, the same tests run once without a fault, with a
probe at each place: so it is known which tests reach it, and what each takes. Then each of these
faults meets, for the other half, the tests that reach its place, quick ones first. Imports and
collection do not count. A fault that nothing notices within its time was not noticed. Prints one
line a fault, then the share."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import fault_tests

from attacks.command_line import CommandParser

ROOT = Path(__file__).resolve().parents[1]
NIGHTLY_FILE = re.compile(r"^pytestmark = .*mark\.nightly\b", re.MULTILINE)
IMPORT_SECONDS = 300  # at most, for imports and collection beside the tests
SLOW_SECONDS = 3.0  # a test that takes longer comes after all that do not
NO_TESTS = 5  # the exit status of pytest if it ran none
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


@dataclass(frozen=True)
class Fault:
    """One change within one line of a module."""

    module: Path  # below the root
    line: int  # from 1
    start: int  # bytes of the line before the node that is changed
    end: int
    old: str  # the line
    new: str


@dataclass
class TestTimes:
    """What the run with probes noted."""

    seconds: dict[str, float] = field(default_factory=dict)  # test that passed -> what it took
    reaching: dict[int, set[str]] = field(default_factory=dict)  # fault -> tests that reach it


def mutants(module: Path, text: str) -> Iterator[Fault]:
    """Every change within one line of a function; texts of errors and annotations are left
    alone."""
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
            line: int = node.lineno  # type: ignore[attr-defined]
            start: int = node.col_offset  # type: ignore[attr-defined]
            end: int = node.end_col_offset  # type: ignore[attr-defined]
            old = lines[line - 1].encode()
            if isinstance(new, ast.Constant | ast.Pass):
                code = ast.unparse(new)
            else:
                code = f"({ast.unparse(new)})"
            changed = (old[:start] + code.encode() + old[end:]).decode()
            try:
                ast.parse("\n".join([*lines[: line - 1], changed, *lines[line:]]))
            except SyntaxError:  # inside an f-string, say
                continue
            yield Fault(module, line, start, end, old.decode(), changed)


def left_alone(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert):
        yield from ast.walk(node)
    if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
        yield from ast.walk(node.annotation)


def drawn(root: Path, count: int, seed: int) -> list[Fault]:
    """Faults from every package in turn; a file in proportion to its lines."""
    packages: dict[str, list[Path]] = defaultdict(list)
    for path in sorted([*root.glob("privdd/**/*.py"), *root.glob("attacks/**/*.py")]):
        packages[path.parent.relative_to(root).as_posix()].append(path)
    rng = random.Random(seed)
    faults: list[Fault] = []
    names = sorted(
        name
        for name, files in packages.items()
        if any("def " in file.read_text(encoding="utf-8") for file in files)
    )
    rng.shuffle(names)
    while len(faults) < count:
        files = packages[names[len(faults) % len(names)]]
        path = rng.choices(files, [file.stat().st_size for file in files])[0]
        choices = list(mutants(path.relative_to(root), path.read_text(encoding="utf-8")))
        if choices:
            faults.append(rng.choice(choices))
    return faults


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


class _ProbePlanter(ast.NodeTransformer):
    """Puts ``reach(number) or`` before the expressions at some places."""

    def __init__(self, numbers: dict[tuple[int, int, int], list[int]]) -> None:
        self.numbers = numbers  # (line, start, end) -> faults

    def visit(self, node: ast.AST) -> ast.AST:
        node = self.generic_visit(node)
        if not isinstance(node, ast.expr):
            return node
        place = (node.lineno, node.col_offset, node.end_col_offset or 0)
        for number in self.numbers.pop(place, ()):
            call = f"__import__({fault_tests.__name__!r}).reach({number})"
            probe = ast.parse(call, mode="eval").body
            node = ast.copy_location(ast.BoolOp(ast.Or(), [probe, node]), node)
        return node


def plant_probes(clone: Path, faults: dict[int, Fault]) -> None:
    """Write each module of the faults with a probe at every fault's place, and nothing changed."""
    numbers: dict[Path, dict[tuple[int, int, int], list[int]]] = {}
    for number, fault in faults.items():
        places = numbers.setdefault(fault.module, {})
        places.setdefault((fault.line, fault.start, fault.end), []).append(number)
    for module, places in numbers.items():
        tree = ast.parse((clone / module).read_text(encoding="utf-8"))
        probed = ast.fix_missing_locations(_ProbePlanter(places).visit(tree))
        (clone / module).write_text(ast.unparse(probed) + "\n", encoding="utf-8")


def run_tests(
    clone: Path, files: Sequence[str], seconds: float, first_only: bool, **settings: str
) -> tuple[int, str]:
    """The exit status of pytest on some files of the clone, and what it printed. Raises
    subprocess.TimeoutExpired.

    settings: variables of ``fault_tests``.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not nightly"]
    command += ["-p", "no:cacheprovider", "-p", fault_tests.__name__, *files]
    if first_only:
        command.append("-x")
    environment = {
        **os.environ,
        "PYTHONPATH": f"{clone}{os.pathsep}{Path(__file__).parent}",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PRIVDD_TEST_ORDER": "given",
        **settings,
    }
    with subprocess.Popen(
        command,
        cwd=clone,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            printed, _ = process.communicate(timeout=seconds)
        finally:
            stop_group(process.pid)  # also what a test started and left running
    return process.returncode, printed


def stop_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def time_tests(clone: Path, faults: dict[int, Fault], limit: int) -> TestTimes:
    """Run all tests of the faults' modules once, with probes in place of faults."""
    modules = dict.fromkeys(fault.module for fault in faults.values())
    files: dict[str, None] = {}
    for module in modules:
        files.update(dict.fromkeys(tests_of(clone, module, limit)))
    plant_probes(clone, faults)
    notes = clone.parent / "notes.jsonl"
    notes.touch()
    run_tests(clone, list(files), 3600, False, **{fault_tests.NOTES: str(notes)})
    subprocess.run(["git", "checkout", "--quiet", "."], cwd=clone, check=True)
    return read_notes([json.loads(line) for line in notes.read_text().splitlines()])


def read_notes(notes: Sequence[dict[str, object]]) -> TestTimes:
    """Only of tests that passed. A shared fixture that reaches a place does so for all of its
    users."""
    times = TestTimes()
    users: dict[str, set[str]] = defaultdict(set)
    for note in notes:
        if note.get("passed"):
            test = str(note["ended"])
            times.seconds[test] = float(str(note["seconds"]))
            for fixture in note["fixtures"]:  # type: ignore[attr-defined]
                users[fixture].add(test)
    for note in notes:
        if "number" in note:
            reaching = times.reaching.setdefault(int(str(note["number"])), set())
            reaching |= {str(note["test"])} & times.seconds.keys()
            reaching |= users.get(str(note["fixture"]), set())
    return times


def order_tests(times: TestTimes, number: int, files: Sequence[str], seconds: float) -> list[str]:
    """The tests that meet a fault: those that reach its place, then the others of its module's
    ``files``, as many as take about ``seconds``.

    Of both, quick tests come before slow ones, those of the module's own files before others, and
    those of one file together, the quickest first.
    """
    reaching = times.reaching.get(number, set())
    places = {file: place for place, file in enumerate(files)}

    def rank(test: str) -> tuple[bool, bool, int, str, float]:
        file = test.partition("::")[0]
        taken = times.seconds[test]
        place = places.get(file, len(files))
        return test not in reaching, taken > SLOW_SECONDS, place, file, taken

    tests = [t for t in times.seconds if t in reaching or t.partition("::")[0] in places]
    chosen: list[str] = []
    total = 0.0
    for test in sorted(tests, key=rank):
        if total > seconds:
            break
        chosen.append(test)
        total += times.seconds[test]
    return chosen


def outcome_of(clone: Path, fault: Fault, tests: Sequence[str], seconds: float) -> str:
    """The first test that fails with the fault in place, or, in capitals, how it went on.

    tests: files, or ids of single tests in their order.
    """
    place = clone / fault.module
    honest = place.read_text(encoding="utf-8")
    lines = honest.split("\n")
    lines[fault.line - 1] = fault.new
    settings = {fault_tests.SECONDS: str(seconds)}
    if any("::" in test for test in tests):
        order = clone.parent / "order.txt"
        order.write_text("\n".join(tests), encoding="utf-8")
        settings[fault_tests.ORDER] = str(order)
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
    if not files:
        return "NO TEST"
    place.write_text("\n".join(lines), encoding="utf-8")
    try:
        status, printed = run_tests(clone, files, seconds + IMPORT_SECONDS, True, **settings)
    except subprocess.TimeoutExpired:
        return "OUT OF TIME"  # an endless loop: not counted as noticed
    finally:
        place.write_text(honest, encoding="utf-8")
    if status == fault_tests.OUT_OF_TIME:
        return "OUT OF TIME"  # slow tests: not counted as noticed
    if status in (0, NO_TESTS):
        return "SURVIVED"
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", printed, re.MULTILINE)
    return failed[1] if failed else f"exit status {status}"


def print_outcome(number: int, fault: Fault, outcome: str) -> None:
    place = f"{fault.module.as_posix()}:{fault.line}"
    print(f"{number} {place}: {fault.old.strip()}  ->  {fault.new.strip()}  {outcome}", flush=True)


def main() -> int:
    parser = CommandParser(description=(__doc__ or "").splitlines()[0])
    for name, value in (("count", 60), ("seed", 0), ("seconds", 60), ("tests", 8)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--only", type=int, nargs="+", help="numbers of single faults, from 0")
    options = parser.parse_args()
    noticed = 0
    with tempfile.TemporaryDirectory(prefix="privdd-mutants-") as folder:
        clone = Path(folder) / "clone"
        subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(clone)], check=True)
        faults = dict(enumerate(drawn(clone, options.count, options.seed)))
        if options.only:
            faults = {number: faults[number] for number in options.only}
        half = options.seconds / 2
        unnoticed = {}
        for number, fault in faults.items():
            outcome = outcome_of(clone, fault, tests_of(clone, fault.module, options.tests), half)
            if outcome.isupper():
                unnoticed[number] = fault
            else:
                noticed += 1
                print_outcome(number, fault, outcome)
        times = time_tests(clone, unnoticed, options.tests) if unnoticed else TestTimes()
        for number, fault in unnoticed.items():
            files = tests_of(clone, fault.module, options.tests)
            outcome = outcome_of(clone, fault, order_tests(times, number, files, half), half)
            noticed += not outcome.isupper()
            reached = len(times.reaching.get(number, ()))
            print_outcome(number, fault, f"{outcome} (reached by {reached} tests)")
    print(f"{noticed} of {len(faults)} faults were noticed")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
