"""Whole run folders from synthetic scores: every number is computed, nothing was trained.

Members score N(shift, 1) and outsiders N(0, 1), so AUC and rates have closed forms; pictures are
scikit-learn's digits and noisy copies of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from safetensors.torch import save_file
from sklearn.datasets import load_digits

from attacks.epsilon import clopper_pearson
from attacks.roc import auc_interval, roc, tpr_at_fpr
from privdd.core.rng import Keys
from privdd.reporting.page import render_report
from privdd.reporting.plots import plot_epsilons
from privdd.reporting.run_record import read_run_record
from privdd.reporting.schema import write_findings

DELTA = 1e-5
BIG = {"update": 2_400_000, "features": 310_000, "synthetic_images": 120_000, "labels": 2_400}


def scores(seed: int, shift: float, m: int = 4000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(scores, members, blind), each (m,); half are members."""
    rng = Keys(seed).fold("fixture", str(shift)).numpy()
    members = np.arange(m) % 2 == 0
    return rng.normal(size=m) + shift * members, members, rng.normal(size=m)


def membership(
    folder: Path, surface: str, attack: str, shift: float, seed: int, stated: Any, **more: Any
) -> dict[str, Any]:
    """A membership finding with its evidence file."""
    values, members, blind = scores(seed, shift)
    tensors = {"scores": values, "members": members.astype(np.uint8), "blind": blind}
    _save(folder, f"{surface}.{attack}", {k: torch.from_numpy(v) for k, v in tensors.items()})
    rates = {}
    for key in ("0.001", "0.01", "0.1"):
        tpr, interval, resolvable = tpr_at_fpr(values, members, float(key))
        rates[key] = {"tpr": tpr, "ci": list(interval), "resolvable": resolvable}
    guess = values > 2.2
    cells = (guess & members, ~guess & members, guess & ~members, ~guess & ~members)
    bound = clopper_pearson(*(int(c.sum()) for c in cells), delta=DELTA)
    return (
        {
            "surface": surface,
            "attack": attack,
            "family": "membership",
            "adversary": "server",
            "auc": roc(values, members).auc,
            "auc_ci": list(auc_interval(values, members)),
            "tpr_at_fpr": rates,
            "blind_auc": roc(blind, members).auc,
            "epsilon_shown": bound,
            "epsilon_method": "clopper_pearson",
            "epsilon_validity": "finite_sample",
            "confidence": 0.95,
            "n": 250,
            "worlds": 16,
            "seconds": 2.5,
        }
        | ({} if stated is None else {"epsilon_stated": stated})
        | more
    )


def pictures(
    folder: Path, surface: str, attack: str, noise: float, seed: int, family: str
) -> dict[str, Any]:
    """A reconstruction finding: digits and the same digits with noise of that standard
    deviation."""
    real = torch.from_numpy(load_digits().images[:12] / 16).float()[:, None]
    generator = Keys(seed).fold("pictures", surface).torch()
    spread = noise * torch.linspace(0.6, 1.4, len(real)).view(-1, 1, 1, 1)
    rebuilt = (real + spread * torch.randn(real.shape, generator=generator)).clamp(0, 1)
    _save(folder, f"{surface}.{attack}", {"real": real, "reconstructed": rebuilt})
    ratio = [
        -10 * float(torch.log10(((a - b) ** 2).mean()))
        for a, b in ((real, rebuilt), (real, real.mean(0)))
    ]
    return {
        "surface": surface,
        "attack": attack,
        "family": family,
        "adversary": "server",
        "psnr": ratio[0],
        "ssim": 0.71,
        "lpips": 0.21,
        "lpips_trunk": "squeeze",
        "identified": 0.75,
        "identified_chance": 1 / 12,
        "baselines": {"psnr_mean": ratio[1]},
        "n": 12,
        "seconds": 11.0,
    }


def _save(folder: Path, name: str, tensors: dict[str, torch.Tensor]) -> None:
    (folder / "evidence").mkdir(parents=True, exist_ok=True)
    save_file(
        {k: v.contiguous() for k, v in tensors.items()}, folder / "evidence" / f"{name}.safetensors"
    )


def _surface(
    name: str, mechanism: str, epsilon: Any, verdict: str, rounds: int, audited: Any = True
) -> dict[str, Any]:
    return {
        "surface": name,
        "sender": "server" if name.startswith(("global", "shared")) else "client",
        "names": [name],
        "rounds": rounds,
        "bytes": BIG.get(name, 2_400_000),
        "mechanism": mechanism,
        "epsilon": {"pld": epsilon, "rdp": epsilon if epsilon == "inf" else epsilon * 1.12},
        "audited": audited,
        "untested": [],
        "verdict": verdict,
    }


def _release(name: str, round_: int, client: int, event: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": f"r{round_}c{client}{name}",
        "round": round_,
        "client": client,
        "name": name,
        "surface": name,
        "visible_to": ["server"],
        "shape": [10],
        "digest": "00",
        "partition": None,
        "clip_norm": 1.0,
        "sensitivity": {"value": 1.0, "why": "clipped per record"},
        "noise_std": 1.0,
        "event": event,
        "count": 1,
        "flags": {},
        "post_of": [],
        "nonprivate_reason": "no mechanism is set for it"
        if event["type"] == "non_private"
        else None,
    }


