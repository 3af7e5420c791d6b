"""What the package may not do: listen, run a shell, evaluate text, unpickle what others wrote.

Reads the source; that files are private and hold no prompt is tested where they are written.
"""

import ast
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import vllm_vpp

SOURCE = Path(vllm_vpp.__file__).parent
PROJECT = Path(__file__).parent.parent / "pyproject.toml"
LISTENS = {
    "aiohttp", "asyncio", "fastapi", "flask", "http", "multiprocessing.connection",
    "multiprocessing.managers", "socket", "socketserver", "tornado", "uvicorn", "websockets",
    "wsgiref", "xmlrpc", "zmq",
}  # fmt: skip
EVALUATES = {"__import__", "compile", "eval", "exec"}
SHELLS = {
    "os.popen",
    "os.system",
    "pty.spawn",
    "subprocess.getoutput",
    "subprocess.getstatusoutput",
}
UNPICKLES = {
    "dill", "joblib", "marshal", "pickle", "shelve", "torch.load", "yaml.load", "numpy.load",
    "np.load",
}  # fmt: skip
# The engine's own scheduler output, over vLLM's own queue between its processes.
PICKLES = {("plugin/executor.py", "pickle.dumps"), ("plugin/worker.py", "pickle.loads")}


def trees() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield path.relative_to(SOURCE).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def imported(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """Calls with the dotted name of what is called, as written."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def within(names: set[str], roots: set[str]) -> set[str]:
    return {name for name in names if any(f"{name}.".startswith(f"{root}.") for root in roots)}


def test_nothing_listens() -> None:
    found = {name: within(imported(tree), LISTENS) for name, tree in trees()}
    assert {name: modules for name, modules in found.items() if modules} == {}
    called = [
        (n, c) for n, tree in trees() for c, _ in calls(tree) if c.endswith((".listen", ".bind"))
    ]
    assert called == []


def test_nothing_is_evaluated_and_no_shell_runs() -> None:
    for name, tree in trees():
        for called, node in calls(tree):
            assert called not in EVALUATES | SHELLS, f"{name} calls {called}"
            assert not called.startswith(("os.exec", "os.spawn")), f"{name} calls {called}"
            assert not any(word.arg == "shell" for word in node.keywords), f"{name}: a shell"


def test_other_processes_are_this_python_with_a_list_of_arguments() -> None:
    started = [
        (name, node)
        for name, tree in trees()
        for called, node in calls(tree)
        if called.startswith("subprocess.")
    ]
    assert started
    for name, node in started:
        command = node.args[0]
        assert isinstance(command, ast.List), f"{name} starts {ast.unparse(command)}"
        assert ast.unparse(command.elts[0]) == "sys.executable", name


def test_nothing_that_others_wrote_is_unpickled() -> None:
    found = {
        (name, called)
        for name, tree in trees()
        for called, _ in calls(tree)
        if within({called}, UNPICKLES)
    }
    assert found == PICKLES
    for name, tree in trees():
        direct = {n for n in imported(tree) if n.startswith(("pickle.", "marshal.", "shelve."))}
        assert not direct, f"{name} hides {direct} behind a name of its own"


def test_what_is_installed_is_used() -> None:
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    wanted = {line.split(">=")[0] for line in project["dependencies"]}
    used = {name.split(".")[0] for _, tree in trees() for name in imported(tree)}
    assert wanted <= used


@pytest.fixture
def open_umask() -> Iterator[None]:
    """Files get all the rights that they are created with."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.vllm
@pytest.mark.usefixtures("open_umask")
def test_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    from vllm_vpp.plugin.recorder import Recorder
    from vllm_vpp.plugin.settings import Settings

    settings = Settings(trace_dir=str(tmp_path / "trace")).with_trace_dir()
    folder = Path(str(settings.trace_dir))
    (folder / "rank1.jsonl").write_text("of an earlier run")
    for rank in range(2):
        record(Recorder(str(folder), f"rank{rank}", {"rank": rank}, 2**20))
    assert folder.stat().st_mode & 0o777 == 0o700
    for file in folder.iterdir():
        assert file.stat().st_mode & 0o777 == 0o600, file.name
        assert "earlier" not in file.read_text()


@pytest.mark.vllm
def test_a_trace_does_not_follow_a_link(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    from vllm_vpp.plugin.recorder import Recorder

    precious = tmp_path / "precious"
    precious.write_text("keep")
    (tmp_path / "rank0.jsonl").symlink_to(precious)
    recorder = Recorder(str(tmp_path), "rank0", {"rank": 0}, 2**20)
    assert not recorder.enabled
    record(recorder)
    assert precious.read_text() == "keep"


def record(recorder: Any) -> None:
    recorder.add("c", 0, 0, 1, 2)
    recorder.close()
