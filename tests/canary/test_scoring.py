"""Scores read the coins out of updates and losses that were made with them, and know nothing where
there is nothing."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from privdd.canary.__main__ import main
from privdd.canary.scoring import read_scores, score_artifact, score_by_loss, score_by_updates
from privdd.canary.sealed import (
    check_commitment,
    craft_records,
    draw_canary_set,
    mislabel_tail_records,
    read_sealed,
    read_secret,
)
from privdd.core.validation import BadConfig
from privdd.recording.network import (
    align_state,
    class_descent_sums,
    parameter_difference,
    record_descents,
    record_losses,
)
from privdd.recording.recording import (
    DIFFERENCE_KEY,
    MessageHeading,
    MessageRecorder,
    read_recordings,
)
from privdd.runtime.files import DamagedRun
from tests.canary.small import CLASSES, NET, SHAPE, Net, issued

COUNT = 40


@pytest.fixture
def canaries() -> tuple[np.ndarray, np.ndarray]:
    return craft_records(SHAPE, CLASSES, COUNT, 1)


def step(
    net: Net, x: np.ndarray, y: np.ndarray, rate: float, noise: float, seed: int
) -> dict[str, torch.Tensor]:
    """The state after one full-batch step on these records, with noise on every parameter."""
    rows = record_descents(net, x, y).sum(0)
    draw = np.random.default_rng(seed)
    moved = {}
    at = 0
    for name, value in net.state_dict().items():
        part = rows[at : at + value.numel()].reshape(value.shape)
        moved[name] = (
            value + rate * torch.from_numpy(part + noise * draw.normal(size=part.shape)).float()
        )
        at += value.numel()
    return moved


def test_gradients_are_those_of_the_whole_batch(canaries) -> None:
    x, y = canaries
    net = Net()
    loss = torch.nn.functional.cross_entropy(
        net(torch.from_numpy(x)), torch.from_numpy(y), reduction="sum"
    )
    whole = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()))])
    rows = record_descents(net, x, y)
    assert np.allclose(-rows.sum(0), whole, atol=1e-4) and np.array_equal(
        record_descents(net, x, y, every=3), rows[:, ::3]
    )
    assert np.allclose(
        np.linalg.norm(record_descents(net, x, y, clip=0.5), axis=1),
        np.minimum(np.linalg.norm(rows, axis=1), 0.5),
        atol=1e-5,
    )
    assert np.allclose(record_losses(net, x, y).sum(), loss.item(), rtol=1e-4)


class Stubborn(Net):
    """A network that torch.func cannot transform."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * (1.0 if float(x.detach().sum()) > -1e9 else 2.0)


def test_gradients_side_by_side_are_those_one_by_one(canaries) -> None:
    x, y = canaries
    assert np.allclose(record_descents(Stubborn(), x, y), record_descents(Net(), x, y), atol=1e-5)
    sums = class_descent_sums(Net(), x, y, 2, 0.5)
    rows = record_descents(Net(), x, y, 2, 0.5).astype(np.float64)
    assert np.allclose(sums, [rows[y == label].sum(0) for label in range(CLASSES)], atol=1e-5)


def test_what_the_other_records_did_is_taken_off(canaries) -> None:
    """Three hundred other records hide forty canaries, until they are known."""
    x, y = canaries
    draw = np.random.default_rng(3)
    others = draw.normal(size=(300, *SHAPE)).astype(np.float32), draw.integers(0, CLASSES, 300)
    inside = draw.random(COUNT) < 0.5
    replied = step(
        Net(),
        np.concatenate([others[0], x[inside]]),
        np.concatenate([others[1], y[inside]]),
        0.1,
        0.3,
        0,
    )
    rounds = [(Net().state_dict(), replied)]
    hidden = np.mean((score_by_updates(Net(), rounds, x, y) > 0) == inside)
    known = np.mean((score_by_updates(Net(), rounds, x, y, known=others) > 0) == inside)
    assert known > 0.9 and known > hidden + 0.1


@pytest.mark.parametrize("rate", [1e-3, 0.5])
def test_an_update_tells_every_coin_however_long_its_step(rate: float, canaries) -> None:
    x, y = canaries
    inside = np.random.default_rng(5).random(COUNT) < 0.5
    sent = Net().state_dict()
    replied = step(Net(), x[inside], y[inside], rate, 1e-3, 0)
    assert np.array_equal(score_by_updates(Net(), [(sent, replied)], x, y) > 0, inside)


