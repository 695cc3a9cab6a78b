"""docs/workloads.md is what the schema says, and its examples are workloads."""

import re
from pathlib import Path

import pytest

from tests.workloads.reference import page
from workloads.init_text import schema
from workloads.schedule import build
from workloads.spec import load_workload

PAGE = Path(__file__).parents[2] / "docs" / "workloads.md"
EXAMPLES = re.findall(r"^```yaml\n(.+?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_the_page_is_that_of_the_schema(request):
    text = page()
    if request.config.getoption("--rewrite-golden"):
        PAGE.write_text(text, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == text, "run pytest --rewrite-golden and read what changed"


def keys(node):
    """(key, what the schema says of it) of each mapping with keys of its own."""
    if isinstance(node, dict):
        if isinstance(node.get("properties"), dict):
            yield from node["properties"].items()
        for each in node.values():
            yield from keys(each)
    elif isinstance(node, list):
        for each in node:
            yield from keys(each)


def test_every_key_has_one_line_of_text_and_stands_on_the_page():
    whole = schema()
    whole["$defs"].pop("times")  # the keys of the laws once more
    text = PAGE.read_text(encoding="utf-8")
    found = [(key, node) for key, node in keys(whole) if key not in ("law", "shape")]
    assert len(found) > 60
    for key, node in found:
        assert f"`{key}`" in text, key
        assert "\n" not in node["description"], key
        assert node["description"].endswith("."), key


def test_there_is_an_example_of_each_shape():
    assert [re.search(r"shape: (\w+)", text)[1] for text in EXAMPLES] == ["chat", "rag", "reasoning", "agent"]


@pytest.mark.parametrize("text", EXAMPLES, ids=lambda text: re.search(r"name: (\w+)", text)[1])
def test_an_example_sends_something_and_has_limits(text, tmp_path):
    file = tmp_path / "example.yaml"
    file.write_text(text, encoding="utf-8")
    workload = load_workload(str(file))
    assert workload.slo
    assert next(build(workload, 1).sessions()).rounds
