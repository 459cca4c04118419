"""Class means of a planted embedding hold single records, exactly."""

import torch

from attacks.malicious.planted_embedding import (
    GATE_COORDINATES,
    PlantedEmbedding,
    records_from_sums,
)
from tests.attacks.malicious.test_imprint import CLASSES, PIXELS, pictures, worst


class Net(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        linear = torch.nn.Linear
        self.body = torch.nn.Sequential(
            linear(PIXELS, width), torch.nn.ReLU(), linear(width, width), torch.nn.ReLU()
        )
        self.head = linear(width, CLASSES)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x.flatten(1))


def sums(net: Net, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.one_hot(y, CLASSES).double().T @ net.features(x).detach().double()


def planted(records: int) -> Net:
    attack = PlantedEmbedding(blocks=10)
    net = Net(attack.hidden_width(PIXELS, CLASSES))
    attack.set_parameters(net, pictures(500, 1), records, torch.Generator().manual_seed(2))
    return net


def test_a_block_that_one_record_opens_is_that_record() -> None:
    """Brute force: the gate's unit says who opened a block."""
    x = pictures(40, 3)
    y = torch.arange(40) % CLASSES
    net = planted(40)
    found = records_from_sums(sums(net, x, y), PIXELS)
    gate = net.body[:2](x.flatten(1))[:, PIXELS + 1 : PIXELS + 1 + 10] / 1e-4
    wide = gate * 10 > 2.01  # lifted above what shuts it
    singles = [
        (c, b)
        for c in range(CLASSES)
        for b in range(10)
        if (gate[y == c, b] > 0).sum() == 1 and wide[y == c, b].sum() == 1
    ]
    assert len(singles) >= 5
    records = torch.stack([x[y == c][gate[y == c, b].argmax()].flatten() for c, b in singles])
    assert worst(found.float(), records.view(-1, 1, 5, 5)).max() < 1e-3


def test_nobody_is_found_who_was_not_there() -> None:
    x = pictures(40, 3)
    y = torch.arange(40) % CLASSES
    net = planted(40)
    found = records_from_sums(sums(net, x, y), PIXELS)
    assert (worst(found.float(), pictures(40, 9)) < 0.05).sum() == 0
    assert records_from_sums(
        torch.zeros(CLASSES, 10 * (PIXELS + GATE_COORDINATES)), PIXELS
    ).shape == (0, PIXELS)


def test_two_records_behind_one_gate_are_not_taken_for_one() -> None:
    net = planted(4)
    x = pictures(30, 4)
    gate = net.body[:2](x.flatten(1))[:, PIXELS + 1] / 1e-4
    both = x[gate.argsort(descending=True)[:2]]
    assert (gate * 10 > 2.5).sum() >= 2
    only = torch.zeros(2, dtype=torch.long)
    block = sums(net, both, only)[:1, : PIXELS + GATE_COORDINATES]
    assert len(records_from_sums(block, PIXELS)) == 0
    assert (
        len(
            records_from_sums(
                sums(net, both[:1], only[:1])[:1, : PIXELS + GATE_COORDINATES], PIXELS
            )
        )
        == 1
    )
