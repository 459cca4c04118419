"""The shape of the code: imports run one way, files and functions stay small, forbidden calls stay
out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted([*ROOT.glob("privdd/**/*.py"), *ROOT.glob("attacks/**/*.py")])

MAY_IMPORT: dict[str, set[str]] = {  # a package may import itself and these, nothing else
    "attacks": set(),
    "core": {"attacks"},
    "models": {"core"},
    "runtime": {"core"},
    "privacy": {"core", "attacks"},  # attacks.validation: names that a mechanism may have
    "data": {"core", "attacks"},  # attacks.validation: what an npz file of someone else declares
    "federated": {"core", "runtime", "privacy", "data", "attacks"},
    "training": {"core", "federated", "privacy", "models"},
    "distillation": {"core", "federated", "privacy", "models", "training", "attacks"},
    "methods": {"core", "federated", "privacy", "models", "training", "distillation", "attacks"},
    "reporting": {"runtime", "attacks"},  # run folders only: it must not know how they came about
}
# mechanisms of others, as black boxes
MAY_IMPORT["blackbox"] = {"core", "runtime", "privacy", "reporting", "attacks"}
# recordings of federations that others run
MAY_IMPORT["recording"] = {"core", "runtime", "privacy", "federated", "attacks"}
MAY_IMPORT["auditing"] = {
    "core",
    "runtime",
    "privacy",
    "data",
    "federated",
    "models",
    "training",
    "distillation",
    "methods",
    "reporting",
    "attacks",
}
# what others trained
MAY_IMPORT["external"] = {*MAY_IMPORT["auditing"], "auditing", "blackbox", "recording"}
# never cli: it runs nothing
MAY_IMPORT["verification"] = {
    "core",
    "runtime",
    "privacy",
    "federated",
    "auditing",
    "reporting",
    "attacks",
}
MAY_IMPORT["cli"] = {*MAY_IMPORT}
# sealed canaries: no simulation is run
MAY_IMPORT["canary"] = {
    "core",
    "runtime",
    "recording",
    "reporting",
    "blackbox",
    "cli",
    "attacks",
}
# faults for the self-test: they are planted everywhere
MAY_IMPORT["selftest_faults"] = {*MAY_IMPORT, "cli"}
MAY_IMPORT["integrations"] = {*MAY_IMPORT, "cli"} - {"selftest_faults"}
MAY_IMPORT["reproduce"] = {
    "core",
    "models",
    "runtime",
    "privacy",
    "data",
    "federated",
    "training",
    "distillation",
    "reporting",
    "cli",
    "attacks",
}
# the only modules at the top of privdd; they may import all
DOORS = {
    "__init__",
    "__main__",
    "account",
    "api",
    "attack",
    "audit",
    "check",
    "gate",
    "list",
    "report",
    "resume",
    "scores",
    "selftest",
    "target",
    "train",
    "verify",
}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module) of every import, lazy ones and ``import_module`` of a constant included;
    relative ones spelled out."""
    package = (
        module_name(path) if path.name == "__init__.py" else module_name(path).rpartition(".")[0]
    )
    yield from imports_of(tree(path), package)


