"""Cards and entries for other registries: their form, their numbers, and that no text of a run runs
away in them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from privdd import report
from privdd.reporting.publication import FILL_IN, model_card, registry_entry, write_form
from privdd.reporting.run_record import read_run_record
from privdd.runtime.files import DamagedRun

# Names and values that the registry's schema allows (opendp/deployments-registry-data, July 2026).
KEYS = {
    "basic": {
        "name",
        "data_curators",
        "intended_use",
        "data_product_type",
        "data_product_region",
        "description",
        "publication_date",
        "data_product_sector",
    },
    "dp_variant": {"variant_name", "data_domain", "unprotected_quantities"},
    "privacy_loss": {
        "privacy_unit",
        "privacy_unit_details",
        "privacy_parameters",
        "privacy_parameters_details",
    },
    "deployment_model": {
        "model_name",
        "model_name_details",
        "actors",
        "release_type",
        "release_type_details",
        "data_source_type",
        "data_source_type_details",
        "access_type",
        "access_type_details",
    },
    "accounting": {"post_processing", "composition"},
    "implementation": {"preprocessing_and_hyperparameter_tuning", "mechanisms", "justification"},
    "administrative": {"sources", "notes", "registry_authors"},
}
VALUES = {
    "data_product_type": {
        "Summary statistics",
        "Machine learning model",
        "Dataset",
        "Synthetic data",
        "Interactive API",
        "SQL queries",
    },
    "variant_name": {"Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom"},
    "model_name": {"Local", "Central", "Shuffle", "Federated", "Varies"},
    "release_type": {"One release", "Many releases"},
    "data_source_type": {"Static", "Dynamic"},
    "access_type": {"Interactive", "Non-interactive"},
}


@pytest.fixture
def protected(runs: dict[str, Path]) -> Any:
    return read_run_record(runs["consistent"])


@pytest.fixture
def bare(runs: dict[str, Path]) -> Any:
    return read_run_record(runs["unprotected"])


def test_an_entry_has_the_registrys_form_and_the_runs_numbers(protected: Any) -> None:
    entry = yaml.safe_load(registry_entry(protected))
    assert set(entry) == {"url_slug", "status", "tier", "deployment"} and (
        entry["status"],
        entry["tier"],
    ) == ("Draft", 3)
    assert set(entry["deployment"]) == set(KEYS)
    for part, values in entry["deployment"].items():
        assert set(values) <= KEYS[part]
        for name, value in values.items():
            allowed = VALUES.get(name)
            assert value in allowed if allowed else isinstance(value, str | list | dict), (
                name,
                value,
            )
    privacy = protected.findings.privacy
    assert entry["deployment"]["privacy_loss"]["privacy_parameters"] == {
        "epsilon": privacy.epsilon.proven,
        "delta": privacy.delta,
    }
    assert FILL_IN in entry["deployment"]["basic"]["data_curators"]


def test_a_run_without_a_limit_or_with_a_false_one_is_not_registered(
    bare: Any, protected: Any, tmp_path: Path
) -> None:
    false = replace(
        protected, findings=protected.findings.model_copy(update={"verdict": "contradiction"})
    )
    for record, why in ((bare, "no epsilon is proven"), (false, "was contradicted")):
        with pytest.raises(DamagedRun, match=why):
            write_form(record, "registry", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_card_has_a_head_that_the_hub_reads_and_says_what_the_page_says(
    protected: Any, bare: Any
) -> None:
    for record in (protected, bare):
        _, head, body = model_card(record).split("---\n", 2)
        found = yaml.safe_load(head)
        (result,) = found["model-index"][0]["results"]
        assert (
            result["metrics"][0]["value"] == record.findings.utility.accuracy
            and result["task"]["type"] == "image-classification"
        )
        for section in (
            "# Model Card for ",
            "## Model Details",
            "## Uses",
            "## Bias, Risks, and Limitations",
            "## Evaluation",
        ):
            assert f"\n{section}" in body
        assert f"| verdict | {record.findings.verdict} |" in body and "v1.0-C11.2.5" in body


def test_no_text_of_a_run_becomes_markup(bare: Any) -> None:
    named = bare.findings.run.model_copy(update={"algo": "x | <script>[a](b)\n# y"})
    body = model_card(
        replace(bare, findings=bare.findings.model_copy(update={"run": named}))
    ).split("---\n", 2)[2]
    assert (
        "<script>" not in body and "[a](b)" not in body.replace("\\[", "") and "\n# y" not in body
    )


def test_the_command_writes_a_card_of_one_run(
    protected: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report.main([str(protected.path), str(protected.path), "card=registry"]) == 1
    assert "takes one run" in capsys.readouterr().err
