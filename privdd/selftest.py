"""``python -m privdd.selftest``: plant faults in small guaranteed runs, and see whether the audit
finds them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from privdd.core.command import (
    Command,
    Key,
    parse_integer,
    parse_integer_list,
    read_path,
    read_text,
    read_word,
)
from privdd.core.validation import BadConfig

EXIT_MISSED = 2
DRAWS = 16  # faults, unless draws= says otherwise
SELFTEST = Command(
    "privdd selftest [fault=drawn] [profile=all] [seed=0] [draws=16] [seeds=0] "
    "[controls=4] [out=FILE.json] [docs=FILE.md] [resume=true]",
    "Plants faults in small runs of the profiles with a guarantee, and audits each. Exit "
    "status: 0 all faults were caught\n"
    "and no healthy run was contradicted, 2 otherwise, 1 error. By default faults are "
    "drawn: the fault, its rounds,\n"
    "releases, clients and numbers, and in which profile (a few minutes). fault=all "
    "draws=0 plants every fault that has a name in\n"
    "every profile (hours).",
    (
        Key(
            "fault",
            read_text,
            "A,B",
            "which faults (drawn: none but the drawn ones; all: those with a name; none; or "
            "names: a wrong one lists them)",
        ),
        Key("profile", read_text, "A,B", "in which profiles (all, or names)"),
        Key(
            "seed",
            parse_integer,
            "N",
            "which faults are drawn, and the seeds of their runs and of the healthy ones",
        ),
        Key("draws", parse_integer, "N", "how many are drawn (0 unless fault=drawn)"),
        Key(
            "seeds",
            parse_integer_list,
            "0-2",
            "each fault with a name once a seed (0-2, or 0,5)",
        ),
        Key(
            "controls",
            parse_integer,
            "N",
            "healthy runs, spread over the profiles, each with a seed of its own",
        ),
        Key("out", read_path, "FILE", "every outcome as JSON, written after each run"),
        Key("docs", read_path, "FILE", "the table as a page of Markdown"),
        Key(
            "resume",
            read_word("true", "false", "only"),
            "true",
            "skips the trials that the file of out= holds; resume=only: runs no other either",
        ),
    ),
)


@dataclass(frozen=True)
class SelftestRequest:
    """The command line, with its defaults."""

    fault: str = "drawn"
    profile: str = "all"
    seed: int = 0
    draws: int | None = None
    seeds: tuple[int, ...] = (0,)
    controls: int = 4
    out: Path | None = None
    docs: Path | None = None
    resume: str = "false"

    @property
    def draw_count(self) -> int:
        """How many faults are drawn: by default some if drawn ones are asked for, else none."""
        if self.draws is not None:
            return self.draws
        return DRAWS if self.fault == "drawn" else 0


def parse_selftest_arguments(argv: Sequence[str]) -> SelftestRequest:
    """Raises BadConfig, one line, for anything that is not understood."""
    values = SELFTEST.parse(argv)
    if values.get("resume", "false") != "false" and "out" not in values:
        raise BadConfig(f"resume={values['resume']}: can be used with out=FILE only")
    return SelftestRequest(**values)


def main(argv: Sequence[str] | None = None) -> int:
    """The table on stdout, progress on stderr; errors are one line on stderr and status 1."""
    from privdd.cli.errors import run_command

    return run_command(SELFTEST, argv, _run_command, needs_arguments=False)


def _run_command(argv: Sequence[str]) -> int:
    from privdd.reporting.export import write_markdown_page
    from privdd.selftest_faults import fault_trials
    from privdd.selftest_faults.profiles import select_profiles

    request = parse_selftest_arguments(argv)
    faults = fault_trials.select_faults(request.fault)
    wanted = select_profiles(request.profile)
    absent = {p.name: p.reason_unavailable() for p in wanted if p.reason_unavailable()}
    profiles = [p for p in wanted if p.name not in absent]
    for name, why in absent.items():
        print(f"profile {name}: not run: {why}", file=sys.stderr)
    drawn_faults = fault_trials.draw_faults(request.seed, request.draw_count, profiles)
    jobs = _jobs(request, faults, drawn_faults, profiles)
    outcomes = list(_run_trials(request, jobs))
    table = fault_trials.format_score_table(outcomes, faults, profiles)
    problems = fault_trials.unexpected_outcomes(outcomes)
    print("\n".join([fault_trials.summarise_score(outcomes), *problems, *table]), flush=True)
    if request.docs is not None:
        command = " ".join(
            [
                "python -m privdd.selftest",
                *(a for a in argv if not a.startswith(("out=", "resume="))),
            ]
        )
        write_markdown_page(
            request.docs, fault_trials.format_score_page(outcomes, faults, profiles, command)
        )
    anything_ran = any(fault_trials.split_outcomes(outcomes))
    if anything_ran and not list(fault_trials.unexpected_outcomes(outcomes)):
        return 0
    return EXIT_MISSED


def _jobs(
    request: SelftestRequest,
    faults: Sequence[Any],
    drawn_faults: Sequence[Any],
    profiles: Sequence[Any],
) -> list[tuple[Any, Any, int]]:
    """(profile, fault or None, seed): healthy runs first, at drawn seeds; drawn faults; then each
    fault in every profile that it applies to."""
    from privdd.core.rng import Keys

    rng = Keys(request.seed).fold("selftest", "seeds").numpy()
    jobs = [
        (profiles[index % len(profiles)], None, int(rng.integers(10**6)))
        for index in range(request.controls * bool(profiles))
    ]
    rng = Keys(request.seed).fold("selftest", "faults").numpy()
    jobs += [(profile, fault, int(rng.integers(10**6))) for profile, fault in drawn_faults]
    for seed, fault, profile in product(request.seeds, faults, profiles):
        if not fault.not_applicable(profile):
            jobs.append((profile, fault, seed))
    return jobs


def _run_trials(request: SelftestRequest, jobs: Sequence[tuple[Any, Any, int]]) -> Iterator[Any]:
    """Kept in the file after each."""
    from privdd.runtime.progress import show_progress
    from privdd.selftest_faults.fault_trials import load_outcomes, run_trial, save_outcomes

    done = {}
    if request.resume != "false" and request.out is not None and request.out.is_file():
        done = {(o.fault, o.profile, o.seed): o for o in load_outcomes(request.out)}
    if request.resume == "only":
        jobs = [(p, f, s) for p, f, s in jobs if (f.key if f else "", p.name, s) in done]
    outcomes = []
    with show_progress("self-test", len(jobs)) as bar:
        for profile, fault, seed in jobs:
            name = fault.key if fault else ""
            if (name, profile.name, seed) not in done:
                done[name, profile.name, seed] = run_trial(profile, fault, seed)
                if request.out is not None:
                    save_outcomes(request.out, list(done.values()))
            outcomes.append(done[name, profile.name, seed])
            bar.advance(f"{name or 'healthy'} in {profile.name}")
    yield from outcomes


if __name__ == "__main__":
    sys.exit(main())
