import json

import pytest

from workloads.spec import Workload, load_workload

EVERY_KEY = """\
name: mixed
arrivals: {process: poisson, rate: 4/s}
duration: 60s
warmup: 10s
drain: 30s
seed: 7
classes:
  chat: {weight: 6, shape: chat, turns: {law: geometric, mean: 5}, think_time: {law: lognormal, mean: 8s, p95: 20s},
         system_tokens: 400, input_tokens: {law: lognormal, mean: 60, p95: 200},
         output_tokens: {law: lognormal, mean: 250, p95: 600}, history: live}
  rag: {weight: 2, shape: rag, system_tokens: 300, input_tokens: 40, output_tokens: 180,
        documents: {count: 500, tokens: 600, top_k: 6, popularity: {law: zipf, s: 1.1}, order: shuffled}}
  think: {weight: 1, shape: reasoning, input_tokens: 200, output_tokens: 300,
          thinking_tokens: {law: lognormal, mean: 1500, p95: 4000}}
  agent: {weight: 1, shape: agent, steps: {law: uniform, low: 4, high: 12}, tools: 6, output_tokens: 120,
          tool_time: {law: lognormal, mean: 2s, p95: 6s}, tool_result_tokens: 500,
          parallel: {probability: 0.2, width: 3}, model: small, body: {temperature: 0}}
cold: true
stall: {floor: 200ms, factor: 5}
good: {ttft: 1s, gap_p99: 200ms}
slo:
  all: ['errors<1%']
  chat: ['ttft.p95<500ms', 'itl.p99<60ms', 'stall.per_1k<0.5']
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def load_text(text, overrides=None):
        (tmp_path / "w.yaml").write_text(text)
        return load_workload("w.yaml", overrides)

    return load_text


def test_every_key_is_read(load):
    workload = load(EVERY_KEY)
    assert (workload.cold, workload.warm) == (True, False)
    assert (workload.duration, workload.warmup, workload.drain, workload.seed) == (60.0, 10.0, 30.0, 7)
    assert workload.arrivals.rate == 4.0
    assert workload.classes["chat"].think_time.p95 == 20.0
    assert workload.classes["rag"].documents.popularity.s == 1.1
    assert workload.classes["agent"].body == {"temperature": 0}
    assert (workload.stall.floor, workload.good) == (0.2, {"ttft": 1.0, "gap_p99": 0.2})


def test_what_is_resolved_loads_as_the_same_workload(load, tmp_path):
    (tmp_path / "n.txt").write_text("3\n")
    laws = "{input_tokens: {law: zipf, s: 1.1, high: 99}, output_tokens: {law: empirical, file: n.txt, max: 50}}"
    for text in (
        EVERY_KEY,
        "{}",
        "stages: [{rate: 2/s, duration: 30s}, {rate: 480/m, duration: 500ms}, {from: 1/s, to: 2/s, duration: 1m}]",
        "{users: 20, every: 10s, warm: true}",
        "arrivals: {process: onoff, rate: 2/s, burst: 10s, pause: 20s}",
        "arrivals: {process: sine, rate: 2/s, period: 1h, amplitude: 0.5}",
        "classes: {c: " + laws + "}",
        "classes: {c: {lengths: {law: pairs, pairs: [[100, 200, 3], [4000, 50]]}}}",
        "trace: {file: n.txt, format: mooncake, speed: 2, window: [0s, 10m], sample: 0.1, max_input_tokens: 9}",
        "{trace: {file: n.txt, format: sharegpt}, concurrency: 4}",
    ):
        workload = load(text)
        through_json = json.loads(json.dumps(workload.resolved()))
        assert Workload.model_validate(through_json) == workload


def test_every_key_has_a_default(load):
    workload = load("# nothing\n")
    assert (workload.name, workload.concurrency, workload.duration, workload.requests) == ("w", 1, 60.0, None)
    assert list(workload.classes) == ["chat"]


def test_a_minimal_workload(load):
    workload = load("{name: wire, concurrency: 1, requests: 1, classes: {c: {input_tokens: 16, output_tokens: 20}}}")
    assert (workload.requests, workload.duration, workload.drain) == (1, None, 30.0)
    assert workload.classes["c"].shape == "chat"
    assert workload.classes["c"].turns.value == 1


def test_stages_have_poisson_arrivals_unless_told(load):
    text = "stages: [{rate: 2/s, duration: 30s}, {rate: 8/s, duration: 1m}]"
    assert load(text).arrivals.process == "poisson"
    constant = load(text, {"arrivals.process": "constant"})
    assert (constant.arrivals.process, [s.rate for s in constant.stages]) == ("constant", [2.0, 8.0])


def test_a_timed_trace_needs_no_load_and_no_length(load, tmp_path):
    (tmp_path / "t").write_text("")
    timed = load("trace: {file: t, format: azure}")
    assert (timed.concurrency, timed.arrivals, timed.duration) == (None, None, None)
    timeless = load("trace: {file: t, format: sharegpt}")
    assert (timeless.concurrency, timeless.duration) == (1, 60.0)


def test_aliases_may_save_typing(load):
    text = "classes:\n  a: &a {output_tokens: 5, system_tokens: 3}\n  b: {<<: *a, output_tokens: 6}\n  c: *a\n"
    classes = load(text).classes
    assert [(c.output_tokens.value, c.system_tokens) for c in classes.values()] == [(5, 3), (6, 3), (5, 3)]


def test_a_file_goes_before_the_library(load, tmp_path):
    assert load_workload("rag").name == load_workload("rag.yaml").name == "rag"
    (tmp_path / "rag.yaml").write_text("name: mine")
    assert load_workload("rag.yaml").name == "mine"
    assert load_workload("rag").name == "rag"


OVERRIDES = [
    ({"arrivals.rate": "2/s"}, lambda w: (w.arrivals.rate, w.concurrency), (2.0, None)),
    ({"arrivals.rate": 2.5}, lambda w: (w.arrivals.rate, w.arrivals.process), (2.5, "poisson")),
    ({"concurrency": 32}, lambda w: (w.concurrency, w.arrivals), (32, None)),
    ({"requests": "500"}, lambda w: (w.requests, w.duration), (500, None)),
    ({"duration": "20s"}, lambda w: (w.requests, w.duration), (None, 20.0)),
    ({"classes.rag.output_tokens": 5}, lambda w: w.classes["rag"].output_tokens.value, 5),
    ({"classes.*.output_tokens": "9"}, lambda w: {c.output_tokens.value for c in w.classes.values()}, {9}),
    (
        {"classes.*.input_tokens": "{law: uniform, low: 1, high: 3}"},
        lambda w: {c.input_tokens.law for c in w.classes.values()},
        {"uniform"},
    ),
    ({"classes.rag.documents.order": "ranked"}, lambda w: w.classes["rag"].documents.order, "ranked"),
    ({"slo.rag": ["ttft.p95<1s"]}, lambda w: (list(w.slo), w.slo["rag"]), (["all", "chat", "rag"], ["ttft.p95<1s"])),
    ({"users": 5, "every": "2s"}, lambda w: (w.users, w.every, w.arrivals), (5, 2.0, None)),
    (
        {"stages": "[{from: 1/s, to: 2/s, duration: 3s}]", "arrivals": "{process: gamma, cv: 2}"},
        lambda w: (w.stages[0].ends(), w.duration, w.arrivals.cv),
        ((1.0, 2.0), None, 2.0),
    ),
    ({"name": "other"}, lambda w: w.name, "other"),
]


@pytest.mark.parametrize(("overrides", "look", "want"), OVERRIDES)
def test_overrides(load, overrides, look, want):
    assert look(load(EVERY_KEY, overrides)) == want
