"""Every warning that can be given is one that the documentation explains."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PLACES = {"analysis/checks.py": "warnings", "analysis/doubts.py": "all_of", "analysis/compare/numbers.py": "_warnings"}
"""Functions in which codes are the keys of a dict."""


def strings(node: ast.AST) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def told(tree: ast.AST) -> Iterator[str]:
    """Codes of `{"code": …, "text": …}` where both are written out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            keys = [key and strings(key) for key in node.keys]
            if keys == ["code", "text"] and (code := strings(node.values[0])):
                yield code


def listed(tree: ast.AST, function: str) -> Iterator[str]:
    """The keys of the dicts in a function."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == function]
    assert len(found) == 1
    dicts = [node for node in ast.walk(found[0]) if isinstance(node, ast.Dict)]
    yield from (name for each in dicts for key in each.keys if key and (name := strings(key)))


def codes() -> set[str]:
    paths = [path for package in ("analysis", "loadgen") for path in (ROOT / package).rglob("*.py")]
    trees = {str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    found = {code for tree in trees.values() for code in told(tree)}
    return (found | {code for path, name in PLACES.items() for code in listed(trees[path], name)}) - {"code", "text"}


def test_the_documentation_lists_them_all_and_nothing_else() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8").split("\n## Warnings\n")[1].split("\n## ")[0]
    found = codes()
    assert {"clock_error", "one_run", "imported", "events_not_kept", "few_samples", "client_saturated"} <= found
    assert set(re.findall(r"`([a-z_]+)`", text)) == found
