"""The layers of the package: what may be loaded by what."""

import ast
import importlib
import pkgutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import vllm_vpp

SOURCE = Path(vllm_vpp.__file__).parent
LIGHT = (
    "vllm_vpp",
    "vllm_vpp.core",
    "vllm_vpp.sim",
    "vllm_vpp.auto",
    "vllm_vpp.bench",
    "vllm_vpp.cli",
    "vllm_vpp.plugin",
    "vllm_vpp.profiles",
    "vllm_vpp.report.page",
)
HEAVY = {"torch", "vllm", "transformers"}


def packages() -> list[str]:
    found = pkgutil.walk_packages([str(SOURCE)], prefix="vllm_vpp.")
    return ["vllm_vpp", *(info.name for info in found if info.ispkg)]


def modules_of(layer: str) -> list[Path]:
    return sorted((SOURCE / layer).rglob("*.py"))


def imported_by(path: Path) -> set[str]:
    """Every module named by an import statement of `path`, at any depth."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def under(names: set[str], *prefixes: str) -> set[str]:
    return {name for name in names if any(f"{name}.".startswith(f"{p}.") for p in prefixes)}


@pytest.mark.parametrize("module", LIGHT)
def test_import_loads_neither_torch_nor_vllm(module: str) -> None:
    if find_spec(module) is None:
        pytest.skip(f"{module} does not exist yet")
    code = f"import sys, {module}; print(*sorted({HEAVY!r} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == []


@pytest.mark.parametrize("package", packages())
def test_every_name_in_all_resolves(package: str) -> None:
    module = importlib.import_module(package)
    assert hasattr(module, "__all__"), f"{package} has no __all__"
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


@pytest.mark.parametrize(
    ("layer", "forbidden"),
    [
        (
            "core",
            ("torch", "vllm", "vllm_vpp.sim", "vllm_vpp.plugin", "vllm_vpp.bench", "vllm_vpp.cli"),
        ),
        ("sim", ("torch", "vllm", "vllm_vpp.plugin", "vllm_vpp.bench", "vllm_vpp.cli")),
        ("auto", ("torch", "vllm", "vllm_vpp.plugin", "vllm_vpp.bench", "vllm_vpp.cli")),
        ("plugin", ("vllm_vpp.sim", "vllm_vpp.auto", "vllm_vpp.bench", "vllm_vpp.cli")),
        (
            "profiles",
            ("torch", "vllm", "vllm_vpp.sim", "vllm_vpp.plugin", "vllm_vpp.report", "vllm_vpp.cli"),
        ),
        ("bench", ("vllm_vpp.plugin",)),
    ],
)
def test_layers_import_only_downwards(layer: str, forbidden: tuple[str, ...]) -> None:
    found = {path.name: under(imported_by(path), *forbidden) for path in modules_of(layer)}
    assert {name: names for name, names in found.items() if names} == {}


def test_what_decides_knows_no_clock_no_chance_and_no_rank() -> None:
    """Ranks and simulator must come to the same order and the same chunks from the same input."""
    local = ("datetime", "numpy.random", "os", "random", "secrets", "socket", "threading", "time")
    for path in modules_of("core"):
        assert under(imported_by(path), *local) == set(), path.name
        tree = ast.parse(path.read_text())
        names = {ast.unparse(n) for n in ast.walk(tree) if isinstance(n, (ast.Attribute, ast.Name))}
        assert not names & {"hash", "id", "np.random", "numpy.random"}, path.name
