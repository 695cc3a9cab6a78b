"""docs/workloads.md, made of the schema of the workload file: `pytest --rewrite-golden tests/workloads` writes it."""

from collections.abc import Mapping
from typing import Any

from workloads.init_text import schema

Node = Mapping[str, Any]

_HEAD = """\
# The workload file

What is sent, when, and what must hold. Every key has a default unless it says *needed*, and an unknown key is an error
that names the line and the nearest key. `loadgen init rag` writes a commented file to start from,
`loadgen init --schema` the JSON Schema of this page for editors, and `loadgen plan rag` shows what a file or library
workload would send. Single keys are changed on the command line, as in
`loadgen run rag --set classes.rag.documents.top_k=8`.

This page is made of that schema; the examples are read by a test.

## Values

| value | written as |
|---|---|
| duration | `250ms`, `10s`, `5m`, `1h`; never a bare number, but for 0 |
| rate | `4/s`, `90/m`, `100/h`; a bare number counts per second |
| number or law | `250`, or [a law](#laws) such as `{law: lognormal, mean: 250, p95: 600}`, rounded, at least 1 |
| duration or law | `8s`, or a law of durations: `{law: lognormal, mean: 8s, p95: 20s}` |
| limit | `metric.statistic < value`: see [metrics](metrics.md#goodput-and-gates) |
"""

_EXAMPLES = {
    "Chat": """\
name: support                    # people who ask on, four times on average
arrivals: {process: poisson, rate: 2/s}
duration: 2m
warmup: 30s
classes:
  chat:
    shape: chat
    system_tokens: 400
    turns: {law: geometric, mean: 4, max: 12}
    think_time: {law: lognormal, mean: 8s, p95: 20s}
    input_tokens: {law: lognormal, mean: 60, p95: 200}
    output_tokens: {law: lognormal, mean: 250, p95: 600}
slo:
  chat: ['ttft.p95<500ms', 'itl.p99<60ms', 'stall.per_1k<0.5']
""",
    "Rag": """\
name: handbook                   # six of 500 passages in each prompt, some asked for far more often than others
arrivals: {process: poisson, rate: 240/m, unit: requests}
requests: 500
classes:
  rag:
    shape: rag
    system_tokens: 300
    documents: {count: 500, tokens: 600, top_k: 6, popularity: {law: zipf, s: 1.1}}
    input_tokens: 40
    output_tokens: {law: lognormal, mean: 180, p95: 400}
slo:
  rag: ['ttft.p95<2s', 'itl.p99<80ms']
""",
    "Reasoning": """\
name: olympiad                   # eight users, each asks again when answered
concurrency: 8
duration: 5m
classes:
  reasoning:
    shape: reasoning
    input_tokens: 200
    thinking_tokens: {law: lognormal, mean: 1500, p95: 4000}
    output_tokens: 300
    effort: high
slo:
  reasoning: ['ttfat.p90<60s', 'itl.p95<50ms']
""",
    "Agent": """\
name: coding                     # a quiet and a busy stretch of tasks with tools
arrivals: {process: poisson}
stages:
  - {rate: 20/m, duration: 2m}
  - {from: 20/m, to: 2/s, duration: 3m}
classes:
  agent:
    shape: agent
    system_tokens: 800
    tools: 6
    steps: {law: uniform, low: 4, high: 12}
    tool_time: {law: lognormal, mean: 2s, p95: 6s}
    input_tokens: 150
    tool_result_tokens: {law: lognormal, mean: 500, p95: 1500}
    parallel: {probability: 0.2, width: 3}
    output_tokens: 120
slo:
  agent: ['ttft.p90<2s', 'itl.p99<100ms']
""",
}

_SECTIONS = {
    "Arrivals": "arrivals",
    "LoadStage": "stages",
    "Trace": "trace",
    "Documents": "documents",
    "Popularity": "popularity",
    "Parallel": "parallel",
    "Pairs": "lengths",
    "Stall": "stall",
    "Fluidity": "fluidity",
}
"""Definitions that are mappings of the file, and the keys that they stand under."""
_SHAPES = ("Chat", "Rag", "Reasoning", "Agent")
_LAWS = ("Constant", "Uniform", "Normal", "LogNormal", "Geometric", "Zipf", "Empirical")
_KINDS = {
    "duration": "duration", "rate": "rate", "lengths": "number or law", "times": "duration or law",
}  # fmt: skip


def page() -> str:
    """The page as Markdown."""
    whole = schema()
    definitions = whole["$defs"]
    below = [key for key in _SECTIONS if key not in ("Stall", "Fluidity")]
    parts = [_HEAD, _section("##", "The file", whole)]
    parts += [_section("##", f"`{_SECTIONS[key]}`", definitions[key]) for key in below[:3]]
    parts += [_classes(definitions)]
    parts += [_section("###", f"`{_SECTIONS[key]}`", definitions[key]) for key in below[3:]]
    parts += [_section("##", f"`{_SECTIONS[key]}`", definitions[key]) for key in ("Stall", "Fluidity")]
    return "\n".join([*parts, _laws(definitions)])


