"""The digest of a training's code follows what code does, and not how it is written down."""

from __future__ import annotations

import ast

import pytest

from privdd.reproduce.catalogue import find_entry
from privdd.reproduce.code_digest import code_digest, defined_names, own_names, syntax_words
from privdd.reproduce.train import paper_cells
from privdd.reproduce.training_code import training_code

HONEST = '''
"""A module."""
from torch import nn
import torch

def clip(gradient: torch.Tensor, bound: float) -> torch.Tensor:
    """Scale it down."""
    # as in the paper
    if not bound > 0:
        raise ValueError(f"bound={bound}: must be positive")
    norm = torch.linalg.vector_norm(gradient)
    return gradient * min(1.0, bound / norm)
'''


def words(source: str) -> list[str]:
    tree = ast.parse(source)
    return [*syntax_words(tree, frozenset(defined_names(ast.parse(HONEST)) | defined_names(tree)))]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("gradient", "update"),
        ("clip", "shorten"),
        ("A module.", "Another text."),
        ("    # as in the paper\n", ""),
        ("must be positive", "must be above 0"),
        (": torch.Tensor, bound", ", bound"),
        ("from torch import nn\n", ""),
    ],
)
def test_what_changes_no_number_changes_no_digest(old: str, new: str) -> None:
    assert old in HONEST
    assert words(HONEST.replace(old, new)) == words(HONEST)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("1.0", "2.0"),
        ("bound / norm", "norm / bound"),
        ("vector_norm", "matrix_norm"),
        ("* min", "+ min"),
        ("not bound > 0", "not bound >= 0"),
        ("return gradient", "return bound"),
    ],
)
def test_what_may_change_a_number_changes_the_digest(old: str, new: str) -> None:
    assert old in HONEST
    assert words(HONEST.replace(old, new)) != words(HONEST)


def test_the_code_of_a_row_is_that_of_its_method_and_what_it_imports() -> None:
    cells = {cell.row: cell for cell in paper_cells(find_entry("feddm.table2"), "small")}
    digests = {row: training_code(cell.overrides) for row, cell in cells.items()}
    assert len({*digests.values()}) == len(digests) and all(len(d) == 8 for d in digests.values())
    assert code_digest(("privdd.methods.feddm",)) != code_digest(("privdd.methods.fedrd",))
    assert {"run_round", "FedDM"} <= own_names() and "relu" not in own_names()