def imports_of(module: ast.Module, package: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level else ""
            whole = ".".join(filter(None, [base, node.module]))
            yield node.lineno, whole
            yield from (
                (node.lineno, f"{whole}.{alias.name}")
                for alias in node.names
                if is_module(f"{whole}.{alias.name}")
            )
        elif isinstance(node, ast.Call) and dotted(node.func).endswith("import_module"):
            yield from (
                (node.lineno, name) for name in constants_of(module, node.args[:1]) if ours(name)
            )


def constants_of(module: ast.Module, arguments: list[ast.expr]) -> Iterator[str]:
    """The texts that arguments stand for: written there, or given to a name at the top of the
    file."""
    given = {
        target.id: node.value
        for node in module.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for one in arguments:
        value = given.get(one.id, one) if isinstance(one, ast.Name) else one
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.value


@cache
def is_module(name: str) -> bool:
    place = ROOT.joinpath(*name.split("."))
    return place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()


def package(name: str) -> str:
    """The package of a module of ours: "attacks", the second part of privdd.a.b, "" for privdd's
    own top."""
    first, *rest = name.split(".")
    if first == "attacks":
        return first
    return rest[0] if rest and rest[0] not in DOORS else ""


def ours(name: str) -> bool:
    return name.split(".")[0] in ("privdd", "attacks")


def wrong_imports(name: str, found: Iterable[tuple[int, str]]) -> list[str]:
    own = package(name)
    if not own:
        return []
    allowed = MAY_IMPORT[own] | {own}
    return [
        f"{name}:{line} imports {other}"
        for line, other in found
        if ours(other) and other != "privdd" and package(other) not in allowed
    ]


def test_every_file_has_a_package():
    assert [n for n in map(module_name, FILES) if package(n) not in {*MAY_IMPORT, ""}] == []
    assert {p.stem for p in ROOT.glob("privdd/*.py")} == DOORS
    assert len(FILES) > 100


def test_imports_follow_the_table():
    assert [
        wrong for path in FILES for wrong in wrong_imports(module_name(path), imports(path))
    ] == []


# optional parts, which the core does without
EXTRAS = {"blackbox", "external", "recording", "integrations", "canary", "reproduce"}
# functions of the core that load them when a user names them
ENTRIES = {
    ("privdd.cli.main", "audit_external_target"),
    ("privdd.cli.main", "_check_is_no_recording"),
    ("privdd.cli.audit_commands", "run_target"),
    ("privdd.cli.audit_commands", "with_target_prefix"),
}


def imports_of_extras(name: str, module: ast.Module) -> Iterator[str]:
    """Imports of optional parts in a core module, but for those in ENTRIES."""
    allowed = {
        line
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef) and (name, node.name) in ENTRIES
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    for line, other in imports_of(module, name.rpartition(".")[0]):
        if line not in allowed and ours(other) and package(other) in EXTRAS:
            yield f"{name}:{line} imports {other}"


def test_the_core_never_imports_its_optional_parts():
    core = [
        path
        for path in FILES
        if package(module_name(path)) not in EXTRAS | {"", "selftest_faults", "attacks"}
    ]
    assert [
        wrong for path in core for wrong in imports_of_extras(module_name(path), tree(path))
    ] == []
    for planted in (
        "from privdd.external import runner",
        "def f():\n    import privdd.canary.sealed",
        "importlib.import_module('privdd.blackbox.check_verdict')",
        "HERE = 'privdd.blackbox.check_verdict'\nimportlib.import_module(HERE)",
    ):
        assert list(imports_of_extras("privdd.cli.main", ast.parse(planted))) != []
    assert (
        list(
            imports_of_extras(
                "privdd.cli.main",
                ast.parse("def audit_external_target():\n    import privdd.external.runner"),
            )
        )
        == []
    )


def test_the_table_has_no_circle():
    order: list[str] = []
    while len(order) < len(MAY_IMPORT):
        free = [p for p, others in MAY_IMPORT.items() if p not in order and others <= {*order}]
        assert free, f"a circle among {sorted(set(MAY_IMPORT) - set(order))}"
        order += free


def test_the_map_names_every_package_and_every_file_that_it_points_to():
    """docs/architecture.md: a package without a line, or a file that is gone, leads a reader
    astray."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `(?:privdd\.)?([a-z_.]+)` \|", text, re.M))
    assert listed == {*MAY_IMPORT, "auditing.dp_tests"}
    paths = {path for path in re.findall(r"`([a-z_/]+\.py)`", text)}
    gone = [
        path
        for path in paths
        if not any((ROOT / top / path).is_file() for top in ("", "privdd", "attacks"))
    ]
    assert gone == [] and len(paths) > 10


def circles(needs: dict[str, set[str]]) -> list[str]:
    """The modules that stand in a circle, or between two."""
    while free := [name for name, others in needs.items() if not others & needs.keys()]:
        for name in free:
            del needs[name]
    return sorted(needs)


def needs_of_modules() -> dict[str, set[str]]:
    return {
        module_name(p): {n for _, n in imports(p) if ours(n) and n != module_name(p)} for p in FILES
    }


PLACED_NAMES = re.compile(r"((?:`\w+`(?:, | and )?)+) (?:in|of) `([\w./]+\.py)`")


def misplaced_names(text: str) -> list[str]:
    """Each "`NAME` in `FILE`" of the map whose file does not hold that name."""
    wrong = []
    for names, file in PLACED_NAMES.findall(text):
        places = (ROOT / file, ROOT / "privdd" / file)
        source = next((place.read_text() for place in places if place.is_file()), "")
        for name in re.findall(r"\w+", names.replace(" and ", " ")):
            if not re.search(rf"\b{name}\b", source):
                wrong.append(f"{name} in {file}")
    return wrong


def test_the_map_sends_to_the_file_that_holds_the_name():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert len(PLACED_NAMES.findall(text)) >= 8
    assert misplaced_names(text) == []
    planted = "`OFFLINE` and `PUBLIC_SIZES` in `privdd/cli/compose.py`"
    assert misplaced_names(planted) == ["OFFLINE in privdd/cli/compose.py"]


def test_modules_do_not_import_each_other_in_a_circle():
    assert circles(needs_of_modules()) == []


@pytest.mark.parametrize(
    "source",
    [
        "import importlib\ndef f():\n    return "
        "importlib.import_module('privdd.reporting.notebook')",
        "from importlib import import_module\nHERE = 'privdd.reporting.notebook'\ndef "
        "f():\n    return import_module(HERE)",
    ],
)
def test_a_circle_by_import_module_of_a_constant_is_seen(source):
    """Planted in the schema of the findings, which what draws them imports."""
    needs = needs_of_modules()
    needs["privdd.reporting.schema"] |= {
        name for _, name in imports_of(ast.parse(source), "privdd.reporting") if ours(name)
    }
    assert {"privdd.reporting.schema", "privdd.reporting.notebook"} <= {*circles(needs)}


def config_libraries(path: Path) -> set[str]:
    """Those of Hydra's libraries that a file imports, lazily or not."""
    return {name.split(".")[0] for _, name in imports(path)} & {"hydra", "omegaconf"}


def test_configs_are_read_in_cli_alone():
    """Below it, and in the doors, typed settings take their place."""
    assert [
        name
        for path in FILES
        if config_libraries(path) and package(name := module_name(path)) != "cli"
    ] == []


def test_the_walk_sees_what_it_should():
    """The checks above can fail: a lazy, a relative and a from-package import are all seen."""
    found = {name for _, name in imports(ROOT / "privdd" / "cli" / "run.py")}
    assert {
        "privdd.cli.build",
        "privdd.auditing.pipeline",
        "privdd.runtime.run_folder",
    } <= found  # two are lazy
    assert config_libraries(ROOT / "privdd" / "cli" / "compose.py") == {"hydra", "omegaconf"}
    assert wrong_imports("privdd.privacy.noise", [(1, "privdd.federated.channel")])
    assert wrong_imports("attacks.roc", [(1, "privdd.core.types")])
    assert wrong_imports("privdd.models.build", [(1, "privdd.api")])
    assert not wrong_imports(
        "privdd.federated.channel", [(1, "privdd.privacy.noise"), (2, "torch")]
    )


# --- forbidden calls ----------------------------------------------------------------------------

NEVER = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "os.system",
    "torch.load",
    "torch.save",
    "torch.manual_seed",
    "torch.seed",
    "torch.cuda.manual_seed",
    "torch.cuda.manual_seed_all",
    "torch.set_rng_state",
}
DRAWS = {"rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "poisson"}
IN_PLACE = {
    "normal_",
    "uniform_",
    "bernoulli_",
    "random_",
    "exponential_",
    "cauchy_",
    "geometric_",
    "log_normal_",
}
LIKE = {"rand_like", "randn_like", "randint_like"}
# what does not touch the global state
NUMPY = {"default_rng", "Generator", "PCG64", "SeedSequence", "BitGenerator"}
EXCEPTIONS = {
    (
        "attacks.images",
        "pickle",
    ): "a restricted unpickler that can build arrays only, for published weights",
    (
        "privdd.external.predictor",
        "torch.load",
    ): "weights_only=True: torch's own restricted unpickler, which builds tensors only",
    (
        "privdd.methods.own_training",
        "torch.manual_seed",
    ): "the user's own function may draw from it; it is put back afterwards",
    (
        "privdd.blackbox.frozen_sources",
        "random",
    ): "generators that a stranger's code draws from are set, and put back",
    (
        "privdd.blackbox.child_process",
        "np.random.seed",
    ): "a forked process inherits the generator that a stranger's code may draw from",
}


def dotted(node: ast.expr) -> str:
    """``a.b.c`` of a call's function, as far as it is names."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def swallows(node: ast.ExceptHandler) -> bool:
    """``except Exception: pass`` and its kin."""
    broad = node.type is None or dotted(node.type) in ("Exception", "BaseException")
    return broad and all(
        isinstance(s, ast.Pass | ast.Continue)
        or (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
        for s in node.body
    )


def forbidden(module: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(module):
        if isinstance(node, ast.Assert):
            yield node.lineno, "assert"
        elif isinstance(node, ast.ExceptHandler) and (swallows(node) or node.type is None):
            yield node.lineno, "swallowed exception"
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = (
                [a.name for a in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
            )
            yield from (
                (node.lineno, n)
                for n in names
                if n.split(".")[0]
                in ("pickle", "dill", "cloudpickle", "marshal", "shelve", "random")
            )
        elif isinstance(node, ast.Call):
            yield from ((node.lineno, what) for what in forbidden_call(node))


def forbidden_call(node: ast.Call) -> Iterator[str]:
    name = dotted(node.func)
    head, _, last = name.rpartition(".")
    given = {k.arg for k in node.keywords}
    unseeded = last == "default_rng" and not node.args and not given
    if name in NEVER or (head in ("np.random", "numpy.random") and (last not in NUMPY or unseeded)):
        yield name
    elif head == "torch" and (last in LIKE or (last in DRAWS and "generator" not in given)):
        yield f"{name} without generator"
    elif last in IN_PLACE and "generator" not in given and isinstance(node.func, ast.Attribute):
        yield f".{last} without generator"
    elif (
        head in ("nn.init", "torch.nn.init", "init")
        and last not in ("zeros_", "ones_", "constant_")
        and "generator" not in given
    ):
        yield f"{name} without generator"
    elif last in ("Dropout", "Dropout2d") or name in ("F.dropout", "torch.dropout"):
        yield name


def test_nothing_forbidden():
    found = [
        (module_name(path), line, what) for path in FILES for line, what in forbidden(tree(path))
    ]
    assert [
        f"{name}:{line}: {what}" for name, line, what in found if (name, what) not in EXCEPTIONS
    ] == []


@pytest.mark.parametrize(
    "source",
    [
        "assert x",
        "eval('1')",
        "import pickle",
        "from pickle import loads",
        "torch.load(p)",
        "torch.manual_seed(1)",
        "np.random.seed(1)",
        "np.random.rand(3)",
        "np.random.default_rng()",
        "numpy.random.choice(3)",
        "import random",
        "torch.rand(3)",
        "torch.randn_like(x)",
        "x.normal_()",
        "torch.randperm(3, device=d)",
        "nn.Dropout(0.5)",
        "nn.init.kaiming_uniform_(w)",
        "try:\n    f()\nexcept Exception:\n    pass",
        "try:\n    f()\nexcept:\n    g()",
    ],
)
def test_the_search_finds(source):
    assert list(forbidden(ast.parse(source)))


@pytest.mark.parametrize(
    "source",
    [
        "torch.rand(3, generator=g)",
        "np.random.default_rng(seed)",
        "x.uniform_(0, 1, generator=g)",
        "model.eval()",
        "torch.Generator().manual_seed(3)",
        "try:\n    f()\nexcept Exception as e:\n    raise X from e",
        "re.compile('a')",
        "safetensors.torch.load(data)",
    ],
)
def test_the_search_lets_pass(source):
    assert not list(forbidden(ast.parse(source)))
