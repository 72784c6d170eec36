"""The service manager of this process: its sockets, its notifications and its watchdog, as systemd has them.

All of it comes in environment variables, which are taken out of the environment, so that no child of this
process mistakes them for its own.  `sd_listen_fds(3)` and `sd_notify(3)` specify them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping
from typing import Final

from natsproxy.errors import ConfigError

_FIRST_FD: Final = 3


def passed_sockets(environ: MutableMapping[str, str]) -> list[socket.socket]:
    """Return the listening TCP sockets that were passed to this process.

    Raises ConfigError for one that is something else.
    """
    process, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    names = environ.pop("LISTEN_FDNAMES", "").split(":")
    if process != str(os.getpid()) or not count.isdecimal():
        return []
    sockets = []
    for place, number in enumerate(range(_FIRST_FD, _FIRST_FD + int(count))):
        name = names[place] if place < len(names) and names[place] else f"descriptor {number}"
        try:
            os.set_inheritable(number, False)
            sockets.append(socket.socket(fileno=number))
        except OSError as error:
            raise ConfigError(f"{name} was passed as a socket: {error.strerror}") from None
        if not _listens(sockets[-1]):
            sockets[-1].close()
            raise ConfigError(f"{name} was passed as a socket, but is no TCP socket that listens")
    return sockets


def _listens(one: socket.socket) -> bool:
    return one.family in (socket.AF_INET, socket.AF_INET6) and bool(
        one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    )


class Notifier:
    """Sends the state of this process to the service manager; without one it does nothing.

    watchdog: the seconds within which each ping must follow the last one, None where none is wanted.
    """

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self._address = environ.pop("NOTIFY_SOCKET", "")
        process, within = environ.pop("WATCHDOG_PID", ""), environ.pop("WATCHDOG_USEC", "")
        wanted = within.isdecimal() and int(within) > 0 and process in ("", str(os.getpid()))
        self.watchdog = int(within) / 1e6 if wanted and self else None

    def __bool__(self) -> bool:
        return self._address[:1] in ("/", "@")

    def send(self, **fields: str | int) -> bool:
        """Send fields such as `READY=1` in one message; return whether the manager has it.

        A manager that is gone is no error, nor is one whose queue is full, as that of a busy one may be.
        """
        if not self:
            return False
        # "@" stands for the zero byte of Linux's abstract names.
        address = self._address.replace("@", "\0", 1) if self._address[0] == "@" else self._address
        lines = [" ".join(f"{name}={value}".splitlines()) for name, value in fields.items()]
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(lines).encode() + b"\n", address)
        except OSError:
            return False
        return True
