"""Subject mapping as nats-server does it: from a source pattern to a destination.

The grammar of destinations is in `mapping_tokens`.  A mapping is applied once, to the subject of a publish.
A subject with an empty token is not mapped.  A subject with wildcard tokens is mapped where the source
covers it: `*` under `*` and `>`, and `>` under `>`.

A `SubjectTransform` is one source and one destination, a `Mapping` a source with weighted destinations.  A
transform that loses nothing can be undone (`inverse`), which the way back from the server needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from natsproxy.errors import ConfigError
from natsproxy.protocol.mapping_tokens import (
    NUMBER,
    Draw,
    MapToken,
    Source,
    compile_token,
    refuse_to_draw,
    show,
)
from natsproxy.protocol.subjects import (
    STAR,
    TAIL,
    compile_pattern,
    has_empty_token,
    has_wildcard,
    is_subset,
    is_valid_strict,
)


class SubjectTransform:
    """One source pattern and one destination.  Immutable.

    invertible: None when the source subject follows from the destination; else the reason against, a clause.
    Raises ConfigError where the server's configuration refuses the mapping.
    """

    def __init__(self, source: bytes, destination: bytes) -> None:
        _check_subject(source, "source")
        self.source: Final = source
        self.destination: Final = destination
        self._source = Source(source)
        written = destination.split(b".")
        self._tokens = [compile_token(token, self._source) for token in written if token != TAIL]
        _check_destination(written, self._source, destination)
        self._matches = compile_pattern(_as_server_reads(source))
        self._parts = [token.part for token in self._tokens]
        self._tail = len(self._source.tokens) - 1 if self._source.tail else None
        self._identity = source == destination
        self._prefixes = self._find_prefixes()
        self.invertible: Final = _why_not_invertible(self._source, self._tokens)

    def __repr__(self) -> str:
        return f"SubjectTransform({self.source!r}, {self.destination!r})"

    def _find_prefixes(self) -> tuple[bytes, bytes] | None:
        """Return both prefixes of a mapping such as `a.>` to `b.>`: the common case needs no tokens."""
        # A token that starts with `*` is no literal in a source: see `_as_server_reads`.
        tokens = [*self._source.tokens[:-1], *(token.text for token in self._tokens)]
        if not self._source.tail or any(token[:1] == STAR for token in tokens):
            return None
        if not all(token.literal for token in self._tokens):
            return None
        return self.source[:-1], self.destination[:-1]

    def matches(self, subject: bytes) -> bool:
        """Tell whether the source covers the subject of a publish."""
        if has_wildcard(subject):
            return not has_empty_token(subject) and is_subset(subject, self.source)
        return bool(self._matches(subject))

    def apply(self, subject: bytes, draw: Draw = refuse_to_draw) -> bytes | None:
        """Return the destination of a publish's subject, None where the source does not match.

        draw: the source of randomness of `random`.  Raises ConfigError where it is needed and was not given.
        """
        if self._prefixes is not None:
            old, new = self._prefixes
            if not subject.startswith(old) or len(subject) == len(old) or has_empty_token(subject):
                return None
            return new + subject[len(old) :]
        if not self.matches(subject):
            return None
        return subject if self._identity else self._build(subject, draw)

    def apply_pattern(self, pattern: bytes) -> bytes | None:
        """Return the destination of a subscription, wildcards carried over; None unless wholly covered.

        Only an invertible mapping has an answer for wildcards.  `collide(source, pattern)` tells whether the
        subscription is covered in part.
        """
        if self.invertible is not None or not is_subset(pattern, self.source):
            return None
        return self._build(pattern, refuse_to_draw)

    def _build(self, subject: bytes, draw: Draw) -> bytes:
        tokens = subject.split(b".")
        made = [part(tokens, draw) for part in self._parts]
        if self._tail is not None:
            made += tokens[self._tail :]
        return b".".join(made)

    def inverse(self) -> SubjectTransform:
        """Return the transform that undoes this one.

        Raises ConfigError with the reason where there is none.
        """
        if self.invertible is not None:
            raise ConfigError(
                f"the mapping of {show(self.source)} to {show(self.destination)} cannot be undone: "
                f"{self.invertible}"
            )
        # The n-th `*` of the inverse's source is the wildcard that the n-th copying token was made of.
        order = [token.wildcard for token in self._tokens if token.wildcard is not None]
        source = [STAR if token.wildcard is not None else token.text for token in self._tokens]
        back = [
            b"$%d" % (order.index(at) + 1) if token == STAR else token
            for at, token in enumerate(self._source.tokens)
        ]
        return SubjectTransform(b".".join([*source, TAIL] if self._source.tail else source), b".".join(back))


def _as_server_reads(source: bytes) -> bytes:
    """Return the source as the server matches it: it takes any token that starts with `*` for `*`."""
    if b"*" not in source or not has_wildcard(source):
        return source
    return b".".join(STAR if token[:1] == STAR else token for token in source.split(b"."))


def _check_subject(subject: bytes, part: str) -> None:
    if not is_valid_strict(subject):
        raise ConfigError(f"the {part} of a mapping, {show(subject)}, is not a valid subject")


def _check_destination(written: list[bytes], source: Source, destination: bytes) -> None:
    # A function may hold blanks and dots between its braces, so a letter stands for it here.
    _check_subject(b".".join(token if token[:2] != b"{{" else b"x" for token in written), "destination")
    if STAR in written:
        raise ConfigError(f"the destination {show(destination)} must name wildcards by $1, not by *")
    if (written[-1] == TAIL) is not source.tail:
        raise ConfigError(f"{show(source.pattern)} and {show(destination)} must both end in > or neither")


def _why_not_invertible(source: Source, tokens: list[MapToken]) -> str | None:
    used = [token.wildcard for token in tokens if token.wildcard is not None]
    for token in tokens:
        if token.wildcard is None and not token.literal:
            return f"{show(token.text)} cannot be undone"
        if token.literal and token.text[:1] == STAR:
            return f"the token {show(token.text)} would match any"
    # The inverse has these tokens in its destination, where they would mean something else.
    for token_bytes in source.tokens:
        if token_bytes != STAR and (token_bytes[:1] in (b"*", b"$") and not _is_plain(token_bytes)):
            return f"the source token {show(token_bytes)} reads as a wildcard"
        if token_bytes.startswith(b"{{"):
            return f"the source token {show(token_bytes)} reads as a function"
    if sorted(used) != source.wildcards:
        return "it does not use each wildcard of its source exactly once"
    return None


def _is_plain(token: bytes) -> bool:
    return token[:1] == b"$" and NUMBER.fullmatch(token, 1) is None


class Destination(NamedTuple):
    """A weighted destination: `weight` percent of the subjects go there."""

    subject: bytes
    weight: int = 100


class Mapping:
    """A source and its weighted destinations.

    Weights are percents.  The rest of the subjects stay unmapped, unless the source itself is one of the
    destinations: then, as on the server, the rest is lost (mapped to the empty subject, which matches
    nothing).
    """

    def __init__(self, source: bytes, destinations: bytes | Sequence[Destination]) -> None:
        listed = [Destination(destinations)] if isinstance(destinations, bytes) else list(destinations)
        total = sum(destination.weight for destination in listed)
        if not listed:
            raise ConfigError(f"the mapping of {show(source)} has no destination")
        if any(not 0 <= destination.weight <= 100 for destination in listed) or total > 100:
            raise ConfigError(
                f"the weights of the mapping of {show(source)} must be 0 to 100, and 100 in all"
            )
        self.source: Final = source
        self.choices: Final = tuple(
            (SubjectTransform(source, destination.subject), destination.weight) for destination in listed
        )
        self._stays = not any(destination.subject == source for destination in listed)

    @property
    def only(self) -> SubjectTransform | None:
        """The one transform of a mapping without chance, else None."""
        return self.choices[0][0] if len(self.choices) == 1 and self.choices[0][1] == 100 else None

    def apply(self, subject: bytes, draw: Draw = refuse_to_draw) -> bytes | None:
        """Return the destination of a subject: None for no match, `b""` for a subject that is lost."""
        first = self.choices[0][0]
        if len(self.choices) == 1 and self.choices[0][1] == 100:
            return first.apply(subject, draw)
        if not first.matches(subject):
            return None
        percent = draw(100)
        for transform, weight in self.choices:
            if percent < weight:
                return transform.apply(subject, draw)
            percent -= weight
        return subject if self._stays else b""