def test_rounds_add_up(canaries) -> None:
    """Noise that hides the coins in one round does so less in twenty: as the square root, like a z
    score."""
    x, y = canaries
    inside = np.random.default_rng(6).random(COUNT) < 0.5
    sent = Net().state_dict()
    rounds = [(sent, step(Net(), x[inside], y[inside], 0.1, 2.0, seed)) for seed in range(20)]
    right = [np.mean((score_by_updates(Net(), rounds[:n], x, y) > 0) == inside) for n in (1, 20)]
    assert right[0] < 0.85 < 0.9 < right[1]


def test_nothing_is_read_where_no_canary_was(canaries) -> None:
    x, y = canaries
    sent = Net().state_dict()
    replied = {
        k: v + 0.1 * torch.from_numpy(np.random.default_rng(1).normal(size=v.shape)).float()
        for k, v in sent.items()
    }
    inside = np.random.default_rng(7).random(COUNT) < 0.5
    assert (
        abs(np.mean((score_by_updates(Net(), [(sent, replied)], x, y) > 0) == inside) - 0.5) < 0.3
    )


def test_losses_fall_for_records_that_were_trained_on(canaries) -> None:
    x, y = canaries
    inside = np.random.default_rng(8).random(COUNT) < 0.5
    after = step(Net(), x[inside], y[inside], 0.3, 0.0, 0)
    scores = score_by_loss(Net(), Net().state_dict(), after, x, y)
    assert scores[inside].mean() > scores[~inside].mean() + 0.5
    assert np.allclose(score_by_loss(Net(), None, after, x, y), scores - record_losses(Net(), x, y))


def test_recorded_arrays_find_their_place_in_the_model() -> None:
    net = Net()
    state = Net().state_dict()
    for names in (["fc.weight", "fc.bias"], ["model/fc.weight", "model/fc.bias"], ["0", "1"]):
        found = align_state(net, dict(zip(names, state.values())))
        assert list(found) == list(state) and all(torch.equal(found[k], state[k]) for k in state)
    assert (
        len(align_state(net, {"other": torch.zeros(1), **{f"a/{k}": v for k, v in state.items()}}))
        == 2
    )
    assert np.all(
        parameter_difference(net, state, {k: v + 1 for k, v in state.items()}).round(5) == 1
    )
    with pytest.raises(
        BadConfig, match=r"fc\.weight has shape \(3, 36\), the recorded one \(36, 3\)"
    ):
        align_state(net, {"fc.weight": state["fc.weight"].T, "fc.bias": state["fc.bias"]})
    with pytest.raises(BadConfig, match="its state has 2 tensors, the recorded message 1"):
        align_state(net, {"x": state["fc.bias"]})


def test_crafted_canaries_point_in_their_own_directions() -> None:
    x, y = craft_records((1, 16, 16), 10, 50, 0)
    centred = (x - x.mean()).reshape(50, -1)
    cosine = (centred @ centred.T) / np.outer(*2 * [np.linalg.norm(centred, axis=1)])
    assert (
        np.median(np.abs(cosine[~np.eye(50, dtype=bool)])) < 0.15
        and np.linalg.matrix_rank(centred) == 50
    )
    assert np.bincount(y).tolist() == [5] * 10 and x.min() >= 0 and x.max() <= 1
    for seed in range(5):  # more canaries than their shape has directions: still no two alike
        assert (
            len(np.unique(craft_records(SHAPE, CLASSES, 60, seed)[0].reshape(60, -1), axis=0)) == 60
        )
    assert (
        len(np.unique(craft_records((2, 3), CLASSES, 62, 0)[0].reshape(62, -1), axis=0)) == 62
    )  # of the 64 that there are
    assert (
        len(np.unique(craft_records((1, 8, 8), CLASSES, 7000, 0)[0].reshape(7000, -1), axis=0))
        == 7000
    )
    with pytest.raises(
        BadConfig,
        match=r"shape=2,3: 64 different canaries were drawn, 200 are needed; lower count=",
    ):
        craft_records((2, 3), CLASSES, 200, 0)
    assert craft_records((30,), 2, 20, 0)[0].shape == (20, 30) and np.array_equal(
        craft_records((30,), 2, 20, 0)[0], craft_records((30,), 2, 20, 0)[0]
    )


