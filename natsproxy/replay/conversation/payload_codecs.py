"""Codecs: payloads that are neither JSON nor text, decoded to values that can be compared, and encoded.

| `match_as` | payload |
| --- | --- |
| `orders.> msgpack` | MessagePack |
| `orders.> gzip`, `orders.> zstd` | compressed JSON or text |
| `orders.> protobuf:FILE:MESSAGE` | a message; FILE is what `protoc --descriptor_set_out` writes |

A codec returns a value of JSON, or bytes: a payload again, JSON or text.  In Python it may be a function, or
two: one to read and one to write.  `match_command` names a program that reads a payload on its standard input
and writes it plain; it cannot write it back, so recorded answers in that form stay as they are.

A peer chooses payloads: what is large, expands to much or nests deeply is refused with ValueError, and
compared as bytes.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import zlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from errno import ENOENT
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from natsproxy.capture.filter.filters import one_line, pattern
from natsproxy.protocol.subjects import matches

LARGEST: Final = 1 << 20
"""Bytes of a payload that is read."""
EXPANDED: Final = 8 << 20
"""Bytes that it may have when it is no longer compressed."""
_SECONDS: Final = 5.0  # for one run of a command
_KEPT: Final = 32 << 20  # bytes of payloads and results of a command that are kept
_GZIP: Final = 31  # zlib's number for its format


def _same(value: Any) -> Any:
    return value


class Codec(NamedTuple):
    """A form of payloads.

    decode: bytes to a value; raises ValueError.  encode: the way back, None where there is none; may raise
    ValueError.  compared: the value as JSON has it.
    """

    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes] | None = None
    compared: Callable[[Any], Any] = _same

    def read(self, body: bytes) -> Any:
        """Return the value of a payload; raises ValueError."""
        if len(body) > LARGEST:
            raise ValueError(f"it has more than {LARGEST >> 20} MiB")
        try:
            return self.decode(body)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None

    def plain(self, body: bytes) -> Any:
        """Return the value of a payload as JSON has it, or bytes; raises ValueError."""
        value = self.read(body)
        try:
            return self.compared(value)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None


@dataclass(frozen=True, slots=True)
class CodecOn:
    """The codec of the payloads on a subject pattern, as an option gives it.

    text: what the user wrote.  kept: a recording keeps it; no function, and no command, which somebody who
    plays the recording would run.
    """

    subject: bytes
    text: str
    codec: Codec = field(compare=False)
    kept: bool = True

    def __str__(self) -> str:
        return f"{self.subject.decode('utf-8', 'surrogateescape')} {self.text}"


def codec_on(value: Any) -> CodecOn:
    """Read `match_as`: "SUBJECT CODEC", or both of them, where functions may be the codec.

    Raises ValueError.
    """
    if isinstance(value, CodecOn):
        return value
    if isinstance(value, tuple):
        subject, name = value
        if not isinstance(name, str):
            return CodecOn(pattern(subject), repr(name), _functions(name), kept=False)
    else:
        subject, _, name = one_line(value).strip().partition(" ")
    return CodecOn(pattern(subject), name.strip(), _named(name.strip()))


def command_on(value: Any) -> CodecOn:
    """Read `match_command`: "SUBJECT COMMAND".  Raises ValueError."""
    if isinstance(value, CodecOn):
        return value
    subject, _, text = one_line(value).strip().partition(" ")
    words = shlex.split(text)
    if not words or shutil.which(words[0]) is None:
        raise ValueError(f"must be a subject pattern and a command that can be run, not {value!r}")
    return CodecOn(pattern(subject), text.strip(), Codec(_Command(words)), kept=False)


def codec_for(subject: bytes, given: tuple[CodecOn, ...]) -> Codec | None:
    """Return the codec of the payloads on a subject: of the first pattern that fits."""
    return next((one.codec for one in given if matches(one.subject, subject)), None)


def _named(name: str) -> Codec:
    if name.startswith("protobuf:"):
        return _protobuf(name)
    if name not in _CODECS:
        known = ", ".join([*_CODECS, "protobuf:FILE:MESSAGE"])
        raise ValueError(f"must be a subject pattern and one of {known}, not {name!r}")
    return _CODECS[name]()


def _functions(given: Any) -> Codec:
    pair = (*given, None) if isinstance(given, tuple | list) else (given, None)
    if not callable(pair[0]) or not (pair[1] is None or callable(pair[1])):
        raise ValueError(f"must map subject patterns to codecs, functions or pairs of them, not {given!r}")
    decode, encode = (None if one is None else partial(_call, one) for one in pair[:2])
    assert decode is not None
    return Codec(decode, encode, lambda value: value.encode() if isinstance(value, str) else value)


def _call(function: Callable[[Any], Any], value: Any) -> Any:
    try:
        return function(value)
    except Exception as error:  # a user's function may raise anything: it says that this is no such payload
        raise ValueError(f"{type(error).__name__}: {error}") from error


# -- MessagePack


def _msgpack() -> Codec:
    return Codec(_unpack, _pack, _json_like)


def _unpack(body: bytes) -> Any:
    import msgpack

    try:
        return msgpack.unpackb(body, strict_map_key=False, unicode_errors="surrogateescape")
    except TypeError as error:  # a key that cannot be one
        raise ValueError(str(error)) from None


def _pack(value: Any) -> bytes:
    import msgpack

    packed: bytes = msgpack.packb(value, unicode_errors="surrogateescape")
    return packed


def _json_like(value: Any) -> Any:
    """Return a value of MessagePack as JSON has it: bytes as hexadecimal digits, times as seconds."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _json_like(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_json_like(one) for one in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return scalar_text(value)


