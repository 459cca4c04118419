"""The house rules that a reader relies on: one name for one thing, a test for every module, no hooks read by guess.

Where a module's test has another name than its own, ``TESTED_IN`` says which file it is.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OURS = sorted([*ROOT.glob("privdd/**/*.py"), *ROOT.glob("attacks/**/*.py")])
TESTING = sorted([*ROOT.glob("tests/**/*.py"), *ROOT.glob("benchmarks/**/*.py")])


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def dotted(node: ast.expr) -> str:
    """``a.b.c`` of an expression, as far as it is names; of ``a.b[c]`` the part before the bracket."""
    if isinstance(node, ast.Subscript):
        return dotted(node.value)
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


# --- one name for one thing -----------------------------------------------------------------------


def twice(names: Iterator[tuple[str, str]]) -> dict[str, list[str]]:
    places = defaultdict(list)
    for name, place in names:
        places[name].append(place)
    return {name: found for name, found in places.items() if len(found) > 1}


def public_classes(files: list[Path]) -> Iterator[tuple[str, str]]:
    for path in files:
        yield from ((n.name, relative(path)) for n in tree(path).body if isinstance(n, ast.ClassDef) and not n.name.startswith("_"))


def test_no_public_class_name_stands_for_two_things() -> None:
    """Module names may recur in different packages; a class is one thing wherever it is read."""
    privdd = [path for path in OURS if relative(path).startswith("privdd/")]
    assert twice(public_classes(privdd)) == {}
    assert len(list(public_classes(privdd))) > 50
    assert twice(iter([("Stage", "a"), ("Stage", "b"), ("Lens", "a")])) == {"Stage": ["a", "b"]}


# --- a test for every module ----------------------------------------------------------------------

TESTED_IN = {  # test file -> modules of which it is the test, where its name is not theirs
    "attacks/inversion/test_features.py": "attacks.inversion: decoder generative judge model",
    "attacks/inversion/test_gradient.py": "attacks.inversion: lbfgs objectives optimise seethrough victim",
    "attacks/inversion/test_gradient_attack.py": "attacks.inversion: model_attack role_attack synthetic",
    "attacks/inversion/test_labels.py": "attacks.inversion: analytic",
    "attacks/malicious/test_imprint.py": "attacks.malicious: chosen",
    "attacks/membership/test_attack.py": "attacks.membership: density shadow_classifier",
    "attacks/membership/test_formulas.py": "attacks.membership: base lira rmia signals threshold",
    "attacks/test_epsilon.py": "attacks: bounds one_run",
    "attacks/test_guarantee.py": "attacks: canaries",
    "attacks/test_images.py": "attacks: baselines",
    "attacks/test_scores.py": "attacks: selftest",
    "auditing/guarantees/test_certificate.py": "privdd.auditing.guarantees: dealt_noise tilted_context whole_run",
    "auditing/guarantees/test_tiers.py": "privdd.auditing.guarantees: aggregate_clip_theorem crafted_records"
    " matching_transcripts queries recording_context statement transcripts",
    "auditing/test_canary_game.py": "privdd.auditing: canary_transcripts",
    "auditing/test_findings.py": "privdd.auditing: coverage run_manifest",
    "auditing/test_planted_faults.py": "privdd.auditing.guarantees: own_noise; privdd.auditing: noted_again",
    "auditing/test_signals.py": "attacks.membership: readout",
    "adapters/test_flower_tap.py": "privdd.adapters: flower_claims; privdd.tapping: recorder tapped_ledger",
    "adapters/test_components.py": "privdd.adapters: flower_components opacus_components",
    "adapters/test_more_components.py": "privdd.adapters: jax_privacy_components nvflare_components pfl_components",
    "canary/test_canary_scores.py": "privdd.canary: canary_records scored_artifacts; privdd.tapping: recorded_network",
    "canary/test_opened.py": "privdd.canary: commitment sealed_files",
    "auditing/targets/test_recorded_run.py": "privdd.auditing.targets: claimed_limit; privdd.tapping: named_recording",
    "canary/test_hostile_seals.py": "privdd.canary: __main__ canary_arguments",
    "checking/test_called.py": "privdd.checking: sampled",
    "checking/test_command_line.py": "privdd.checking: component_table conditions constant_parts declared_noise float_bits"
    " looks named plugin_check screening",
    "checking/test_examination.py": "privdd.checking: accepted error_shares examined examining secret_records",
    "checking/test_pieces.py": "privdd.checking: long_run one_call",
    "checking/test_run_check.py": "privdd.checking: check_page child asserted stated verdict",
    "checking/test_sound_but_odd.py": "privdd.checking: late_call law_confirmed",
    "checking/test_symmetric_law.py": "privdd.checking: uneven_noise",
    "checking/test_told_apart.py": "privdd.checking: direction_game learned shift_law",
    "configs/test_experiment.py": "privdd.federated: experiment",
    "configs/test_groups.py": "privdd.cli: assemble config",
    "data/test_domains.py": "privdd.data: corruptions digits image_filters made_digits textured_corruptions",
    "data/test_shards.py": "privdd.data: dataset",
    "data/test_sources.py": "privdd.data: custom download mnist vision",
    "distillation/test_distribution_matching.py": "privdd.distillation: class_subsets initial_images sampling",
    "distillation/test_gradient_matching.py": "privdd.training: contrastive",
    "distillation/test_public_features.py": "privdd.distillation: fitting",
    "reproduce/test_analyses.py": "privdd.reproduce: domain_figures image_figures",
    "reproduce/test_entries.py": "privdd.reproduce: entry_list plan_rows",
    "reproduce/test_sentences.py": "privdd.reproduce: attack_verdicts audit_runs decided formula_verdicts sentence_page",
    "reproduce/test_typed.py": "privdd.reproduce: __main__",
    "reproduce/test_train_rows.py": "privdd.reproduce: ball_figures entry_figures fidelity_sheet",
    "planted/test_planted.py": "privdd.planted: accounting_faults catalogue clipping_faults decision_faults fault noise_faults"
    " sampling_faults score small_runs trial wire_faults",
    "methods/test_fedfed.py": "attacks.inversion: neighbour",
    "methods/test_feddm.py": "privdd.training: server",
    "methods/test_fedlgd.py": "privdd.distillation: virtual_images",
    "methods/test_fedfed_virtual.py": "privdd.distillation: stand_ins",
    "methods/test_fedrd.py": "privdd.distillation: representations",
    "methods/test_dp_psg.py": "privdd.distillation: private_set",
    "methods/test_feddm_guided.py": "privdd.distillation: class_model coarse_pixels gradient_fitting"
    " guided_images pushed_images",
    "methods/test_public_map.py": "privdd.methods: dp_head dp_means dp_moments",
    "methods/test_formulas.py": "privdd.federated: aggregation",
    "methods/test_reductions.py": "privdd.methods: fedadam fedavg fedavgm fednova fedproto fedprox moon scaffold vhl",
    "models/test_build.py": "privdd.models: convnet lenet projection spec vae",
    "privacy/test_mechanisms.py": "privdd.privacy: noise;"
    " privdd.privacy.mechanisms: aggregate_clip client_level clipped_sum gaussian_features",
    "federated/test_channel.py": "privdd.privacy: mechanism",
    "privacy/test_noise_share.py": "privdd.privacy.mechanisms: noise_share",
    "reporting/test_comparison.py": "privdd.reporting: epsilon_figures folder",
    "reporting/test_curves.py": "privdd.reporting: figures",
    "reporting/test_decision.py": "privdd.reporting: same_values",
    "reporting/test_schema.py": "privdd.reporting: json_schema schema_privacy schema_values",
    "reporting/test_page.py": "privdd.reporting: style",
    "runtime/test_chunks.py": "privdd.runtime: allocator payload",
    "runtime/test_engine.py": "privdd.runtime: processes ray workers",
    "system/test_commands.py": "privdd.cli: main",
    "auditing/targets/test_model_target.py": "privdd.auditing.targets: from_python judged label_queries outside_run shadow_training",
    "auditing/targets/test_run_target.py": "privdd.auditing.targets: target_command weights",
    "auditing/targets/test_synthetic_target.py": "privdd.auditing.targets: near_copies nearest synthetic_signals table_risks",
    "auditing/targets/test_updates_target.py": "privdd.auditing.targets: captured_updates update_signals",
    "verifying/test_verification.py": "privdd.verifying: disagreement drawn_page"
    " file_digests ledger_numbers score_numbers sent_values training_numbers verdict_numbers verified_pages",
    "system/test_damaged_files.py": "privdd.cli: failures",
    "adapters/test_reply_check.py": "privdd.adapters: flower_messages flower_server; privdd.federated: dropped",
    "federated/test_divergence.py": "privdd.federated: measured",
    "system/test_flower.py": "privdd.adapters: flower flower_app; privdd.core: state",
    "system/test_long_runs.py": "privdd.federated: checkpoint",
    "system/test_kill.py": "privdd.federated: trainer",
    "data/test_tail.py": "privdd.core: hard_counts",
    "methods/test_non_interference.py": "privdd.core: types",
    "attacks/inversion/test_feature_attack.py": "attacks: types",
}

TESTED_THROUGH = {  # module -> (test file, the function through which that test reaches it)
    "privdd/auditing/guarantees/feature_noise.py": ("auditing/guarantees/test_tiers.py", "all_findings"),
    "privdd/distillation/private_matching.py": ("methods/test_feddm.py", "SOUND"),
}


def table() -> dict[str, str]:
    """Path of a module -> path of its test, from ``TESTED_IN``."""
    found = {}
    for test, groups in TESTED_IN.items():
        for group in groups.split(";"):
            package, _, names = group.strip().partition(": ")
            for name in names.split():
                path = f"{package.replace('.', '/')}/{name}.py"
                assert path not in found, f"{path} stands in the table twice"
                found[path] = f"tests/{test}"
    return {**found, **{path: f"tests/{test}" for path, (test, _) in TESTED_THROUGH.items()}}


def mirrored(path: str) -> str:
    """privdd/a/b.py -> tests/a/test_b.py; attacks/b.py -> tests/attacks/test_b.py."""
    folder, _, name = path.removeprefix("privdd/").rpartition("/")
    return "/".join(filter(None, ["tests", folder, f"test_{name}"]))


def has_logic(path: Path) -> bool:
    """By its text: each worker asks this of every file while it collects tests, and to parse them all takes seconds."""
    return re.search(r"^ *(async )?def \w+\(", path.read_text(encoding="utf-8"), re.MULTILINE) is not None


def defined(path: Path) -> set[str]:
    """Public names that a module defines."""
    body = tree(path).body
    found = {n.name for n in body if isinstance(n, ast.ClassDef | ast.FunctionDef)}
    found |= {t.id for n in body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
    return {name for name in found if not name.startswith("_")}


def names(test: Path, module: Path) -> bool:
    """Whether the test imports the module, uses a name that it defines, or asks for it in quotes (name="vae")."""
    text = test.read_text(encoding="utf-8")
    if relative(module) in TESTED_THROUGH:
        return re.search(rf"\b{TESTED_THROUGH[relative(module)][1]}\b", text) is not None
    whole = relative(module).removesuffix(".py").replace("/", ".")
    package, _, stem = whole.rpartition(".")
    imported = re.search(rf"\b{re.escape(whole)}\b|from {re.escape(package)} import [^\n]*\b{stem}\b", text)
    words = {*re.findall(r"\w+", text)} & defined(module)
    return bool(imported or words or re.search(rf"""["'=]{stem}\d*\b""", text))


