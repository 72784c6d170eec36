"""The data in frames as it comes, against the library, which waits for whole frames."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol, Side
from websockets.utils import apply_mask

from natsproxy.net.websocket_frames import FrameReader

KEY = b"\x01\x80\xff\x5a"
MAX_SIZE = 1 << 17
DATA = st.binary(max_size=20) | st.sampled_from([bytes(range(256)) * 300, b"x" * 125, b"y" * 126])
WRONG = st.sampled_from(  # the header without the bit for a mask; data follows where that is asked for
    [
        b"\xc2\x00",  # reserved bits
        b"\x92\x02",
        b"\x83\x00",  # opcodes without a meaning
        b"\x8b\x00",
        b"\x80\x02",  # the end of a message, which may not have begun
        b"\x82\x02",  # a message, perhaps within another
        b"\x09\x00",  # a part of a control frame
        b"\x89\x7e\x00\x7e",  # a control frame that is too long
        b"\x8a\x7f\x00\x00\x00\x00\x40\x00\x00\x00",
        b"\x82\x7f\x80\x00\x00\x00\x00\x00\x00\x00",
        b"\x88\x01",  # half a status
        b"\x88\x02",
        b"\x88\x00",  # a good end, or one within a message
    ]
)


def with_data(header: bytes, data: bytes, *, masked: bool) -> bytes:
    """Return a frame; the header is without the bit for a mask."""
    header = bytes([header[0], header[1] | masked << 7]) + header[2:]
    return header + (KEY + apply_mask(data, KEY) if masked else data)


def frame(first: int, data: bytes, *, masked: bool) -> bytes:
    """Return a good frame."""
    size = len(data)
    if size < 126:
        length = bytes([size])
    else:
        length = b"\x7e" + size.to_bytes(2, "big") if size < 65_536 else b"\x7f" + size.to_bytes(8, "big")
    return with_data(bytes([first]) + length, data, masked=masked)


@st.composite
def streams(draw: st.DrawFn, *, masked: bool) -> bytes:
    """Give what a peer sends: messages in one frame or several, with control frames between them."""
    parts = list[bytes]()
    for _ in range(draw(st.integers(0, 5))):
        if draw(st.integers(0, 3)) == 0:
            header = draw(WRONG)
            data = bytes(126 if header[1] == 126 else header[1] & 3)
            parts.append(with_data(header, data, masked=masked ^ draw(st.sampled_from([False] * 4 + [True]))))
        pieces = draw(st.lists(DATA, min_size=1, max_size=3))
        for number, piece in enumerate(pieces, 1):
            opcode = draw(st.sampled_from([Opcode.TEXT, Opcode.BINARY])) if number == 1 else Opcode.CONT
            parts.append(frame(opcode | (number == len(pieces)) << 7, piece, masked=masked))
            if draw(st.booleans()):
                control = draw(st.sampled_from([0x89, 0x8A]))
                parts.append(frame(control, draw(st.binary(max_size=125)), masked=masked))
    return b"".join(parts)


@st.composite
def received(draw: st.DrawFn) -> tuple[Side, list[bytes]]:
    """Give what a side receives, in the pieces in which it comes."""
    side = draw(st.sampled_from(Side))
    stream = draw(streams(masked=side is Side.SERVER))
    cuts = draw(st.lists(st.integers(0, len(stream)), max_size=20).map(sorted))
    return side, [stream[at:end] for at, end in pairwise([0, *cuts, len(stream)])]


def end(protocol: Protocol) -> tuple[object, ...]:
    """Return how a protocol ended, and what it answers; a client hides that behind masks."""
    answers = protocol.data_to_send()
    said = answers if protocol.side is Side.SERVER else [len(answer) for answer in answers]
    return protocol.close_rcvd, protocol.close_sent, str(protocol.parser_exc), said


@given(received())
def test_the_library_finds_the_same(case: tuple[Side, list[bytes]]) -> None:
    side, pieces = case
    library, protocol = (Protocol(side, max_size=(None, MAX_SIZE)) for _ in range(2))
    reader, data = FrameReader(protocol), b""
    for piece in pieces:
        library.receive_data(piece)
        data += reader.read(piece)
    frames = [event for event in library.events_received() if isinstance(event, Frame)]
    assert data == b"".join(bytes(one.data) for one in frames if one.opcode < Opcode.CLOSE)
    assert end(protocol) == end(library)


def test_a_frame_of_any_length_is_not_kept() -> None:
    reader = FrameReader(Protocol(Side.SERVER, max_size=MAX_SIZE))
    chunk = bytes(1 << 16)
    assert reader.read(b"\x82\xff" + ((1 << 63) - 1).to_bytes(8, "big") + KEY + b"a") == b"\x60"
    tracemalloc.start()
    try:
        for _ in range(100):
            assert len(reader.read(chunk)) == len(chunk)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(chunk)
    finally:
        tracemalloc.stop()
