"""A round with a model that the server chose: the client's own code answers, and noise that protects it acts here too."""

import pytest
import torch

from attacks.malicious.imprint import Imprint, first_layer_names
from attacks.malicious.planted_embedding import PlantedEmbedding
from attacks.types import Adversary, Surface
from privdd.auditing.coverage import is_applicable_to
from privdd.auditing.pipeline import membership_game_of
from privdd.auditing.views import FinishedRun, malicious_server_views
from privdd.cli.build import build_attacks, build_experiment
from privdd.cli.compose import compose_config, config_dir, default_attacks, expand_arguments
from tests.federations import tiny_config

ATTACKS = {"imprint": Imprint(units=256), "planted_embedding": PlantedEmbedding(blocks=3)}


def scene(algo: str, *more: str) -> FinishedRun:
    made = build_experiment(tiny_config(algo, "audit.records=20", "audit.worlds=2", "attack=[lira]", *more, command="audit"))
    game = membership_game_of(made)
    progress = type("Progress", (), {"memories": {}})()
    return FinishedRun(made, progress, game, game.shard_of_replay(made.shards[made.plan.victim], 0))  # type: ignore[arg-type]


@pytest.mark.parametrize(("algo", "name", "surface"), [
    ("fedavg", "imprint", Surface.UPDATE), ("scaffold", "imprint", Surface.UPDATE), ("fedproto", "planted_embedding", Surface.PROTOTYPES),
])  # fmt: skip
def test_the_client_gives_its_own_records_away(algo: str, name: str, surface: Surface) -> None:
    played = scene(algo)
    ((view, truth, note, found, attack),) = list(malicious_server_views(played, ATTACKS))
    assert (view.surface, view.adversary, found) == (surface, Adversary.MALICIOUS_SERVER, name) and "server chose" in note
    finding = attack.judge(attack.run(view, torch.Generator().manual_seed(0)), view, truth)
    diagnostics = finding.measures["diagnostics"]
    assert diagnostics["recovered"] > 0 and diagnostics["records"] == len(played.shard.train)
    assert diagnostics["detected"] > diagnostics["false_alarms"]
    assert not any(is_applicable_to(attack, surface, Adversary.SERVER, worlds) for worlds in (0, 8))  # of the run itself: nothing


def test_a_method_that_is_not_asked_has_no_such_view() -> None:
    assert list(malicious_server_views(scene("feddm"), ATTACKS)) == []


def test_noise_of_dp_sgd_hides_what_the_imprint_held() -> None:
    ((view, truth, _, _, attack),) = list(malicious_server_views(scene("fedavg", "privacy=dpsgd"), ATTACKS))
    finding = attack.judge(attack.run(view, torch.Generator().manual_seed(0)), view, truth)
    assert finding.measures["diagnostics"]["recovered"] == 0


def test_the_clients_update_starts_from_the_chosen_model() -> None:
    ((view, *_),) = list(malicious_server_views(scene("fedavg"), ATTACKS))
    weight, _ = first_layer_names(view.knowledge.model)
    sent = view.captures[0]
    assert torch.equal(sent.broadcast[weight], view.knowledge.model.state_dict()[weight])
    change = (sent.value[weight] - sent.broadcast[weight]).norm()
    assert 0 < change < 0.1 * sent.broadcast[weight].norm()


def test_attacks_that_are_off_by_default_are_asked_for_by_name() -> None:
    asked = {"imprint", "planted_embedding", "label_only", "quantile_regression", "rmia_offline"}
    assert not asked & set(default_attacks([config_dir()]))
    (line,) = expand_arguments(["attack=[all,imprint]"], "audit")
    assert line == f"attack=[{','.join([*default_attacks([config_dir()]), 'imprint'])}]"
    made = build_attacks(compose_config("audit", [f"attack=[{','.join(asked)}]"]))
    assert {name: attack.name for name, attack in made.items()} == {name: name for name in asked}
