"""What decides the bits that a process computes, so that unlike workers are told apart before they
compute anything."""

from __future__ import annotations

import functools
import hashlib
import platform
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from privdd.runtime.task_messages import torch_threads

SOURCE_ROOT = Path(__file__).resolve().parents[2]
SOURCE_PACKAGES = ("privdd", "attacks")
DIGEST_BYTES = 8
PROBE_RECORDS = 16
PROBE_SIDE = 12  # pixels of a square image
PROBE_FEATURES = 96


@dataclass(frozen=True)
class ComputeEnvironment:
    """source: a digest of privdd's own files; python, torch, numpy: versions; processor: with
    torch's CPU capability;
    kernels: a digest of what a few operations give, which also tells libraries apart that choose
        kernels by themselves."""

    source: str
    python: str
    torch: str
    numpy: str
    processor: str
    kernels: str

    @staticmethod
    def from_json(value: dict[str, Any]) -> ComputeEnvironment:
        return ComputeEnvironment(
            **{field.name: str(value.get(field.name)) for field in fields(ComputeEnvironment)}
        )

    def to_json(self) -> dict[str, str]:
        return asdict(self)

    def describe_difference(self, own: ComputeEnvironment) -> str:
        """ "torch 2.3 (here 2.4), ..." for what differs from ``own``; "" if they are alike."""
        here = own.to_json()
        parts = [
            f"{name} {value} (here {here[name]})"
            for name, value in self.to_json().items()
            if value != here[name]
        ]
        return ", ".join(parts)


@functools.cache
def current_environment() -> ComputeEnvironment:
    """That of this process."""
    return ComputeEnvironment(
        source=_digest_source(SOURCE_ROOT),
        python=platform.python_version(),
        torch=str(torch.__version__),
        numpy=np.__version__,
        processor=f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        kernels=_digest_kernels(),
    )


def _digest_source(root: Path) -> str:
    """Of the names and contents of all Python files of the project's packages."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for package in SOURCE_PACKAGES:
        for file in sorted((root / package).rglob("*.py")):
            content = file.read_bytes()
            digest.update(f"{file.relative_to(root).as_posix()} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()


def _digest_kernels() -> str:
    """Of the bits of sums, products, convolutions, their gradients and elementary functions of
    fixed numbers."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(PROBE_RECORDS, 1, PROBE_SIDE, PROBE_SIDE, generator=generator)
    filters = torch.randn(8, 1, 3, 3, generator=generator).requires_grad_()
    weights = torch.randn(8 * PROBE_SIDE**2, PROBE_FEATURES, generator=generator).requires_grad_()
    with torch_threads(1), torch.enable_grad():
        hidden = torch.tanh(F.conv2d(images, filters, padding=1)).flatten(1)
        features = hidden @ weights
        loss = F.log_softmax(features, dim=1).exp().square().sum().sqrt()
        loss.backward()
        wide = features.detach().double()
        results = [
            features,
            loss,
            filters.grad,
            weights.grad,
            wide.T @ wide,
            torch.special.ndtri(images.clamp(0.01, 0.99)),
        ]
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for result in results:
        if result is not None:
            digest.update(result.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()