def test_mislabelled_canaries_are_of_the_tail_and_wrong() -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(100, 4))
    y = np.arange(100) % 2
    x[:10] += 50
    found, labels = mislabel_tail_records(x, y, 2, 10, 0)
    assert np.array_equal(found, x[:10]) and np.array_equal(labels, 1 - y[:10])
    with pytest.raises(BadConfig, match="too few"):
        mislabel_tail_records(x, y, 2, 101, 0)
    with pytest.raises(BadConfig, match="one class"):
        mislabel_tail_records(x, 0 * y, 1, 10, 0)
    twice = np.repeat(x, 2, axis=0), np.repeat(y, 2)
    assert np.array_equal(mislabel_tail_records(*twice, 2, 10, 0)[0], found)  # each record once
    with pytest.raises(
        BadConfig, match="from=: 100 different records are too few for 101 canaries"
    ):
        mislabel_tail_records(*twice, 2, 101, 0)


def test_no_site_gets_the_better_canaries() -> None:
    """They are chosen one after the other, and the last are the least unlike the others."""
    x, y = craft_records(SHAPE, CLASSES, 60, 1)
    dealt = draw_canary_set({"count": 30, "shape": SHAPE, "classes": CLASSES}, ["a", "b"], 1)
    places = [int(np.flatnonzero((x == one).reshape(60, -1).all(axis=1))[0]) for one in dealt.x]
    assert sorted(places) == [*range(60)] and np.array_equal(dealt.y, y[places])
    assert (
        abs(np.mean(places[:30]) - 29.5) < 4 * 17.3 / 30**0.5
    )  # not the first thirty, whose mean is 14.5


def recorded(folder: Path, sealed_at: Path, changes: bool = False) -> None:
    """A server's recording of two rounds of two clients (nodes 7 and 9, partitions 0 and 1, sites a
    and b) that hold
    their heads. changes: replies hold what they change, as some libraries send it."""
    recorder = MessageRecorder(folder, "server", {})
    recorder.write_head()
    numpy = lambda state: {k: v.numpy() for k, v in state.items()}  # noqa: E731
    for round in (1, 2):
        sent = Net(scale=round / 10).state_dict()
        recorder.record_message(MessageHeading(round, -1, "train", "broadcast"), numpy(sent))
        for node, site in ((7, "a"), (9, "b")):
            held = np.load(sealed_at / f"site-{site}.npz")
            replied = step(Net(scale=round / 10), held["x"], held["y"], 0.1, 0.01, node)
            if changes:
                replied = {name: value - sent[name] for name, value in replied.items()}
            metrics = {DIFFERENCE_KEY: 1} if changes else {}
            recorder.record_message(
                MessageHeading(
                    round, node, "train", "reply", partition=int(site == "b"), metrics=metrics
                ),
                numpy(replied),
            )
        recorder.record_message(MessageHeading(round, -1, "train", "final"), numpy(replied))
    recorder.close_recording("complete")


def opened_from(folder: Path, sealed_at: Path, **given: Any) -> tuple[np.ndarray, dict[str, Any]]:
    return score_artifact(
        read_sealed(sealed_at),
        {"updates": str(folder), "model": NET[6:], "args": {}, "client": {"a": 7, "b": 9}, **given},
    )


def test_replies_that_hold_changes_are_read_as_the_parameters_they_make(tmp_path: Path) -> None:
    issued(tmp_path / "s")
    for name, changes in (("whole", False), ("changes", True)):
        recorded(tmp_path / name, tmp_path / "s", changes)
    whole, _ = opened_from(tmp_path / "whole", tmp_path / "s")
    changes, _ = opened_from(tmp_path / "changes", tmp_path / "s")
    assert np.array_equal(np.sign(whole), np.sign(changes)) and np.allclose(
        whole, changes, rtol=1e-2
    )


def test_what_the_scores_were_computed_from_is_told_whole(tmp_path: Path) -> None:
    """Every round's reply, and the clip: whoever verifies with other ones is told so."""
    issued(tmp_path / "s")
    recorded(tmp_path / "run", tmp_path / "s")
    (recording,) = read_recordings(tmp_path / "run")
    scores, told = opened_from(tmp_path / "run", tmp_path / "s")
    assert told == {
        "signal": "update",
        "replies": {
            site: [m.digest for m in recording.replies_of(node)]
            for site, node in (("a", 7), ("b", 9))
        },
    }
    assert (
        len(told["replies"]["a"]) == 2
        and opened_from(tmp_path / "run", tmp_path / "s", clip=0.5)[1]["clip"] == 0.5
    )
    by_partition, _ = opened_from(tmp_path / "run", tmp_path / "s", client={"a": 0, "b": 1})
    assert np.array_equal(by_partition, scores)


