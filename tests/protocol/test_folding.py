"""Folding: which positions of templates take too many names, in any order of the templates."""

from __future__ import annotations

import itertools
import random

import pytest

from natsproxy.protocol.folding import FOLDED, MOST, folds

NAMES = [f"{first}{second}" for first in "abcdefgh" for second in "ijklmnopq"]  # 72
FEW = NAMES[:MOST]


def folded(template: str, before: list[str]) -> str:
    """Return a template with its folded positions, token by token."""
    tokens = template.split(".")
    for at in range(len(tokens)):
        if "".join(f"{token}." for token in tokens[:at]) in before and (at or tokens[0][0] not in "$_"):
            tokens[at] = FOLDED
    return ".".join(tokens)


@pytest.mark.parametrize(
    ("templates", "before"),
    [
        ([], []),
        ([f"users.{name}.login" for name in FEW], []),
        ([f"users.{name}.login" for name in NAMES], ["users."]),
        ([f"{name}.orders" for name in NAMES] + ["$JS.API.INFO", "_INBOX.*"], [""]),
        (
            [f"chat.{room}.{user}" for room, user in itertools.pairwise(NAMES)],
            ["chat.", "chat.**."],
        ),
        ([f"chat.{room}.{room[0]}" for room in NAMES], ["chat."]),
        ([f"a.{name}" for name in NAMES] + [f"b.{name}" for name in FEW], ["a."]),
        (["users.**.login", "users.*.login"], ["users."]),
        ([f"$KV.b.{name}" for name in NAMES], ["$KV.b."]),
    ],
)
def test_positions_with_too_many_names(templates: list[str], before: list[str]) -> None:
    """More than `MOST` behind the same tokens; the first token of the server's own subjects stays."""
    for seed in range(3):
        random.Random(seed).shuffle(templates)
        assert folds(templates) == before
    made = {folded(template, before) for template in templates}
    assert folds(made) == before, "what was folded stays so"


def test_memory_follows_the_result() -> None:
    """Names that vary in two positions, and subjects of a thousand tokens."""
    many = (f"u.{n % 1000:x}z.{n:x}z" for n in range(100_000))
    assert folds(many) == ["u.", "u.**."]
    assert folds(["x." * 2_000 + "x"]) == []
