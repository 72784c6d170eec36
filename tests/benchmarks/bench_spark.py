"""The pipeline: a capture's blocks to Arrow, through Spark's data source, to all tables of `analyze`.

`python -m tests.benchmarks.bench_spark` has the rows that fit into five minutes, with 1 M frames, and
`python -m tests.benchmarks.bench_spark 20_000_000` those that read so many frames.  Each row is a process
of its own.

- Beside the seconds of the clock stands what all its processes took of a core: on a machine with other load
  those hold better.
- The baseline is the start of the engine with one job of a row, on the same machine in the same run: a whole
  command is also shown as a multiple of it.  The demo's capture is analysed with Spark's own settings too.
- Memory is the sum of the peaks of that process, its JVM and its Python workers, which a whole command has no
  more at its end.  The heap of the JVM is that of its log of collections: the most before one, and after one.
- The store is a folder whose requests are counted, and take 20 ms to open an object.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from natsproxy.capture.read.segment import CaptureFile
from tests.kit.traffic import minutes, traffic

FRAMES = 1_000_000
SMALL, CAPTURES, FRAMES_EACH = "minutes", 10_000, 100
OBJECTS, OPENING = 1_000, 0.02  # of the store; seconds
ROOT = Path(__file__).parents[2]
DEMO = Path("demo-output/demo.ncap")
RECORD_DEMO = """
from pathlib import Path
from demo import OUTPUT, act_record
from natsproxy.testing import NatsServer
OUTPUT.mkdir()
with NatsServer(jetstream=True) as server:
    act_record(server)
"""
START = """
from natsproxy.spark.session import open_session
session = open_session(2, size=0, engine="{}", log="/dev/null")
session.range(1).collect()
session.stop()
"""
SUITE = ["-m", "pytest", "-q", "-n", "auto", "-m", "spark and not long"]
SPARKS_OWN = {
    "spark.sql.shuffle.partitions": "200",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
    "spark.driver.extraJavaOptions": "",
}
"""Spark's own settings, in the place of ours for little captures."""
PURE_BLOCKS = 10  # of the capture: enough for the pure twin


def decode(path: Path, *, pure: bool) -> dict[str, Any]:
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

    spark = open_session(cores, size=path.stat().st_size, log=os.devnull)
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
    from natsproxy.spark.session import local_settings, open_session

    size, log = path.stat().st_size, path.parent / f"gc-{cores}.log"
    java = f"{local_settings(size)['spark.driver.extraJavaOptions']} -Xlog:gc:file={log}"
    spark = open_session(cores, size=size, settings={"spark.driver.extraJavaOptions": java}, log=os.devnull)
    marks: list[tuple[str, float]] = []
    with tempfile.TemporaryDirectory() as out, Watch() as watch:
        analyze(spark, [path], out, progress=lambda table, rows: marks.append((table, watch.seconds)))
    facts = watch.facts(count(path))
    spark.stop()
    before = [0.0, *(seconds for _, seconds in marks)]
    steps = [(name, at - b) for (name, at), b in zip(marks, before, strict=False)]
    return facts | {"steps": steps, "note": heap(log)}


def heap(log: Path) -> str:
    """Return the most of the heap that the log of a JVM's collections shows."""
    found = [(int(before), int(after)) for before, after in re.findall(r"(\d+)M->(\d+)M", log.read_text())]
    before, after = (max(sizes) for sizes in zip(*found, strict=True))
    return f"heap at most {before} MiB, {after} after a collection"


def plan_small(path: Path) -> dict[str, Any]:
    """The tasks of small captures in a folder beside the large one, as `analyze` plans them."""
    from natsproxy.spark.source.data_source import plan
    from natsproxy.spark.source.options import parse
    from natsproxy.spark.storage.executor_writer import TASK_BYTES

    with Watch() as watch:
        tasks = plan(parse({"path": str(path.parent / SMALL), "partitionBytes": str(TASK_BYTES)}))
    return watch.facts(CAPTURES * FRAMES_EACH) | {"note": f"{CAPTURES:,} captures in {len(tasks)} tasks"}


def info_small(path: Path) -> dict[str, Any]:
    """`capture info` of those."""
    command = ["-m", "natsproxy", "capture", "info", str(path.parent / SMALL)]
    return program(command, CAPTURES * FRAMES_EACH)


def plan_store(path: Path) -> dict[str, Any]:
    """The tasks of captures on an object store."""
    from natsproxy.spark.source import object_stores
    from natsproxy.spark.source.data_source import plan
    from natsproxy.spark.source.options import parse
    from tests.spark.counting_store import CountingStore

    minutes(path.parent / "bucket" / "a", OBJECTS, 1)
    store = CountingStore(path.parent, partial(time.sleep, OPENING))
    object_stores.file_system = lambda _: (store, "bucket")  # type: ignore[assignment]
    with Watch() as watch:
        plan(parse({"path": "s3://bucket/a"}))
    each = store.requests.total() / len(store.requests)
    note = f"{len(store.requests):,} objects, {each:.1f} requests for each, {store.most} at once"
    return watch.facts(OBJECTS) | {"note": note}


