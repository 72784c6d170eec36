"""Captures of proxies in a row, whose clocks differ, and of some that are not in a row."""

from __future__ import annotations

from pathlib import Path

from natsproxy.capture.format.records import CloseRecord, Flags, Frames, OpenRecord, Preamble
from natsproxy.wire.ops import C2S, S2C, Direction
from tests.kit.captures import MONO, Scribe, write

MS = 1_000_000
SECOND = 1_000 * MS
MINUTE = 60 * SECOND
AHEAD, LATER_AHEAD, FAR_AHEAD = 7 * MS, 9 * MS, 10 * SECOND
"""The time by which the clock of the second is ahead, ns: in the first hour, in the next, elsewhere."""
TOOK = 2 * MS
"""The time of a frame from one proxy to the other."""
USES = 5
"""The connections of one address, one after the other, that all look the same."""
FRAME = b"PUB a 1\r\nx\r\n"
DIFFERENT = [
    (C2S, FRAME, b"PUB b 1\r\nx\r\n"),
    (C2S, FRAME, b"PUB a 2\r\nxy\r\n"),
    (C2S, b"PUB a r.1 1\r\nx\r\n", b"PUB a r.2 1\r\nx\r\n"),
    (C2S, b"SUB a 1\r\n", b"SUB a 2\r\n"),
    (C2S, b"PING\r\n", b"PONG\r\n"),
    (S2C, b'INFO {"server_id":"S","client_id":1}\r\n', b'INFO {"server_id":"S","client_id":2}\r\n'),
    (S2C, b'INFO {"server_id":"S","client_id":1}\r\n', b'INFO {"server_id":"T","client_id":1}\r\n'),
]
"""What is not the same frame, seen by two."""


def _mark(scribe: Scribe, flags: Flags) -> None:
    """Set the flags of the last frame."""
    last = scribe.items[-1]
    assert isinstance(last, Frames)
    scribe.items[-1] = last._replace(flags=flags)


def in_a_row(folder: Path) -> list[Path]:
    """Write two: a frame takes 2 ms from one to the other, the second request 3 ms.

    One frame gets lost, and one arrives in part.  The second takes the secrets out of the third request.
    The address between the two is also that of clients of other machines, one at the same time.  An hour
    later the clocks have moved apart.
    """
    near, far, address = Scribe(), Scribe(), "10.9.0.1:4000"
    near.items.append(OpenRecord(1, MONO, {"client": "10.9.0.9:1", "upstream_local": address}))
    for conn, since in ((4, -AHEAD), (5, 1 * MS), (6, 90_000 * MS)):
        told = {"client": "10.9.0.9:1", "proxied_by": address} if conn == 5 else {"client": address}
        info = {**told, "upstream_local": "10.9.0.2:1"}
        far.items.append(OpenRecord(conn, MONO + since + AHEAD, info))
    far.frame(2 * MS + AHEAD, 5, S2C, b"INFO {}\r\n")
    near.frame(4 * MS, 1, S2C, b"INFO {}\r\n")
    for number, took in enumerate((2, 3)):
        near.frame((10 + number) * MS, 1, C2S, b"PUB a.%d 1\r\nx\r\n" % number)
        far.frame((10 + number + took) * MS + AHEAD, 5, C2S, b"PUB a.%d 1\r\nx\r\n" % number)
    near.frame(15 * MS, 1, C2S, b"PUB secret 1\r\nx\r\n")
    far.frame(17 * MS + AHEAD, 5, C2S, b"PUB [filtered] 3\r\nxyz\r\n")
    _mark(far, Flags.REDACTED)
    for text in (b"part", b"lost"):
        near.frame(20 * MS, 1, C2S, b"PUB %s 1\r\nx\r\n" % text)
    far.frame(22 * MS + AHEAD, 5, C2S, b"PUB part 1\r\nx\r\n")
    _mark(far, Flags.CUT)
    far.frame(MS, 4, C2S, b"PUB b.0 1\r\nx\r\n")
    far.frame(90_001 * MS, 6, C2S, b"PUB a.0 1\r\nx\r\n")
    for scribe, conn in ((near, 1), (far, 5)):
        scribe.items.append(CloseRecord(conn, MONO + 30 * MS, "client-closed", {}))
    _pass(near, far, 7, 60 * MINUTE, LATER_AHEAD, "10.9.0.1:4001")
    return [write(folder / "near.ncap", near.items), write(folder / "far.ncap", far.items)]


