"""`natsproxy capture export`, as it is called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from natsproxy.cli import main

CAPTURE = Path(__file__).parents[2] / "recordings" / "core-v1.ncap"


def run(*arguments: object) -> Result:
    """Run the command."""
    return CliRunner().invoke(main, ["capture", *map(str, arguments)])


def test_json_lines_are_those_of_cat(tmp_path: Path) -> None:
    """To a file and to standard output, with the same filters."""
    for options in ([], ["--op", "MSG", "--op", "pub"], ["--subject", "orders.*", "--direction", "c2s"]):
        expected = run("cat", CAPTURE, "--json", *options).stdout
        assert run("export", CAPTURE, "--jsonl", "-", *options).stdout == expected
        made = run("export", CAPTURE, "--jsonl", tmp_path / "out", "--force", *options)
        assert made.exit_code == 0
        assert (tmp_path / "out").read_text() == expected
        assert f"{len(expected.splitlines())} frames" in made.stderr
        assert all(json.loads(line) for line in expected.splitlines())


def test_parquet_with_so_much_of_each_payload(tmp_path: Path) -> None:
    """All of it, unless less is asked for."""
    pq = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow: pip install 'natsproxy[spark]'")
    for number, (options, most) in enumerate([([], 1_000), (["--payload", 2], 2)]):
        out = tmp_path / f"{number}.parquet"
        assert run("export", CAPTURE, "--parquet", out, *options).exit_code == 0
        rows = pq.read_table(out).to_pylist()
        bodies = [(row["size"] or 0) - (row["header_size"] or 0) for row in rows]
        assert [len(row["payload"] or b"") for row in rows] == [min(most, size) for size in bodies]
        assert max(bodies) > 2


def test_json_lines_join_with_parquet(tmp_path: Path) -> None:
    """By recorder, connection, direction and ordinals, and with the same time to the nanosecond."""
    pq = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow: pip install 'natsproxy[spark]'")
    assert run("export", CAPTURE, "--parquet", tmp_path / "out").exit_code == 0
    names = ("recorder", "t_ns", "conn_id", "dir", "in_ordinal", "out_ordinal")
    table = [tuple(row[name] for name in names) for row in pq.read_table(tmp_path / "out").to_pylist()]
    lines = [json.loads(line) for line in run("export", CAPTURE, "--jsonl", "-").stdout.splitlines()]
    keys = ("recorder", "t_ns", "conn", "direction", "in", "out")
    found = [tuple(line[key] for key in keys) for line in lines]
    assert [(*row[:3], ("c2s", "s2c")[row[3]], *row[4:]) for row in table] == found
    assert len(set(found)) == len(found) > 0


def test_packets_of_either_leg(tmp_path: Path) -> None:
    """The client's unless the server's is asked for: INFO differs."""
    legs = [
        run("export", CAPTURE, "--pcapng", "-", *leg)
        for leg in ([], ["--leg", "client"], ["--leg", "server"])
    ]
    default, client, server = (made.stdout_bytes for made in legs)
    assert default == client != server
    assert (b"client leg" in client, b"server leg" in server) == (True, True)
    made = run("export", CAPTURE, "--pcapng", tmp_path / "out", "--op", "HPUB")
    assert (made.exit_code, (tmp_path / "out").read_bytes().count(b"HPUB ")) == (0, 5)


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        ([CAPTURE], 2, "name one output"),
        ([CAPTURE, "--jsonl", "a", "--parquet", "b"], 2, "name one output"),
        ([CAPTURE, "--jsonl", "a", "--payload", 3], 2, "--payload is for --parquet"),
        ([CAPTURE, "--parquet", "a", "--leg", "server"], 2, "--leg is for --pcapng"),
        (["missing.ncap", "--jsonl", "a"], 2, "missing.ncap: no such file or folder"),
        ([__file__, "--jsonl", "a"], 2, "this is not a natsproxy capture"),
        ([CAPTURE, "--jsonl", "/missing/a"], 2, "/missing/a: cannot write it"),
        ([CAPTURE, "--parquet", CAPTURE], 2, "it exists already"),
        ([CAPTURE, "--jsonl", CAPTURE, "--force"], 2, "this is the capture itself"),
    ],
)
def test_mistakes_are_one_sentence(arguments: list[object], code: int, expected: str) -> None:
    """A mistake changes nothing on the disk."""
    before = CAPTURE.read_bytes()
    result = run("export", *arguments)
    assert result.exit_code == code
    assert expected in result.stderr
    assert "Traceback" not in result.output
    assert CAPTURE.read_bytes() == before


def test_a_damaged_capture_leaves_no_output(tmp_path: Path) -> None:
    """The error names the place."""
    raw = bytearray(CAPTURE.read_bytes())
    raw[len(raw) // 2] ^= 1
    (tmp_path / "bad.ncap").write_bytes(raw)
    for form in ("--jsonl", "--parquet", "--pcapng"):
        result = run("export", tmp_path / "bad.ncap", form, tmp_path / "out")
        assert result.exit_code == 2
        assert "at byte" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["bad.ncap"]