def whole(path: Path, *, engine: str, settings: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """The whole command, with the start of Python and of the engine."""
    given = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    with tempfile.TemporaryDirectory() as out:
        command = ["-m", "natsproxy", "analyze", str(path), "--quiet", "--engine", engine, "--cores", "2"]
        return program([*command, *given, "--out", out], count(path))


def program(arguments: list[str], frames: int = 0) -> dict[str, Any]:
    """Run Python with arguments to the end of all its processes."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # Java becomes a child of this process when the command ends
    with Watch() as watch:
        subprocess.run([sys.executable, *arguments], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
        with suppress(ChildProcessError):
            while True:
                os.wait()
    return watch.facts(frames) | {"memory": ""}


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


SPARK, SAIL = "start of Spark, one job", "start of Sail, one job"
JOBS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "decode to Arrow, compiled": lambda path: decode(path, pure=False),
    "decode to Arrow, pure Python": lambda path: decode(path, pure=True),
    "data source to noop, 1 core": lambda path: source(path, 1),
    "data source to noop": lambda path: source(path, 2),
    SPARK: lambda path: program(["-c", START.format("spark")]),
    SAIL: lambda path: program(["-c", START.format("sail")]),
    "demo": lambda path: whole(path.parent / DEMO, engine="spark"),
    "demo, Spark's own settings": lambda path: whole(path.parent / DEMO, engine="spark", settings=SPARKS_OWN),
    "demo, Sail": lambda path: whole(path.parent / DEMO, engine="sail"),
    "command": lambda path: whole(path, engine="spark"),
    "command, Sail": lambda path: whole(path, engine="sail"),
    "all tables, in a session": lambda path: tables(path, 2),
    "all tables, 1 core": lambda path: tables(path, 1),
    "plan small captures": plan_small,
    "capture info of those": info_small,
    "plan on a store": plan_store,
    "Spark's tests of `make test`": lambda path: program(SUITE),
}
LARGE = (
    "decode to Arrow, compiled",
    "data source to noop",
    SPARK,
    SAIL,
    "command",
    "command, Sail",
    "all tables, in a session",
    "all tables, 1 core",
)
"""The rows of a run with a number of frames."""
USUAL = [name for name in JOBS if not name.endswith("1 core")]
COMMANDS = ("demo", "demo, Spark's own settings", "demo, Sail", "command", "command, Sail")


def main(frames: int | None) -> None:
    """Print the table."""
    if find_spec("pyspark") is None:
        print("the pipeline needs pyspark: pip install 'natsproxy[spark]'")
        return
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'deploy'}"}
    run = partial(subprocess.run, capture_output=True, text=True, check=True, env=environment)
    with tempfile.TemporaryDirectory() as folder:
        path = traffic(Path(folder) / "a.ncap", frames or FRAMES)
        if frames is None:
            minutes(path.parent / SMALL, CAPTURES, FRAMES_EACH)
            run([sys.executable, "-c", RECORD_DEMO], cwd=folder)
        print(f"{count(path):,} frames of 16 bytes, {path.stat().st_size / 1e6:.0f} MB")
        print(f"{'':32}{'seconds':>9}{'of start':>10}{'cpu s':>8}{'frames/s':>12}{'per cpu s':>11}{'MiB':>7}")
        starts: dict[str, float] = {}
        for name in USUAL if frames is None else LARGE:
            if "Sail" in name and find_spec("pysail") is None:
                continue
            try:
                done = run([sys.executable, __file__, "--row", name, str(path)])
            except subprocess.CalledProcessError as error:
                raise SystemExit(f"{name}: {error.stderr}") from None
            facts = json.loads(done.stdout.splitlines()[-1])
            if name in (SPARK, SAIL):
                starts[name] = facts["seconds"]
            print_row(name, facts, starts[SAIL if "Sail" in name else SPARK] if name in COMMANDS else None)


def print_row(name: str, facts: dict[str, Any], start: float | None) -> None:
    """Print a row.  start: the seconds that its engine's takes; None where that is no part of it."""
    seconds, frames = facts["seconds"], facts["frames"]
    ratio = f"{seconds / start:.1f}" if start else ""
    rates = f"{frames / seconds:>12,.0f}{frames / facts['cpu']:>11,.0f}" if frames else f"{'':>23}"
    row = f"{name:32}{seconds:>9.1f}{ratio:>10}{facts['cpu']:>8.1f}{rates}{facts['memory']:>7}"
    print(f"{row}  {facts.get('note', '')}".rstrip(), flush=True)
    for table, took in facts.get("steps", []):
        print(f"  {table:30}{took:>9.1f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--row"]:
        print(json.dumps(JOBS[sys.argv[2]](Path(sys.argv[3]))))
    else:
        main(int(sys.argv[1]) if sys.argv[1:] else None)
