"""``python -m privdd.selftest``: plant faults in small guaranteed runs, and see whether the audit finds them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MISSED = 2
USAGE = """usage: privdd-selftest [fault=drawn] [profile=all] [seed=0] [draws=16] [seeds=0] [controls=4] [out=FILE.json] [docs=FILE.md]
                       [resume=true]

Plants faults in small runs of the profiles with a guarantee, and audits each. Exit status: 0 all faults were caught
and no healthy run was contradicted, 2 otherwise, 1 error. By default faults are drawn: what is wrong, in which rounds,
releases, clients and numbers, and in which profile (a few minutes). fault=all draws=0 plants every fault that has a name in
every profile (hours).

  fault=A,B     which faults (drawn: none but the drawn ones; all: those with a name; none; or names: a wrong one lists them)
  profile=A,B   in which profiles (all, or names)
  seed=N        which faults are drawn, and the seeds of their runs and of the healthy ones
  draws=N       how many are drawn (0 unless fault=drawn)
  seeds=0-2     each fault with a name once a seed (0-2, or 0,5)
  controls=N    healthy runs, spread over the profiles, each with a seed of its own
  out=FILE      every outcome as JSON, written after each run
  docs=FILE     the table as a page of Markdown
  resume=true   what the file of out= holds is not run again; resume=only: nothing else is, either
"""


@dataclass(frozen=True)
class Request:
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


def read(argv: Sequence[str]) -> Request:
    """Raises BadConfig, one line, for anything that is not understood."""
    from privdd.core.errors import BadConfig

    given: dict[str, Any] = {}
    for item in argv:
        key, equals, value = item.partition("=")
        if not equals or not value or key not in Request.__dataclass_fields__ or key in given:
            raise BadConfig(
                f"{item}: allowed, once each, are {', '.join(f'{k}=' for k in Request.__dataclass_fields__)}"
            )
        given[key] = _value(key, value)
    if given.get("resume", "false") != "false" and "out" not in given:
        raise BadConfig(f"resume={given['resume']}: with out=FILE only")
    return Request(**given)


def _value(key: str, value: str) -> Any:
    from privdd.core.errors import BadConfig
    from privdd.core.typed_numbers import typed_list, typed_whole

    if key in ("fault", "profile"):
        return value
    if key in ("out", "docs"):
        return Path(value)
    if key == "resume":
        if value not in ("true", "false", "only"):
            raise BadConfig(f"resume={value}: true, false or only is needed")
        return value
    return typed_list(key, value) if key == "seeds" else typed_whole(key, value)


def main(argv: Sequence[str] | None = None) -> int:
    """The table on stdout, progress on stderr; errors are one line on stderr and status 1."""
    from privdd.cli.config import guarded

    given = sys.argv[1:] if argv is None else list(argv)
    if {"-h", "--help"} & {*given}:
        print(USAGE, end="")
        return 0
    return guarded(lambda: _main(given))


def _main(argv: Sequence[str]) -> int:
    from privdd.planted.catalogue import DRAWN, chosen_faults, draw_faults
    from privdd.planted.score import counted, missed, page, summary, table
    from privdd.planted.small_runs import chosen_profiles
    from privdd.runtime.files import write_bytes

    asked = read(argv)
    faults, wanted = chosen_faults(asked.fault), chosen_profiles(asked.profile)
    absent = {p.name: p.missing() for p in wanted if p.missing()}
    profiles = [p for p in wanted if p.name not in absent]
    for name, why in absent.items():
        print(f"profile {name}: not run: {why}", file=sys.stderr)
    draws = asked.draws if asked.draws is not None else 16 if asked.fault == DRAWN else 0
    jobs = _jobs(asked, faults, draw_faults(asked.seed, draws, profiles), profiles)
    outcomes = list(_run(asked, jobs))
    print("\n".join([*table(outcomes, faults, profiles), "", *missed(outcomes), summary(outcomes)]), flush=True)
    if asked.docs is not None:
        command = " ".join(["python -m privdd.selftest", *(a for a in argv if not a.startswith("out="))])
        write_bytes(asked.docs, page(outcomes, faults, profiles, command).encode())
    return 0 if any(counted(outcomes)) and not list(missed(outcomes)) else MISSED


def _jobs(
    asked: Request, faults: Sequence[Any], drawn: Sequence[Any], profiles: Sequence[Any]
) -> list[tuple[Any, Any, int]]:
    """(profile, fault or None, seed): healthy runs first, at drawn seeds; drawn faults; then each fault in every profile that
    it applies to."""
    from privdd.core.keys import Keys

    rng = Keys(asked.seed).fold("selftest", "seeds").numpy()
    jobs = [
        (profiles[at % len(profiles)], None, int(rng.integers(10**6))) for at in range(asked.controls * bool(profiles))
    ]
    rng = Keys(asked.seed).fold("selftest", "faults").numpy()
    jobs += [(profile, fault, int(rng.integers(10**6))) for profile, fault in drawn]
    return jobs + [(p, f, s) for s in asked.seeds for f in faults for p in profiles if not f.not_applicable(p)]


def _run(asked: Request, jobs: Sequence[tuple[Any, Any, int]]) -> Iterator[Any]:
    """Kept in the file after each."""
    from privdd.planted.score import load, save
    from privdd.planted.trial import tried
    from privdd.runtime.progress import stage

    done = {}
    if asked.resume != "false" and asked.out is not None and asked.out.is_file():
        done = {(o.fault, o.profile, o.seed): o for o in load(asked.out)}
    if asked.resume == "only":
        jobs = [(p, f, s) for p, f, s in jobs if (f.key if f else "", p.name, s) in done]
    outcomes = []
    with stage("self-test", len(jobs)) as bar:
        for profile, fault, seed in jobs:
            name = fault.key if fault else ""
            if (name, profile.name, seed) not in done:
                done[name, profile.name, seed] = tried(profile, fault, seed)
                if asked.out is not None:
                    save(asked.out, list(done.values()))
            outcomes.append(done[name, profile.name, seed])
            bar.advance(f"{name or 'healthy'} in {profile.name}")
    yield from outcomes


if __name__ == "__main__":
    sys.exit(main())