def _pass(near: Scribe, far: Scribe, conn: int, t: int, ahead: int, address: str) -> None:
    """Add a connection of 20 ms, with a frame each way."""
    near.items.append(OpenRecord(conn, MONO + t, {"client": "10.9.0.9:7", "upstream_local": address}))
    far.items.append(
        OpenRecord(conn, MONO + t + MS + ahead, {"client": address, "upstream_local": "10.9.0.2:7"})
    )
    far.frame(t + 2 * MS + ahead, conn, S2C, b"INFO {}\r\n")
    near.frame(t + 2 * MS + TOOK, conn, S2C, b"INFO {}\r\n")
    near.frame(t + 10 * MS, conn, C2S, FRAME)
    far.frame(t + 10 * MS + TOOK + ahead, conn, C2S, FRAME)
    for scribe, since in ((near, 0), (far, ahead)):
        scribe.items.append(CloseRecord(conn, MONO + t + 20 * MS + since, "client-closed", {}))


def strangers(folder: Path) -> list[Path]:
    """Write two that share addresses, and see the same but for one frame of each connection."""
    pods = Scribe(), Scribe()
    for conn, (way, *frames) in enumerate(DIFFERENT):
        address = f"127.0.0.1:{40_000 + conn}"
        clients = ("127.0.0.1:50000", address), (address, "127.0.0.1:60000")
        for pod, raw, (client, upstream_local) in zip(pods, frames, clients, strict=True):
            pod.items.append(OpenRecord(conn, MONO, {"client": client, "upstream_local": upstream_local}))
            pod.frame(MS, conn, C2S, FRAME)
            pod.frame(2 * MS, conn, way, raw)
            pod.frame(3 * MS, conn, C2S, FRAME)
    return [write(folder / f"pod{number}.ncap", pod.items) for number, pod in enumerate(pods)]


def skewed(folder: Path) -> list[Path]:
    """Write two whose clocks are far apart, two more, the other way, and two whose clocks are too far apart.

    A connection every two seconds has the same address.
    """
    paths: list[Path] = []
    for name, ahead in (("ahead", FAR_AHEAD), ("behind", -FAR_AHEAD), ("beyond", 6 * MINUTE)):
        sides = near, far = Scribe(), Scribe()
        for use in range(USES):
            t = 5 * MINUTE + (2 * use - 5) * SECOND
            _pass(near, far, 1 + use, t, ahead, f"10.9.1.{len(paths)}:4000")
        paths += [
            write(folder / f"{side}_{name}.ncap", scribe.items)
            for side, scribe in zip(("near", "far"), sides, strict=True)
        ]
    return paths


def restarted(folder: Path) -> list[Path]:
    """Write two recordings of either proxy: the second ones begin 10 min and 20 min after the start.

    The first connection has a frame about every five minutes.  The second one begins at 12 min, and has two.
    """
    near, far = (Scribe(), Scribe()), (Scribe(), Scribe())

    def add(side: tuple[Scribe, Scribe], again: int, conn: int, t: int, info: dict[str, str]) -> None:
        """Say that a connection began at `t`, or was there when the recording began anew."""
        if t < again:
            side[0].items.append(OpenRecord(conn, MONO + t, info))
            side[1].items.append(Preamble(conn, MONO + again, {"open": info}))
        else:
            side[1].items.append(OpenRecord(conn, MONO + t, info))

    for conn, t in ((1, 0), (2, 12 * MINUTE)):
        address = f"10.9.2.1:{4_000 + conn}"
        add(near, 10 * MINUTE, conn, t, {"client": "10.9.2.9:1", "upstream_local": address})
        add(far, 20 * MINUTE, conn + 4, t, {"client": address, "upstream_local": "10.9.2.2:1"})
    for conn, times in ((1, range(6)), (2, (3, 4))):
        for number, time in enumerate(times):
            t = MINUTE + time * 5 * MINUTE
            for side, again, own, at in ((near, 10, conn, t), (far, 20, conn + 4, t + TOOK)):
                scribe = side[at >= again * MINUTE]
                scribe._ordinals[own, Direction.C2S] = number
                scribe.frame(at, own, C2S, FRAME)
    names = ("near1", "near2", "far1", "far2")
    return [
        write(folder / f"{name}.ncap", scribe.items)
        for name, scribe in zip(names, (*near, *far), strict=True)
    ]
