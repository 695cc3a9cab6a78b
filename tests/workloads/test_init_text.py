import json
import re
from pathlib import Path

import pytest
import yaml

import workloads
from workloads.init_text import SHAPES, schema, starter
from workloads.plan_text import plan
from workloads.schedule import build
from workloads.spec import LIBRARY, Workload, library, load_workload

FILE = Path(workloads.__file__ or "").with_name("workload.schema.json")


@pytest.fixture(params=SHAPES)
def file(request, tmp_path):
    path = tmp_path / f"{request.param}.yaml"
    path.write_text(starter(request.param))
    return path


def test_a_starter_loads_and_sends_what_it_is_for(file):
    workload = load_workload(str(file))
    assert workload.name == file.stem
    assert set(workload.slo) == {"all", *workload.classes}
    shapes = {spec.shape for spec in workload.classes.values()}
    assert shapes == ({"chat", "rag", "reasoning", "agent"} if file.stem == "mixed" else {file.stem})
    assert plan(build(workload, 1))["totals"]["requests"] > 50


def test_a_starter_has_every_key_of_the_file_and_of_its_classes(file):
    workload, text = load_workload(str(file)), file.read_text()
    keys = {name for model in (Workload, *map(type, workload.classes.values())) for name in model.model_fields}
    assert not {key for key in keys if not re.search(rf"(^|[\s{{#]){key}:", text)}


def test_what_a_starter_proposes_in_comments_loads_too(file):
    text = file.read_text()
    users = text.replace("arrivals:\n", "x:\n").replace("# users", "users").replace("# every", "every")
    users = re.sub(r"^x:\n( .*\n)+", "", users, flags=re.MULTILINE)
    ramp = re.sub(r"^  rate:.*\n", "", text, flags=re.MULTILINE).replace("duration: 60s ", "# ")
    ramp = ramp.replace("# stages", "stages").replace("#   - {", "  - {")
    file.write_text(users)
    assert load_workload(str(file)).users == 20
    file.write_text(ramp)
    assert len(load_workload(str(file)).stages) == 2
    for commented in ("seed: 7", "cold: true", "warm: true", "model: NAME", "body: {temperature: 0}"):
        assert f"# {commented}" in text
        file.write_text(text.replace(f"# {commented}", commented))
        assert load_workload(str(file)) != load_workload("chat")


def test_an_unknown_shape_is_told():
    with pytest.raises(ValueError, match="no such shape: video; there are chat, rag, reasoning, agent, mixed"):
        starter("video")


def test_the_schema_beside_the_package_is_that_of_the_models(request):
    text = json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"
    if request.config.getoption("--rewrite-golden"):
        FILE.write_text(text, encoding="utf-8")
    assert FILE.read_text(encoding="utf-8") == text, "run pytest --rewrite-golden and read what changed"


def fits(value, node, root) -> bool:
    """Whether a value is what a schema describes, for the keywords that ours has."""
    if "$ref" in node:
        return fits(value, root["$defs"][node["$ref"].rsplit("/", 1)[1]], root)
    checks = {
        "anyOf": lambda options: any(fits(value, each, root) for each in options),
        "oneOf": lambda options: sum(fits(value, each, root) for each in options) == 1,
        "const": lambda only: value == only and type(value) is type(only),
        "enum": lambda options: value in options,
        "type": lambda name: is_type(value, name),
        "pattern": lambda pattern: isinstance(value, str) and re.search(pattern, value) is not None,
        "minimum": lambda least: not is_type(value, "number") or value >= least,
        "exclusiveMinimum": lambda least: not is_type(value, "number") or value > least,
        "maximum": lambda most: not is_type(value, "number") or value <= most,
        "required": lambda keys: not isinstance(value, dict) or set(keys) <= set(value),
        "items": lambda each: not isinstance(value, list) or all(fits(one, each, root) for one in value),
    }
    return all(check(node[key]) for key, check in checks.items() if key in node) and fits_mapping(value, node, root)


def is_type(value, name):
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None), "integer": int}
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, int | float) if name == "number" else isinstance(value, kinds[name])


def fits_mapping(value, node, root):
    if not isinstance(value, dict) or not node.keys() & {"properties", "additionalProperties"}:
        return True
    known, other = node.get("properties", {}), node.get("additionalProperties", True)
    return all(
        fits(each, known[key], root) if key in known else other if isinstance(other, bool) else fits(each, other, root)
        for key, each in value.items()
    )


@pytest.mark.parametrize("name", library())
def test_the_library_fits_the_schema(name):
    assert fits(yaml.safe_load((LIBRARY / f"{name}.yaml").read_text()), schema(), schema())


@pytest.mark.parametrize("shape", SHAPES)
def test_starters_and_resolved_workloads_fit_the_schema(shape):
    data = yaml.safe_load(starter(shape))
    assert fits(data, schema(), schema())
    assert fits(Workload.model_validate(data).resolved(), schema(), schema())


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("duration: 90s", True),
        ("duration: 90", False),
        ("duration: 0", True),
        ("arrivals: {rate: 90/m}", True),
        ("arrivals: {rate: 90}", True),
        ("arrivals: {rate: 90s}", False),
        ("arrivals: {process: onoff, rate: 1, burst: 1s, pause: 2s}", True),
        ("stages: [{from: 1/s, to: 2/s, duration: 3s}]", True),
        ("stages: [{from_: 1/s, to: 2/s, duration: 3s}]", False),
        ("trace: {file: x, format: azure, window: [0s, 3s]}", True),
        ("trace: {file: x, format: asure}", False),
        ("classes: {c: {input_tokens: 5}}", True),
        ("classes: {c: {input_tokens: 0}}", False),
        ("classes: {c: {input_tokens: {law: zipf, s: 1, high: 9}}}", True),
        ("classes: {c: {input_tokens: {s: 1, high: 9}}}", False),
        ("classes: {c: {think_time: {law: uniform, low: 1s, high: 2s}}}", True),
        ("classes: {c: {think_time: {law: uniform, low: 1, high: 2}}}", False),
        ("classes: {c: {shape: rag, documents: {tokens: {law: uniform, low: 1, high: 2}}}}", True),
        ("classes: {c: {shape: rag, turns: 3}}", False),
        ("classes: {c: {lengths: {law: pairs, pairs: [[1, 2, 3]]}}}", True),
        ("cold: true", True),
        ("colt: true", False),
    ],
)
def test_the_schema_tells_good_from_bad(text, good):
    assert fits(yaml.safe_load(text), schema(), schema()) is good
