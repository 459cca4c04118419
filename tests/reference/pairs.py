"""Each method of the stack at a chosen size, and its reference loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from privdd.core.rng import Keys
from privdd.core.types import Shard, State
from privdd.distillation.distribution_matching import MatchingSettings
from privdd.distillation.feature_split import SplitLoss
from privdd.distillation.virtual_images import VirtualImages
from privdd.methods.fedadam import FedAdam
from privdd.methods.fedavg import FedAvg
from privdd.methods.fedavgm import FedAvgM
from privdd.methods.feddm import FedDM
from privdd.methods.fedfed import FedFed
from privdd.methods.fedlgd import FedLGD
from privdd.methods.fedmd import FedMD
from privdd.methods.fednova import FedNova
from privdd.methods.fedproto import FedProto
from privdd.methods.fedprox import FedProx
from privdd.methods.fedrd import FedRD
from privdd.methods.moon import Moon
from privdd.methods.scaffold import Scaffold
from privdd.methods.vhl import VHL
from privdd.models import ModelSpec
from privdd.privacy.mechanism import Mechanism
from privdd.privacy.mechanisms import FeatureNoise
from privdd.training.server import ServerTraining
from tests.reference.aligned import fedproto, moon, vhl
from tests.reference.averaging import fedadam, fedavg, fedavgm, fednova, fedprox, scaffold
from tests.reference.feddm import feddm
from tests.reference.fedfed import RHO, VARIANCE, fedfed
from tests.reference.fedlgd import fedlgd
from tests.reference.fedrd import fedrd
from tests.reference.logits import fedmd

AUGMENT = "color_crop_cutout_scale_rotate"


@dataclass(frozen=True)
class Size:
    """What a benchmark or a test can afford; the other hyper-parameters are those of
    configs/algo."""

    width: int = 32
    depth: int = 3
    rounds: int = 2
    iterations: int = 5  # of every kind of matching
    batch: int = 64  # of SGD
    images: int = 10  # per class
    epochs: int = 5  # of the server's training and of the projection
    anchors: int = 200  # VHL, per class


@dataclass(frozen=True)
class Pair:
    """make: the method at a size; loop: its reference loop; mechanisms: set on the stack's
    channel."""

    make: Callable[[Size], Any]
    loop: Callable[[Any, Sequence[Shard], Keys], State]
    mechanisms: Mapping[str, Mechanism] = field(default_factory=dict)


def _convnet(size: Size, **more: Any) -> ModelSpec:
    return ModelSpec(name="convnet", width=size.width, depth=size.depth, **more)


def _averaging(kind: type[FedAvg], **more: Any) -> Callable[[Size], FedAvg]:
    plain: dict[str, Any] = {
        "lr": 0.05,
        "momentum": 0.9,
        "weight_decay": 1e-5,
        "local_epochs": 1.0,
        **more,
    }
    return lambda s: kind(model=_convnet(s), rounds=s.rounds, batch_size=s.batch, **plain)


def _matching(size: Size, **more: Any) -> MatchingSettings:
    return MatchingSettings(iterations=size.iterations, batch=128, **more)


def _feddm(size: Size) -> FedDM:
    server = ServerTraining(
        epochs=size.epochs, batch_size=64, lr=0.05, momentum=0.9, weight_decay=5e-4
    )
    return FedDM(
        model=_convnet(size),
        rounds=size.rounds,
        matching=_matching(size),
        server=server,
        ipc=size.images,
        rho=2.5,
    )


def _fedrd(size: Size) -> FedRD:
    return FedRD(
        model=_convnet(size, norm="batch", pooling="max"),
        rounds=size.rounds,
        dpc=size.images,
        matching=_matching(size, augment=AUGMENT),
        projection_epochs=size.epochs,
        projection_batch=32,
        server=ServerTraining(epochs=size.epochs, batch_size=64, lr=0.01, optimiser="adam"),
    )


def _fedlgd(size: Size) -> FedLGD:
    steps = _matching(size, momentum=0.5, augment=AUGMENT)
    return FedLGD(
        model=_convnet(size),
        rounds=size.rounds,
        virtual=VirtualImages(warmup=steps, refine=steps, ipc=size.images),
        tau=1,
        tau_step=2,
        lr=0.1,
        local_epochs=2,
        contrast=1.0,
        global_ipc=size.images,
        global_iterations=size.iterations,
    )


def _fedfed(size: Size) -> FedFed:
    generator = ModelSpec(name="vae", width=max(4, size.width // 2), latent=64, norm="group")
    return FedFed(
        base=_averaging(FedAvg, weight_decay=1e-4, balanced=True)(size),
        generator=generator,
        loss=SplitLoss(rho=0.1),
        distill_rounds=size.rounds,
        distill_batch=32,
    )


PAIRS = {
    "fedavg": Pair(_averaging(FedAvg), fedavg),
    "fedprox": Pair(_averaging(FedProx, mu=0.01), fedprox),
    "fednova": Pair(_averaging(FedNova), fednova),
    "scaffold": Pair(_averaging(Scaffold, momentum=0.0), scaffold),
    "fedavgm": Pair(_averaging(FedAvgM), fedavgm),
    "fedadam": Pair(_averaging(FedAdam, server_lr=0.03), fedadam),
    "moon": Pair(_averaging(Moon), moon),
    "fedproto": Pair(_averaging(FedProto), fedproto),
    "fedmd": Pair(_averaging(FedMD, images=40), fedmd),
    "vhl": Pair(lambda s: _averaging(VHL, per_class=s.anchors)(s), vhl),
    "feddm": Pair(_feddm, feddm),
    "fedrd": Pair(_fedrd, fedrd),
    "fedlgd": Pair(_fedlgd, fedlgd),
    "fedfed": Pair(_fedfed, fedfed, {"features": FeatureNoise(variance=VARIANCE, rho=RHO)}),
}
