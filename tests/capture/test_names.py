"""The names of segments: those of this version and of earlier ones, in order."""

from __future__ import annotations

from pathlib import Path

from natsproxy.capture import names
from natsproxy.capture.names import Name, name_of, of_file, segment_order

R = "0123456789abcdef" * 2
T = "20261125T034417123Z"
WALL = 1_795_578_257_123_999_999


def test_parts() -> None:
    """A name that only looks like one of ours is a name of its own."""
    assert name_of(Path("x.ncap")) == Name("x", "", "", 0)
    assert name_of(Path("a/x-7.ncap")) == Name("x", "", "", 7)
    assert name_of(Path(f"x_{T}.ncap")) == Name("x", T, "", 0)
    assert name_of(Path(f"x-1_{T}.ncap")) == Name("x-1", T, "", 0)
    assert name_of(Path(f"{T}-{R}-12.ncap")) == Name("", T, R, 12)
    assert name_of(Path(f"{R}-12.ncap")) == Name(R, "", "", 12)
    assert name_of(Path("x_2026.ncap")) == Name("x_2026", "", "", 0)


def test_a_time_is_written_as_it_is_read() -> None:
    """In UTC, down to the millisecond; a clock that shows nonsense makes a name all the same."""
    assert names.beside(Path("a/x.ncap"), WALL // 1_000_000) == Path(f"a/x_{T}.ncap")
    assert names.in_folder(Path("a"), WALL // 1_000_000, bytes.fromhex(R), 3) == Path(f"a/{T}-{R}-3.ncap")
    assert names.beside(Path("x.ncap"), 1 << 80).name == "x_99991231T235959999Z.ncap"
    assert names.later_than(WALL, -1) == WALL // 1_000_000
    assert names.later_than(WALL, WALL // 1_000_000 + 9) == WALL // 1_000_000 + 10


def test_order() -> None:
    """Numbers count as numbers; what has a time comes behind what an earlier version wrote."""
    single = ["x.ncap", "x-1.ncap", "x-2.ncap", "x-13.ncap", "x-14.ncap", f"x_{T}.ncap", "y.ncap"]
    assert [path.name for path in segment_order(map(Path, sorted(single)))] == single
    folder = [f"{R}-2.ncap", f"{R}-13.ncap", f"{T}-{R[::-1]}-0.ncap", "20261126T000000000Z-" + R + "-0.ncap"]
    assert [path.name for path in segment_order(map(Path, sorted(folder)))] == folder


def test_the_files_of_one_recording(tmp_path: Path) -> None:
    """Not those of `x-1.ncap`, whose own name looks like an old segment of `x.ncap`."""
    for name in ("x", "x-1", f"x_{T}", f"x-1_{T}", "xy", "y-1", f"{T}-{R}-0"):
        (tmp_path / f"{name}.ncap").touch()
    found = segment_order(of_file(tmp_path / "x.ncap"))
    assert [path.stem for path in found] == ["x", "x-1", f"x_{T}"]
    assert [path.stem for path in segment_order(of_file(tmp_path / "x-1.ncap"))] == ["x-1", f"x-1_{T}"]
