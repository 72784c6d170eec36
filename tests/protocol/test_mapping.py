"""Subject mapping: the server's grammar, checked against a real server; and the way back."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.errors import ConfigError
from natsproxy.protocol.mapping import Destination, Mapping, SubjectTransform, fnv1a
from natsproxy.protocol.subjects import is_valid_publish, matches
from tests.kit.servers import NatsServer
from tests.protocol.live import Client

CASES = [
    ("foo", "bar", "foo", "bar"),
    ("foo", "bar", "foo.x", None),
    ("foo.*", "bar.$1", "foo.x", "bar.x"),
    ("foo.*.*", "bar.{{wildcard(2)}}.$1", "foo.x.y", "bar.y.x"),
    ("foo.*", "bar.{{ Wildcard( 1 ) }}", "foo.x", "bar.x"),
    ("foo.>", "bar.>", "foo.x.y", "bar.x.y"),
    ("foo.*.>", "bar.$1.z.>", "foo.x.y.w", "bar.x.z.y.w"),
    (">", "pre.>", "a.b", "pre.a.b"),
    ("p.>", ">", "p.a.b", "a.b"),
    ("foo.*", "bar", "foo.x", "bar"),
    ("foo.*", "bar.$x", "foo.x", "bar.$x"),
    ("foo.*", "bar.$0", "foo.x", "bar.foo"),
    ("foo.*", "x{{wildcard(1)}}", "foo.y", "x{{wildcard(1)}}"),
    ("m.*", "p.{{partition(10,1)}}", "m.xyz", "p.8"),
    ("m.*.*", "p.{{partition(7,2,1)}}.$1", "m.a.b", f"p.{fnv1a(b'ba') % 7}.a"),
    ("m.>", "p.{{partition(5)}}.>", "m.a.b", f"p.{fnv1a(b'm.a.b') % 5}.a.b"),
    ("m.*", "s.{{split(1,-)}}", "m.-a--b-c-", "s.a.b.c"),
    ("m.*", "s.{{split(1,-)}}", "m.--a-b", "s..a.b"),
    ("m.*", "s.{{splitfromleft(1,3)}}", "m.12345", "s.123.45"),
    ("m.*", "s.{{SplitFromRight(1,3)}}", "m.12345", "s.12.345"),
    ("m.*", "s.{{splitFromLeft(1,5)}}", "m.12345", "s.12345"),
    ("m.*", "s.{{splitfromright(1,0)}}", "m.12345", "s.12345"),
    ("m.*", "s.{{slicefromleft(1,3)}}", "m.1234567890", "s.123.456.789.0"),
    ("m.*", "s.{{slicefromright(1,3)}}", "m.1234567890", "s.1.234.567.890"),
    ("m.*", "s.{{slicefromleft(1,5)}}", "m.1234567890", "s.12345.67890"),
    ("m.*", "s.{{slicefromright(1,5)}}", "m.1234567890", "s.12345.67890"),
    ("m.*", "s.{{slicefromleft(1,-1)}}", "m.123", "s.123"),
    ("m.*", "s.{{left(1,2)}}.{{right(1,2)}}", "m.1234", "s.12.34"),
    ("m.*", "s.{{left(1,9)}}.{{right(1,0)}}", "m.1234", "s.1234.1234"),
    ("m.*", "n.$1", "m..b", None),
    ("m.>", "n.>", "m.a.", None),
    ("m.*", "n.$1", "m.*", "n.*"),
    ("m.*", "n.$1", "m.>", None),
    ("m.>", "n.>", "m.>", "n.>"),
    ("m.a", "n.a", "m.*", None),
    ("m.*.*foo", "n.$1", "m.a.bar", "n.a"),
]


@pytest.mark.parametrize(("source", "destination", "subject", "expected"), CASES)
def test_apply(source: str, destination: str, subject: str, expected: str | None) -> None:
    """Each token of the grammar, by example."""
    made = SubjectTransform(source.encode(), destination.encode()).apply(subject.encode())
    assert made == (None if expected is None else expected.encode())


def test_random_uses_the_given_source() -> None:
    """`random` asks the given source of randomness, and without one it is an error."""
    transform = SubjectTransform(b"m.*", b"r.{{random(6)}}.$1")
    assert transform.apply(b"m.a", lambda limit: limit - 1) == b"r.5.a"
    with pytest.raises(ConfigError, match="randomness is not allowed"):
        transform.apply(b"m.a")


def test_weights() -> None:
    """Weights share out the subjects; the rest stays on the source, or is lost where the source is listed."""

    def draws(percent: int) -> Callable[[int], int]:
        return lambda _: percent

    mapping = Mapping(b"a.*", [Destination(b"b.$1", 30), Destination(b"c.$1", 20)])
    made = [mapping.apply(b"a.x", draws(percent)) for percent in (0, 29, 30, 49, 50, 99)]
    assert made == [b"b.x", b"b.x", b"c.x", b"c.x", b"a.x", b"a.x"]
    lossy = Mapping(b"a", [Destination(b"a", 0), Destination(b"b", 50)])
    assert lossy.apply(b"a", lambda _: 99) == b""
    assert lossy.apply(b"a", lambda _: 0) == b"b"
    assert lossy.apply(b"z", lambda _: 0) is None
    assert lossy.only is None
    assert Mapping(b"a", b"b").only is not None


@pytest.mark.parametrize("weights", [[], [101], [60, 50], [-1]])
def test_bad_weights(weights: list[int]) -> None:
    """Weights are percents."""
    with pytest.raises(ConfigError, match=r"weights|no destination"):
        Mapping(b"a", [Destination(b"b", weight) for weight in weights])


@pytest.mark.parametrize(
    ("source", "destination", "reason"),
    [
        ("a.*", "b", "exactly once"),
        ("a.*", "b.$1.$1", "exactly once"),
        ("a.*", "b.{{left(1,2)}}", "'{{left(1,2)}}' cannot be undone"),
        ("a.*", "b.{{random(2)}}.$1", "cannot be undone"),
        ("a.$1", "b", "reads as a wildcard"),
        ("a.{{x}}", "b", "reads as a function"),
        ("a.*", "*b.$1", "would match any"),
    ],
)
def test_a_mapping_that_cannot_be_undone_gives_the_reason(source: str, destination: str, reason: str) -> None:
    """A mapping without an inverse names the reason."""
    transform = SubjectTransform(source.encode(), destination.encode())
    assert reason in (transform.no_inverse or "")
    with pytest.raises(ConfigError, match="cannot be undone"):
        transform.inverse()


@st.composite
def invertible(draw: st.DrawFn) -> SubjectTransform:
    count = draw(st.integers(0, 3))
    source = draw(
        st.permutations([b"*"] * count + draw(st.lists(st.sampled_from([b"a", b"b", b"$JS"]), max_size=2)))
    )
    marks = [draw(st.sampled_from([b"$%d", b"{{wildcard(%d)}}"])) % (n + 1) for n in range(count)]
    target = draw(st.permutations(marks + draw(st.lists(st.sampled_from([b"x", b"y"]), max_size=2))))
    tail = [b">"] if draw(st.booleans()) or not source or not target else []
    return SubjectTransform(b".".join([*source, *tail]), b".".join([*target, *tail]))


@given(invertible(), st.lists(st.sampled_from([b"a", b"b", b"$JS", b"q"]), min_size=9, max_size=9))
def test_inverse_undoes(transform: SubjectTransform, words: list[bytes]) -> None:
    """What a mapping did, its inverse undoes."""
    filled = [words.pop() if token in (b"*", b">") else token for token in transform.source.split(b".")]
    subject = b".".join(filled)
    mapped = transform.apply(subject)
    assert transform.no_inverse is None
    assert mapped is not None
    assert transform.inverse().apply(mapped) == subject
    assert transform.apply(subject + b".x") is None or transform.source.endswith(b">")


@given(
    invertible(),
    st.lists(st.sampled_from([b"a", b"b", b"*"]), min_size=1, max_size=5),
    st.lists(st.sampled_from([b"a", b"b"]), min_size=1, max_size=6).map(b".".join),
)
def test_patterns_map_as_their_subjects_do(
    transform: SubjectTransform, pattern: list[bytes], subject: bytes
) -> None:
    """A mapped subscription gets the mapped forms of what the subscription got."""
    for wanted in (b".".join(pattern), b".".join([*pattern, b">"])):
        mapped = transform.apply_pattern(wanted)
        moved = transform.apply(subject)
        if mapped is not None and moved is not None:
            assert matches(mapped, moved) is matches(wanted, subject)


def test_a_pattern_covered_in_part_is_not_mapped() -> None:
    """A wider subscription, or one of a mapping that cannot be undone, has no answer."""
    assert SubjectTransform(b"a.*", b"b.$1").apply_pattern(b"a.>") is None
    assert SubjectTransform(b"a.*", b"b").apply_pattern(b"a.*") is None
    assert SubjectTransform(b"a.>", b"b.>").apply_pattern(b"a.>") == b"b.>"
    assert SubjectTransform(b"a.*.*", b"b.$2.$1").apply_pattern(b"a.*.x") == b"b.x.*"


# --- against a real server ---------------------------------------------------------------------------------

FUNCTIONS = [
    "$1",
    "$2",
    "{{wildcard(2)}}",
    "{{partition(5,1,2)}}",
    "{{partition(9,2)}}",
    "{{split(1,-)}}",
    "{{splitfromleft(1,%d)}}",
    "{{splitfromright(2,%d)}}",
    "{{ SplitFromLeft( 1 , %d ) }}",
    "{{slicefromleft(1,%d)}}",
    "{{slicefromright(2,%d)}}",
    "{{left(1,%d)}}",
    "{{right(2,%d)}}",
    "lit",
    "x{{wildcard(1)}}",
    "$abc",
]
VALUES = ["a", "ab", "abc-de", "--x--y-", "1234567890", "é€", "Order_7", "-", "0"]


@pytest.mark.server
def test_every_function_equals_a_real_servers() -> None:
    """Generated mappings and subjects come out on the same subject as on a real server."""
    rng = random.Random(7)
    table: dict[str, str] = {}
    for index in range(300):
        made = [rng.choice(FUNCTIONS) for _ in range(rng.randint(1, 3))]
        made = [token % rng.randint(-1, 6) if "%d" in token else token for token in made]
        tail = rng.random() < 0.3
        table[f"s{index}.*.k.*{'.>' if tail else ''}"] = (
            f"d{index}." + ".".join(made) + (".>" if tail else "")
        )
    ours = [SubjectTransform(source.encode(), made.encode()) for source, made in table.items()]
    subjects = []
    for index, source in enumerate(table):
        for _ in range(4):
            rest = f".{rng.choice(VALUES)}.t" if source.endswith(">") else ""
            subjects.append((index, f"s{index}.{rng.choice(VALUES)}.k.{rng.choice(VALUES)}{rest}".encode()))
    with (
        NatsServer(f"mappings: {json.dumps(table, ensure_ascii=False)}") as server,
        Client(server.port) as client,
    ):
        client.exchange(b"SUB > 1\r\n")
        for index, subject in subjects:
            answer = client.exchange(b"PUB %s 0\r\n\r\n" % subject)
            # The server's own PING may stand before it.
            found = re.search(rb"^MSG (\S+) ", answer, re.MULTILINE)
            arrived = found[1] if found else b""
            mapped = ours[index].apply(subject)
            assert mapped is not None
            expected = mapped if is_valid_publish(mapped) else b""
            assert arrived == expected, ours[index]


@pytest.mark.server
def test_odd_cases_equal_a_real_servers() -> None:
    """Whole-subject partition, `*foo` in a source, wildcard subjects and `$0` are the server's."""
    table = {
        "p.>": "q.{{partition(7)}}.>",
        "m.*.*foo": "n.$1",
        "*w.k.>": "v.>",
        "z.*": "y.$0",
        "neg.*": "y.$-1",
        "l": "k.{{partition(3)}}",
    }
    ours = [Mapping(source.encode(), made.encode()) for source, made in table.items()]
    subjects = [
        b"p.a",
        b"p.a.b",
        b"p.*",
        b"m.a.bar",
        b"any.k.1",
        b"*w.k.1",
        b"m.a.*foo",
        b"m.a.b.c",
        b"z.1",
        b"z.*",
        b"z.>",
        b"neg.1",
        b"other",
    ]
    with NatsServer(f"mappings: {json.dumps(table)}") as server, Client(server.port) as client:
        client.exchange(b"SUB > 1\r\n")
        for subject in subjects:
            answer = client.exchange(b"PUB %s 0\r\n\r\n" % subject)
            mapped = [made for mapping in ours if (made := mapping.apply(subject)) is not None]
            assert answer.split(b" ")[1] == (mapped or [subject])[0]
