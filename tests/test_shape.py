"""The structure of the package: imports, floors, sizes and docstrings."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "natsproxy"
MODULES = sorted(PACKAGE.rglob("*.py"))

FLOORS = {
    "printable": -1,
    "addresses": -1,
    "units": -1,
    "errors": 0,
    "events": 0,
    "wire": 1,
    "protocol": 2,
    "rules": 3,
    "session": 4,
    "capture": 4,
    "config": 4,
    "net": 5,
    "replay": 6,
    "admin": 6,
    "testing": 7,
    "pytest_plugin": 8,
    "spark": 7,
    "log": 7,
    "cli": 9,
    "__main__": 10,
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
    "events",
    "printable",
    "addresses",
    "units",
}
BANNED = {"trio", "click", "pyspark", "time", "asyncio", "socket"}
ONLY_IN = {"click": {"cli"}, "pyspark": {"spark"}, "pytest": {"pytest_plugin", "testing"}}
LONGEST = 350


def part(path: Path) -> str:
    """Return the part of the house that a module belongs to."""
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imports(path: Path) -> list[str]:
    """Return the names of all modules that a module imports, those for type checkers included."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
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


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down_only(path: Path) -> None:
    """A part imports lower floors, itself, and the sideways neighbours that are named."""
    mine = part(path)
    if mine == "__init__":
        return
    for name in imports(path):
        if not name.startswith("natsproxy."):
            continue
        other = name.split(".")[1]
        allowed = other == mine or FLOORS[other] < FLOORS[mine] or (mine, other) in SIDEWAYS
        assert allowed, f"{path.name} imports {name}, which is not below it"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_floors_stay_pure(path: Path) -> None:
    """The sans-I/O floors import neither trio nor click nor a clock; click and pyspark have their rooms."""
    mine = part(path)
    for name in imports(path):
        top = name.split(".")[0]
        assert not (mine in PURE and top in BANNED), f"{path.name} imports {name}"
        rooms = ONLY_IN.get(top)
        assert rooms is None or mine in rooms, f"{path.name} imports {name}"


def test_the_capture_package_is_light() -> None:
    """Spark workers import it: neither trio nor click comes with it."""
    code = (
        "import natsproxy.capture.read.reader, natsproxy.capture.read.frames, sys; "
        "sys.exit(any(name in sys.modules for name in ('trio', 'click', 'pyspark')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_have_a_size_for_one_sitting(path: Path) -> None:
    """A longer module can be split."""
    assert len(path.read_text().splitlines()) <= LONGEST


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_docstrings_begin_with_a_statement(path: Path) -> None:
    """The noun comes first, not a question word."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, documented):
            text = ast.get_docstring(node) or ""
            assert not re.match(r"(What|Which|How|Whether|Who)\b", text), text.splitlines()[0]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_say_what_they_are(path: Path) -> None:
    """Each begins with its theory."""
    assert (ast.get_docstring(ast.parse(path.read_text())) or "").strip()


def test_every_package_is_installed() -> None:
    """The list in pyproject.toml names every folder of the house."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    here = {".".join(init.parent.relative_to(ROOT).parts) for init in PACKAGE.rglob("__init__.py")} - {
        "natsproxy.spark.autoload"
    }
    assert set(project["tool"]["setuptools"]["packages"]) == here | {"pyspark_natsproxy"}
