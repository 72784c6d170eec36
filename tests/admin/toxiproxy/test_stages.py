"""The stages, on times and bytes of the test."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.admin.toxiproxy.stages import END, STAGES, Chunk, ResetPeerStage, ToxicChain, ToxicStage

MS = 1_000_000


def stage(kind: str, now: int = 0, **attributes: int) -> ToxicStage:
    made = STAGES[kind]
    return made({**dict.fromkeys(made.ATTRIBUTES, 0), **attributes}, Random(1), now)


def chain(**stages: ToxicStage) -> ToxicChain:
    made = ToxicChain()
    for name, one in stages.items():
        made.add(name, one)
    return made


def out(chunks: list[Chunk]) -> list[bytes]:
    """Return the bytes of chunks; the end is None's own text."""
    return [b"END" if chunk is END else chunk.data for chunk in chunks]


def test_latency_counts_from_the_arrival() -> None:
    line = chain(slow=stage("latency", latency=100))
    line.put(b"a", 0)
    line.put(b"b", 30 * MS)
    line.end()
    assert out(line.step(99 * MS)) == []
    assert line.due == 100 * MS
    assert out(line.step(100 * MS)) == [b"a"]
    assert line.due == 130 * MS
    assert out(line.step(130 * MS)) == [b"b", b"END"]
    assert line.done
    assert line.due is None


def test_latencies_add_up() -> None:
    line = chain(one=stage("latency", latency=100), two=stage("latency", latency=50))
    line.put(b"a", 0)
    assert out(line.step(120 * MS)) == []
    assert line.due == 150 * MS
    assert out(line.step(150 * MS)) == [b"a"]


def test_jitter_keeps_the_order() -> None:
    line = chain(slow=stage("latency", latency=20, jitter=15))
    for number in range(50):
        line.put(bytes([number]), number * MS)
    assert b"".join(out(line.step(MS))) == b""
    got: list[bytes] = []
    while line.due is not None:
        assert 5 * MS <= line.due < 85 * MS
        got += out(line.step(line.due))
    assert b"".join(got) == bytes(range(50))


def test_a_change_lets_the_head_go_and_the_others_wait_anew() -> None:
    line = chain(slow=stage("latency", latency=100))
    line.put(b"a", 0)
    line.put(b"b", 0)
    assert out(line.step(MS)) == []
    line.get("slow").change({"latency": 10, "jitter": 0}, True, 2 * MS)
    assert out(line.step(2 * MS)) == [b"a"]
    assert out(line.step(10 * MS)) == [b"b"]


def test_a_chunk_that_a_change_lets_go_has_not_been_delayed() -> None:
    """A second latency counts from when it came."""
    line = chain(one=stage("latency", latency=100), two=stage("latency", latency=50))
    line.put(b"a", 0)
    assert out(line.step(0)) == []
    line.get("one").change({"latency": 10, "jitter": 0}, True, 20 * MS)
    assert out(line.step(20 * MS)) == []
    assert line.due == 50 * MS