def _classes(definitions: Mapping[str, Node]) -> str:
    """What every class has, then each shape's own keys with an example."""
    shapes = {name: definitions[name] for name in _SHAPES}
    common = set.intersection(*(set(node["properties"]) for node in shapes.values())) - {"shape"}
    every = _only(shapes["Chat"], common)
    parts = ["## `classes`\n\nEach name stands for a kind of session. Every class has:\n\n" + _table(every)]
    for name, node in shapes.items():
        own = _section("###", f"`shape: {name.lower()}`", _only(node, set(node["properties"]) - common - {"shape"}))
        parts.append(f"{own}\n```yaml\n{_EXAMPLES[name]}```\n")
    return "\n".join(parts)


def _only(node: Node, keys: set[str]) -> Node:
    return {**node, "properties": {key: each for key, each in node["properties"].items() if key in keys}}


def _section(level: str, title: str, node: Node) -> str:
    return f"{level} {title}\n\n{node['description']}\n\n{_table(node)}"


def _table(node: Node) -> str:
    rows = [
        f"| `{key}` | {_kind(key, each)} | {_default(key, each, node)} | {_cell(each['description'])} |"
        for key, each in node["properties"].items()
    ]
    return "\n".join(["| key | value | default | what it is |", "|---|---|---|---|", *rows, ""])


def _default(key: str, node: Node, parent: Node) -> str:
    if key in parent.get("required", ()):
        return "*needed*"
    value = node.get("default")
    return "" if value is None or isinstance(value, dict) else f"`{str(value).lower()}`"


def _kind(key: str, node: Node) -> str:
    """What may stand there, in words, and the unit where the value does not bring its own."""
    options = [each for each in node.get("anyOf", [node]) if each.get("type") != "null"]
    words = " or ".join(_one_kind(each) for each in options)
    return f"tokens: {words}" if key.endswith("tokens") else words


def _one_kind(node: Node) -> str:
    if "$ref" in node:
        name = node["$ref"].rsplit("/", 1)[1]
        return _KINDS.get(name) or f"[mapping](#{_SECTIONS[name]})"
    if "const" in node:
        return f"`{node['const']}`"
    if "enum" in node:
        return ", ".join(f"`{each}`" for each in node["enum"])
    if node["type"] == "array":
        return _list_kind(node)
    if node["type"] == "object":
        return _mapping_kind(node)
    return {"string": "text", "boolean": "`true` or `false`"}.get(node["type"]) or _number_kind(node)


def _list_kind(node: Node) -> str:
    if "prefixItems" in node:
        return f"[{', '.join(map(_one_kind, node['prefixItems']))}]"
    inner = node["items"]
    return f"list of [mappings](#{_SECTIONS['LoadStage']})" if "$ref" in inner else "list of pairs"


def _mapping_kind(node: Node) -> str:
    inner = node["additionalProperties"]
    if inner is True:
        return "mapping of fields"
    if "oneOf" in inner:
        return "mapping of [classes](#classes)"
    return "mapping of durations" if "$ref" in inner else "mapping of lists of limits"


def _number_kind(node: Node) -> str:
    words = "whole number" if node["type"] == "integer" else "number"
    if "minimum" in node and "maximum" in node:
        return f"{words} from {node['minimum']:,} to {node['maximum']:,}"
    low = f" of at least {node['minimum']}" if "minimum" in node else ""
    above = f" above {node['exclusiveMinimum']}" if "exclusiveMinimum" in node else ""
    high = f", at most {node['maximum']}" if "maximum" in node else ""
    return words + low + above + high


def _laws(definitions: Mapping[str, Node]) -> str:
    rows = [_law(definitions[name]) for name in _LAWS]
    head = [
        "## Laws\n",
        "A law has its name under `law`, and these keys. A bare number is the law `constant`. All but that take `min`",
        "and `max` too, to which draws are clipped. In a law of durations, these are durations.\n",
    ]
    return "\n".join([*head, "| law | keys | what it is |", "|---|---|---|", *rows, ""])


def _law(node: Node) -> str:
    keys = {key: each for key, each in node["properties"].items() if key not in ("law", "min", "max")}
    listed = "<br>".join(f"`{key}`: {_lower(each['description'])}" for key, each in keys.items())
    return f"| `{node['properties']['law']['const']}` | {listed} | {_cell(node['description'])} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n\n", " ").replace("\n", " ")


def _lower(text: str) -> str:
    return _cell(text[0].lower() + text[1:].removesuffix("."))
