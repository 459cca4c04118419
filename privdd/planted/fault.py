"""What a planted fault is, and how code is swapped for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from privdd.planted.small_runs import NEEDS, Profile

Plant = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True)
class Fault:
    """key: what it is called on the command line; says: what is wrong, in words; needs: of ``NEEDS``, what a
    profile must have; settings: of the run that it is planted in; two_rounds: whether every mechanism must be used in
    two rounds; refusal: words of the error that is the right answer to it (any other error is none).
    """

    key: str
    says: str
    plant: Plant
    needs: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    two_rounds: bool = False
    refusal: str = ""

    def not_applicable(self, profile: Profile) -> str:
        """Why it cannot be planted in a profile; "" where it can."""
        return next((NEEDS[need] for need in self.needs if need not in profile.has), "")


def around(name: str, *places: Any) -> Callable[[Callable[..., Any]], Plant]:
    """Turns a function into a plant: it is called in place of ``name`` of each of the places, with what stood there as its
    first argument."""

    def plant(changed: Callable[..., Any]) -> Plant:
        def swap(place: Any) -> tuple[Any, str, Any]:
            honest = getattr(place, name)
            return place, name, lambda *given, **named: changed(honest, *given, **named)

        return lambda: swapped(*map(swap, places))

    return plant


def together(*plants: Plant) -> Plant:
    """All of them at once."""

    @contextmanager
    def planted() -> Iterator[None]:
        with ExitStack() as stack:
            for plant in plants:
                stack.enter_context(plant())
            yield

    return planted


@contextmanager
def swapped(*swaps: tuple[Any, str, Any]) -> Iterator[None]:
    """(module or class, name, what it is for a while) each; everything is put back, whatever happens.

    Raises AttributeError for a name that is not there: a fault in code that has moved would never be seen.
    """
    with ExitStack() as stack:
        for place, name, made in swaps:
            before = vars(place)[name] if name in vars(place) else getattr(place, name)
            inherited = name not in vars(place)
            setattr(place, name, made)
            stack.callback(_back, place, name, before, inherited)
        yield


def _back(place: Any, name: str, before: Any, inherited: bool) -> None:
    if inherited:
        delattr(place, name)
    else:
        setattr(place, name, before)