def test_bandwidth_sends_pieces() -> None:
    line = chain(thin=stage("bandwidth", rate=10))  # 10 bytes a millisecond
    line.put(bytes(1500), 0)
    got: list[tuple[int, int]] = []
    while not got or line.due is not None:
        now = line.due or 0
        got += [(now // MS, len(chunk.data)) for chunk in line.step(now)]
    assert got == [(100, 1000), (150, 500)]
    line.put(bytes(10), 1000 * MS)  # idle time is not saved up
    assert out(line.step(1000 * MS)) == []
    assert line.due == 1001 * MS


def test_bandwidth_zero_keeps_everything() -> None:
    cut = stage("bandwidth", rate=0)
    line = chain(cut=cut)
    for _ in range(3):
        line.put(bytes(40_000), 0)
        assert line.step(MS) == []
    line.end()
    assert line.full
    assert line.held == 120_000
    assert line.due is None
    chunks = line.remove("cut", 2 * MS)
    assert out(chunks) == [bytes(40_000)] * 3 + [b"END"]
    assert line.closed_by == ""


def test_slow_close_holds_the_end() -> None:
    line = chain(late=stage("slow_close", delay=100))
    line.put(b"a", 0)
    line.end()
    assert out(line.step(0)) == [b"a"]
    assert out(line.step(99 * MS)) == []
    assert out(line.step(100 * MS)) == [b"END"]
    assert line.closed_by == ""


def test_timeout_counts_from_the_last_bytes() -> None:
    line = chain(gone=stage("timeout", timeout=100))
    assert line.due == 100 * MS
    line.put(b"a", 50 * MS)
    assert out(line.step(50 * MS)) == []
    assert line.due == 150 * MS
    assert out(line.step(149 * MS)) == []
    assert out(line.step(150 * MS)) == [b"END"]
    assert line.closed_by == "gone"


def test_timeout_zero_never_closes() -> None:
    line = chain(gone=stage("timeout"))
    line.put(b"a", 0)
    line.end()
    assert line.step(10**18) == []
    assert line.due is None
    assert out(line.remove("gone", 10**18)) == [b"END"]
    assert line.closed_by == "gone"


@pytest.mark.parametrize("fresh", [True, False])
def test_reset_peer_waits_for_bytes(fresh: bool) -> None:
    made = stage("reset_peer", timeout=100)
    assert isinstance(made, ResetPeerStage)
    made.fresh = fresh
    line = chain(rst=made)
    assert line.step(1000 * MS) == []
    line.put(b"a", 1000 * MS)
    assert line.step(1000 * MS) == []
    assert line.due == 1100 * MS
    assert line.step(1099 * MS) == []
    assert out(line.step(1100 * MS)) == [b"END"]
    assert (line.closed_by, line.resets) == ("rst", fresh)


def test_removing_reset_peer() -> None:
    line = chain(rst=stage("reset_peer", timeout=100))
    assert line.remove("rst", 0) == []
    line.add("rst", stage("reset_peer", timeout=100))
    line.put(b"a", 0)
    assert line.step(0) == []
    assert out(line.remove("rst", MS)) == [b"END"]  # bytes are lost: the connection cannot go on


def test_limit_data_closes_after_the_last_byte() -> None:
    line = chain(most=stage("limit_data", bytes=5))
    line.put(b"abc", 0)
    assert out(line.step(0)) == [b"abc"]
    line.get("most").change({"bytes": 4}, True, 0)
    line.put(b"defg", 0)
    assert out(line.step(0)) == [b"d", b"END"]
    assert line.closed_by == "most"
    line.put(b"later", 0)
    assert line.step(0) == []


def test_limit_data_that_is_reached_closes_with_the_next_bytes() -> None:
    line = chain(most=stage("limit_data", bytes=5))
    line.put(b"abc", 0)
    line.step(0)
    line.get("most").change({"bytes": 2}, True, 0)
    assert line.step(0) == []
    line.put(b"d", 0)
    assert b"".join(out(line.step(0))) == b"END"


def test_slicer_cuts_and_pauses() -> None:
    line = chain(cut=stage("slicer", average_size=4, size_variation=1, delay=10))
    line.put(bytes(range(40)), 0)
    got = out(line.step(0))
    while line.due is not None and line.held:
        before = line.due
        got += out(line.step(before))
        assert line.due == before + 10_000 or not line.held
    assert b"".join(got) == bytes(range(40))
    assert all(len(piece) <= 5 for piece in got)
    assert len(got) >= 8


def test_slicer_that_is_changed_sends_the_rest() -> None:
    line = chain(cut=stage("slicer", average_size=1, delay=1_000_000))
    line.put(b"abcdef", 0)
    assert out(line.step(0)) == [b"a"]
    line.get("cut").change({"average_size": 1, "size_variation": 0, "delay": 0}, True, 0)
    assert out(line.step(0)) == [b"bcdef"]


def test_no_pause_follows_the_rest_of_a_chunk() -> None:
    line = chain(cut=stage("slicer", average_size=1, delay=1_000_000))
    line.put(b"abc", 0)
    line.put(b"d", 0)
    assert out(line.step(0)) == [b"a"]
    line.get("cut").change({"average_size": 1, "size_variation": 0, "delay": 1_000_000}, True, 0)
    assert out(line.step(0)) == [b"bc", b"d"]


def test_a_toxic_that_does_not_act_lets_all_pass() -> None:
    for kind in STAGES:
        one = stage(kind)
        one.active = False
        line = chain(none=one)
        line.put(b"abc", 0)
        line.end()
        assert out(line.step(0)) == [b"abc", b"END"], kind
        assert line.closed_by == ""


def test_a_toxic_that_closes_ends_what_comes_before_and_after() -> None:
    line = chain(most=stage("limit_data", bytes=2), late=stage("slow_close", delay=10))
    line.put(b"abc", 0)
    assert out(line.step(0)) == [b"ab"]
    assert line.closed_by == "most"
    assert out(line.step(10 * MS)) == [b"END"]


KEEPING = ("latency", "bandwidth", "slow_close", "slicer", "noop")
"""The types that lose nothing."""


@given(st.data())
def test_nothing_is_lost_or_reordered(data: st.DataObject) -> None:
    """Whatever is added, changed, and removed meanwhile."""
    line, names, now, sent, got = ToxicChain(), iter(range(1000)), 0, b"", b""
    live: list[tuple[str, str]] = []
    for step in range(data.draw(st.integers(1, 25))):
        now += data.draw(st.integers(0, 300)) * MS
        act = data.draw(st.sampled_from(["put", "put", "add", "change", "remove", "wait"]))
        if act == "put":
            piece = bytes([step]) * data.draw(st.integers(1, 3000))
            sent += piece
            line.put(piece, now)
        elif act == "add" or not live:
            kind = data.draw(st.sampled_from(KEEPING))
            live.append((f"t{next(names)}", kind))
            values = {name: data.draw(st.integers(-1, 50)) for name in STAGES[kind].ATTRIBUTES}
            line.add(live[-1][0], STAGES[kind](values, Random(1), now))
        elif act == "change":
            name, kind = data.draw(st.sampled_from(live))
            values = {each: data.draw(st.integers(-1, 50)) for each in STAGES[kind].ATTRIBUTES}
            line.get(name).change(values, data.draw(st.booleans()), now)
        elif act == "remove":
            chosen = data.draw(st.sampled_from(live))
            live.remove(chosen)
            got += b"".join(chunk.data for chunk in line.remove(chosen[0], now))
        got += b"".join(chunk.data for chunk in line.step(now))
        assert line.due is None or line.due > now
        assert sent.startswith(got)
        assert len(sent) - len(got) == line.held
    line.end()
    for name, _ in live:
        got += b"".join(chunk.data for chunk in line.remove(name, now))
    line.step(now)
    assert got == sent
    assert line.done
    assert not line.closed_by
