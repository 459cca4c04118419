"""How dense the sentences of the code are, by package: a thermometer, not a goal.

    python tools/readability.py [--worst] [--root DIR]

Each column counts something that makes a reader go back and read a line again. Rates are per 1,000
statements, so that a line break changes nothing:

- tokens: names, operators and numbers a statement
- parallel: assignments of a tuple to a tuple, ``a, b = x, y``
- ternary: ``x if condition else y``
- packed: comprehensions with more than one ``for``, or with another comprehension inside
- words: variables and parameters, in per cent, that are called by one of WORDS rather than by a
  noun of the field
- late: files with a constant after the first function or class
- comment: comment lines, in per cent of all lines. No share is asked for: a comment says why, where
  there is a why

Where a sentence gets worse for the figure's sake, leave the figure. ``--worst`` lists, for each
column, the files with most of it. ``tests/test_readability.py`` keeps a package from getting
denser."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path

from attacks.command_line import CommandParser

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("privdd", "attacks", "benchmarks", "tools")
VERB_FORMS = (
    "found made told seen said given kept taken shown asked known gave drew drawn "
    "look looked heeded left"
)
PRONOUNS = (
    "one other others some both few own who more these those same whole beside alike "
    "away inside at there"
)
WORDS = frozenset(f"{VERB_FORMS} {PRONOUNS}".split())
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
WORST_FILES = 5
FIELD_OF = {"words": "listed", "comment": "comments"}  # the others are called like their column


@dataclass(frozen=True)
class Counts:
    """What a file, or several, hold."""

    files: int = 0
    lines: int = 0
    statements: int = 0
    tokens: int = 0
    parallel: int = 0
    ternary: int = 0
    packed: int = 0
    names: int = 0  # that are bound: variables and parameters
    listed: int = 0  # of these, the names in WORDS
    late: int = 0
    comments: int = 0

    def __add__(self, summand: Counts) -> Counts:
        pairs = zip(astuple(self), astuple(summand), strict=True)
        return Counts(*(a + b for a, b in pairs))

    def figures(self) -> dict[str, float]:
        """Column -> its figure, to one decimal."""
        thousand_statements = max(self.statements, 1) / 1000
        figures = {
            "tokens": self.tokens / max(self.statements, 1),
            "parallel": self.parallel / thousand_statements,
            "ternary": self.ternary / thousand_statements,
            "packed": self.packed / thousand_statements,
            "words": 100 * self.listed / max(self.names, 1),
            "late": self.late,
            "comment": 100 * self.comments / max(self.lines, 1),
        }
        return {column: round(figure, 1) for column, figure in figures.items()}


COLUMNS = tuple(Counts().figures())


def count_file(source: str) -> Counts:
    """The counts of one module's text."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    names = [name for node in nodes if (name := _bound_name(node)) is not None]
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    code_tokens = (tokenize.NAME, tokenize.OP, tokenize.NUMBER)
    return Counts(
        files=1,
        lines=source.count("\n"),
        statements=sum(_is_statement(node) for node in nodes),
        tokens=sum(token.type in code_tokens for token in tokens),
        parallel=sum(_is_parallel(node) for node in nodes),
        ternary=sum(isinstance(node, ast.IfExp) for node in nodes),
        packed=sum(_is_packed(node) for node in nodes),
        names=len(names),
        listed=sum(name in WORDS for name in names),
        late=int(_has_late_constant(tree)),
        comments=sum(_is_comment_line(token) for token in tokens),
    )


def _is_statement(node: ast.AST) -> bool:
    """A docstring is none."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return not isinstance(node.value.value, str)
    return isinstance(node, ast.stmt)


def _is_parallel(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
        and isinstance(node.value, ast.Tuple)
    )


def _is_packed(node: ast.AST) -> bool:
    if not isinstance(node, COMPREHENSIONS):
        return False
    comprehensions = [part for part in ast.walk(node) if isinstance(part, COMPREHENSIONS)]
    return len(node.generators) > 1 or len(comprehensions) > 1


def _is_comment_line(token: tokenize.TokenInfo) -> bool:
    return token.type == tokenize.COMMENT and token.line.lstrip().startswith("#")


def _bound_name(node: ast.AST) -> str | None:
    """The variable or parameter that a node binds."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    if isinstance(node, ast.arg):
        return node.arg
    return None


def _has_late_constant(module: ast.Module) -> bool:
    """Whether an upper-case name is bound after the first function or class."""
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    after_code = False
    for statement in module.body:
        after_code = after_code or isinstance(statement, definitions)
        if not after_code or not isinstance(statement, ast.Assign | ast.AnnAssign):
            continue
        names = [name for node in ast.walk(statement) if (name := _bound_name(node))]
        if any(name.isupper() for name in names):
            return True
    return False


def package_of(path: Path) -> str:
    """``attacks.inversion`` of ``attacks/inversion/labels.py``; ``privdd`` of ``privdd/api.py``."""
    return ".".join(path.parent.parts[:2])


def count_tree(root: Path) -> Iterator[tuple[Path, Counts]]:
    """(path below ``root``, its counts) of each file of the packages."""
    for folder in FOLDERS:
        for path in sorted((root / folder).glob("**/*.py")):
            yield path.relative_to(root), count_file(path.read_text(encoding="utf-8"))


def count_packages(root: Path) -> dict[str, Counts]:
    """package -> the sum over its files."""
    packages: dict[str, Counts] = {}
    for path, counts in count_tree(root):
        package = package_of(path)
        packages[package] = packages.get(package, Counts()) + counts
    return dict(sorted(packages.items()))


def table(packages: dict[str, Counts]) -> str:
    """A line a package, then one of the product (``privdd`` and ``attacks``)."""
    product = Counts()
    for package, counts in packages.items():
        if package.partition(".")[0] in ("privdd", "attacks"):
            product += counts
    heading = "".join(f"{column:>10}" for column in ("statements", *COLUMNS))
    lines = [f"{'':22}{heading}"]
    for name, counts in [*packages.items(), ("privdd and attacks", product)]:
        figures = "".join(f"{figure:10.1f}" for figure in counts.figures().values())
        lines.append(f"{name:22}{counts.statements:10d}{figures}")
    return "\n".join(lines)


def worst_files(files: list[tuple[Path, Counts]]) -> str:
    """For each column but comments, the files with most of it: how many, and the file's figure."""
    lines = []
    for column in COLUMNS[:-1]:
        field = FIELD_OF.get(column, column)
        if column == "tokens":
            ranked = sorted(files, key=lambda file: -file[1].figures()["tokens"])
        else:
            ranked = sorted(files, key=lambda file: -getattr(file[1], field))
        lines.append(f"\n{column}")
        for path, counts in ranked[:WORST_FILES]:
            figure = counts.figures()[column]
            lines.append(f"  {path.as_posix():52}{getattr(counts, field):6d}{figure:8.1f}")
    return "\n".join(lines)


def main() -> None:
    parser = CommandParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worst", action="store_true", help="name the files with most of each")
    parser.add_argument("--root", type=Path, default=ROOT, help="another checkout to measure")
    options = parser.parse_args()
    print(table(count_packages(options.root)))
    if options.worst:
        print(worst_files(list(count_tree(options.root))))


if __name__ == "__main__":
    main()
