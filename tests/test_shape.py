"""The structure of the package: imports, floors and docstrings."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "natsproxy"
MODULES = sorted(PACKAGE.rglob("*.py"))

FLOORS = {
    "printable": -1,
    "addresses": -1,
    "units": -1,
    "bounded": -1,
    "files": -1,
    "errors": 0,
    "close_reasons": 0,
    "converters": 0,
    "option": 1,
    "events": 0,
    "wire": 1,
    "protocol": 2,
    "rules": 3,
    "session": 4,
    "capture": 4,
    "config": 4,
    "processes": 1,
    "net": 5,
    "replay": 6,
    "check": 6,
    "trial": 6,
    "admin": 6,
    "permissions": 7,
    "traces": 7,
    "sweep": 7,
    "testing": 8,
    "pytest_plugin": 10,
    "pytest_receipt": 9,
    "pytest_sweep": 9,
    "pytest_settings": 8,
    "spark": 8,
    "log": 7,
    "cli": 10,
    "__main__": 11,
}
"""Which floor each part stands on; a part may import its own floor's session and capture, see `SIDEWAYS`."""
SIDEWAYS = {("session", "capture"), ("config", "capture"), ("config", "rules"), ("config", "session")}
PURE = {
    "wire",
    "protocol",
    "rules",
    "session",
    "capture",
    "config",
    "errors",
    "close_reasons",
    "events",
    "printable",
    "addresses",
    "units",
    "bounded",
    "converters",
    "option",
}
BANNED = {"trio", "click", "pyspark", "time", "asyncio", "socket"}
ONLY_IN = {
    "click": {"cli"},
    "pyspark": {"spark"},
    "pytest": {"pytest_plugin", "pytest_settings", "pytest_sweep", "testing"},
}


def part(path: Path) -> str:
    """Return the part of the house that a module belongs to."""
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


@cache
def tree(path: Path) -> ast.Module:
    """Return the syntax tree of a module."""
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> list[str]:
    """Return the names of all modules that a module imports, those for type checkers included."""
    found = []
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [name for name in found if not name.startswith("natsproxy.") or name in NAMES]


def name_of(path: Path) -> str:
    """Return the dotted name of a module; a folder is its `__init__`."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


NAMES = {name_of(path): path for path in MODULES}


def test_imports_have_no_circle() -> None:
    """Neither at run time nor for the type checker, whatever folder the modules are in."""
    graph = {name: {other for other in imports(path) if other in NAMES} for name, path in NAMES.items()}
    for package in [name for name, path in NAMES.items() if path.name == "__init__.py"]:
        for name in graph:  # `from package import module` names both: the folder itself is not meant
            if any(other.startswith(f"{package}.") for other in graph[name]):
                graph[name].discard(package)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_imports_go_down_only() -> None:
    """A part imports lower floors, itself, and the sideways neighbours that are named."""
    wrong = []
    for path in MODULES:
        mine = part(path)
        others = {name.split(".")[1] for name in imports(path) if name.startswith("natsproxy.")}
        for other in others if mine != "__init__" else ():
            if other != mine and FLOORS[other] >= FLOORS[mine] and (mine, other) not in SIDEWAYS:
                wrong.append(f"{path} imports {other}, which is not below it")
    assert not wrong, "\n".join(wrong)


def test_floors_stay_pure() -> None:
    """The sans-I/O floors import neither trio nor click nor a clock; click and pyspark have their rooms."""
    wrong = []
    for path in MODULES:
        mine = part(path)
        for name in imports(path):
            top = name.split(".")[0]
            if (mine in PURE and top in BANNED) or mine not in ONLY_IN.get(top, {mine}):
                wrong.append(f"{path} imports {name}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        # Spark workers import the capture package.
        ("natsproxy.capture.read.reader, natsproxy.capture.read.frames", {"trio", "click", "pyspark"}),
        # The proxy starts without what only tests use, such as trio's mock clock.
        ("natsproxy.cli.run", {"pytest", "trio.testing", "pyspark"}),
    ],
)
def test_an_import_is_light(modules: str, heavy: set[str]) -> None:
    code = f"import {modules}, sys; sys.exit(' '.join(sorted({heavy} & sys.modules.keys())) or None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_docstrings_begin_with_a_statement() -> None:
    """The noun comes first, not a question word."""
    asking = re.compile(r'^ *"""(?:What|Which|How|Whether|Who)\b.*', re.MULTILINE)
    sources = [path for suffix in ("py", "pyx", "pxd") for path in sorted(PACKAGE.rglob(f"*.{suffix}"))]
    wrong = [f"{path}: {found}" for path in sources for found in asking.findall(path.read_text())]
    assert not wrong, "\n".join(wrong)


def test_modules_say_what_they_are() -> None:
    """Each begins with its theory."""
    assert [str(path) for path in MODULES if not (ast.get_docstring(tree(path)) or "").strip()] == []


def test_every_package_is_installed() -> None:
    """The list in pyproject.toml names every folder of the house."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    here = {".".join(init.parent.relative_to(ROOT).parts) for init in PACKAGE.rglob("__init__.py")} - {
        "natsproxy.spark.autoload"
    }
    assert set(project["tool"]["setuptools"]["packages"]) == here | {"pyspark_natsproxy"}
