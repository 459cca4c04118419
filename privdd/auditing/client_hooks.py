"""Which method an audit asks about one client, if its clients differ, say by their networks."""

from __future__ import annotations

from typing import Any, ClassVar

from attacks.validation import declared_hooks
from privdd.federated.method import Method


class DiffersByClient:
    """A method whose answers to an audit differ by client:
    ``class Mine(Method, ReadsUploads, DiffersByClient)``.

    Local work knows its client (``shard.client``), and ``predict`` by what the client keeps.
    """

    _hooks: ClassVar[frozenset[str]]

    def __init_subclass__(cls, **more: Any) -> None:
        # before Method refuses public names that are no hook
        cls._hooks = Method._hooks | declared_hooks(DiffersByClient)
        super().__init_subclass__(**more)

    def for_client(self, client: int) -> Method:
        """The method as one client runs it; its hooks answer for what this client sends.

        Args:
            client: the number of the client.

        Returns:
            As a rule ``dataclasses.replace(self, client=client)``, with a field ``client``.
        """
        raise NotImplementedError


def method_of_client(method: Method, client: int) -> Method:
    """The method whose hooks an audit of one client asks.

    Raises:
        TypeError: ``for_client`` gives something else than a method.
    """
    if not isinstance(method, DiffersByClient):
        return method
    own: object = method.for_client(client)
    if not isinstance(own, Method):
        raise TypeError(
            f"{type(method).__name__}.for_client({client}): gives {type(own).__name__}; must give "
            "a method"
        )
    return own
