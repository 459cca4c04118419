"""The detector against a count by hand, and on the models that it must tell apart."""

import pytest
import torch

from attacks.malicious.chosen_model import (
    ALARM_THRESHOLD,
    detection_rate,
    isolation_share,
    random_network,
)
from attacks.malicious.imprint import Imprint
from tests.attacks.malicious.test_imprint import CLASSES, Net, pictures, planted


def test_isolation_is_the_mean_of_the_largest_shares() -> None:
    parts = torch.tensor([[1.0, 0.0, 2.0], [1.0, 0.0, 0.0], [2.0, 0.0, 0.0]])
    assert isolation_share(parts) == pytest.approx(
        (0.5 + 1.0) / 2
    )  # the middle unit is reached by nobody
    assert isolation_share(torch.zeros(3, 2)) == 0.0
    assert isolation_share(torch.ones(4, 7)) == 0.25


def test_an_imprinted_model_raises_the_alarm_and_ordinary_ones_do_not() -> None:
    x = pictures(60, 3)
    y = torch.arange(60) % CLASSES
    rates = detection_rate(Imprint().record_contributions, planted(60), x, y, 16)
    assert rates == {"detected": 1.0, "false_alarms": 0.0}
    assert detection_rate(Imprint().record_contributions, Net(), x, y, 16)["detected"] == 0.0
    assert 0 < ALARM_THRESHOLD < 1


def test_an_ordinary_model_is_drawn_anew_and_leaves_the_given_one_alone() -> None:
    net = Net(30)
    before = net.body[0].weight.detach().clone()
    drawn = random_network(net, torch.Generator().manual_seed(0))
    assert torch.equal(net.body[0].weight, before) and drawn.body[
        0
    ].weight.detach().std() == pytest.approx((2 / 25) ** 0.5, rel=0.1)
    assert drawn.body[0].bias.detach().abs().max() == 0
