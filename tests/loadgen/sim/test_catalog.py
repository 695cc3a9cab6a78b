import json

import pytest

from loadgen.sim import catalog
from tests.analysis.estimate.test_estimate_config import LLAMA_8B

NAMES = [("gpus", name) for name in catalog._builtin()["gpus"]] + [
    ("models", name) for name in catalog._builtin()["models"]
]


@pytest.mark.parametrize(("section", "name"), NAMES)
def test_every_entry_is_whole_and_names_its_source(section, name):
    assert catalog._builtin()[section][name]["source"]
    if section == "models":
        model = catalog.model(name)
        assert model.heads % model.kv_heads == 0
        assert 0 < model.embedding_params < 0.35 * model.params
        # What is neither embedding nor expert is attention and, up to eleven times as large, MLPs: a slip would show.
        attention = model.layers * model.hidden * model.head_dim * 2 * (model.heads + model.kv_heads)
        others = model.params - model.embedding_params - model.expert_params
        assert model.kv_lora_rank or attention < others < 12 * attention
        return
    gpu = catalog.gpu(name)
    assert 1e14 < gpu.flops < 1e16
    assert gpu.fp8_flops is None or gpu.fp8_flops == pytest.approx(2 * gpu.flops, rel=0.02)
    assert 50 < gpu.flops / gpu.bandwidth < 450
    assert 3 < gpu.bandwidth / gpu.link_bandwidth < 40
    assert ("price_source" in catalog._builtin()["gpus"][name]) == (gpu.price_per_hour is not None)


def test_the_hardware_and_models_that_were_asked_for_are_there():
    assert {"a100", "h100", "h200", "b200", "mi300x", "l40s", "l4"} <= catalog._builtin()["gpus"].keys()
    families = (
        "llama-3.1-8b",
        "llama-3.1-70b",
        "llama-3.1-405b",
        "qwen",
        "mistral",
        "mixtral",
        "deepseek-v3",
        "qwen3-30b-a3b",
    )
    assert all(any(name.startswith(family) for name in catalog._builtin()["models"]) for family in families)


@pytest.mark.parametrize(("read", "kind"), [(catalog.gpu, "gpu"), (catalog.model, "model")])
def test_an_unknown_name_lists_those_there_are(read, kind):
    with pytest.raises(ValueError, match=rf"^unknown {kind} 'nope': choose one of \S+, [^\n]*$"):
        read("nope")


@pytest.fixture
def own(tmp_path):
    def write(text):
        file = tmp_path / "own.yaml"
        file.write_text(text)
        return file

    return write


def test_a_file_of_the_users_adds_and_changes_entries(own):
    gpus = "gpus: {mine: {flops: 1e14, bandwidth: 1.5e+12, memory_bytes: 32000000000}, h100: {price_per_hour: 2}}\n"
    shape = "params: 1e9, layers: 2, hidden: 8, heads: 2, kv_heads: 1, head_dim: 4, context_tokens: 100"
    file = own(f"{gpus}models: {{small: {{{shape}, arithmetic: fp8, source: me}}}}\n")
    mine = catalog.gpu("mine", file)
    assert (mine.flops, mine.bandwidth, mine.memory_bytes, mine.price_per_hour) == (1e14, 1.5e12, 32e9, None)
    changed = catalog.gpu("h100", file)
    assert (changed.price_per_hour, changed.flops) == (2, catalog.gpu("h100").flops)
    assert catalog.gpu("l4", file) == catalog.gpu("l4")
    small = catalog.model("small", file)
    assert (small.params, small.layers, small.arithmetic) == (1e9, 2, "fp8")
    with pytest.raises(ValueError, match=r"^unknown gpu 'nope': choose one of .*mi325x, mine, "):
        catalog.gpu("nope", file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpus: {mine: {flops: 1e14}}", r"own.yaml: gpus.mine.bandwidth is missing: the entry needs it$"),
        ("gpus: {mine: {flops: -1}}", r"own.yaml: gpus.mine.bandwidth is missing"),
        ("gpus: {h100: {flops: -1}}", r"own.yaml: gpus.h100.flops: expected a number above 0, got -1$"),
        ("gpus: {h100: {flops: fast}}", r"own.yaml: gpus.h100.flops: expected a number above 0, got 'fast'$"),
        ("gpus: {h100: {flops: true}}", r"own.yaml: gpus.h100.flops: expected a number above 0, got True$"),
        ("gpus: {h100: {flops: .inf}}", r"own.yaml: gpus.h100.flops: expected a number above 0, got inf$"),
        ("gpus: {h100: {flops: .nan}}", r"own.yaml: gpus.h100.flops: expected a number above 0, got nan$"),
        ("gpus: {h100: {flops: [1]}}", r"own.yaml: gpus.h100.flops: expected a number above 0, got \[1\]$"),
        ("gpus: {h100: {speed: 1}}", r"own.yaml: gpus.h100.speed: unknown key: choose one of flops, bandwidth, "),
        ("gpus: {h100: 7}", r"own.yaml: gpus: expected entries by name, each with its figures$"),
        ("gpus: 7", r"own.yaml: gpus: expected entries by name"),
        ("gpu: {}", r"own.yaml: gpu: unknown key: choose gpus or models$"),
        ("gpus: {h100: {flops: 1e14", r"own.yaml:1: not valid YAML: "),
        ("[1]", r"own.yaml: expected a mapping"),
    ],
)
def test_a_bad_file_is_one_line_that_names_file_and_key(own, text, message):
    with pytest.raises(ValueError, match=message) as caught:
        catalog.gpu("mine" if "mine" in text else "h100", own(text))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ("layers: 1.5", r"models.llama-3.1-8b.layers: expected a whole number above 0, got 1.5$"),
        ("arithmetic: fp7", r"models.llama-3.1-8b.arithmetic: expected bf16 or fp8, got 'fp7'$"),
        ("experts_per_token: 2", r"^llama-3.1-8b: experts_per_token 2: there are 0 experts$"),
    ],
)
def test_a_model_is_checked_as_well(own, figures, message):
    with pytest.raises(ValueError, match=message):
        catalog.model("llama-3.1-8b", own(f"models: {{llama-3.1-8b: {{{figures}}}}}"))


def test_a_file_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"none.yaml: cannot be read: No such file or directory$"):
        catalog.gpu("h100", tmp_path / "none.yaml")


@pytest.mark.parametrize(("path", "name"), [("", "Tiny"), ("config.json", "Tiny"), ("other.json", "other")])
def test_a_hugging_face_config_is_a_model(tmp_path, path, name):
    folder = tmp_path / "Tiny"
    folder.mkdir()
    (folder / (path or "config.json")).write_text(json.dumps(LLAMA_8B))
    model = catalog.model(str(folder / path))
    assert (model.name, model.params) == (name, 8_030_261_248)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"config.json: cannot be read: No such file or directory$"),
        ("{", r"config.json: not JSON: "),
        ("{}", r"config.json: model_type None is not one of "),
        ('"\udcff"', r"config.json: not JSON: "),
    ],
)
def test_a_bad_config_is_one_line(tmp_path, text, message):
    file = tmp_path / "config.json"
    if text is not None:
        file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=message) as caught:
        catalog.model(str(file))
    assert "\n" not in str(caught.value)
