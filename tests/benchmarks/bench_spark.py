"""The pipeline: a capture's blocks to Arrow, through Spark's data source, to all tables of `analyze`.

Run as `python -m tests.benchmarks.bench_spark [FRAMES]` (2 M without).  Each row is a process of its own.
Beside the seconds of the clock stands what all its processes took of a core: on a machine with other load
those hold better.  Memory is the sum of the peaks of that process, its JVM and its Python workers.  Starting
Spark is in the time of whole commands only, whose memory is not measured.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from natsproxy.capture.read.segment import CaptureFile
from tests.kit.traffic import minutes, traffic

FRAMES = 2_000_000
SMALL, CAPTURES, FRAMES_EACH = "minutes", 10_000, 100
GOLDEN = Path(__file__).parents[2] / "recordings" / "jetstream-v1.ncap"
PURE_BLOCKS = 10  # of the capture: enough for the pure twin


def decode(path: Path, cores: int, *, pure: bool) -> dict[str, Any]:
    """Blocks to Arrow batches of all columns, no payloads; the best of three."""
    from natsproxy.capture.columns import arrow

    make = arrow.pure_batch if pure else arrow.batch
    found = []
    for _ in range(1 if pure else 3):
        with CaptureFile(path) as file, Watch() as watch:
            frames = sum(
                make(file, ref).num_rows for ref in islice(file.blocks(), PURE_BLOCKS if pure else None)
            )
        found.append(watch.facts(frames))
    return min(found, key=lambda facts: facts["cpu"])


def source(path: Path, cores: int) -> dict[str, Any]:
    """The data source into nothing, the better of two."""
    from natsproxy.spark.jobs.analyze import read
    from natsproxy.spark.session import open_session

    spark = open_session(cores, size=path.stat().st_size)
    found = []
    for _ in range(2):
        with Watch() as watch:
            read(spark, [path]).write.format("noop").mode("overwrite").save()
        found.append(watch.facts(count(path)))
    spark.stop()
    return min(found, key=lambda facts: facts["seconds"])


def tables(path: Path, cores: int) -> dict[str, Any]:
    """All tables, from a cold start; and the seconds of each."""
    from natsproxy.spark.jobs.analyze import analyze
    from natsproxy.spark.session import open_session

    spark = open_session(cores, size=path.stat().st_size)
    marks: list[tuple[str, float]] = []
    with tempfile.TemporaryDirectory() as out, Watch() as watch:
        analyze(spark, [path], out, progress=lambda table, rows: marks.append((table, watch.seconds)))
    spark.stop()
    before = [0.0, *(seconds for _, seconds in marks)]
    return watch.facts(count(path)) | {
        "steps": [(name, at - b) for (name, at), b in zip(marks, before, strict=False)]
    }


def plan_small(path: Path, cores: int) -> dict[str, Any]:
    """The tasks of small captures in a folder beside the large one, as `analyze` plans them."""
    from natsproxy.spark.source.data_source import plan
    from natsproxy.spark.source.options import parse
    from natsproxy.spark.storage.executor_writer import TASK_BYTES

    with Watch() as watch:
        tasks = plan(parse({"path": str(path.parent / SMALL), "partitionBytes": str(TASK_BYTES)}))
    return watch.facts(CAPTURES * FRAMES_EACH) | {"note": f"{CAPTURES:,} captures in {len(tasks)} tasks"}


def info_small(path: Path, cores: int) -> dict[str, Any]:
    """`capture info` of those."""
    command = [sys.executable, "-m", "natsproxy", "capture", "info", str(path.parent / SMALL)]
    with Watch() as watch:
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return watch.facts(CAPTURES * FRAMES_EACH)


def whole(path: Path, cores: int, *, engine: str) -> dict[str, Any]:
    """The whole command, with the start of Python and of the engine."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # Java becomes a child of this process when the command ends
    command = [sys.executable, "-m", "natsproxy", "analyze", str(path), "--quiet", "--engine", engine]
    with tempfile.TemporaryDirectory() as out, Watch() as watch:
        subprocess.run([*command, "--cores", str(cores), "--out", out], stdout=subprocess.DEVNULL, check=True)
        with suppress(ChildProcessError):
            while True:
                os.wait()
    return watch.facts(count(path))


def count(path: Path) -> int:
    """Return how many frames a capture has."""
    with CaptureFile(path) as file:
        return sum(ref.summary.frames for ref in file.blocks())


