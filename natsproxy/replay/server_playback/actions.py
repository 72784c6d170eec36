"""Actions that the playback requests from its driver: plain values."""

from __future__ import annotations

from typing import NamedTuple


class SendToClient(NamedTuple):
    """Send whole frames to a client."""

    client_id: int
    data: bytes


class DisconnectClient(NamedTuple):
    """End a client's connection once everything before is sent."""

    client_id: int


class ForwardToServer(NamedTuple):
    """Pass whole frames of a client to the real server behind it.

    barrier: those of clients that begin later wait until the server has handled these.
    """

    client_id: int
    data: bytes
    barrier: bool = False


Action = SendToClient | DisconnectClient | ForwardToServer


def join_sends(actions: list[Action]) -> list[tuple[int, bytes | ForwardToServer | None]]:
    """Return the client and the bytes of each action, neighbouring sends as one; None ends a connection."""
    if len(actions) == 1 and isinstance(actions[0], SendToClient):  # nearly always
        return [actions[0]]
    made: list[tuple[int, bytes | ForwardToServer | None]] = []
    pending: list[bytes] = []
    for index, action in enumerate(actions):
        if isinstance(action, SendToClient):
            pending.append(action.data)
            following = actions[index + 1] if index + 1 < len(actions) else None
            if not (isinstance(following, SendToClient) and following.client_id == action.client_id):
                made.append((action.client_id, b"".join(pending)))
                pending = []
        elif isinstance(action, DisconnectClient):
            made.append((action.client_id, None))
        else:
            made.append((action.client_id, action))
    return made