def scalar_text(value: Any) -> str:
    """Return the text for a scalar of MessagePack that JSON does not have."""
    import msgpack

    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, msgpack.Timestamp):
        return f"{value.seconds}.{value.nanoseconds:09}"
    return f"extension {value.code}: {value.data.hex()}"


def scalar_of(text: str, like: Any) -> Any:
    """Return the scalar that `scalar_text` made a text of; `like` where there is none."""
    import msgpack

    if isinstance(like, bytes):
        return bytes.fromhex(text)
    if isinstance(like, msgpack.Timestamp):
        seconds, _, fraction = text.partition(".")
        return msgpack.Timestamp(int(seconds), int(fraction.ljust(9, "0")))
    return like


# -- compression


def _gzip() -> Codec:
    return Codec(_gunzip, _compress)


def _gunzip(body: bytes) -> bytes:
    stream = zlib.decompressobj(_GZIP)
    try:
        plain = stream.decompress(body, EXPANDED + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if len(plain) > EXPANDED:
        raise ValueError(f"it expands to more than {EXPANDED >> 20} MiB")
    if not stream.eof or stream.unused_data:
        raise ValueError("it is not one whole stream")
    return plain


def _compress(plain: bytes) -> bytes:
    stream = zlib.compressobj(wbits=_GZIP)
    return stream.compress(plain) + stream.flush()


def _zstd() -> Codec:
    try:
        import zstandard
    except ImportError:
        raise ValueError("zstd needs the zstandard package: pip install 'natsproxy[zstd]'") from None

    def decompress(body: bytes) -> bytes:
        try:
            # A size in the header is allocated whatever the limit is, so it is checked first.
            if zstandard.frame_content_size(body) > EXPANDED:
                raise ValueError(f"it expands to more than {EXPANDED >> 20} MiB")
            reader = zstandard.ZstdDecompressor(max_window_size=EXPANDED)
            return reader.decompress(body, max_output_size=EXPANDED)
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from None

    return Codec(decompress, lambda plain: zstandard.ZstdCompressor().compress(plain))


# -- Protocol Buffers


@cache
def _protobuf(name: str) -> Codec:
    _, _, given = name.partition(":")
    file, _, message_name = given.rpartition(":")
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message, message_factory
    except ImportError:
        raise ValueError("protobuf needs the protobuf package: pip install 'natsproxy[protobuf]'") from None
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(_bytes_of(Path(file)))
        pool = descriptor_pool.DescriptorPool()
        for one in files.file:
            pool.Add(one)
        kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(message_name))
    except OSError as error:
        raise ValueError(f"cannot read {file!r}: {error.strerror}") from None
    except (message.DecodeError, TypeError, KeyError) as error:
        why = f"{file!r} is no file of descriptors with {message_name!r}: {error}"
        raise ValueError(f"{why} (protoc --descriptor_set_out=FILE --include_imports)") from None

    def decode(body: bytes) -> Any:
        try:
            found = kind.FromString(body)
            size = found.ByteSize()
            value = json_format.MessageToDict(found, preserving_proto_field_name=True)
            found.DiscardUnknownFields()
        except (message.DecodeError, json_format.Error) as error:
            raise ValueError(str(error)) from None
        if found.ByteSize() != size:
            raise ValueError(f"it has fields that {message_name} does not have")
        return value

    def encode(value: Any) -> bytes:
        try:
            written: bytes = json_format.ParseDict(value, kind()).SerializeToString(deterministic=True)
            return written
        except json_format.Error as error:
            raise ValueError(str(error)) from None

    return Codec(decode, encode)


def _bytes_of(file: Path) -> bytes:
    """Return the content of a file that a recording may have named: no device, and not of any size."""
    if not file.is_file():
        raise FileNotFoundError(ENOENT, os.strerror(ENOENT))
    with file.open("rb") as opened:
        return opened.read(EXPANDED)


# -- commands


class _Command:
    """A program that writes a payload plain, run without a shell; its last results are kept."""

    def __init__(self, words: list[str]) -> None:
        self._words = words
        self._known: OrderedDict[bytes, bytes | str] = OrderedDict()
        self._size = 0
        self._hangs = False

    def __call__(self, body: bytes) -> bytes:
        found = self._known.get(body)
        if found is None:
            found = self._known[body] = self._run(body)
            self._size += len(body) + len(found)
            while self._size > _KEPT and len(self._known) > 1:
                self._size -= sum(map(len, self._known.popitem(last=False)))
        if isinstance(found, str):
            raise ValueError(found)
        return found

    def _run(self, body: bytes) -> bytes | str:
        """Return what the program wrote, or why that is nothing."""
        name = self._words[0]
        if self._hangs:  # the other clients would wait for it once more
            return f"{name} had no end within {_SECONDS:g} s before"
        try:
            done = subprocess.run(  # noqa: S603 (the user's own command, no shell)
                self._words, input=body, capture_output=True, timeout=_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            self._hangs = True
            return f"{name} had no end within {_SECONDS:g} s"
        except OSError as error:
            return f"{name} cannot be run: {error.strerror}"
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            return f"{name} ended with {done.returncode}{': ' + said[0] if said else ''}"
        if len(done.stdout) > LARGEST:
            return f"{name} wrote more than {LARGEST >> 20} MiB"
        return done.stdout


_CODECS: Final[dict[str, Callable[[], Codec]]] = {"msgpack": _msgpack, "gzip": _gzip, "zstd": _zstd}
