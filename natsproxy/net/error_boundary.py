"""An error boundary round each connection, for calls from outside it, as from a loop over all connections.

A bug in one connection's code must neither end the caller nor keep the call from the connections after it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar


class EndsAlone(Protocol):
    """A connection whose bugs end only itself.  error: the exception that it ends for, None for none."""

    error: BaseException | None

    def failed(self, error: BaseException) -> None:
        """End the connection for a bug in its code."""
        ...


C = TypeVar("C", bound=EndsAlone)
P = ParamSpec("P")
T = TypeVar("T")


def error_boundary(method: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[C, P], T | None]:
    """Let an exception of a method end its connection; the caller gets None then, and for later calls."""

    @wraps(method)
    def call(self: C, /, *args: P.args, **kwargs: P.kwargs) -> T | None:
        if self.error is None:
            try:
                return method(self, *args, **kwargs)
            except Exception as error:
                self.failed(error)
        return None

    return call
