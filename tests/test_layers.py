"""The arrows between the packages: what may import what. They are the architecture, so they are a test."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("workloads", "analysis", "loadgen")
HTTP = {"httpx", "httptools", "uvicorn", "starlette", "socket", "ssl", "asyncio", "http", "urllib"}


def imports(path: Path) -> set[str]:
    """Full names of the modules that a file imports, at the top or inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            module = node.module or ""
            found |= {module} | {f"{module}.{name.name}" for name in node.names}
    return found


def modules(where: str) -> list[Path]:
    return sorted((ROOT / where).rglob("*.py"))


def reaches(path: Path, name: str) -> bool:
    return any(one == name or one.startswith(name + ".") for one in imports(path))


FORBIDDEN = [
    ("workloads", "loadgen", "the plan knows no network"),
    ("workloads", "analysis", "the plan knows no numbers of a run"),
    ("analysis", "loadgen", "numbers come from a record, however it was made"),
    ("analysis", "workloads", "numbers come from a record, whatever was planned"),
    ("loadgen/drive.py", "loadgen.openai_http", "the drive knows no HTTP"),
    ("loadgen/drive.py", "loadgen.connection", "the drive knows no HTTP"),
    ("loadgen/drive.py", "httpx", "the drive knows no HTTP"),
    ("loadgen/openai_http.py", "workloads.schedule", "the engine knows no schedule"),
    ("loadgen/openai_http.py", "loadgen.drive", "the engine knows no schedule"),
    ("loadgen/connection.py", "workloads", "a connection knows no schedule"),
    ("loadgen/exchange.py", "workloads", "an exchange knows no schedule"),
    ("loadgen/sim/core.py", "asyncio", "the simulated engine is pure, in virtual time"),
    ("loadgen/sim/core.py", "time", "the simulated engine is pure, in virtual time"),
]


@pytest.mark.parametrize(("where", "name", "why"), FORBIDDEN)
def test_arrow(where: str, name: str, why: str) -> None:
    paths = [ROOT / where] if where.endswith(".py") else modules(where)
    assert paths
    assert not [str(path) for path in paths if reaches(path, name)], why


@pytest.mark.parametrize("package", ["workloads", "analysis"])
def test_pure_packages_know_no_network(package: str) -> None:
    assert not {path.name: hit for path in modules(package) if (hit := imports(path) & HTTP)}


PURE = ["sse", "stream_reader", "chunk_reader", "typed_reader", "error_text", "openai_api", "target", "probe_text"]


@pytest.mark.parametrize("name", PURE)
def test_the_meaning_of_a_stream_is_pure(name: str) -> None:
    assert not imports(ROOT / "loadgen" / f"{name}.py") & (HTTP - {"urllib"})


def test_the_command_line_imports_nothing_heavy() -> None:
    """`loadgen --help` must be quick: what its modules import at their top is the standard library and typer."""
    own = {"loadgen", "loadgen.flags", "loadgen.secrets_in_argv"}
    for path in ("cli.py", "flags.py", "secrets_in_argv.py", "__init__.py"):
        tree = ast.parse((ROOT / "loadgen" / path).read_text(encoding="utf-8"))
        top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        names = {
            name.name if isinstance(node, ast.Import) else node.module or "" for node in top for name in node.names
        }
        assert {name.split(".")[0] for name in names - own} <= {"typer", *sys.stdlib_module_names}, path


def test_files_and_functions_stay_small() -> None:
    large = []
    for path in [path for package in PACKAGES for path in modules(package)]:
        text = path.read_text(encoding="utf-8")
        if text.count("\n") > 400:
            large.append(f"{path.name}: {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            # The command line's functions are lists of options: their length is the number of flags.
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and path.name != "cli.py":
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > 60:
                    large.append(f"{path.name}:{node.name}: {length} lines")
    assert not large
