"""The compiled modules under the sanitizers of memory, undefined behaviour and threads, each in its folder.

Memory of the interpreter comes from malloc itself under the first, so that a step beyond a bytes object is
seen as well.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FLAGS = [
    "-shared",
    "-fPIC",
    "-g",
    "-O1",
    "-w",
    "-fno-strict-aliasing",
    "-fno-omit-frame-pointer",
]
UNDEFINED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
RACES = ("-fsanitize=thread",)
TESTS = [
    "tests/net/test_plane_steps.py",
    "tests/net/test_plane_control.py",
    "tests/net/test_planes.py",
    "tests/net/test_plane_rules.py",
    "tests/net/test_plane_gates.py",
    "tests/fuzz",
    "tests/wire",
    "tests/capture/write",
    "tests/capture/filter",
    "tests/capture/columns",
]
THREADED = "tests/net/test_threads.py"
STORM = "many_come_and_go or swapped or preambles or those_of_one_thread"
UNLOCKED = (  # calls that do nothing to an ordinary mutex
    "-Dpthread_mutex_lock=pthread_mutex_consistent",
    "-Dpthread_mutex_unlock=pthread_mutex_consistent",
)


def build(source: Path, sanitizers: Iterable[str]) -> None:
    """Compile a module beside its source."""
    made = source.with_suffix(".c")
    subprocess.run([sys.executable, "-m", "cython", "-3", source, "-o", made], check=True)
    target = source.with_suffix(sysconfig.get_config_var("EXT_SUFFIX"))
    include = sysconfig.get_path("include")
    subprocess.run(["gcc", *FLAGS, *sanitizers, f"-I{include}", made, "-o", target], check=True)


def build_all(tmp_path: Path, sanitizers: Iterable[str], *names: str) -> str:
    """Copy the project and compile its modules; return the libraries of those names, for `LD_PRELOAD`."""
    pytest.importorskip("Cython")
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    libraries = [
        subprocess.run(
            ["gcc", f"-print-file-name={name}.so"], check=True, capture_output=True, text=True
        ).stdout.strip()
        for name in names
    ]
    if not all(Path(library).is_absolute() for library in libraries):
        pytest.skip("needs the libraries of the sanitizers")
    ignore = shutil.ignore_patterns("*.so", "*.c", "__pycache__")
    for name in ("natsproxy", "tests", "recordings"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(build, tmp_path.glob("natsproxy/**/*.pyx"), itertools.repeat(sanitizers)))
    return " ".join(libraries)


@pytest.mark.long
def test_the_compiled_modules_do_nothing_undefined(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "LD_PRELOAD": build_all(tmp_path, UNDEFINED, "libasan", "libubsan"),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(tmp_path),
    }
    options = ["-q", "-x", "-m", "not long and not spark", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, *TESTS]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-4_000:] + ran.stderr[-8_000:]


@pytest.mark.long
def test_the_threads_of_the_plane_do_not_race(tmp_path: Path) -> None:
    """While connections come and go, rules and files change; with workers that do not lock they do race."""
    if shutil.which("setarch") is None:
        pytest.skip("needs setarch: the sanitizer wants its memory where it was without ASLR")
    library = build_all(tmp_path, RACES, "libtsan")

    def races(selected: str) -> tuple[subprocess.CompletedProcess[str], str]:
        for report in tmp_path.glob("race.*"):
            report.unlink()
        environment = {
            **os.environ,
            "LD_PRELOAD": library,
            "TSAN_OPTIONS": f"log_path={tmp_path}/race:history_size=4:report_signal_unsafe=0",
            "PYTHONPATH": str(tmp_path),
        }
        options = ["-q", "-x", "-m", "long or not long", "-p", "no:cacheprovider", "-p", "no:xdist"]
        command = ["setarch", "-R", sys.executable, "-m", "pytest", *options, "-k", selected, THREADED]
        ran = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        return ran, "".join(report.read_text() for report in tmp_path.glob("race.*"))

    ran, found = races(STORM)
    assert (ran.returncode, found) == (0, ""), ran.stdout[-4_000:] + found[:8_000]
    build(tmp_path / "natsproxy/net/_worker.pyx", RACES + UNLOCKED)
    _, found = races("those_of_one_thread")
    assert "data race" in found
