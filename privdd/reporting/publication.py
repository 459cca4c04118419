"""A run's decisions in the forms that others take: a model card of the Hugging Face Hub, an entry
of the registry of DP deployments.

The card's head follows the Hub's documentation of model cards, its sections the template of its
library; the entry follows the schema of the registry that OpenDP keeps
(opendp/deployments-registry-data, ``schemas/deployments-schema.yaml``, July 2026). What a run
cannot know is marked ``FILL_IN``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from privdd.reporting import assessment, card, wording
from privdd.reporting.run_record import RunRecord, reproduction_recipe
from privdd.reporting.wording import format_number
from privdd.runtime.files import DamagedRun, write_bytes

# as the registry's own template has it
FILL_IN = "TO FILL IN"
UNKNOWN_DATE = "1900-01-01"
IMAGES = "image-classification"
FORM_FILES = {"huggingface": "model_card.md", "registry": "registry_entry.yaml"}
SYNTHETIC = {"synthetic_images", "prototypes", "shared_features"}


def model_card(record: RunRecord) -> str:
    """Markdown with a head of YAML, as a repository of the Hub has it in README.md."""
    head = yaml.safe_dump(_card_head(record), sort_keys=False, allow_unicode=True)
    return f"---\n{head}---\n\n" + "\n".join(_card_lines(record)) + "\n"


def _card_head(record: RunRecord) -> dict[str, Any]:
    run = record.findings.run
    utility = record.findings.utility
    head: dict[str, Any] = {"tags": ["federated-learning", "differential-privacy", "privacy-audit"]}
    if utility is not None and utility.diverged is None:
        metric = {
            "type": "accuracy",
            "value": utility.accuracy,
            "name": f"accuracy ({utility.accuracy_kind})",
        }
        data = {"type": run.data, "name": run.data}
        result = {"task": {"type": IMAGES}, "dataset": data, "metrics": [metric]}
        head |= {"metrics": ["accuracy"], "model-index": [{"name": run.algo, "results": [result]}]}
    return head


def _card_lines(record: RunRecord) -> Iterator[str]:
    summary_card = card.decision_card(record)
    findings = record.findings
    yield from (
        f"# Model Card for {_plain(findings.run.algo)}",
        "",
        _plain(summary_card["headline"]),
        "",
    )
    yield from (
        "## Model Details",
        "",
        *(f"- **{name}:** {_plain(value)}" for name, value in summary_card["run"].items()),
        "",
    )
    yield from ("## Uses", "", FILL_IN, "", "### Out-of-Scope Use", "")
    for artifact in summary_card["artifacts"]:
        for line in _limits_of_use(artifact):
            yield f"- {artifact['surface']}: {_plain(line)}"
    yield from (
        "",
        "## Bias, Risks, and Limitations",
        "",
        "What attackers could do in this audit:",
        "",
    )
    results = []
    for artifact in summary_card["artifacts"]:
        for sentence in artifact["attackers_can"]:
            results.append(f"- {artifact['surface']}: {_plain(sentence)}")
    if not results:
        results = ["- nothing above chance level, which is not evidence that nothing leaks"]
    yield from (*results, "")
    if summary_card["why_too_small"]:
        yield from (_plain(summary_card["why_too_small"]), "")
    yield from ("## Privacy", "", "| | |", "|---|---|")
    yield from (
        f"| {name} | {_plain(value)} |"
        for name, value in assessment.guarantee_facts(findings, record.ledger)
    )
    shown = format_number(summary_card["epsilon"]["shown"])
    yield from (
        f"| shown at least, by attacks and tests | ε = {shown} |",
        f"| verdict | {findings.verdict} |",
        "",
    )
    yield from ("### Controls of OWASP AISVS 1.0", "", "| control | this run |", "|---|---|")
    yield from (
        f"| {control} | {_plain(result)} |"
        for control, result in assessment.security_controls(findings)
    )
    yield from (
        "",
        "## Evaluation",
        "",
        f"Audited with privdd {findings.run.version} against {card.attacking_parties(record)}:",
        "",
    )
    yield f"    {' '.join(reproduction_recipe(record).command.split())}"


def _limits_of_use(artifact: Mapping[str, Any]) -> list[str]:
    conditions = [f"on condition that {condition}" for condition in artifact["conditions"]]
    return [f"{artifact['title']} ({artifact['why']})", *conditions]


def _plain(value: object) -> str:
    """Text that Markdown and HTML show as it is."""
    text = " ".join(str(value).split())
    return text.replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[")


def _require_standing_limit(record: RunRecord) -> None:
    """Raises DamagedRun where no epsilon is proven, or where it was contradicted."""
    if math.isinf(record.findings.privacy.epsilon.proven):
        raise DamagedRun(
            f"{record.path}: no epsilon is proven for the messages, so no "
            "deployment can be registered"
        )
    if record.findings.verdict == "contradiction":
        raise DamagedRun(
            f"{record.path}: the epsilon that the run states was contradicted, so it "
            "cannot be registered"
        )


def registry_entry(record: RunRecord) -> str:
    """YAML of tier 3. Raises DamagedRun for a run without a proven epsilon, or whose epsilon was
    contradicted: there is nothing to register."""
    findings = record.findings
    _require_standing_limit(record)
    facts = dict(assessment.guarantee_facts(findings, record.ledger))
    sent = []
    for row in findings.surfaces:
        surface = wording.surface_title(row, findings.scope).lower()
        sent.append(f"{surface} ({wording.mechanism_title(row.mechanism)})")
    deployment = {
        "basic": _product_section(record, sent),
        "dp_variant": {
            "variant_name": "Approximate DP" if findings.privacy.delta else "Pure DP",
            "data_domain": f"{findings.run.data}: {FILL_IN}",
            "unprotected_quantities": (
                "No message; how settings were chosen, and the findings that were published."
            ),
        },
        "privacy_loss": _privacy_loss_section(record),
        "deployment_model": {
            "model_name": "Federated",
            "model_name_details": (
                f"Who sees the messages: {facts['who sees the messages (the trust model)']}."
            ),
            "actors": f"Audited against {card.attacking_parties(record)}.",
            "release_type": "One release",
            "data_source_type": "Static",
            "access_type": "Non-interactive",
        },
        "accounting": {
            "post_processing": "Values computed from noised values alone are not charged again.",
            "composition": "All releases of all rounds are composed by privacy loss distributions "
            "(dp-accounting).",
        },
        "implementation": _implementation_section(record, sent, facts),
        "administrative": {"notes": _registry_notes(record), "registry_authors": [FILL_IN]},
    }
    entry = {
        "url_slug": "privdd_" + re.sub(r"[^a-z0-9]+", "_", findings.run.algo.lower()),
        "status": "Draft",
        "tier": 3,
        "deployment": deployment,
    }
    return yaml.safe_dump(entry, sort_keys=False, allow_unicode=True, width=100_000)


def _product_section(record: RunRecord, sent: Sequence[str]) -> dict[str, Any]:
    """What is published, by whom and when."""
    run = record.findings.run
    synthetic = bool(SYNTHETIC & {str(row.surface) for row in record.findings.surfaces})
    date = card.manifest_text(record, "date")[:10]
    return {
        "name": run.algo,
        "data_curators": [FILL_IN],
        "intended_use": FILL_IN,
        "data_product_type": "Synthetic data" if synthetic else "Machine learning model",
        "data_product_region": FILL_IN,
        "description": (
            f"{run.algo}, trained by {run.clients} clients on {run.data} in {run.rounds} rounds. "
            f"Sent: {'; '.join(sent)}."
        ),
        "publication_date": date if re.fullmatch(r"\d{4}-\d\d-\d\d", date) else UNKNOWN_DATE,
    }


def _privacy_loss_section(record: RunRecord) -> dict[str, Any]:
    """The proven epsilon with its unit, and the largest that was shown."""
    privacy = record.findings.privacy
    shown = format_number(card.decision_card(record)["epsilon"]["shown"])
    return {
        "privacy_unit": f"one {privacy.unit}",
        "privacy_unit_details": wording.relation_text(privacy),
        "privacy_parameters": {"epsilon": privacy.epsilon.proven, "delta": privacy.delta},
        "privacy_parameters_details": (
            f"Epsilon is an upper bound by accounting; attacks and tests showed at least {shown}."
        ),
    }


def _implementation_section(
    record: RunRecord, sent: Sequence[str], facts: Mapping[str, str]
) -> dict[str, str]:
    """Mechanisms, where their noise comes from, and what the tests of the code found."""
    noise = facts["source of the noise"]
    tests = facts["whether the code follows the proof"].rstrip(".")
    verdict = wording.VERDICT[record.findings.verdict].lower()
    version = record.findings.run.version
    return {
        "preprocessing_and_hyperparameter_tuning": "How settings were chosen is not accounted for.",
        "mechanisms": f"{'; '.join(sent)}. Noise: {noise}. privdd {version}.",
        "justification": f"Whether the code follows the proof: {tests}; verdict: {verdict}.",
    }


def _registry_notes(record: RunRecord) -> str:
    """The command of the audit, after a warning if the noise can be drawn again."""
    audited = f"Audited by `{reproduction_recipe(record).command}`."
    if wording.is_simulation_noise(record.findings.privacy):
        return f"A simulation, not for release: its noise can be drawn again. {audited}"
    return audited


def write_form(record: RunRecord, name: str, folder: Path) -> Path:
    """One of ``FORM_FILES`` in ``folder``; returns the file's path. Raises DamagedRun for a run
    that has no such form."""
    path = folder / FORM_FILES[name]
    if name == "registry":
        text = registry_entry(record)
    else:
        text = model_card(record)
    write_bytes(path, text.encode())
    return path