MODULES = [path for path in OURS if path.stem != "__init__" and path.parent != ROOT / "privdd" and has_logic(path)]


def untested(path: Path, elsewhere: dict[str, str]) -> Iterator[str]:
    """What is wrong with the test of a module."""
    test = ROOT / mirrored(relative(path))
    if not test.is_file():
        test = ROOT / elsewhere.get(relative(path), mirrored(relative(path)))
    if not test.is_file():
        yield f"{relative(path)} has no {mirrored(relative(path))}; write it, or name its test in TESTED_IN"
    elif not names(test, path):
        yield f"{relative(test)} does not name {relative(path)}"


def test_every_module_has_a_test_that_can_be_found() -> None:
    elsewhere = table()
    assert [what for path in MODULES for what in untested(path, elsewhere)] == []
    assert len(MODULES) > 100 and list(untested(ROOT / "privdd" / "core" / "no_such_module.py", elsewhere))


def test_the_table_names_modules_that_have_no_test_of_their_own() -> None:
    strike = [path for path in table() if not (ROOT / path).is_file() or (ROOT / mirrored(path)).is_file()]
    assert strike == [], "gone, or with a test of its own: strike it from the table"
    assert [test for test in table().values() if not (ROOT / test).is_file()] == []


def test_every_test_folder_is_a_package_of_the_house() -> None:
    packages = {"." if path.parent == ROOT / "privdd" else relative(path.parent).removeprefix("privdd/") for path in OURS}
    extra = {"system", "reference", "conformance", "configs", "configs/experiment"}
    folders = {path.parent.relative_to(ROOT / "tests").as_posix() for path in ROOT.glob("tests/**/test_*.py")}
    assert folders <= packages | extra


