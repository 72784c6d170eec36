"""Subjects: tokens, validity and matching, by nats-server's rules.

Subjects are bytes: nats-server takes any byte in them except blanks and line ends.

The rules of `server/sublist.go`, which hold here too:
1. Tokens are split on `.` alone.  A token is a wildcard only when it is exactly `*` or `>`; `foo*` and `>x`
   are ordinary tokens.
2. A subject with an empty token (`foo.`, `foo..bar`) matches nothing, not even `>`.
3. `*` stands for one token, `>` for one or more at the end.
4. A wildcard in the *tested* subject is an ordinary token.  So the pattern `foo.*` matches the subject
   `foo.>`: permissions have this quirk, and `matches` has it too.
5. `is_subset` and `collide` compare patterns.  Both look at the first byte of some tokens only, so `*foo` in
   a pattern counts as `*`.  That is a bug of the server, kept because decisions must equal the server's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

STAR: Final = b"*"
TAIL: Final = b">"
BLANKS_IN_TOKENS: Final = re.compile(rb"[ \t\n\f\r]")


def tokens(subject: bytes) -> list[bytes]:
    """Split a subject into its tokens; an empty subject is one empty token."""
    return subject.split(b".")


def has_empty_token(subject: bytes) -> bool:
    """Tell whether some token is empty: such a subject matches nothing."""
    return not subject or b".." in subject or subject[0] == 0x2E or subject[-1] == 0x2E


def has_wildcard(subject: bytes) -> bool:
    """Tell whether some token is exactly `*` or `>`."""
    if STAR not in subject and TAIL not in subject:
        return False
    parts = subject.split(b".")
    return STAR in parts or TAIL in parts


def is_valid_publish(subject: bytes) -> bool:
    """Tell whether a pedantic PUB of this subject gets no `Invalid Publish Subject`.

    It has no empty token and no lone `*` or `>`.  The server does not check other PUBs at all.
    """
    return not has_empty_token(subject) and not has_wildcard(subject)


def is_valid_subscribe(subject: bytes) -> bool:
    """Tell whether the server takes a SUB of this subject: no empty token, `>` only as the last one."""
    if has_empty_token(subject):
        return False
    return TAIL not in subject or TAIL not in subject.split(b".")[:-1]


def is_valid_strict(subject: bytes) -> bool:
    """Tell whether the server takes this subject in its configuration and its JetStream API.

    The rule of `is_valid_subscribe`, and no blank, form feed or line end inside.
    """
    return is_valid_subscribe(subject) and BLANKS_IN_TOKENS.search(subject) is None


def _never(subject: bytes) -> bool:
    return False


# Bounded: a client chooses its subscriptions, and each would stay in memory forever.
@lru_cache(maxsize=4096)
def compile_pattern(pattern: bytes) -> Callable[[bytes], object]:
    """Return a predicate over subjects, truthy where `pattern` matches.

    An invalid pattern matches nothing, as it could not have been inserted in the server's table.
    """
    if not is_valid_subscribe(pattern):
        return _never
    if not has_wildcard(pattern):
        return pattern.__eq__
    parts = [b"[^.]+" if token == STAR else re.escape(token) for token in pattern.split(b".")]
    if pattern == TAIL or pattern.endswith(b".>"):
        parts[-1] = rb"[^.]+(?:\.[^.]+)*"
    return re.compile(rb"\.".join(parts)).fullmatch


def matches(pattern: bytes, subject: bytes) -> bool:
    """Tell whether a subscription to `pattern` gets a message on `subject`, by the server's table."""
    return bool(compile_pattern(pattern)(subject))


def is_subset(subject: bytes, pattern: bytes) -> bool:
    """Tell whether every subject that `subject` (which may have wildcards) stands for matches `pattern`.

    The server's `SubjectMatchesFilter`: a tested `>` is under `>` only, a tested `*` under `*` or `>`.
    """
    tested, wanted = subject.split(b"."), pattern.split(b".")
    for index, want in enumerate(wanted):
        if index >= len(tested) or not want:
            return False
        if want == TAIL:
            return True
        token = tested[index]
        if not token or token == TAIL or (token == STAR and want != STAR):
            return False
        if want[0] != 0x2A and token != want:  # rule 5: one byte decides
            return False
    return len(tested) == len(wanted)


def collide(first: bytes, second: bytes) -> bool:
    """Tell whether some literal subject could match both patterns: the server's `SubjectsCollide`."""
    if first == second:
        return True
    left, right = first.split(b"."), second.split(b".")
    left_wild, right_wild = has_wildcard(first), has_wildcard(second)
    if not left_wild and not right_wild:
        return False
    if not left_wild:
        return is_subset(first, second)
    if not right_wild:
        return is_subset(second, first)
    if len(left) != len(right):  # only a `>` at the end of the shorter one can bridge that
        shorter = left if len(left) < len(right) else right
        if TAIL not in shorter:
            return False
    return all(_tokens_meet(a, b) for a, b in zip(left, right, strict=False))


def _tokens_meet(first: bytes, second: bytes) -> bool:
    if not first or not second:
        return False
    return first == second or first[:1] in b"*>" or second[:1] in b"*>"
