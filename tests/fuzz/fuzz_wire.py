"""The harness of `wire_target.py` for atheris and OSS-Fuzz; `build.sh` beside it builds and runs it."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["natsproxy.wire", "tests.fuzz"]):
    from tests.fuzz.wire_target import new_plane, one_input

PLANE = new_plane()


def test_one_input(data: bytes) -> None:
    """Try one input."""
    one_input(PLANE, data)


if __name__ == "__main__":
    atheris.Setup(sys.argv, test_one_input)
    atheris.Fuzz()
