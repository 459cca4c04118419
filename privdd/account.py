"""``python -m privdd.account``: the epsilon of a training that is described by its numbers."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privdd.core.command import Command, Key, read_count, read_number, read_path, read_word
from privdd.core.validation import BadConfig

if TYPE_CHECKING:
    from privdd.privacy.account import Account, NoisedSteps

EXIT_REFUTED = 2
NEXT_LINE = "+"
ROUNDING = 1.01  # times a published epsilon: papers print two or three digits
SAMPLINGS = ("full", "poisson", "shuffled", "balls_in_bins", "fixed_size")
RELATION_WORDS = {
    "add_remove": "add/remove one {unit}",
    "zero_out": "one {unit} replaced by nothing",
    "replace": "one {unit} replaced by another",
}
REQUEST_KEYS = ("delta", "relation", "unit", "epsilon", "stated.epsilon", "out")
COUNT = read_count(1)
ACCOUNT = Command(
    "privdd account noise_multiplier=1.6 steps=20 delta=1e-5 [KEY=VALUE ...] [+ KEY=VALUE ...]",
    "What epsilon do these numbers give? Composes noised steps (several lines, separated "
    "by +) and prints the proven\n"
    "epsilon, its delta, unit and neighbouring relation, and a bound on an "
    "attacker's success. With epsilon= in place\n"
    "of noise_multiplier= it finds the noise. Exit status: 0, 2 if stated.epsilon= is "
    "too small, 1 error.",
    (
        Key(
            "noise_multiplier",
            read_number,
            "Z",
            "noise standard deviation over the clipping norm (sigma in most papers)",
        ),
        Key("steps", COUNT, "T", "noised steps of one round; or epochs=E with batch=B records=N"),
        Key("epochs", COUNT, "E", "passes over the records in one round"),
        Key("rounds", COUNT, "R", "how often the line is repeated on the same data (default 1)"),
        Key("batch", COUNT, "B", "records of a step, of records=N"),
        Key("records", COUNT, "N", "records that take part"),
        Key(
            "sampling_probability",
            read_number,
            "Q",
            "chance of one record to be in one step, in place of batch and records",
        ),
        Key(
            "sampling",
            read_word(*SAMPLINGS),
            "NAME",
            f"how batches are formed: {', '.join(SAMPLINGS)} (default: poisson if batches "
            "hold a part of the records, else full)",
        ),
        Key(
            "disjoint",
            read_word("true", "false"),
            "true",
            "each record takes part in one round only (parallel composition)",
        ),
        Key(
            "release_epsilon",
            read_number,
            "E",
            "a line that is stated as (epsilon, delta), whatever its noise; with release_delta=D",
        ),
        Key("release_delta", read_number, "D", "delta of release_epsilon (default 0)"),
        Key("delta", read_number, "D", "of the total"),
        Key(
            "relation",
            read_word(*RELATION_WORDS),
            "NAME",
            f"{', '.join(RELATION_WORDS)} (default add_remove)",
        ),
        Key(
            "unit",
            read_word("record", "client"),
            "NAME",
            "whose contribution is clipped: a record's (default) or a client's",
        ),
        Key(
            "epsilon",
            read_number,
            "E",
            "find the noise multiplier that costs just below this",
        ),
        Key("stated.epsilon", read_number, "E", "a published epsilon to compare with"),
        Key("out", read_path, "FILE", "the answer as JSON"),
    ),
    "A training of a published table:  privdd account noise_multiplier=1 records=500 "
    "batch=50 epochs=5 rounds=100 delta=1e-5\n"
    "Noise for an epsilon:             privdd account epsilon=3 steps=20 delta=1e-5",
)


def main(argv: Sequence[str] | None = None) -> int:
    """The answer on stdout; errors are one line on stderr and status 1."""
    from privdd.cli.errors import run_command

    return run_command(ACCOUNT, argv, _run_command)


def _run_command(argv: Sequence[str]) -> int:
    from privdd.privacy.account import account

    training, request = parse_arguments(argv)
    if "delta" not in request:
        raise BadConfig("delta must be given, as in delta=1e-5")
    stated = request.pop("stated.epsilon", None)
    out = request.pop("out", None)
    answer = account(*training, **request)
    for line in describe_account(answer, stated, unit_is_given="unit" in request):
        print(line)
    if out is not None:
        _write_answer(out, answer, stated)
    sys.stdout.flush()
    if stated is not None and is_refuted(answer, stated):
        return EXIT_REFUTED
    return 0


def parse_arguments(argv: Sequence[str]) -> tuple[list[NoisedSteps], dict[str, Any]]:
    """The lines of the training, and the keys that all lines share.

    Raises:
        BadConfig: one line, for an unknown key, a bad value, or a shared key that is given twice.
    """
    from privdd.privacy.account import NoisedSteps

    training = []
    request: dict[str, Any] = {}
    for line in _split_lines(argv):
        values = ACCOUNT.parse(line)
        for key in [key for key in REQUEST_KEYS if key in values]:
            if key in request:
                raise BadConfig(f"{key}: given twice")
            request[key] = values.pop(key)
        if "disjoint" in values:
            values["disjoint"] = values["disjoint"] == "true"
        training.append(NoisedSteps(**values))
    return training, request


def _split_lines(argv: Sequence[str]) -> list[list[str]]:
    lines: list[list[str]] = [[]]
    for argument in argv:
        if argument == NEXT_LINE:
            lines.append([])
        else:
            lines[-1].append(argument)
    return lines


def is_refuted(answer: Account, stated: float) -> bool:
    """Whether some pair of neighbours costs more than the stated epsilon at this delta, beyond its
    rounding."""
    return answer.epsilon_attained > ROUNDING * stated


def describe_account(
    answer: Account, stated: float | None = None, *, unit_is_given: bool = True
) -> list[str]:
    """The answer in lines of text: epsilon first, then how it was found and what it means."""
    from privdd.reporting.wording import format_number

    relation = RELATION_WORDS[answer.relation].format(unit=answer.unit)
    terms = f"at δ = {format_number(answer.delta)}, unit: {answer.unit}, neighbours: {relation}"
    lines = []
    if stated is not None:
        lines.append(_compare_with_stated(answer, stated))
    if math.isinf(answer.epsilon):
        lines.append(f"ε: no proven bound {terms}")
    else:
        lines.append(f"ε = {answer.epsilon:.4g} {terms}")
    lines += [f"  training: {describe_line(line)}" for line in answer.training]
    lines.append(f"  proof: {answer.proof}")
    lines.append(
        f"  PLD {_show(answer.epsilon_pld)} · RDP {_show(answer.epsilon_rdp)} · "
        f"attained by a pair of neighbours: at least {answer.epsilon_attained:.4g}"
    )
    if math.isfinite(answer.epsilon):
        exact = all(line.kind == "full" and line.noise_multiplier for line in answer.training)
        if exact:
            meaning = ""
        else:
            meaning = ", of the Gaussian mechanism with this ε at this δ"
        lines.append(f"  GDP μ = {answer.mu:.3g}{meaning}")
        lines += _describe_meaning(answer)
    if not unit_is_given:
        lines.append(
            "  note: the clipped contribution is taken to be one record's; "
            "if a client's whole update is clipped, set unit=client."
        )
    lines += [f"  note: {note}" for note in answer.notes]
    return lines


def _show(epsilon: float | None) -> str:
    return "no bound" if epsilon is None else f"{epsilon:.4g}"


def _compare_with_stated(answer: Account, stated: float) -> str:
    if is_refuted(answer, stated):
        return (
            f"stated ε = {stated:g} is too small: a pair of neighbours reaches at least "
            f"{answer.epsilon_attained:.4g}"
        )
    if answer.epsilon <= ROUNDING * stated:
        return f"stated ε = {stated:g} follows from these numbers: proven {answer.epsilon:.4g}"
    return (
        f"stated ε = {stated:g} is neither proven ({_show(answer.epsilon)} is) nor refuted "
        f"(attained: at least {answer.epsilon_attained:.4g})"
    )


def _describe_meaning(answer: Account) -> list[str]:
    """Bounds on what an attacker can do who knows everything else."""
    from privdd.reporting.wording import format_share

    identified = ", ".join(f"{format_share(bound)} among {k}" for k, bound in answer.identified)
    detected = ", ".join(
        f"{format_share(bound)} at {format_share(fpr)} FPR" for fpr, bound in answer.detected
    )
    return [
        f"  identification of the {answer.unit} succeeds at most: {identified} candidates",
        f"  membership inference, TPR at most: {detected}",
    ]


def describe_line(line: NoisedSteps) -> str:
    """One line of the training in words."""
    times = f"{line.steps_of_round:,} steps"
    if line.rounds > 1:
        times += f" in each of {line.rounds:,} rounds"
    if line.disjoint:
        times += " (disjoint data)"
    if line.release_epsilon is not None:
        return f"stated ({line.release_epsilon:g}, {line.release_delta:g})-DP, {times}"
    noise = f"noise multiplier {line.noise_multiplier:.4g}"
    if line.kind == "full":
        return f"{noise}, {times}, all records in each"
    kind = line.kind.replace("_", "-")
    return f"{noise}, {times}, {kind} batches of {line.probability:.4g} of the records"


def _write_answer(path: Path, answer: Account, stated: float | None) -> None:
    from privdd.runtime.files import write_json

    form: Mapping[str, Any] = answer.to_json()
    if stated is not None:
        form = {**form, "stated_epsilon": stated, "refuted": is_refuted(answer, stated)}
    write_json(path, form)


if __name__ == "__main__":
    sys.exit(main())
