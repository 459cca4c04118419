"""The distance to the nearest sent row: exact law of the count, planted copies and patches, rounds,
and nulls."""

import itertools
from dataclasses import replace

import pytest
import torch

from attacks.membership.lira import Lira
from attacks.membership.nearest_row import NearestPatch, NearestRow, copy_test, count_nearest
from attacks.membership.signals import (
    FARTHEST_PATCH,
    nearest_distance,
    patch_distance,
    single_record_means,
)
from attacks.statistics import chance_of_at_least
from attacks.types import Adversary, Capture, Knowledge, Surface, Truth, View, Worlds

SHAPE = (1, 8, 8)
COPIES = 20


def pictures(count: int, seed: int) -> torch.Tensor:
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(seed))


def view_of(
    rows: torch.Tensor, worlds: Worlds | None = None, surface: Surface = Surface.SYNTHETIC_IMAGES
) -> View:
    knowledge = Knowledge(SHAPE, 2, pictures(5, 9), torch.zeros(5), settings={"delta": 1e-5})
    return View(
        surface, Adversary.SERVER, (Capture(0, 0, "images", {"x": rows}),), knowledge, worlds
    )


def truth_of(members: torch.Tensor, nonmembers: torch.Tensor) -> Truth:
    labels = torch.zeros(len(members), dtype=torch.long)
    return Truth(members, labels, nonmembers, labels[:0], torch.tensor([len(members), 0]))


def game(rows: torch.Tensor, members: torch.Tensor, nonmembers: torch.Tensor) -> Worlds:
    records = torch.cat([members, nonmembers])
    mask = torch.arange(len(records)) < len(members)
    signals = {
        "distance": nearest_distance(records, rows)[None],
        "patch_distance": patch_distance(records, rows)[None],
    }
    return Worlds(signals, mask[None], torch.zeros(len(records)), torch.zeros(len(records)))


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_the_p_value_is_the_share_of_all_orders_with_so_many_members_in_front(rank, monkeypatch):
    """Four members and three non-members in each of the 35 orders."""
    share = (rank - 1) / 3 + 1e-9
    monkeypatch.setattr("attacks.membership.nearest_row.FALSE_SHARES", (share,))
    found = []
    for places in itertools.combinations(range(7), 3):
        outside = torch.tensor(places).double()
        inside = torch.tensor([at for at in range(7) if at not in places]).double()
        (count,) = count_nearest(inside, outside)
        assert count.rank == rank and count.false_alarms == rank - 1
        found.append(count)
    for count in found:
        so_many = sum(other.identified >= count.identified for other in found)
        assert count.p_value == pytest.approx(so_many / 35)


def test_ranks_are_settled_by_the_number_of_nonmembers_alone():
    ranks = {
        n: [one.rank for one in count_nearest(torch.rand(5), torch.rand(n))]
        for n in (99, 100, 999, 1000, 2500)
    }
    assert ranks == {99: [1], 100: [1, 2], 999: [1, 10], 1000: [1, 2, 11], 2500: [1, 3, 26]}


def test_ties_with_the_threshold_do_not_count():
    (count,) = count_nearest(torch.zeros(6), torch.zeros(4))
    assert (count.identified, count.false_alarms, count.p_value) == (0, 0, 1.0)
    with pytest.raises(ValueError, match="0 non-members"):
        count_nearest(torch.zeros(3), torch.zeros(0))


def test_nulls_are_found_no_more_often_than_alpha_says():
    """Members and non-members of one distribution, and rows of other records: found in at most one
    of twenty."""
    g = torch.Generator().manual_seed(0)
    found = 0
    draws = 1000
    for _ in range(draws):
        records = torch.randn(160, 3, generator=g)
        rows = torch.randn(30, 3, generator=g)
        near = -nearest_distance(records, rows)
        found += copy_test(near[:60], near[60:])["p_value"] <= 0.05
    assert chance_of_at_least(found, draws, 0.05) > 1e-3 and found < 60


def test_one_record_in_three_that_is_sent_is_identified_and_counted():
    members = pictures(60, 0)
    nonmembers = pictures(40, 1)
    rows = torch.cat([members[::3], pictures(30, 2)])
    view = view_of(rows, game(rows, members, nonmembers))
    attack = NearestRow(signal="distance")
    finding = attack.judge(
        attack.run(view, torch.Generator().manual_seed(0)), view, truth_of(members, nonmembers)
    )
    found = finding.measures.copy_test
    assert (found["members"], found["nonmembers"], found["false_alarms"]) == (60, 40, 0)
    assert COPIES <= found["identified"] < COPIES + 8 and found["p_value"] < 1e-3
    assert finding.measures.tpr_at_fpr["0.1"]["tpr"] >= 1 / 3
    assert (
        len(finding.figures["near_members"]) == 60 and len(finding.figures["near_nonmembers"]) == 40
    )