class Watch:
    """Time and memory of what is done inside, by this process and all below it."""

    def __enter__(self) -> Watch:
        self._cpu, self._began = cpu(), time.perf_counter()
        return self

    def __exit__(self, *exc: object) -> None:
        self.took, self.cpu = self.seconds, cpu() - self._cpu

    @property
    def seconds(self) -> float:
        """Return the seconds since the start."""
        return time.perf_counter() - self._began

    def facts(self, frames: int) -> dict[str, Any]:
        """Return what was measured."""
        return {"seconds": self.took, "cpu": self.cpu, "frames": frames, "memory": memory()}


def family() -> list[dict[str, str]]:
    """Return /proc's status of this process and all below it, and the processor time of each."""
    found: dict[int, dict[str, str]] = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            fields = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())
            ticks = (place / "stat").read_text().rpartition(")")[2].split()[11:15]
        except OSError:  # it ended meanwhile
            continue
        found[int(place.name)] = fields | {"ticks": str(sum(map(int, ticks)))}
    mine = {os.getpid()}
    while more := {pid for pid, fields in found.items() if int(fields["PPid"]) in mine} - mine:
        mine |= more
    return [found[pid] for pid in mine]


def cpu() -> float:
    """Return the seconds of processor time, those of ended children included."""
    return sum(int(fields["ticks"]) for fields in family()) / os.sysconf("SC_CLK_TCK")


def memory() -> int:
    """Return the sum of the peaks of resident memory, in MiB."""
    return sum(int(fields.get("VmHWM", "0").split()[0]) for fields in family()) // 1024


JOBS: dict[str, Callable[[Path, int], dict[str, Any]]] = {
    "decode to Arrow, compiled": lambda path, cores: decode(path, cores, pure=False),
    "decode to Arrow, pure Python": lambda path, cores: decode(path, cores, pure=True),
    "data source to noop": source,
    "analyze, all tables": tables,
    "command, golden capture": lambda path, cores: whole(GOLDEN, cores, engine="spark"),
    "command, golden capture, Sail": lambda path, cores: whole(GOLDEN, cores, engine="sail"),
    "command": lambda path, cores: whole(path, cores, engine="spark"),
    "command, Sail": lambda path, cores: whole(path, cores, engine="sail"),
    "plan small captures": plan_small,
    "capture info of those": info_small,
}
ROWS = [
    ("decode to Arrow, compiled", 1),
    ("decode to Arrow, pure Python", 1),
    ("data source to noop", 2),
    ("data source to noop", 1),
    ("analyze, all tables", 2),
    ("analyze, all tables", 1),
    ("command, golden capture", 2),
    ("command, golden capture, Sail", 2),
    ("command", 2),
    ("command, Sail", 2),
    ("plan small captures", 1),
    ("capture info of those", 1),
]


def main(frames: int) -> None:
    """Print the table."""
    if find_spec("pyspark") is None:
        print("the pipeline needs pyspark: pip install 'natsproxy[spark]'")
        return
    with tempfile.TemporaryDirectory() as folder:
        path = traffic(Path(folder) / "a.ncap", frames)
        minutes(path.parent / SMALL, CAPTURES, FRAMES_EACH)
        print(f"{count(path):,} frames of 16 bytes, {path.stat().st_size / 1e6:.0f} MB")
        print(f"{'':32}{'cores':>6}{'seconds':>9}{'cpu s':>8}{'frames/s':>12}{'per cpu s':>11}{'MiB':>7}")
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        for name, cores in ROWS:
            if name.endswith("Sail") and find_spec("pysail") is None:
                print(f"{name:32} needs pip install 'natsproxy[sail]'")
                continue
            command = [sys.executable, __file__, "--row", name, str(cores), str(path)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
            made = json.loads(done.stdout.splitlines()[-1])
            rate, worked = made["frames"] / made["seconds"], made["frames"] / made["cpu"]
            print(
                f"{name:32}{cores:>6}{made['seconds']:>9.1f}{made['cpu']:>8.1f}{rate:>12,.0f}{worked:>11,.0f}"
                f"{made['memory']:>7}  {made.get('note', '')}".rstrip(),
                flush=True,
            )
            for table, seconds in made.get("steps", []):
                print(f"  {table:36}{seconds:>9.1f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--row"]:
        print(json.dumps(JOBS[sys.argv[2]](Path(sys.argv[4]), int(sys.argv[3]))))
    else:
        main(int(sys.argv[1]) if sys.argv[1:] else FRAMES)
