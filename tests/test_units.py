"""Durations, sizes and versions as people write them."""

from __future__ import annotations

import pytest

from natsproxy.units import (
    LARGEST,
    LONGEST,
    format_duration,
    format_size,
    in_seconds,
    parse_duration,
    parse_size,
    parse_version,
)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("250ms", 250_000_000),
        ("1m30s", 90_000_000_000),
        (" 1.5h ", 5_400_000_000_000),
        (".5us", 500),
        ("2µs", 2000),
        ("1d12h", 129_600_000_000_000),
        ("0", 0),
    ],
)
def test_a_duration_has_the_form_of_go(text: str, ns: int) -> None:
    assert parse_duration(text) == ns


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(38.1708, "38.2 s"), (600.0, "600 s"), (0.04, "0 s"), (1.5, "1.5 s"), (7200, "7,200 s")],
)
def test_seconds_of_a_sentence_are_rounded(seconds: float, text: str) -> None:
    assert in_seconds(seconds) == text


@pytest.mark.parametrize("text", ["", "5", "-1s", "+1s", "1 s", "1day", "s", "1e400s", "9" * 400 + "s", "٣s"])
def test_a_text_that_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r'^must be a duration such as "250ms" or "1m30s", not '):
        parse_duration(text)


def test_a_sign_is_taken_where_it_means_something() -> None:
    assert parse_duration("-1m1s", signed=True) == -61_000_000_000
    assert parse_duration("+1s", signed=True) == 1_000_000_000


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0s"),
        (1, "1ns"),
        (250_000_000, "250ms"),
        (1_500_000_000, "1500ms"),
        (90_000_000_000, "90s"),
        (7_200_000_000_000, "2h"),
        (172_800_000_000_000, "2d"),
    ],
)
def test_a_written_duration_can_be_read(ns: int, text: str) -> None:
    assert format_duration(ns) == text
    assert parse_duration(text) == ns


@pytest.mark.parametrize(
    ("text", "size"),
    [("512", 512), ("7B", 7), ("64KiB", 65_536), ("2 MB", 2_000_000), (" 1GiB ", 1 << 30)],
)
def test_a_size_has_a_binary_or_a_decimal_unit(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "-1", "1.5MiB", "64 kibibytes", "9" * 5000])
def test_a_text_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^must be a number of bytes such as 512 or "):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0"), (1, "1"), (1500, "1500"), (4096, "4KiB"), (3 << 20, "3MiB"), (3 << 40, "3TiB")],
)
def test_a_written_size_can_be_read(size: int, text: str) -> None:
    assert format_size(size) == text
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("2.12.1", (2, 12, 1)),
        ("2.12.1-dev", (2, 12, 1)),
        ("2.12", (2, 12, 0)),
        ("2.14.0.7", (2, 14, 0)),
        ("2.x.5", (2, 0, 0)),
        ("", (0, 0, 0)),
        ("dev", (0, 0, 0)),
        ("9" * 5000, (999_999_999, 0, 0)),
    ],
)
def test_a_version_is_its_leading_numbers(text: str, version: tuple[int, int, int]) -> None:
    assert parse_version(text) == version


def test_what_is_too_large_is_refused_with_the_bound() -> None:
    assert parse_duration("3650d") == LONGEST
    assert parse_duration("-3650d", signed=True) == -LONGEST
    assert parse_size("1PiB") == LARGEST
    for text in ("99999999999h", "3650d1ns", "9" * 18 + "d"):
        with pytest.raises(ValueError, match=f"^must be at most 3650d, not '{text}'$"):
            parse_duration(text)
    for text in ("1025TiB", str(LARGEST + 1), "9" * 18 + "PiB"):
        with pytest.raises(ValueError, match=f"^must be at most 1PiB, not '{text}'$"):
            parse_size(text)
