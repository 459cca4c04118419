"""Tests of ``attacks.tensors``."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.inversion import evaluation, gradient
from attacks.inversion.analytic import AnalyticInversion
from attacks.inversion.copy_detection import CopyDetection
from attacks.inversion.feature_inversion import (
    DecoderTraining,
    FeatureInversion,
    WhiteBox,
)
from attacks.inversion.generative import (
    EvaluationClassifier,
    GenerativeInversion,
    RoleInversion,
    WganGp,
)
from attacks.inversion.gradient import DLG, IDLG, InvertingGradients, SeeThrough
from attacks.inversion.gradient_attack import GradientInversion, UpdateInversion
from attacks.inversion.gradient_matching import MIN_RECORDED_ITERATIONS
from attacks.inversion.known_neighbour import KnownNeighbour
from attacks.inversion.model_inversion import MiFace as MiFace
from attacks.inversion.model_inversion import ModelInversion
from attacks.tensors import (
    STEPS_BETWEEN_READS,
    STEPS_PER_TRANSFER,
    average_pool,
    draw_ahead,
    memory_budget,
    record_cuda_graph,
    steps_between_reads,
)
from attacks.types import Adversary, Attack, Capture, Knowledge, Surface, Truth, View
from privdd.auditing.attack_tasks import (
    AttackJob,
    AttackOutcome,
    AttackTask,
    AttackTerms,
    ErrorBudget,
)
from privdd.core.device import deterministic_kernels, max_images_per_batch
from privdd.core.rng import Keys
from privdd.distillation.distribution_matching import sample_grid
from tests.fake_device import fake_gpu, repeated

# Attacks on a device: the bits of the CPU, and no transfer or wait that grows with the steps of a
# loop.


SHAPE = (1, 8, 8)
CLASSES = 3
TERMS = AttackTerms(Keys(0), 1e-5, ErrorBudget(0.05))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def network() -> nn.Module:
    net = nn.Sequential(
        nn.utils.skip_init(nn.Conv2d, 1, 2, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.utils.skip_init(nn.Linear, 32, CLASSES),
    )
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.3, generator=seeded(1))
    return net


def images(n: int, seed: int) -> tuple[Tensor, Tensor]:
    return torch.rand(n, *SHAPE, generator=seeded(seed)), torch.arange(n) % CLASSES


def feature_map() -> Callable[[Tensor], Tensor]:
    weight = torch.randn(1, 1, 3, 3, generator=seeded(2)) / 3
    return lambda x: torch.nn.functional.conv2d(x, weight, padding=1)


def view(surface: Surface, *, local_steps: int = 1) -> tuple[View, Truth]:
    """What the attacker holds of six records, on the CPU."""
    (x, y), (public, labels), net = images(6, 3), images(30, 4), network()
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    rows = torch.arange(6)
    value = {"x": feature_map()(x), "y": y}
    if surface == Surface.UPDATE:
        trained = copy.deepcopy(net)
        for part, own in zip(x.split(2), y.split(2)):
            loss = nn.functional.cross_entropy(trained(part), own)
            for p, g in zip(
                trained.parameters(), torch.autograd.grad(loss, list(trained.parameters()))
            ):
                p.data.sub_(g, alpha=0.1)
        value = {name: p.detach() for name, p in trained.named_parameters()}
    if surface == Surface.SYNTHETIC_IMAGES:
        value = {"x": x + 0.1, "y": y}
    settings = {"lr": 0.1, "local_steps": local_steps, "batch_size": 2, "batch_records": 6}
    known = {"x": x[:1], "row": rows[:1]}
    knowledge = Knowledge(
        SHAPE, CLASSES, public, labels, net, {"feature": feature_map()}, settings, known
    )
    capture = Capture(0, 0, str(surface), value, before if surface == Surface.UPDATE else {})
    held_x, held_y = images(9, 5)
    truth = Truth(x, y, held_x, held_y, torch.bincount(y, minlength=CLASSES), rows=rows)
    return View(surface, Adversary.SERVER, (capture,), knowledge), truth


Case = tuple[Callable[[int], Attack], Surface]
JUDGE = EvaluationClassifier(steps=3)
SEARCH = GenerativeInversion(iterations=3, starts=2)
CASES: dict[str, Case] = {  # attack with so many steps in its loop
    "gradient": (
        lambda k: GradientInversion(InvertingGradients(iterations=k, restarts=2)),
        Surface.UPDATE,
    ),
    "see through": (lambda k: GradientInversion(SeeThrough(iterations=k, seeds=2)), Surface.UPDATE),
    "update": (
        lambda k: UpdateInversion(InvertingGradients(iterations=k), budget=10**9),
        Surface.UPDATE,
    ),
    "analytic": (lambda k: AnalyticInversion(), Surface.UPDATE),
    "mi-face": (
        lambda k: ModelInversion(
            MiFace(iterations=k, confidence=1.0, patience=1000), None, SEARCH, JUDGE
        ),
        Surface.GLOBAL_MODEL,
    ),
    "generative": (
        lambda k: ModelInversion(
            MiFace(iterations=3),
            WganGp(steps=3, width=2, latent=4),
            replace(SEARCH, iterations=k),
            JUDGE,
        ),
        Surface.GLOBAL_MODEL,
    ),
    "prior": (
        lambda k: ModelInversion(
            MiFace(iterations=3), WganGp(steps=k, width=2, latent=4), SEARCH, JUDGE
        ),
        Surface.GLOBAL_MODEL,
    ),
    "judge": (
        lambda k: ModelInversion(MiFace(iterations=3), None, SEARCH, EvaluationClassifier(steps=k)),
        Surface.GLOBAL_MODEL,
    ),
    "role": (
        lambda k: RoleInversion(WganGp(steps=k, width=2, latent=4), SEARCH, JUDGE),
        Surface.FEATURES,
    ),
    "white box": (
        lambda k: FeatureInversion(
            decoder=DecoderTraining(steps=3, width=4), whitebox=WhiteBox(iterations=k)
        ),
        Surface.FEATURES,
    ),
    "decoder": (
        lambda k: FeatureInversion(
            decoder=DecoderTraining(steps=k, width=4, noise_std=0.1),
            whitebox=WhiteBox(iterations=3),
        ),
        Surface.FEATURES,
    ),
    "neighbour": (lambda k: KnownNeighbour(), Surface.FEATURES),
    "copies": (lambda k: CopyDetection(), Surface.SYNTHETIC_IMAGES),
}


def attacked(attack: Attack, surface: Surface, device: str) -> AttackOutcome:
    """One attack as a task of an audit."""
    held, truth = view(surface)
    (found,) = AttackTask(
        (AttackJob(held, truth, "round 0", "attack", attack),), replace(TERMS, device=device)
    ).run()
    return found


@pytest.mark.nightly(but=["analytic", "neighbour", "copies"])
@pytest.mark.parametrize("name", CASES)
def test_an_attack_gives_the_same_bits_on_the_fake_gpu_and_its_loop_moves_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, surface = CASES[name]
    if name != "copies":  # one attack is enough for the network of LPIPS
        monkeypatch.setattr(evaluation, "load_pretrained_trunk", lambda: None)
    # both within one block of random numbers, and between two looks at a value
    few = 2
    many = 6
    assert many < min(STEPS_BETWEEN_READS, STEPS_PER_TRANSFER)
    seen: list[AttackOutcome] = []
    grown = repeated(lambda steps: seen.append(attacked(make(steps), surface, "cuda")), few, many)
    assert grown == {}
    here = attacked(make(many), surface, "cpu")
    assert plain(seen[-1].finding.measures.to_row()) == plain(here.finding.measures.to_row())
    assert seen[-1].finding.figures.keys() == here.finding.figures.keys()
    assert all(
        torch.equal(value, here.finding.figures[key])
        for key, value in seen[-1].finding.figures.items()
    )


def plain(measures: Any) -> Any:
    """Without times."""
    return {key: value for key, value in measures.items() if key != "seconds"}


def test_searches_by_line_stay_on_the_cpu() -> None:
    assert not GradientInversion(DLG()).on_gpu and not GradientInversion(IDLG()).on_gpu
    assert GradientInversion().on_gpu
    with fake_gpu() as gpu:
        attacked(GradientInversion(IDLG(iterations=1, attempts=1)), Surface.UPDATE, "cuda")
        assert not gpu.traffic.total


def test_numbers_drawn_ahead_are_those_of_each_step_and_travel_in_blocks() -> None:
    steps = 2 * STEPS_PER_TRANSFER + 3
    one = seeded()
    two = seeded()

    def draws(generator: torch.Generator) -> Callable[[], tuple[Tensor, ...]]:
        return lambda: (
            torch.randn(3, generator=generator),
            torch.randint(9, (2,), generator=generator),
        )

    plain = [draws(one)() for _ in range(steps)]
    with fake_gpu() as gpu:
        sent = [
            tuple(part.cpu() for part in row)
            for row in draw_ahead(draws(two), steps, torch.device("cuda"))
        ]
        assert gpu.traffic.sent.total() == 2 * 3  # two tensors, three blocks
    assert all(
        torch.equal(a, b)
        for row, other in zip(plain, sent, strict=True)
        for a, b in zip(row, other, strict=True)
    )
    assert torch.equal(one.get_state(), two.get_state())


def test_memory_is_a_quarter_of_a_gpus_whatever_is_free() -> None:
    assert memory_budget("cpu", 123) == 123 and steps_between_reads(torch.device("cpu")) == 1
    with fake_gpu():
        assert (
            memory_budget("cuda", 123) == 2**32
        )  # a quarter of the 16 GiB that the fake device has


@pytest.mark.extra("gpu")
@pytest.mark.parametrize("name", CASES)
def test_an_attack_runs_on_a_gpu(name: str) -> None:
    make, surface = CASES[name]
    there, here = (attacked(make(3), surface, device).finding for device in ("cuda", "cpu"))
    assert all(value.device.type == "cpu" for value in there.figures.values())
    assert there.measures.to_row().keys() == here.measures.to_row().keys()
    if here.measures.psnr is not None:
        assert abs(there.measures.psnr - here.measures.psnr) < 1.0


def test_images_at_once_follow_a_gpus_size_where_the_usual_number_is_asked_for() -> None:
    images = torch.zeros(2, 3, 32, 32)
    assert max_images_per_batch(images, 64, 64) == 64 and max_images_per_batch(images, 0, 64) == 0
    with fake_gpu():
        there = images.to("cuda")
        assert max_images_per_batch(there, 64, 64) == 128  # 4 GiB of 16, 32 KiB a pixel
        assert max_images_per_batch(there, 16, 64) == 16 and max_images_per_batch(there, 0, 64) == 0
        assert max_images_per_batch(torch.zeros(1, 3, 224, 224).to("cuda"), 64, 64) == 64


class Graph:
    """A graph of kernels: what was computed inside of ``recording`` is computed again into the same
    memory."""

    def __init__(self) -> None:
        self.calls: list[
            tuple[Callable[[Tensor], tuple[Tensor, ...]], Tensor, tuple[Tensor, ...]]
        ] = []
        self.open = False

    def replay(self) -> None:
        for compute, given, found in self.calls:
            for held, value in zip(found, compute(given), strict=True):
                held.copy_(value)

    @contextmanager
    def recording(self) -> Iterator[None]:
        self.open = True
        yield
        self.open = False


@contextmanager
def recorded_by(graph: Graph) -> Iterator[None]:
    """The fake GPU with streams that do nothing, and ``graph`` as its only graph."""
    stream = mock.MagicMock()
    with fake_gpu(), ExitStack() as held:
        for name, value in (
            ("Stream", stream),
            ("current_stream", stream),
            ("CUDAGraph", lambda: graph),
        ):
            held.enter_context(mock.patch.object(torch.cuda, name, value))
        held.enter_context(mock.patch.object(torch.cuda, "stream", lambda _: nullcontext()))
        held.enter_context(mock.patch.object(torch.cuda, "graph", Graph.recording))
        yield


@pytest.mark.nightly
def test_what_a_graph_gave_stays_as_it_was_and_what_it_reads_is_kept() -> None:
    """A replay writes where the one before wrote, and reads where the recording read."""

    class Doubled:
        def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
            found = (2 * x, x.sum())
            if graph.open:
                graph.calls.append((lambda given: (2 * given, given.sum()), x, found))
            return found

    graph = Graph()
    compute = Doubled()
    with recorded_by(graph):
        play = record_cuda_graph(compute, torch.zeros(3).to("cuda"))
        alive = weakref.ref(compute)
        assert len(graph.calls) == 1 and play is not compute
        del compute
        gc.collect()
        assert alive() is not None
        first, second = (play(torch.full((3,), value).to("cuda")) for value in (1.0, 5.0))
        assert [float(found[1].cpu()) for found in (first, second)] == [3.0, 15.0]
        assert first[0].cpu().tolist() == [2.0] * 3 and second[0].cpu().tolist() == [10.0] * 3


@pytest.mark.extra("gpu")
def test_recorded_kernels_give_the_bits_of_the_kernels_one_by_one() -> None:
    generator = torch.Generator().manual_seed(0)
    weight, images = (
        torch.randn(shape, generator=generator).to("cuda")
        for shape in ((8, 3, 3, 3), (5, 4, 3, 9, 9))
    )

    def compute(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        maps = torch.nn.functional.conv2d(x[0], weight).relu()
        return maps, maps.square().sum((1, 2, 3))

    with deterministic_kernels("cuda"):
        play = record_cuda_graph(compute, images[:1])
        assert play is not compute
        for one in images.split(1):
            for found, expected in zip(play(one), compute(one), strict=True):
                assert torch.equal(found, expected)


@pytest.mark.extra("gpu")
def test_what_cannot_be_recorded_runs_as_it_is() -> None:
    def compute(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x * float(x.sum()),)

    one = torch.ones(2, device="cuda")
    play = record_cuda_graph(compute, one)
    assert torch.equal(play(one)[0], compute(one)[0])


@pytest.mark.extra("gpu")
def test_a_long_search_with_recorded_kernels_gives_the_bits_of_one_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make, surface = CASES["gradient"]
    with deterministic_kernels("cuda"):
        recorded = attacked(make(MIN_RECORDED_ITERATIONS), surface, "cuda").finding
        monkeypatch.setattr(gradient, "MIN_RECORDED_ITERATIONS", MIN_RECORDED_ITERATIONS + 1)
        plainly = attacked(make(MIN_RECORDED_ITERATIONS), surface, "cuda").finding
    assert all(torch.equal(value, plainly.figures[key]) for key, value in recorded.figures.items())


# Pooling and sampling off the CPU against torch's own, and what ``deterministic_kernels`` sets; on
# a GPU, the same bits twice.


SIZES = [((8, 8), 1), ((8, 8), 4), ((13, 13), 6), ((7, 5), (3, 2)), ((3, 4), (5, 4))]


def images_repeatable(*side: int) -> Tensor:
    return torch.rand((3, 2, *side), generator=torch.Generator().manual_seed(0))


def turned(side: tuple[int, int], a: float, b: float) -> Tensor:
    matrix = torch.tensor([[[a, b, 0.1], [-b, a, -0.2]]])
    return F.affine_grid(matrix, [1, 2, *side], align_corners=False)[0]


def with_slope(there: str, x: Tensor, compute: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """What ``compute`` makes of x, and the gradient of its squares, computed ``there``."""
    x = x.to(there).requires_grad_(True)
    found = compute(x)
    return found.detach().cpu(), torch.autograd.grad(found.square().sum(), x)[0].cpu()


@pytest.mark.parametrize(("side", "size"), SIZES)
def test_pooling_off_the_cpu_is_torchs(side: tuple[int, int], size: int | tuple[int, int]) -> None:
    expected = with_slope("cpu", images_repeatable(*side), lambda x: F.adaptive_avg_pool2d(x, size))
    with fake_gpu():
        found = with_slope("cuda", images_repeatable(*side), lambda x: average_pool(x, size))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert torch.equal(
        average_pool(images_repeatable(*side), size),
        F.adaptive_avg_pool2d(images_repeatable(*side), size),
    )


@pytest.mark.parametrize("side", [(8, 8), (5, 7)])
@pytest.mark.parametrize(("a", "b"), [(1.0, 0.0), (0.8, 0.3), (1.4, -0.6)])
def test_sampling_off_the_cpu_is_torchs(side: tuple[int, int], a: float, b: float) -> None:
    grid = turned(side, a, b)
    expected = with_slope(
        "cpu",
        images_repeatable(*side),
        lambda x: F.grid_sample(x, grid.expand(3, -1, -1, -1), align_corners=False),
    )
    with fake_gpu():
        found = with_slope(
            "cuda", images_repeatable(*side), lambda x: sample_grid(x, grid.to("cuda"))
        )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def flags() -> tuple[bool, bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
    )


def test_what_is_set_for_a_gpu_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    before = flags()
    with deterministic_kernels("cpu"):
        assert flags() == before
    with pytest.raises(ZeroDivisionError), deterministic_kernels("cuda"):
        assert flags() == (True, False, False)
        raise ZeroDivisionError
    assert flags() == before == (False, False, True)
    assert torch.utils.deterministic.fill_uninitialized_memory  # torch's own choice


@pytest.mark.extra("gpu")
@pytest.mark.parametrize("what", ["pooling", "sampling"])
def test_gradients_on_a_gpu_are_the_same_bits_twice(what: str) -> None:
    x = torch.rand((64, 3, 31, 31), generator=torch.Generator().manual_seed(0))
    grid = turned((31, 31), 1.3, 0.4)
    ways: dict[str, Callable[[Tensor], Tensor]] = {
        "pooling": lambda x: average_pool(x, 6),
        "sampling": lambda x: sample_grid(x, grid.to("cuda")),
    }
    with deterministic_kernels("cuda"):
        first, second = (with_slope("cuda", x, ways[what]) for _ in range(2))
    assert torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])
