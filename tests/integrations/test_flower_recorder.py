"""A tap at a federation of someone else's: it keeps what was sent and got, changes no bit, and says
where it failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from privdd.federated.budget import BudgetExceeded
from privdd.integrations import flower_recorder
from privdd.integrations.flower_recorder import claims_of_mods, mods_below, privdd_tap, tapped
from privdd.recording import recording
from privdd.recording.recording import read_recording, read_recordings, recording_ledger
from privdd.runtime.files import DamagedRun
from tests.integrations.plain_grid import NODES, PlainGrid, client, start_arrays


def fedavg() -> FedAvg:
    return FedAvg(min_available_nodes=3)


def trained(app: Any, strategy: Any, rounds: int = 3) -> tuple[dict[str, np.ndarray], PlainGrid]:
    grid = PlainGrid(app)
    result = strategy.start(grid=grid, initial_arrays=start_arrays(), num_rounds=rounds)
    return {k: a.numpy() for k, a in result.arrays.items()}, grid


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return list(one) == list(other) and all(
        np.asarray(one[k]).tobytes() == np.asarray(other[k]).tobytes() for k in one
    )


def test_training_gives_the_same_bits_with_and_without_taps(tmp_path: Path) -> None:
    plain, _ = trained(client(greedy=True), fedavg())
    found, _ = trained(
        client(privdd_tap(tmp_path / "run"), greedy=True), tapped(fedavg(), tmp_path / "run")
    )
    assert same(plain, found)
    assert not same(plain, start_arrays_of())  # it trained at all


def start_arrays_of() -> dict[str, np.ndarray]:
    return {k: a.numpy() for k, a in start_arrays().items()}


def test_what_is_recorded_is_what_the_strategy_got(tmp_path: Path) -> None:
    got: list[tuple[int, int, dict[str, np.ndarray]]] = []

    class Noting(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            replies = list(replies)
            got.extend(
                (
                    server_round,
                    r.metadata.src_node_id,
                    {k: a.numpy() for k, a in r.content["arrays"].items()},
                )
                for r in replies
            )
            return super().aggregate_train(server_round, replies)

    final, _ = trained(
        client(privdd_tap(tmp_path)), tapped(Noting(min_available_nodes=3), tmp_path)
    )
    server, *clients = read_recordings(tmp_path)
    kept = {
        (m.heading.round, node): m for node in server.client_nodes for m in server.replies_of(node)
    }
    assert len(got) == 9 == len(kept) and {n for _, n, _ in got} == {*NODES}
    for round, node, arrays in got:
        message = kept[round, node]
        assert same(message.read_arrays(), arrays) and (
            message.shapes["weight"],
            message.shapes["steps"],
        ) == ((8, 5), ())
        assert message.heading.metrics["metrics/num-examples"] == node
    assert same(server.final_message().read_arrays(), final)  # type: ignore[union-attr]
    assert same(server.broadcast_before(kept[1, 11]).read_arrays(), start_arrays_of())
    assert len(clients) == 3 and {c.client_nodes for c in clients} == {(11,), (12,), (13,)}
    for own in clients:
        (node,) = own.client_nodes
        assert [m.digest for m in own.replies_of(node)] == [
            m.digest for m in server.replies_of(node)
        ]
        assert [own.broadcast_before(m).digest for m in own.replies_of(node)] == [
            server.broadcast_before(m).digest for m in server.replies_of(node)
        ]
        assert own.replies_of(node)[0].heading.partition == NODES.index(node)


def test_the_layout_is_the_documented_one(tmp_path: Path) -> None:
    trained(client(), tapped(fedavg(), tmp_path), rounds=1)
    names = {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*.*") if p.is_file()}
    replies = {
        f"round-001/client-{n}/{what}.safetensors" for n in NODES for what in ("update", "evaluate")
    }
    assert names == {
        ".gitignore",
        "tap.json",
        "final.safetensors",
        "round-001/broadcast.safetensors",
        "round-001/broadcast-evaluate.safetensors",
        *replies,
    }


def test_a_second_run_into_the_same_folder_goes_elsewhere(tmp_path: Path) -> None:
    for _ in range(2):
        trained(client(), tapped(fedavg(), tmp_path / "run"), rounds=1)
    assert (
        read_recording(tmp_path / "run").client_nodes
        == read_recording(tmp_path / "run-2").client_nodes
        == NODES
    )


# --- what goes wrong is marked, and never reaches the training
# -------------------------------------


@pytest.mark.parametrize("at", [0, 2, 3, 7])
def test_a_full_disk_leaves_the_training_alone_and_fails_the_recording(
    at: int, tmp_path: Path, monkeypatch: Any, caplog: Any
) -> None:
    plain, _ = trained(client(), fedavg())
    calls = []
    true_write = recording.write_message

    def full(*args: Any) -> str:
        calls.append(args)
        if len(calls) == at + 1:
            raise OSError(28, "No space left on device")
        return true_write(*args)

    monkeypatch.setattr(recording, "write_message", full)
    found, _ = trained(client(privdd_tap(tmp_path)), tapped(fedavg(), tmp_path))
    assert same(plain, found) and "NOT recorded" in caplog.text
    with pytest.raises(DamagedRun, match="incomplete recording"):
        read_recordings(tmp_path)


def test_a_recording_that_cannot_even_be_marked_is_not_complete(
    tmp_path: Path, monkeypatch: Any
) -> None:
    def no(*args: Any, **more: Any) -> None:
        raise OSError("no")

    strategy = tapped(fedavg(), tmp_path)
    monkeypatch.setattr(recording, "write_message", no)
    monkeypatch.setattr(recording, "write_json", no)
    trained(client(), strategy)
    with pytest.raises(DamagedRun, match="did not return"):
        read_recording(tmp_path)


def test_errors_of_the_app_and_the_strategy_stay_theirs(tmp_path: Path) -> None:
    class Odd(Exception): ...

    def breaks(message: Message, context: Context, call_next: Any) -> Message:
        raise Odd("mine")

    with pytest.raises(Odd, match="mine"):
        trained(client(privdd_tap(tmp_path / "a"), breaks), tapped(fedavg(), tmp_path / "b"))
    with pytest.raises(DamagedRun, match="did not return"):
        read_recording(tmp_path / "b")
    assert not list((tmp_path / "a").rglob("pending-*"))  # nothing was sent, so nothing is missing


def test_a_client_that_dies_in_a_round_leaves_a_mark(tmp_path: Path, monkeypatch: Any) -> None:
    trained(client(privdd_tap(tmp_path)), fedavg(), rounds=1)
    assert read_recordings(tmp_path)
    # as if the process had ended there
    monkeypatch.setattr(flower_recorder.PendingMark, "remove_mark", lambda self: None)
    trained(client(privdd_tap(tmp_path)), fedavg(), rounds=1)
    with pytest.raises(DamagedRun, match="its end was not recorded"):
        read_recordings(tmp_path)


def test_a_mark_that_cannot_be_taken_away_leaves_the_training_alone(
    tmp_path: Path, monkeypatch: Any
) -> None:
    def no(self: Path, **more: Any) -> None:
        raise PermissionError(13, "no")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", no)
        trained(client(privdd_tap(tmp_path)), fedavg(), rounds=1)
    with pytest.raises(DamagedRun, match="its end was not recorded"):
        read_recordings(tmp_path)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))


def test_altered_missing_and_added_files_are_refused(tmp_path: Path) -> None:
    trained(client(privdd_tap(tmp_path)), tapped(fedavg(), tmp_path), rounds=2)
    update = tmp_path / "round-002" / "client-12" / "update.safetensors"
    before = update.read_bytes()
    flip(update)
    (server, *_) = read_recordings(tmp_path)
    with pytest.raises(DamagedRun, match="not those that were recorded"):
        server.replies_of(12)[1].read_arrays()
    update.write_bytes((tmp_path / "round-001" / "client-12" / "update.safetensors").read_bytes())
    with pytest.raises(DamagedRun, match=r"not the message that tap\.json lists"):
        read_recordings(tmp_path)
    update.unlink()
    with pytest.raises(DamagedRun, match=r"not those that tap\.json lists"):
        read_recordings(tmp_path)
    update.write_bytes(before)
    read_recordings(tmp_path)
    theirs = tmp_path / "clients" / "12" / "round-002" / "client-12" / "update.safetensors"
    text = theirs.read_bytes().replace(
        json.loads(
            json.dumps(read_recording(tmp_path / "clients" / "12").replies_of(12)[1].digest)
        ).encode(),
        b"0" * 32,
    )
    theirs.write_bytes(text)
    with pytest.raises(DamagedRun, match="recorded another reply"):
        read_recordings(tmp_path)


# --- the ledger ----------------------------------------------------------------------------------


def test_everything_is_unprotected_where_no_mechanism_is_recognised(tmp_path: Path) -> None:
    trained(client(), tapped(fedavg(), tmp_path), rounds=2)
    ledger = recording_ledger(read_recording(tmp_path))
    assert [r.name for r in ledger.releases if r.client == 11] == [
        "metrics of evaluate",
        "update",
        "metrics of train",
    ] * 2
    assert ledger.epsilon() == float("inf") and not any(r.is_protected for r in ledger.releases)
    assert ledger.releases[1].digest and {r.nonprivate_reason for r in ledger.releases} == {
        "no mechanism was recognised"
    }


def test_flowers_local_mechanism_is_told_as_its_claim(tmp_path: Path) -> None:
    mod = LocalDpMod(1.0, 1.0, 0.5, 1e-5)
    trained(client(privdd_tap(tmp_path), mod), fedavg(), rounds=2)
    (own, *_) = read_recordings(tmp_path)
    ledger = recording_ledger(own)
    rows = [r for r in ledger.releases if r.name == "update"]
    assert all(
        r.why == "claimed by LocalDpMod(clipping_norm=1, sensitivity=1, epsilon=0.5, "
        "delta=1e-05), not checked here"
        for r in rows
    )
    one = ledger.epsilon(surfaces=["update"])
    assert 0.5 < one < 1.0  # two messages; the classical formula is loose at epsilon below 1
    assert ledger.epsilon() == float("inf")  # the number of examples and the loss are beside it
    (beside, *_) = [r for r in ledger.releases if r.name == "metrics of train"]
    assert beside.nonprivate_reason == "sent without the component's protection"


def test_a_subclass_of_a_known_component_is_not_recognised(tmp_path: Path) -> None:
    class Mine(LocalDpMod):
        def __call__(self, msg: Message, ctxt: Context, call_next: Any) -> Message:
            return call_next(msg, ctxt)

    trained(client(privdd_tap(tmp_path), Mine(1.0, 1.0, 0.5, 1e-5)), fedavg(), rounds=1)
    assert recording_ledger(read_recordings(tmp_path)[0]).epsilon() == float("inf")
    assert list(mods_below(print)) == [] == list(claims_of_mods(lambda m, c: m))


def test_server_side_noise_is_a_claim_about_the_aggregates_of_all_rounds(tmp_path: Path) -> None:
    strategy = DifferentialPrivacyServerSideFixedClipping(
        fedavg(), noise_multiplier=2.0, clipping_norm=1.0, num_sampled_clients=3
    )
    trained(client(), tapped(strategy, tmp_path), rounds=3)
    ledger = recording_ledger(read_recording(tmp_path))
    (row,) = [r for r in ledger.releases if r.name == "global_model"]
    assert row.count == 3 and "noise_multiplier=2" in row.why
    assert 1 < ledger.epsilon(surfaces=["global_model"]) < 10 and ledger.epsilon() == float("inf")


def test_only_a_strategy_can_be_tapped(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"tapped\(ArrayRecord\)"):
        tapped(ArrayRecord(), tmp_path)  # type: ignore[arg-type]


def test_a_round_above_the_budget_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    """Noise multiplier 2 costs 2.0, 3.0 and 3.8 after one, two and three rounds at delta 1e-5."""
    private = DifferentialPrivacyServerSideFixedClipping(
        fedavg(), noise_multiplier=2.0, clipping_norm=1.0, num_sampled_clients=3
    )
    with pytest.raises(BudgetExceeded, match=r"budget=3\.5: round 3 is refused"):
        trained(client(), tapped(private, tmp_path / "run", budget=3.5))
    (recorded,) = read_recordings(tmp_path / "run")
    assert max(message.heading.round for message in recorded.messages) == 2


def test_a_budget_without_noise_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="FedAvg adds no noise"):
        tapped(fedavg(), tmp_path / "run", budget=3.0)
