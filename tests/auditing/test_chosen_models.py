"""A round with a model that the server chose: the client's own code answers, and noise that protects it acts here too."""

import pytest
import torch

from attacks.malicious.imprint import Imprint, first_layer
from attacks.malicious.planted_embedding import PlantedEmbedding
from attacks.types import Adversary, Surface
from privdd.auditing.chosen_models import chosen_views
from privdd.auditing.coverage import reads
from privdd.auditing.pipeline import game_of
from privdd.auditing.views import Scene
from privdd.cli.assemble import assemble, attacks_of
from privdd.cli.config import all_attacks, composed, config_dir, expand
from tests.federations import tiny_config

ATTACKS = {"imprint": Imprint(units=256), "planted_embedding": PlantedEmbedding(blocks=3)}


def scene(algo: str, *more: str) -> Scene:
    made = assemble(tiny_config(algo, "audit.records=20", "audit.worlds=2", "attack=[lira]", *more, command="audit"))
    game = game_of(made)
    progress = type("Progress", (), {"memories": {}})()
    return Scene(made, progress, game, game.shard(made.shards[made.plan.victim], 0))  # type: ignore[arg-type]


@pytest.mark.parametrize(("algo", "name", "surface"), [
    ("fedavg", "imprint", Surface.UPDATE), ("scaffold", "imprint", Surface.UPDATE), ("fedproto", "planted_embedding", Surface.PROTOTYPES),
])  # fmt: skip
def test_the_client_gives_its_own_records_away(algo: str, name: str, surface: Surface) -> None:
    played = scene(algo)
    ((view, truth, note, found, attack),) = list(chosen_views(played, ATTACKS))
    assert (view.surface, view.adversary, found) == (surface, Adversary.MALICIOUS_SERVER, name) and "server chose" in note
    finding = attack.judge(attack.run(view, torch.Generator().manual_seed(0)), view, truth)
    diagnostics = finding.measures["diagnostics"]
    assert diagnostics["recovered"] > 0 and diagnostics["records"] == len(played.shard.train)
    assert diagnostics["detected"] > diagnostics["false_alarms"]
    assert not any(reads(attack, surface, Adversary.SERVER, worlds) for worlds in (0, 8))  # of the run itself: nothing


def test_a_method_that_is_not_asked_has_no_such_view() -> None:
    assert list(chosen_views(scene("feddm"), ATTACKS)) == []


def test_noise_of_dp_sgd_hides_what_the_imprint_held() -> None:
    ((view, truth, _, _, attack),) = list(chosen_views(scene("fedavg", "privacy=dpsgd"), ATTACKS))
    finding = attack.judge(attack.run(view, torch.Generator().manual_seed(0)), view, truth)
    assert finding.measures["diagnostics"]["recovered"] == 0


def test_the_clients_update_starts_from_the_chosen_model() -> None:
    ((view, *_),) = list(chosen_views(scene("fedavg"), ATTACKS))
    weight, _ = first_layer(view.knowledge.model)
    sent = view.captures[0]
    assert torch.equal(sent.broadcast[weight], view.knowledge.model.state_dict()[weight])
    change = (sent.value[weight] - sent.broadcast[weight]).norm()
    assert 0 < change < 0.1 * sent.broadcast[weight].norm()


def test_attacks_that_are_off_by_default_are_asked_for_by_name() -> None:
    asked = {"imprint", "planted_embedding", "label_only", "quantile_regression", "rmia_offline"}
    assert not asked & set(all_attacks([config_dir()]))
    (line,) = expand(["attack=[all,imprint]"], "audit")
    assert line == f"attack=[{','.join([*all_attacks([config_dir()]), 'imprint'])}]"
    made = attacks_of(composed("audit", [f"attack=[{','.join(asked)}]"]))
    assert {name: attack.name for name, attack in made.items()} == {name: name for name in asked}
