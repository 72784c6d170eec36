"""The compiled table from bytes to numbers: it does what a dict does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.wire.scanner import byte_table

KEYS = st.binary(max_size=3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["set", "setdefault"]), KEYS, st.integers(-5, 5)),
        st.tuples(st.sampled_from(["get", "pop", "del", "clear"]), KEYS, st.just(0)),
    ),
    max_size=200,
)


def step(table: Any, action: str, key: bytes, value: int) -> object:
    """Do one thing with a table; return its result, a missing key included."""
    try:
        if action == "set":
            table[key] = value
        elif action == "setdefault":
            return table.setdefault(key, value)
        elif action == "get":
            return table.get(key, value), key in table, table[key]
        elif action == "pop":
            return table.pop(key)
        elif action == "del":
            del table[key]
        elif len(key) == 3:
            table.clear()
    except KeyError as error:
        return repr(error)
    return None


@given(STEPS)
def test_a_table_is_like_a_dict(steps: list[tuple[str, bytes, int]]) -> None:
    table: Any = byte_table()
    model: dict[bytes, int] = {}
    for action, key, value in steps:
        assert step(table, action, key, value) == step(model, action, key, value)
        assert len(table) == len(model)
        assert list(table) == list(model)
    assert table == model
    assert list(table.items()) == list(model.items())
    assert list(table.values()) == list(model.values())


def test_a_table_takes_only_bytes_and_numbers() -> None:
    table: Any = byte_table()
    if isinstance(table, dict):
        pytest.skip("the compiled table is not built")
    with pytest.raises(TypeError):
        table["a"] = 1
    with pytest.raises(TypeError):
        table[b"a"] = "1"
    assert "a" not in table