def write_run(
    folder: Path,
    *,
    algo: str = "fedfed",
    seed: int = 0,
    kind: str = "unprotected",
    noise: float = 1.0,
    **run: Any,
) -> Path:
    """A finished run folder of one of the three verdicts. ``run`` overrides fields of "run"."""
    epsilon: Any = "inf" if kind == "unprotected" else round(4.85 / noise, 4)
    shift = {"unprotected": 1.6, "consistent": 0.5 / noise, "contradiction": 2.4}[kind]
    mechanism = "none" if kind == "unprotected" else f"per-record clip, Gaussian noise {noise:g}"
    stated = {"unprotected": None, "consistent": epsilon, "contradiction": 0.9}[kind]
    features = membership(folder, "features", "lira", shift, seed, stated, signal="matched filter")
    rows = [features, membership(folder, "features", "threshold", shift / 2, seed, None)]
    rows.append(
        pictures(
            folder,
            "features",
            "feature_inversion",
            0.08 if kind != "consistent" else 0.3 * noise**0.5,
            seed,
            "reconstruction",
        )
    )
    surfaces = [_surface("features", mechanism, epsilon, kind, 1)]
    if kind == "unprotected":
        rows.append(membership(folder, "update", "rmia", 0.7, seed, None))
        rows.append(
            pictures(folder, "update", "inverting_gradients", 0.25, seed, "gradient_inversion")
        )
        surfaces.append(_surface("update", "none", "inf", "unprotected", 5))
        rows.append(
            {
                "surface": "labels",
                "attack": "label_counts",
                "family": "label",
                "adversary": "server",
                "label_accuracy": 1.0,
                "n": 60,
            }
        )
        surfaces.append(_surface("labels", "none", "inf", "unprotected", 1))
    surfaces.append(
        _surface(
            "global_model",
            "computed from protected values",
            epsilon,
            "consistent" if kind != "unprotected" else kind,
            5,
            "waived: a function of the updates, which are audited",
        )
    )
    rng = Keys(seed).fold("accuracy", algo, str(noise)).numpy()
    top = (0.93 if kind == "unprotected" else 0.9 - 0.12 * noise**0.7) + rng.normal() * 0.01
    curve = [round(float(top * (1 - 0.7 * 0.55**t)), 4) for t in range(1, 9)]
    claims = (
        [
            {
                "source": "the accountant's own",
                "epsilon": epsilon,
                "sound": True,
                "why": "Noise on clipped records.",
            }
        ]
        if kind == "consistent"
        else [
            {
                "source": "Yang 2023, Theorem 3.4",
                "epsilon": 0.9,
                "sound": False,
                "why": "It leaves out that one noise image is shared by a batch.",
            }
        ]
    )
    data = {
        "schema": 1,
        "run": {
            "algo": algo,
            "data": "digits",
            "preset": "default",
            "seed": seed,
            "version": "0.1.0",
            "clients": 5,
            "rounds": 8,
            "seconds": {"train": 41.2, "worlds": 63.0, "attacks": 22.9, "total": 128.4},
        }
        | run,
        "utility": {
            "accuracy": curve[-1],
            "accuracy_kind": "global",
            "accuracy_by_round": curve,
            "uploaded_bytes_per_client": sum(
                s["bytes"] for s in surfaces if s["sender"] == "client"
            ),
        },
        "privacy": {
            "delta": DELTA,
            "unit": "record",
            "relation": "add_remove",
            "epsilon": surfaces[0]["epsilon"],
            "claims": claims,
        },
        "surfaces": surfaces,
        "findings": rows,
        "verdict": kind,
    }
    write_findings(data, folder / "findings.json")
    event = (
        {"type": "non_private"}
        if kind == "unprotected"
        else {"type": "gaussian", "noise_multiplier": noise}
    )
    releases = [
        _release(s["surface"], r, c, event)
        for s in surfaces
        for r in range(s["rounds"])
        for c in range(5)
    ]
    ledger = {
        "schema": 1,
        "relation": "add_remove",
        "unit": "record",
        "delta": DELTA,
        "releases": releases,
    }
    (folder / "ledger.json").write_text(json.dumps(ledger))
    (folder / "config.yaml").write_text(
        yaml.safe_dump(
            {"algo": {"name": algo}, "privacy": {"noise_multiplier": noise}, "seed": seed}
        )
    )
    (folder / "manifest.json").write_text(
        json.dumps(
            {
                "schema": 1,
                "version": "0.1.0",
                "seed": seed,
                "command": ["python", "-m", "privdd.audit", f"algo={algo}", f"seed={seed}"],
                "machine": {"cpu": "x86_64", "cores": 2},
                "digests": {"config": "5f0c", "findings": "a1b2"},
            }
        )
    )
    return folder


def text_of(folder: Path) -> str:
    """The page of a run without its curves and pictures, which take most of the time: for tests of
    its words."""
    record = read_run_record(folder)
    return render_report(record, [plot_epsilons(record)], [])
