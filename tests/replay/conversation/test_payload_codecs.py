"""Payloads of other forms than JSON are read, within bounds."""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zstandard
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.errors import CaptureError, ConfigError
from natsproxy.replay.conversation.match_options import MatchOptions, combine, plain, read
from natsproxy.replay.conversation.payload_codecs import EXPANDED, LARGEST, Codec
from natsproxy.replay.conversation.steps import stored_options
from tests.replay.scripted import hello, write


def codec(name: str, option: str = "match_as") -> Codec:
    found = MatchOptions(**read({option: f"a.> {name}"})).codec(b"a.b")
    assert found is not None
    return found


def descriptors(folder: Path) -> Path:
    """Write the descriptor of `shop.Order`: `string id = 1; int64 qty = 2; repeated Order parts = 3`."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    order = file.message_type.add(name="Order")
    kinds = descriptor_pb2.FieldDescriptorProto
    order.field.add(name="id", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    order.field.add(name="qty", number=2, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL)
    order.field.add(
        name="parts", number=3, type=kinds.TYPE_MESSAGE, type_name=".shop.Order", label=kinds.LABEL_REPEATED
    )
    path = folder / "shop.binpb"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    return path


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_messagepack_is_a_value_of_json(value: Any) -> None:
    found = codec("msgpack")
    assert found.plain(msgpack.packb(value)) == value
    assert found.encode is not None
    assert found.plain(found.encode(value)) == value


def test_messagepack_that_json_does_not_have_is_a_text() -> None:
    value = {
        1: b"\x01\xff",
        "t": msgpack.Timestamp(1790000000, 5),
        "x": msgpack.ExtType(5, b"a"),
        "s": "\udcff",
    }
    body = msgpack.packb(value, unicode_errors="surrogateescape")
    shown = {"1": "01ff", "t": "1790000000.000000005", "x": "extension 5: 61", "s": "\udcff"}
    assert codec("msgpack").plain(body) == shown


@given(st.binary(max_size=200))
def test_compressed_payloads_are_payloads(body: bytes) -> None:
    for name, compressed in (("gzip", gzip.compress(body)), ("zstd", zstandard.compress(body))):
        found = codec(name)
        assert found.plain(compressed) == body
        assert found.encode is not None
        assert found.plain(found.encode(body)) == body


def test_protobuf_is_read_by_its_descriptor(tmp_path: Path) -> None:
    found = codec(f"protobuf:{descriptors(tmp_path)}:shop.Order")
    value = {"id": "x", "qty": "7", "parts": [{"id": "y"}]}
    assert found.encode is not None
    body = found.encode(value)
    assert body == b"\x0a\x01x\x10\x07\x1a\x03\x0a\x01y"
    assert found.plain(body) == value
    with pytest.raises(ValueError, match=r"fields that shop\.Order does not have"):
        found.plain(body + b"\x20\x01")


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    for name in ("msgpack", "gzip", "zstd"):
        for one in (body, b"\x1f\x8b\x08\x00" + body, b"\x28\xb5\x2f\xfd" + body):
            try:
                codec(name).plain(one)
            except ValueError:
                continue


def streamed(size: int) -> bytes:
    """Return zeros as zstd, without their size."""
    stream = zstandard.ZstdCompressor().compressobj()
    return stream.compress(bytes(size)) + stream.flush()


HOSTILE: list[tuple[str, bytes, str | None]] = [
    ("gzip", gzip.compress(bytes(EXPANDED + 1)), "expands to more than 8 MiB"),
    ("zstd", zstandard.compress(bytes(EXPANDED + 1)), "expands to more than 8 MiB"),
    ("zstd", streamed(EXPANDED * 4), None),
    ("gzip", gzip.compress(b"x" * 100)[:-9], "whole"),
    ("gzip", gzip.compress(b"x") * 2, "whole"),
    ("gzip", zlib.compress(b"x"), "header"),
    ("zstd", zstandard.compress(b"x" * 100)[:-5], None),
    ("msgpack", b"\x91" * 900 + b"\x00", "nested"),
    ("msgpack", b"\x91" * 100_000 + b"\x00", None),
    ("msgpack", b"\xdd\xff\xff\xff\xff", None),
    ("msgpack", b"\x81\x90\x01", None),
    ("msgpack", b"\xc1", None),
    ("msgpack", b'{"a":1}', None),
    ("msgpack", b"\xc6" + LARGEST.to_bytes(4, "big") + bytes(LARGEST), "more than 1 MiB"),
]


@pytest.mark.parametrize("at", range(len(HOSTILE)))
def test_hostile_payloads_are_refused(at: int) -> None:
    name, body, why = HOSTILE[at]
    with pytest.raises(ValueError, match=why):
        codec(name).plain(body)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("a.> msgpck", "one of msgpack, gzip, zstd, protobuf:FILE:MESSAGE, not 'msgpck'"),
        ("msgpack", "one of msgpack"),
        ("a.. msgpack", "valid subject pattern"),
        ("a protobuf:/nowhere:x.Y", "cannot read '/nowhere': No such file"),
        ("a protobuf:/dev/zero:x.Y", "cannot read '/dev/zero'"),
        (f"a protobuf:{__file__}:x.Y", r"no file of descriptors with 'x\.Y'"),
        ({"a": 5}, "functions or pairs"),
        ({"a": (None, str)}, "functions or pairs"),
    ],
)
def test_a_codec_that_is_none_is_refused(value: Any, error: str) -> None:
    with pytest.raises(ConfigError, match=f"^match_as .*{error}"):
        read({"match_as": value})


def test_a_message_that_a_descriptor_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no file of descriptors with 'shop\.Cart'"):
        read({"match_as": f"a protobuf:{descriptors(tmp_path)}:shop.Cart"})


# -- functions and commands


def test_functions_read_payloads(tmp_path: Path) -> None:
    def decode(body: bytes) -> Any:
        return json.loads(body[::-1])

    given = read({"match_as": {"a.>": decode, "b": (bytes.upper, bytes.lower), "c": "gzip"}})
    options = MatchOptions(**read(plain(given)))
    for body, found in ((b'}1:"n"{', {"n": 1}), (b"x", ValueError)):
        codec = options.codec(b"a.x")
        assert codec is not None
        if found is ValueError:
            with pytest.raises(ValueError, match="JSONDecodeError"):
                codec.plain(body)
        else:
            assert codec.plain(body) == found
    other = options.codec(b"b")
    assert other is not None
    assert other.encode is not None
    assert (other.plain(b"x"), other.encode(b"Y")) == (b"X", b"y")
    assert options.stored() == {"match_as": ["c gzip"]}


def script(text: str) -> str:
    return f"a.> {sys.executable} -c '{text}'"


@pytest.mark.parametrize(
    ("text", "wrote"),
    [
        ("import sys; sys.stdout.buffer.write(sys.stdin.buffer.read()[::-1])", b"cba"),
        ('import sys; sys.exit("no key")', "ended with 1: no key"),
        ("import sys; print(9 * 2**20 * chr(65))", "wrote more than 1 MiB"),
        ('print("$HOME; ls")', b"$HOME; ls\n"),
    ],
)
def test_a_command_reads_payloads(text: str, wrote: bytes | str) -> None:
    (found,) = read({"match_command": script(text)})["match_command"]
    for _ in range(2):
        if isinstance(wrote, bytes):
            assert found.codec.plain(b"abc") == wrote
        else:
            with pytest.raises(ValueError, match=wrote):
                found.codec.plain(b"abc")


def test_a_command_runs_once_for_a_payload(tmp_path: Path) -> None:
    text = f'open("{tmp_path}/runs", "a").write("x"); print(1)'
    (found,) = read({"match_command": script(text)})["match_command"]
    for body in (b"a", b"a", b"b", b"a"):
        assert found.codec.plain(body) == b"1\n"
    assert (tmp_path / "runs").read_text() == "xx"


def test_a_command_that_hangs_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("natsproxy.replay.conversation.payload_codecs._SECONDS", 0.1)
    (found,) = read({"match_command": script("import time; time.sleep(60)")})["match_command"]
    with pytest.raises(ValueError, match=r"had no end within 0\.1 s$"):
        found.codec.plain(b"a")
    with pytest.raises(ValueError, match=r"had no end within 0\.1 s before$"):
        found.codec.plain(b"b")


@pytest.mark.parametrize("value", ["a.>", "a.> no-such-program-here", "a.> ", "a.> 'open"])
def test_a_command_that_cannot_be_run_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="match_command "):
        read({"match_command": value})


def test_a_recording_keeps_no_command_and_runs_none(tmp_path: Path) -> None:
    given = read({"match_command": script("1"), "match_as": "b gzip"})
    assert MatchOptions(**given).stored() == {"match_as": ["b gzip"]}
    assert combine(given, {})["match_command"] == given["match_command"]
    path = write(tmp_path / "x.ncap", hello(1, "a"), cassette={"match_command": [script("1")]})
    with pytest.raises(CaptureError, match="names a program to run"):
        stored_options(path)
