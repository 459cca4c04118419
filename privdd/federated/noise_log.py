"""The noise log of a run: what its noise and its sampling were, noted while it trains.

A ``RoundLog`` follows one client through one round. Of every protected release it keeps the
residual, (released - clean) / noise scale, as statistics and a sample; of every Poisson draw, who
was taken; of the audited client, what the analyst of a guarantee observes (``ObservedRound``). That
is private: it travels from worker to auditor with a task's result, stays in memory, and is never
written to a run folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import dp_accounting as dpa
import torch
from torch import Tensor

from attacks.low_bits import examine_low_bits
from privdd.core.types import State, Tensors
from privdd.privacy.clipping import count_records
from privdd.privacy.mechanism import Mechanism, Output
from privdd.privacy.noise_laws import NOISE_LAWS, noise_law

# kept of a release; of those beyond half of ``ROUND_RESIDUALS``
RESIDUALS_PER_RELEASE = 4096
FIRST_RESIDUALS = 256
ROUND_RESIDUALS = 2**18  # of one client round, all releases together
# residuals within the near bounds and beyond the far ones are counted, of all numbers
NEAR_BOUNDS = (0.0, 2.0**-10, 2.0**-7, 2.0**-4)
FAR_BOUNDS = (2.5, 3.0, 3.5, 4.0, 4.5, 5.0)
# of a name in a round, and their first numbers
CORRELATED_RELEASES = 2
CORRELATED_NUMBERS = 2**18
# of all other clients in a run; beyond it the first of each release, up to twice as many
RUN_RESIDUALS = 2**24


@dataclass(frozen=True)
class ObservedRound:
    """One round of the audited client as the analyst observed it: every released query in order,
    and what led to them.

    taken: the samples that were drawn, (name, (n,) bool), in order. They are private, stay in
        memory, and are for tests of the guarantee alone.
    """

    round: int
    broadcast: Mapping[str, Tensors]
    memory: State
    outputs: tuple[Tensors, ...]
    samples: tuple[tuple[str, Tensor], ...]


def noise_law_of(event: dpa.DpEvent) -> str | None:
    """The law of the noise that an event is accounted for, by its name; None if it has no law in
    ``privdd.privacy.noise_laws``, or several."""
    law = noise_law(event)
    if law is not None:
        return law.name
    if isinstance(event, dpa.PoissonSampledDpEvent | dpa.SelfComposedDpEvent):
        return noise_law_of(event.event)
    if isinstance(event, dpa.ComposedDpEvent):
        laws = {noise_law_of(part) for part in event.events}
        return laws.pop() if len(laws) == 1 else None
    return None


def compute_residuals(mechanism: Mechanism, output: Output) -> dict[str, Tensor]:
    """Tensor name -> residuals (copies, *shape), standard normal if the noise is what the output
    states.

    In whole steps where it is on a lattice: the clean value lies between them. Laplace noise is
    taken to normal scores. Raises ValueError, which says what is missing, where the output does
    not show its clean value, or states no noise, or noise of another law.
    """
    law = noise_law_of(output.event)
    if law is None:
        raise ValueError(f"its noise is of no known law ({type(output.event).__name__})")
    if not output.exact:
        raise ValueError("it shows no value before its noise (exact)")
    residuals = {}
    for name, clean in output.exact.items():
        released = output.value[name]
        if clean.numel():
            copies = released.numel() // max(clean.numel(), 1)
        else:
            copies = 1
        if released.numel() != copies * clean.numel():
            raise ValueError(f"{name}: {tuple(released.shape)} released of {tuple(clean.shape)}")
        scale = _noise_scales(mechanism, output, clean, copies).reshape(copies, *(1,) * clean.ndim)
        gap = released.detach().double().reshape(copies, *clean.shape) - clean.detach().double()
        if output.lattice is not None:
            gap = (gap / output.lattice).round_() * output.lattice
        gap = gap / scale.to(gap.device)
        gap = gap.cpu()
        residuals[name] = NOISE_LAWS[law].normal_scores(gap)
    return residuals


def _noise_scales(mechanism: Mechanism, output: Output, clean: Tensor, copies: int) -> Tensor:
    """The stated noise scale of each copy (copies,)."""
    scales: Any = [output.noise_std] * copies
    if copies > 1:
        scales = mechanism.public_constants(clean[0].numel()).get("noise_stds", scales)
    values = torch.tensor([float(scale) for scale in scales], dtype=torch.float64)
    if len(values) != copies or not bool((values > 0).all() and values.isfinite().all()):
        raise ValueError(f"it states noise of scale {[float(s) for s in scales]}")
    return values


def autocorrelation_peak(values: Tensor) -> tuple[int, float, int]:
    """(numbers compared, correlation, shifts tried) at the shift where a vector is most like
    itself; by Fourier transform."""
    v = values[:CORRELATED_NUMBERS].double()
    widths = torch.arange(len(v), 0, -1)  # numbers compared at each shift
    if len(v) < 16 or not float(v.norm()):
        return 0, 0.0, 0
    spectrum = torch.fft.rfft(v, 2 * len(v))
    products = torch.fft.irfft(spectrum * spectrum.conj(), 2 * len(v))[: len(v)]
    sums = torch.cat([torch.zeros(1).double(), v.square().cumsum(0)])
    energy = (sums[widths] * (sums[-1] - sums[:-1])).clamp_min(1e-30).sqrt()
    r = (products.abs() / energy).clamp_max(1.0)[1:-7]  # at least 8 numbers
    index = int((r.square() * widths[1:-7]).argmax())
    return int(widths[1 + index]), float(r[index]), len(r)


def count_magnitudes(values: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How many residuals lie within each of ``NEAR_BOUNDS``, and how many beyond each of
    ``FAR_BOUNDS``."""
    bounds = torch.tensor((*NEAR_BOUNDS, *FAR_BOUNDS), dtype=torch.float64)
    within = (
        torch.bucketize(values.double().abs(), bounds)
        .bincount(minlength=len(bounds) + 1)
        .cumsum(0)
        .tolist()
    )
    return tuple(within[: len(NEAR_BOUNDS)]), tuple(
        len(values) - count for count in within[len(NEAR_BOUNDS) : -1]
    )


