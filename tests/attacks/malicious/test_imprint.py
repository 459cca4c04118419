"""An imprinted layer gives single records away exactly: one gradient step on a linear layer is the
oracle."""

import torch
from torch import nn

from attacks.malicious.chosen_model import ChosenModel, cluster_rows, draw_gates, linear_layers
from attacks.malicious.imprint import Imprint, records_from_layer

PIXELS = 25
CLASSES = 4
UNITS = 400


class Net(nn.Module):
    def __init__(self, units: int = UNITS) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(PIXELS, units), nn.ReLU(), nn.Linear(units, units), nn.ReLU()
        )
        self.head = nn.Linear(units, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x.flatten(1)))


def pictures(count: int, seed: int) -> torch.Tensor:
    return torch.rand(count, 1, 5, 5, generator=torch.Generator().manual_seed(seed)).square()


def planted(records: int) -> Net:
    net = Net()
    Imprint(units=UNITS).set_parameters(
        net, pictures(500, 1), records, torch.Generator().manual_seed(2)
    )
    return net


def trained(
    net: Net,
    x: torch.Tensor,
    y: torch.Tensor,
    steps: int,
    decay: float = 0.0,
    batch: int | None = None,
):
    before = [value.detach().clone() for value in (net.body[0].weight, net.body[0].bias)]
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=decay)
    for step in range(steps):
        part = (
            torch.arange(len(x))
            if batch is None
            else torch.randperm(len(x), generator=torch.Generator().manual_seed(step))[:batch]
        )
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x[part]), y[part]).backward()
        optimiser.step()
    return tuple(before), (net.body[0].weight.detach(), net.body[0].bias.detach())


def alone(net: Net, x: torch.Tensor) -> torch.Tensor:
    """Which records are the only ones to open some unit."""
    opened = net.body[0](x.flatten(1)) > 0
    return opened[:, opened.sum(0) == 1].any(1)


def worst(found: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (x.flatten(1)[:, None].float() - found[None]).abs().amax(2).min(1).values


def test_after_one_step_every_record_that_opens_a_unit_alone_is_exact() -> None:
    x = pictures(12, 3).double()
    y = torch.arange(12) % CLASSES
    net = planted(12).double()
    isolated = alone(net, x)
    found = records_from_layer(*trained(net, x, y, 1), count=400)
    assert isolated.double().mean() > 0.9
    assert worst(found, x)[isolated].max() < 1e-6  # candidates are float32


def test_local_training_in_float32_with_momentum_and_weight_decay_keeps_most_of_them() -> None:
    x = pictures(40, 4)
    y = torch.arange(40) % CLASSES
    net = planted(40)
    isolated = alone(net, x)
    before, after = trained(net, x, y, 40, 1e-5, batch=10)
    assert (
        worst(records_from_layer(before, after, count=400), x)[isolated] < 0.05
    ).double().mean() > 0.9
    # as many as the client holds: mixtures take some of the places
    found = records_from_layer(before, after, count=40)
    assert (worst(found, x) < 0.05).double().mean() > 0.4
    assert (worst(found, pictures(40, 5)) < 0.05).sum() == 0  # strangers are not found


def test_weight_decay_must_be_taken_out() -> None:
    """Planted: without it the decayed weights would be read as records."""
    x = pictures(40, 4)
    y = torch.arange(40) % CLASSES
    net = planted(40)
    before, after = trained(net, x, y, 40, 1e-4, batch=10)
    rows = (after[0] - before[0]) / (after[1] - before[1])[:, None]
    naive = rows[torch.isfinite(rows).all(1)]
    fixed = worst(records_from_layer(before, after, count=400), x)
    assert (fixed < 0.05).sum() > 2 * (worst(naive, x) < 0.05).sum()


def test_gates_open_for_the_share_asked_for() -> None:
    weights, thresholds = draw_gates(pictures(500, 1), 300, 0.05, torch.Generator().manual_seed(0))
    opened = (pictures(4000, 6).flatten(1) @ weights.T > thresholds).double().mean(0)
    assert abs(float(opened.mean()) - 0.05) < 0.01
    assert abs(float((pictures(4000, 6).flatten(1) @ weights.T).var(0).mean()) - 1) < 0.1


def test_agreement_decides_and_copies_count_once() -> None:
    rows = torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 0.001], [0.5, 0.5]])
    assert cluster_rows(rows, 1)[0].tolist() in ([1.0, 0.0], [1.0, 0.0010000000474974513])
    assert len(cluster_rows(rows, 4)) == 3
    assert cluster_rows(rows, 2)[1].tolist() == [0.0, 1.0]  # of two single rows, not the mixture


def test_parts_are_the_sizes_of_single_gradients() -> None:
    x = pictures(5, 7)
    y = torch.arange(5) % CLASSES
    net = Net(30)
    parts = Imprint(units=30).record_contributions(net, x, y)
    for i in range(5):
        net.zero_grad()
        nn.functional.cross_entropy(net(x[i : i + 1]), y[i : i + 1]).backward()
        torch.testing.assert_close(
            parts[i], net.body[0].weight.grad.norm(dim=1), atol=1e-6, rtol=1e-4
        )
    assert issubclass(Imprint, ChosenModel) and len(linear_layers(net)) == 3
