"""The data in WebSocket frames, passed on as it arrives.

The library's protocol buffers a frame until it is whole.  But nats-server sends all that waits for a client
as one frame, tens of megabytes after a pause, and so may clients with a large message.  Therefore data
bypasses the library, which gets headers only, and checks their bits, masks and order.  Control frames are
small; the library gets them whole, and answers them.
"""

from __future__ import annotations

from typing import Final

from websockets.protocol import Protocol, Side

try:
    from websockets.speedups import apply_mask
except ImportError:  # the library was installed without its compiled part
    from websockets.utils import apply_mask

LARGEST_WHOLE: Final = 65_535
"""The `max_size` of a protocol, bytes: of frames that it gets whole."""
_MESSAGES: Final = (0x81, 0x82)  # the first byte of frames that are a message each: those of all NATS clients
_CONTROL: Final = 0x08  # a bit of the first byte
_MASKED: Final = 0x80  # a bit of the second one, whose others are a length
_LONGER: Final = {126: 2, 127: 8}  # bytes of a length that follows, by what stands in its place
_NO_LENGTH: Final = 1 << 63  # no frame may have that


class FrameReader:
    """Reads what the peer sends after the upgrade.

    protocol: checks the headers, and has the answers to send afterwards.
    """

    def __init__(self, protocol: Protocol) -> None:
        self._protocol = protocol
        self._masked = _MASKED if protocol.side is Side.SERVER else 0
        self._begun = b""  # the first bytes of a header
        self._rest = 0  # bytes of a frame that are to come
        self._mask = b""  # from their first byte on; b"" for none
        self._whole = False  # the protocol gets them

    @property
    def over(self) -> bool:
        """True if nothing more is read: the peer has closed, or broken the protocol (`parser_exc`)."""
        return self._protocol.close_rcvd is not None or self._protocol.parser_exc is not None

    def read(self, data: bytes) -> bytes:
        """Return the data in received bytes, without what follows the end."""
        data, self._begun = self._begun + data, b""
        at, pieces = 0, list[bytes]()
        while at < len(data) and not self.over:
            if self._rest:
                piece = data[at : at + self._rest]
                at += len(piece)
                self._rest -= len(piece)
                if self._whole:
                    self._protocol.receive_data(piece)
                else:
                    pieces.append(self._unmasked(piece))
            elif end := self._begin(data, at):
                at = end
            else:
                self._begun = data[at:]
                break
        self._protocol.events_received()  # clears the library's list of events; we need none
        return b"".join(pieces)

    def _begin(self, data: bytes, at: int) -> int:
        """Begin a frame; return where its header ends, 0 if that is not whole yet."""
        if at + 2 > len(data):
            return 0
        first, masked, length = data[at], data[at + 1] & _MASKED, data[at + 1] & ~_MASKED
        end = at + 2
        if longer := _LONGER.get(length):
            end += longer
            length = int.from_bytes(data[at + 2 : end], "big")
        mask_at = end
        if masked:
            end += 4
        if end > len(data):
            return 0
        self._rest, self._mask = length, data[mask_at:end]
        self._whole = bool(first & _CONTROL) or length >= _NO_LENGTH
        if self._whole:
            self._protocol.receive_data(data[at:end])
        elif first not in _MESSAGES or masked != self._masked or self._protocol.current_size is not None:
            self._protocol.receive_data(bytes((first, masked)) + self._mask)
        return end

    def _unmasked(self, piece: bytes) -> bytes:
        if not self._mask:
            return piece
        mask, turn = self._mask, len(piece) % 4
        self._mask = mask[turn:] + mask[:turn]
        return apply_mask(piece, mask)
