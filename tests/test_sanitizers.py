"""The compiled modules under AddressSanitizer and UndefinedBehaviorSanitizer, built in a folder of their own.

Memory of the interpreter comes from malloc itself then, so that a step beyond a bytes object is seen as well.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
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
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
]
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


def build(source: Path) -> None:
    """Compile a module beside its source."""
    made = source.with_suffix(".c")
    subprocess.run([sys.executable, "-m", "cython", "-3", source, "-o", made], check=True)
    target = source.with_suffix(sysconfig.get_config_var("EXT_SUFFIX"))
    include = sysconfig.get_path("include")
    subprocess.run(["gcc", *FLAGS, f"-I{include}", made, "-o", target], check=True)


@pytest.mark.long
def test_the_compiled_modules_do_nothing_undefined(tmp_path: Path) -> None:
    pytest.importorskip("Cython")
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    libraries = [
        subprocess.run(
            ["gcc", f"-print-file-name={name}.so"], check=True, capture_output=True, text=True
        ).stdout.strip()
        for name in ("libasan", "libubsan")
    ]
    if not all(Path(library).is_absolute() for library in libraries):
        pytest.skip("needs the libraries of the sanitizers")
    ignore = shutil.ignore_patterns("*.so", "*.c", "__pycache__")
    for name in ("natsproxy", "tests", "recordings"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(build, tmp_path.glob("natsproxy/**/*.pyx")))
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(tmp_path),
    }
    options = ["-q", "-x", "-m", "not long and not spark", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, *TESTS]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-4_000:] + ran.stderr[-8_000:]