def test_rows_of_other_rounds_count_as_well():
    members = pictures(60, 0)
    nonmembers = pictures(40, 1)
    first, last = (torch.cat([members[start::6], pictures(10, 2)]) for start in (0, 3))
    view = view_of(last, game(last, members, nonmembers))
    view = replace(view, other_rounds=(view_of(first),))
    attack = NearestRow(signal="distance")
    measures = attack.judge(
        attack.run(view, torch.Generator()), view, truth_of(members, nonmembers)
    ).measures.to_row()
    alone = measures["diagnostics"]["last_round"]["copy_test"]
    assert measures["rounds"] == 2
    assert alone["identified"] >= 10 and measures["copy_test"]["identified"] >= 20
    assert measures["copy_test"]["identified"] > alone["identified"]


def test_a_map_that_the_view_grants_takes_records_to_what_was_sent():
    weights = torch.randn(64, 5, generator=torch.Generator().manual_seed(3))
    project = lambda x: x.flatten(1) @ weights  # noqa: E731
    members = pictures(60, 0)
    nonmembers = pictures(40, 1)
    rows = torch.cat(
        [project(members[::3]), torch.randn(5, 5, generator=torch.Generator().manual_seed(4))]
    )
    own = project(torch.cat([members, nonmembers]))
    worlds = replace(
        game(members, members, nonmembers), signals={"distance": nearest_distance(own, rows)[None]}
    )
    view = view_of(rows, worlds, Surface.SYNTHETIC_REPRESENTATIONS)
    granted = replace(view, knowledge=replace(view.knowledge, maps={"projection": project}))
    attack = NearestRow(signal="distance")
    truth = truth_of(members, nonmembers)
    known, unknown = (
        attack.judge(attack.run(v, torch.Generator()), v, truth).measures.to_row()
        for v in (granted, view)
    )
    assert known["copy_test"]["identified"] >= COPIES and "copy_test" not in unknown


def nearest_patch_one_by_one(record: torch.Tensor, images: torch.Tensor) -> float:
    cut = lambda x, i, j: x[:, 2 * i : 2 * i + 4, 2 * j : 2 * j + 4].flatten()  # noqa: E731
    places = list(itertools.product(range(3), range(3)))
    own = [cut(record, *at) for at in places]
    contrast = [float((p - p.mean()).norm()) for p in own]
    best = [
        min(float((p - cut(image, *at)).norm()) for image in images for at in places) / size
        for p, size in zip(own, contrast)
        if size >= 0.5 * max(contrast)
    ]
    return -min(best)


def test_patches_against_a_search_one_by_one():
    records = pictures(6, 5)
    images = pictures(4, 6)
    records[:, :, :5] *= 0.01  # nearly flat
    expected = torch.tensor([nearest_patch_one_by_one(record, images) for record in records])
    torch.testing.assert_close(patch_distance(records, images), expected, atol=1e-5, rtol=1e-4)
    flat = torch.full((1, *SHAPE), 0.5)
    assert float(patch_distance(flat, images)) == -FARTHEST_PATCH
    assert float(patch_distance(records[:1], images[:0])) == -FARTHEST_PATCH
    with pytest.raises(ValueError, match="must agree"):
        patch_distance(records, images[:, :, :4])


def test_a_patch_of_a_member_inside_another_image_is_found_where_whole_images_are_far():
    members = pictures(60, 0)
    nonmembers = pictures(40, 1)
    rows = pictures(COPIES, 2)
    rows[:, :, 2:6, 4:] = members[::3, :, :4, :4]
    view = view_of(rows, game(rows, members, nonmembers))
    truth = truth_of(members, nonmembers)
    found = {
        attack.name: attack.judge(
            attack.run(view, torch.Generator()), view, truth
        ).measures.copy_test
        for attack in (NearestRow(signal="distance"), NearestPatch(signal="patch_distance"))
    }
    assert (
        found["nearest_patch"]["identified"] >= COPIES and found["nearest_patch"]["p_value"] < 1e-3
    )
    assert found["nearest_row"]["identified"] < COPIES


def test_class_means_of_one_record_are_that_record():
    mean = torch.arange(6.0).reshape(3, 2)
    count = torch.tensor([2.0, 1.0, 0.0])
    assert single_record_means(mean, count).tolist() == [[2.0, 3.0]]
    assert len(single_record_means(mean)) == 3


def test_a_signal_is_chosen_for_each_surface():
    members = pictures(6, 0)
    nonmembers = pictures(4, 1)
    images = view_of(members, game(members, members, nonmembers))
    labels = replace(images, surface=Surface.LABELS)
    one = Lira(signal={"synthetic_images": "distance"})
    assert (
        one._chosen_signal(Surface.SYNTHETIC_IMAGES) == "distance"
        and one._chosen_signal(Surface.LABELS) == "auto"
    )
    assert not Lira(signal="patch_distance").nothing_to_read(images)
    assert (
        Lira(signal="count").nothing_to_read(labels)
        == "no signal count on labels, which has distance, patch_distance"
    )
    with pytest.raises(ValueError, match="'pictures' is not a surface"):
        Lira(signal={"pictures": "distance"})