# --- no hook is read by guess ---------------------------------------------------------------------

ROLES = {"method", "mechanism", "mechanisms", "attack", "engine"}


def guessed(path: Path) -> Iterator[str]:
    """getattr and hasattr on a method, mechanism, attack or engine: what a role may have is declared by its class."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call) and dotted(node.func) in ("getattr", "hasattr") and len(node.args) > 1:
            role = dotted(node.args[0]).rpartition(".")[2]
            if role in ROLES:
                what = node.args[1].value if isinstance(node.args[1], ast.Constant) else "..."
                yield f"{relative(path)}: {role}.{what}"


def test_no_hook_is_read_by_guess() -> None:
    assert [what for path in OURS for what in guessed(path)] == [], "declare it in the role's class"


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        ("getattr(plan.method, 'claims', None)", True), ("hasattr(self.engine, 'x')", True), ("hasattr(method, field)", True),
        ("getattr(ctx.mechanisms[QUERY], 'per_record', True)", True), ("getattr(attack, 'least_worlds', 2)", True),
        ("getattr(self, name)", False), ("getattr(row, 'epsilon')", False), ("method.claims(plan)", False),
    ],
)  # fmt: skip
def test_the_search_for_guesses_sees(source: str, seen: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "it.py").write_text(source)
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert bool(list(guessed(tmp_path / "it.py"))) is seen


# --- tests import by name -------------------------------------------------------------------------


def path_edits(module: ast.Module) -> Iterator[int]:
    """Lines that change where Python looks for modules."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            if re.fullmatch(r"(sys\.)?path\.(insert|append|extend|remove|pop|clear)|(.*\.)?(syspath_prepend|addsitedir)", name):
                yield node.lineno
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.Delete):
            targets = [node.target] if isinstance(node, ast.AugAssign) else node.targets
            yield from (node.lineno for target in targets if dotted(target) == "sys.path")


def test_no_test_edits_the_search_path() -> None:
    assert [f"{relative(path)}:{line}" for path in TESTING for line in path_edits(tree(path))] == []


@pytest.mark.parametrize(
    "source",
    ["sys.path.insert(0, 'x')", "sys.path += ['x']", "sys.path[0] = 'x'", "patch.syspath_prepend(p)", "site.addsitedir(p)", "del sys.path[0]"],
)
def test_the_search_for_edits_sees(source: str) -> None:
    assert list(path_edits(ast.parse(source)))


def test_what_the_fast_suite_leaves_out_is_there() -> None:
    """A renamed test would be slow again without a word."""
    for name in (ROOT / "tests" / "slow.txt").read_text().splitlines():
        file, _, test = name.partition("::")
        assert f"def {test.partition('[')[0]}(" in (ROOT / file).read_text(), name