def test_losses_fall_from_the_first_model_that_was_sent_to_the_last(tmp_path: Path) -> None:
    found = issued(tmp_path / "s", "signal=loss")
    recorded(tmp_path / "run", tmp_path / "s")
    (recording,) = read_recordings(tmp_path / "run")
    last = recording.final_message()
    assert last is not None
    scores, told = opened_from(tmp_path / "run", tmp_path / "s")
    assert np.allclose(
        scores,
        score_by_loss(
            Net(), Net().state_dict(), last.read_arrays(), found.canaries.x, found.canaries.y
        ),
    )
    first = next(
        m for m in recording.messages if (m.heading.part, m.heading.round) == ("broadcast", 1)
    )
    assert told == {"signal": "loss", "before": first.digest, "after": last.digest}


def test_sites_are_opened_from_a_recording_and_recomputed_by_others(tmp_path: Path, capsys) -> None:
    issued(tmp_path / "s", "stated=1")
    recorded(tmp_path / "run", tmp_path / "s")
    given = [
        f"sealed={tmp_path / 's'}",
        f"updates={tmp_path / 'run'}",
        NET,
        "client.a=7",
        "client.b=9",
    ]
    key = f"secret={tmp_path / 's' / 'secret.json'}"
    assert main(["open", *given, key]) == 2
    assert "60 canaries, coins read: 6 of 6, 30 of 30, " in capsys.readouterr().out
    assert main(["verify", *given]) == 0 and ": agrees\n" in capsys.readouterr().out
    assert main(["verify", *given[:3], "client.a=9", "client.b=7"]) == 2  # other artifacts
    scores, told = score_artifact(
        read_sealed(tmp_path / "s"),
        {
            "updates": str(tmp_path / "run"),
            "model": NET[6:],
            "args": {},
            "client": {"a": 9, "b": 7},
        },
    )
    assert scores.shape == (60,) and list(told["replies"]) == ["a", "b"]
    public = np.load(tmp_path / "s" / "canaries.npz")
    held = np.load(tmp_path / "s" / "site-a.npz")
    np.savez(
        tmp_path / "all.npz",
        x=np.concatenate([public["x"] + 9, held["x"]]),
        y=np.concatenate([public["y"], held["y"]]),
    )
    assert (
        main(["open", *given, key, f"known.a={tmp_path / 'all.npz'}"]) == 1
    )  # the site's file with its canaries in it
    assert f"holds {len(held['y'])} of the canaries, and so their coins" in capsys.readouterr().err
    assert main(["open", *given[:4], key]) == 1
    assert "client.b=NODE is needed, one of 7, 9" in capsys.readouterr().err


def test_the_signal_was_fixed_when_the_canaries_were_issued(tmp_path: Path, capsys) -> None:
    issued(tmp_path / "s", "signal=loss", sites="a")
    here = f"sealed={tmp_path / 's'}"
    key = f"secret={tmp_path / 's' / 'secret.json'}"
    held = np.load(tmp_path / "s" / "site-a.npz")
    save_file(Net().state_dict(), tmp_path / "before.safetensors")
    save_file(step(Net(), held["x"], held["y"], 0.1, 0.0, 0), tmp_path / "after.safetensors")
    assert (
        main(["open", here, key, f"scores={tmp_path}/x.npz"]) == 1
        and "issued with signal=loss" in capsys.readouterr().err
    )
    assert (
        main(["open", here, key, NET]) == 1 and "after=FILE, is needed" in capsys.readouterr().err
    )
    assert (
        main(
            [
                "open",
                here,
                key,
                NET,
                f"before={tmp_path}/before.safetensors",
                f"after={tmp_path}/after.safetensors",
            ]
        )
        == 0
    )
    inside = check_commitment(
        read_sealed(tmp_path / "s"), *read_secret(tmp_path / "s" / "secret.json")
    )
    assert f"{len(inside)} canaries" in capsys.readouterr().out


@pytest.mark.parametrize("rows", [[(0, 1.0), (1, 2.0)], [(1, 2.0), (0, 1.0)]])
def test_scores_are_matched_by_id(rows: list[tuple[int, float]], tmp_path: Path) -> None:
    with (tmp_path / "s.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("id", "score"), *rows])
    assert read_scores(tmp_path / "s.csv", 2).tolist() == [1.0, 2.0]
    with pytest.raises(DamagedRun, match="one score for each id from 0 to 2"):
        read_scores(tmp_path / "s.csv", 3)
    (tmp_path / "s.csv").write_text(f"id,score\n{10**30},1\n")
    with pytest.raises(DamagedRun, match="columns id and score of numbers"):
        read_scores(tmp_path / "s.csv", 1)