def chosen_sizes(values: Tensor, share: float) -> Tensor:
    """The sizes of about this share of all residuals but zeros: which, their float32 bits alone
    decide."""
    sizes = values.abs().float()
    bits = (sizes.contiguous().view(torch.int32).long() * 2654435761) & 0xFFFFFFFF
    return sizes[(sizes > 0) & (bits <= share * 0xFFFFFFFF)]


def _take_evenly(value: Tensor) -> Tensor:
    """At least ``RESIDUALS_PER_RELEASE`` of the numbers, where there are as many, evenly spaced."""
    flat = value.detach().cpu().flatten()
    return flat[:: max(1, len(flat) // RESIDUALS_PER_RELEASE)]


def residual_spacing(output: Output) -> float:
    """The largest distance of neighbouring values that a residual of this release can have, in
    noise scales.

    That of the lattice; of floating point where the values are too large for it; and of a coarser
    grid that the released values show by themselves: rounding what was noised is harmless, and
    residuals then take few values."""
    std = float(output.noise_std)
    step = output.lattice or 0.0
    for value in output.value.values():
        if not value.numel():
            continue
        if value.is_floating_point():
            kind = value.dtype
        else:
            kind = torch.float64
        step = max(step, float(value.abs().max()) * torch.finfo(kind).eps)
        sample = _take_evenly(value).double()
        gaps = sample.unique().diff()  # sorted
        least = float(gaps.min()) if len(gaps) else 0.0
        if (
            least / std * len(sample) ** 2 > 100
        ):  # of so many independent numbers two would be closer
            step = max(step, least)
    return step / std


@dataclass
class ReleaseLog:
    """One release. squares: tensor -> (numbers, sum of squared residuals); sample: some residuals,
    at the same places in every release of the same shape; records: how many contributed, None where
    it is one row each;
    judged, off: numbers whose low bits were looked at, and those off any lattice; missing: why
        there is nothing;
    marked: where there are more than the sample holds, the sizes of a ``share`` of all residuals,
        chosen by their own bits, so that of equal sizes all are there or none; near, far: of all
        numbers, residuals within each of ``NEAR_BOUNDS`` and beyond each of ``FAR_BOUNDS``; step:
        the largest distance, in
    noise scales, of neighbouring values that a residual can have (lattice or floating point);
    event: what the mechanism said that it costs; echo: (numbers compared, correlation) of the
        residuals with themselves at the shift where they are most alike, and how many shifts were
        tried, of the audited client's first releases.
    """

    name: str
    partition: str | None
    records: int | None
    squares: dict[str, tuple[int, float]] = field(default_factory=dict)
    sample: Tensor = field(default_factory=lambda: torch.zeros(0))
    low_bits_checked: int = 0
    off_lattice: int = 0
    missing: str = ""
    marked: Tensor = field(default_factory=lambda: torch.zeros(0))
    share: float = 1.0
    near: tuple[int, ...] = ()
    far: tuple[int, ...] = ()
    step: float = 0.0
    event: dpa.DpEvent | None = None
    autocorrelation: tuple[int, float, int] = (0, 0.0, 0)

    @property
    def number_count(self) -> int:
        return sum(count for count, _ in self.squares.values())


@dataclass
class SamplingLog:
    """One Poisson draw: with which probability, and which of the records (n,) bool were taken."""

    name: str
    probability: float
    mask: Tensor
    releases_before: int  # releases noted before


@dataclass
class RoundLog:
    """One client's round. held: its training records; observed: what it released, on its way to the
    auditor; columns: (name, tensor) -> (releases, sums of squared residuals of each number)."""

    round: int
    client: int
    audited: bool
    record_count: int = 0
    releases: list[ReleaseLog] = field(default_factory=list)
    samples: list[SamplingLog] = field(default_factory=list)
    columns: dict[tuple[str, str], tuple[int, Tensor]] = field(default_factory=dict)
    residuals_kept: int = 0
    observed: ObservedRound | None = None

    def on_sample(self, name: str, probability: float, taken: Tensor) -> None:
        """A draw of ``ctx.sample``."""
        self.samples.append(
            SamplingLog(name, probability, taken.detach().cpu().clone(), len(self.releases))
        )

    def on_release(
        self,
        mechanism: Mechanism,
        name: str,
        output: Output | None,
        partition: str | None = None,
        given: Tensors | None = None,
    ) -> None:
        if (
            output is None
            or isinstance(output.event, dpa.NonPrivateDpEvent)
            or not all(output.flags.values())
        ):
            return  # nothing is promised of it
        if given and mechanism.per_record:
            count = count_records(given)
        else:
            count = None
        noted = ReleaseLog(name, partition, count, event=output.event)
        self.releases.append(noted)
        try:
            gaps = compute_residuals(mechanism, output)
        except ValueError as problem:
            noted.missing = str(problem)
            return
        flat = [gaps[key].flatten() for key in sorted(gaps)]
        noted.squares = {key: (gap.numel(), float(gap.square().sum())) for key, gap in gaps.items()}
        if not math.isfinite(sum(total for _, total in noted.squares.values())):
            noted.missing = "its values are not finite"
            return
        every = torch.cat(flat)
        noted.sample = self._select_residuals(every)
        if len(every) > len(noted.sample) and self.residuals_kept < ROUND_RESIDUALS // 2:
            noted.share = min(1.0, RESIDUALS_PER_RELEASE / len(every))
            noted.marked = chosen_sizes(every, noted.share)
            self.residuals_kept += len(noted.marked)
        noted.near, noted.far, noted.step = *count_magnitudes(every), residual_spacing(output)
        if self.audited and sum(r.name == name for r in self.releases) <= CORRELATED_RELEASES:
            noted.autocorrelation = autocorrelation_peak(every)
        for value in output.value.values():
            if value.numel():
                low_bits = examine_low_bits(_take_evenly(value), output.noise_std, output.lattice)
                noted.low_bits_checked += low_bits.judged
                noted.off_lattice += low_bits.off
        if self.audited:
            self._add_columns(
                name, gaps, rows=given is None and bool(output.flags.get("relation:zero_out"))
            )

    def _select_residuals(self, values: Tensor) -> Tensor:
        """The first numbers, and others spread over the rest: at the same places in every client's
        sample, while there is room."""
        if self.residuals_kept < ROUND_RESIDUALS // 2:
            most = RESIDUALS_PER_RELEASE
        else:
            most = FIRST_RESIDUALS
        size = min(most, ROUND_RESIDUALS - self.residuals_kept)
        if size <= 0 or not len(values):
            return torch.zeros(0)
        head = values[: min(size, FIRST_RESIDUALS)]
        rest = values[FIRST_RESIDUALS:]
        step = max(1, len(rest) // max(size - FIRST_RESIDUALS, 1))
        selected = torch.cat([head, rest[::step][: max(size - FIRST_RESIDUALS, 0)]]).float()
        self.residuals_kept += len(selected)
        return selected

    def _add_columns(self, name: str, gaps: Mapping[str, Tensor], *, rows: bool) -> None:
        """Add up squares number by number: over releases, or over the rows of one that has a row
        for each record."""
        for key, gap in gaps.items():
            table = gap.flatten(0, 1) if rows and gap.ndim > 2 else gap
            count, total = self.columns.get(
                (name, key), (0, torch.zeros(table.shape[1:], dtype=torch.float64))
            )
            if total.shape == table.shape[1:]:
                self.columns[name, key] = count + len(table), total + table.square().sum(0)


@dataclass
class NoiseLog:
    """All that was watched of a run: (round, client) -> ``RoundLog``. victim: the audited
    client."""

    victim: int
    rounds: dict[tuple[int, int], RoundLog] = field(default_factory=dict)
    residuals_kept: int = 0

    def add_round(self, watch: RoundLog) -> None:
        """Keep what was noted; once ``RUN_RESIDUALS`` residuals of other clients are kept, their
        first ones, and at last only sums."""
        if not watch.audited:
            residuals_kept = self.residuals_kept + watch.residuals_kept
            if residuals_kept <= RUN_RESIDUALS:
                most = RESIDUALS_PER_RELEASE
            else:
                most = FIRST_RESIDUALS
            most = 0 if self.residuals_kept >= 2 * RUN_RESIDUALS else most
            for noted in watch.releases:
                if most < len(noted.sample):
                    noted.sample = noted.sample[:most].clone()
                if most != RESIDUALS_PER_RELEASE:
                    noted.marked = torch.zeros(0)
                self.residuals_kept += len(noted.sample) + len(noted.marked)
        self.rounds[watch.round, watch.client] = watch
