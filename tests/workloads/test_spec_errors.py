"""What is said of unusable workloads: one line with file, line, key, what was expected and what was found."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.spec import WorkloadError, library, load_workload


@pytest.fixture
def load(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def load_text(text, overrides=None):
        (tmp_path / "w.yaml").write_text(text)
        return load_workload("w.yaml", overrides)

    return load_text


BAD_FILES = [  # the file, where it is wrong, and what the message says
    (
        "arrivals:\n  rate: fast",
        "w.yaml:2 arrivals.rate",
        "expected a rate above 0 such as 4/s or 90/m, got 'fast'",
    ),
    (
        "arrivals: {rate: 4/s, proces: constant}",
        "w.yaml:1 arrivals.proces",
        "unknown key 'proces', did you mean 'process'? expected one of: process, rate, unit, "
        "cv, burst, pause, period, amplitude",
    ),
    (
        "classes:\n  c:\n    outptu_tokens: 3",
        "w.yaml:3 classes.c.outptu_tokens",
        "unknown key 'outptu_tokens', did you mean 'output_tokens'? expected one of: weight, input_tokens, "
        "output_tokens, system_tokens, model, body, lengths, shape, turns, think_time, history",
    ),
    (
        "duration: 60",
        "w.yaml:1 duration",
        "expected a duration such as 250ms, 10s or 5m, got 60",
    ),
    (
        "duration: 0s",
        "w.yaml:1 duration",
        "expected more than 0, got '0s'",
    ),
    (
        "\nrequests: many",
        "w.yaml:2 requests",
        "expected a whole number, got 'many'",
    ),
    (
        "requests: yes",
        "w.yaml:1 requests",
        "expected a whole number, got True",
    ),
    (
        "requests: 2.5",
        "w.yaml:1 requests",
        "expected a whole number, got 2.5",
    ),
    (
        "concurrency: 0",
        "w.yaml:1 concurrency",
        "expected at least 1, got 0",
    ),
    (
        "seed: -1",
        "w.yaml:1 seed",
        "expected at least 0, got -1",
    ),
    (
        "duration: 5s\nrequests: 5",
        "w.yaml:2 requests",
        "expected either requests or duration, not both, got 5",
    ),
    (
        "arrivals: {rate: 1/s}\nconcurrency: 4",
        "w.yaml:2 concurrency",
        "expected one kind of load: concurrency, users, or arrivals and stages, got 4",
    ),
    (
        "arrivals: {}",
        "w.yaml:1 arrivals.rate",
        "expected a rate such as 4/s, got nothing",
    ),
    (
        "stages: []",
        "w.yaml:1 stages",
        "expected at least one entry, got []",
    ),
    (
        "stages:\n- rate: 2/s",
        "w.yaml:2 stages.0.duration",
        "expected this key, got nothing",
    ),
    (
        "stages: [{rate: 2/s, duration: 3s}]\narrivals: {rate: 3/s}",
        "w.yaml:2 arrivals.rate",
        "stages have rates of their own: drop this key",
    ),
    (
        "stages: [{rate: 2/s, duration: 3s}]\nduration: 3s",
        "w.yaml:2 duration",
        "stages have durations of their own: drop this key",
    ),
    (
        "users: 20",
        "w.yaml:1 every",
        "expected users and every, as in users: 20 and every: 10s, got nothing",
    ),
    (
        "every: 10s",
        "w.yaml:1 users",
        "expected users and every, as in users: 20 and every: 10s, got nothing",
    ),
    (
        "users: 20\nevery: 10s\nstages: [{rate: 2/s, duration: 3s}]",
        "w.yaml:1 users",
        "expected one kind of load: concurrency, users, or arrivals and stages, got 20",
    ),
    (
        "stages: [{duration: 3s}]",
        "w.yaml:1 stages.0.rate",
        "expected a rate such as 4/s, or from and to, got nothing",
    ),
    (
        "stages:\n- {from: 1/s, duration: 3s}",
        "w.yaml:2 stages.0.to",
        "expected a rate such as 4/s, got nothing",
    ),
    (
        "stages:\n- {rate: 1/s, to: 2/s, duration: 3s}",
        "w.yaml:2 stages.0.rate",
        "expected either a rate, or from and to, got '1/s'",
    ),
    (
        "arrivals: {process: onoff, burst: 1s, pause: 2s}\nstages: [{from: 1/s, to: 2/s, duration: 3s}]",
        "w.yaml:2 stages.0.from",
        "process onoff cannot be on a ramp: give a rate",
    ),
    (
        "trace: {file: x}",
        "w.yaml:1 trace.format",
        "expected this key, got nothing",
    ),
    (
        "trace:\n  format: azure\n  file: x",
        "w.yaml:3 trace.file",
        "expected a file that exists, got 'x'",
    ),
    (
        "trace: {file: w.yaml, format: azure, window: [3s, 3s]}",
        "w.yaml:1 trace.window",
        "expected a window that ends after it starts, such as [0s, 10m], got ['3s', '3s']",
    ),
    (
        "trace: {file: w.yaml, format: azure, window: [0s, 3s, 4s]}",
        "w.yaml:1 trace.window",
        "expected at most 2 entries, got ['0s', '3s', '4s']",
    ),
    (
        "trace: {file: w.yaml, format: sharegpt, speed: 2}",
        "w.yaml:1 trace.speed",
        "a sharegpt trace has no times: drop this key",
    ),
    (
        "trace: {file: w.yaml, format: azure}\narrivals: {rate: 3/s}",
        "w.yaml:2 arrivals",
        "the azure trace has times of its own: drop this key",
    ),
    (
        "trace: {file: w.yaml, format: azure}\nconcurrency: 4",
        "w.yaml:2 concurrency",
        "the azure trace has times of its own: drop this key",
    ),
    (
        "trace: {file: w.yaml, format: azure, sample: 0}",
        "w.yaml:1 trace.sample",
        "expected more than 0, got 0",
    ),
    (
        "trace: {file: w.yaml, format: sharegpt}\nclasses: {a: {}, b: {}}",
        "w.yaml:2 classes",
        "a sharegpt trace is one class of conversations: keep one of shape chat",
    ),
    (
        "arrivals: {process: trace, rate: 1/s}",
        "w.yaml:1 arrivals.process",
        "a trace is a key of its own: trace: {file: …, format: …}",
    ),
    (
        "arrivals: {process: sine, rate: 1/s, period: 1h}",
        "w.yaml:1 arrivals.amplitude",
        "expected an amplitude of 0 to 1 such as 0.5 with process sine, got nothing",
    ),
    (
        "arrivals: {process: sine, rate: 1/s, period: 1h, amplitude: 1.5}",
        "w.yaml:1 arrivals.amplitude",
        "expected at most 1, got 1.5",
    ),
    (
        "arrivals: {process: onoff, rate: 1/s, burst: 10s}",
        "w.yaml:1 arrivals.pause",
        "expected the length of a pause such as 20s with process onoff, got nothing",
    ),
    (
        "arrivals: {process: onoff, rate: 1/s, burst: 10s, pause: 0s}",
        "w.yaml:1 arrivals.pause",
        "expected more than 0, got '0s'",
    ),
    (
        "cold: yes\nwarm: yes",
        "w.yaml:2 warm",
        "cold shares nothing that could be made warm: drop one of the two",
    ),
    (
        "cold: 1",
        "w.yaml:1 cold",
        "expected true or false, got 1",
    ),
    (
        "classes:\n  c: {input_tokens: {law: zipf, s: 1, low: 5, high: 4}}",
        "w.yaml:2 classes.c.input_tokens.high",
        "expected high of at least low (5), got 4",
    ),
    (
        "classes:\n  c: {think_time: {law: zipf, s: 1, high: 4}}",
        "w.yaml:2 classes.c.think_time.law",
        "zipf is a law of whole numbers: take lognormal for times",
    ),
    (
        "classes:\n  c: {input_tokens: {law: empirical, file: none.txt}}",
        "w.yaml:2 classes.c.input_tokens.file",
        "none.txt cannot be read: No such file or directory",
    ),
    (
        "classes:\n  c: {input_tokens: {law: empirical, file: w.yaml}}",
        "w.yaml:2 classes.c.input_tokens.file",
        "w.yaml:1 has 'classes:' where a whole number of at least 0 was expected",
    ),
    (
        "classes:\n  c: {lengths: {law: pairs, pairs: [[1, 2], [3]]}}",
        "w.yaml:2 classes.c.lengths.pairs.1",
        "expected [input tokens, output tokens] or [input tokens, output tokens, weight], got [3]",
    ),
    (
        "classes:\n  c: {lengths: {law: pairs}}",
        "w.yaml:2 classes.c.lengths",
        "expected pairs or a file of them, one of the two, got {'law': 'pairs'}",
    ),
    (
        "classes:\n  c:\n    lengths: {law: pairs, pairs: [[1, 2]]}\n    output_tokens: 3",
        "w.yaml:4 classes.c.output_tokens",
        "lengths has pairs of both: drop this key",
    ),
    (
        "classes:\n  c: {shape: agent, lengths: {law: pairs, pairs: [[1, 2]]}}",
        "w.yaml:2 classes.c.lengths",
        "unknown key 'lengths'; expected one of: weight, input_tokens, output_tokens, "
        "system_tokens, model, body, shape, steps, tools, tool_definition_tokens, tool_time, tool_result_tokens, "
        "tool_calls, parallel, history",
    ),
    (
        "arrivals: {process: gamma, rate: 1/s}",
        "w.yaml:1 arrivals.cv",
        "expected a cv such as 2 with process gamma, got nothing",
    ),
    (
        "arrivals: {rate: 1/s, cv: 2}",
        "w.yaml:1 arrivals.cv",
        "only process gamma has a key cv: drop it",
    ),
    (
        "classes: {}",
        "w.yaml:1 classes",
        "expected at least one entry, got {}",
    ),
    (
        "classes: {c: 5}",
        "w.yaml:1 classes.c",
        "expected a mapping such as {shape: chat, input_tokens: 100, output_tokens: 200}, got 5",
    ),
    (
        "classes:\n  c: {shape: chart}",
        "w.yaml:2 classes.c.shape",
        "expected one of 'chat', 'rag', 'reasoning', 'agent', got 'chart'",
    ),
    (
        "classes:\n  c: {input_tokens: long}",
        "w.yaml:2 classes.c.input_tokens",
        "expected a number or a law such as {law: lognormal, mean: 60, p95: 200}, got 'long'",
    ),
    (
        "classes:\n  c: {input_tokens: 0}",
        "w.yaml:2 classes.c.input_tokens",
        "expected at least 1, got 0",
    ),
    (
        "classes:\n  c: {input_tokens: .inf}",
        "w.yaml:2 classes.c.input_tokens",
        "expected a finite number, got inf",
    ),
    (
        "classes:\n  c: {input_tokens: {mean: 3}}",
        "w.yaml:2 classes.c.input_tokens.law",
        "expected one of 'constant', 'uniform', 'normal', 'lognormal', 'geometric', 'zipf', 'empirical', got nothing",
    ),
    (
        "classes:\n  c: {input_tokens: {law: normal, mean: 3}}",
        "w.yaml:2 classes.c.input_tokens.std",
        "expected this key, got nothing",
    ),
    (
        "classes:\n  c:\n    input_tokens:\n      law: lognormal\n      mean: 100\n      p95: 500",
        "w.yaml:6 classes.c.input_tokens.p95",
        "expected p95 above the mean and at most 3.87 times the mean (100), got 500",
    ),
    (
        "classes:\n  c: {input_tokens: {law: lognormal, mean: 100}}",
        "w.yaml:2 classes.c.input_tokens",
        "expected p95 or sigma beside mean, one of the two, got {'law': 'lognormal', 'mean': 100}",
    ),
    (
        "classes:\n  c: {input_tokens: {law: uniform, low: 5, high: 4}}",
        "w.yaml:2 classes.c.input_tokens.high",
        "expected high of at least low (5), got 4",
    ),
    (
        "classes:\n  c: {think_time: 3}",
        "w.yaml:2 classes.c.think_time",
        "expected a duration such as 250ms, 10s or 5m or a law such as {law: lognormal, mean: 8s, p95: 20s}, got 3",
    ),
    (
        "classes:\n  c: {think_time: {law: lognormal, mean: 3, sigma: 1}}",
        "w.yaml:2 classes.c.think_time.mean",
        "expected a duration such as 250ms, 10s or 5m, got 3",
    ),
    (
        "classes:\n  c: {shape: rag, documents: {count: 3, top_k: 4}}",
        "w.yaml:2 classes.c.documents.top_k",
        "expected top_k of at most count (3), got 4",
    ),
    (
        "classes: {all: {}}",
        "w.yaml:1 classes.all",
        "'all' cannot name a class",
    ),
    (
        "name: a/../../b",
        "w.yaml:1 name",
        r"'a/../../b' cannot name a directory: leave out /, \ and what does not print",
    ),
    (
        'name: "a\\nb"',
        "w.yaml:1 name",
        r"'a\nb' cannot name a directory: leave out /, \ and what does not print",
    ),
    (
        "duration: 20000h",
        "w.yaml:1 duration",
        "expected a duration of at most 10,000h, got '20000h'",
    ),
    (
        "classes: {chat: {}}\nslo: {caht: [x]}",
        "w.yaml:2 slo.caht",
        "unknown class 'caht', did you mean 'chat'? expected one of: chat, all",
    ),
    (
        "slo: {all: ttft<1s}",
        "w.yaml:1 slo.all",
        "expected a list, got 'ttft<1s'",
    ),
    (
        "- a",
        "w.yaml",
        "expected a mapping of keys such as arrivals, duration and classes",
    ),
    (
        "seed: 1\nseed: 2",
        "w.yaml:2 seed",
        "the key is there twice",
    ),
    (
        "classes:\n  c: {weight: 1}\n  c: {weight: 2}",
        "w.yaml:3 classes.c",
        "the key is there twice",
    ),
    (
        "seed: [1",
        "w.yaml:1",
        "not valid YAML: expected ',' or ']', but got '<stream end>'",
    ),
    (
        "seed: !!python/object/apply:os.system ['true']",
        "w.yaml:1 seed",
        "expected a whole number, got ['true']",
    ),
    (
        "seed: !!python/name:os.system",
        "w.yaml:1",
        "not valid YAML: could not determine a constructor for the tag 'tag:yaml.org,2002:python/name:os.system'",
    ),
    (
        "? [1]\n: 2",
        "w.yaml:1",
        "expected a plain word as key",
    ),
    (
        "x: &x\n  x: *x",
        "w.yaml",
        "nested too deeply",
    ),
    (
        "[" * 5000,
        "w.yaml",
        "nested too deeply",
    ),
]


@pytest.mark.parametrize(("text", "where", "what"), BAD_FILES)
def test_bad_files_are_told_in_one_line(load, text, where, what):
    with pytest.raises(WorkloadError) as raised:
        load(text)
    assert str(raised.value) == f"{where}: {what}"


@pytest.mark.parametrize(
    "bomb",
    [
        "[*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]",
        "{p: *a, q: *a, r: *a, s: *a, t: *a, u: *a, v: *a}",
        "{<<: [*a,*a,*a,*a,*a,*a,*a]}",
    ],
)
def test_aliases_of_aliases_are_refused(load, bomb):
    layers = "".join(f"k{i}: &k{i} {bomb.replace('*a', f'*k{i - 1}')}\n" for i in range(1, 12))
    with pytest.raises(WorkloadError, match=r"^w\.yaml: more than 50,000 values once its aliases are followed$"):
        load("k0: &k0 {z: 1}\n" + layers)


def test_a_file_that_is_no_text_or_too_large_is_refused(tmp_path):
    path = tmp_path / "w.yaml"
    path.write_bytes(b"name: \xff")
    with pytest.raises(WorkloadError, match=r"w\.yaml: not UTF-8 text \(byte 6\)"):
        load_workload(str(path))
    path.write_bytes(b"#" * 1_000_001)
    with pytest.raises(WorkloadError, match="larger than 1,000,000 bytes"):
        load_workload(str(path))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("chatt", "chatt: no such file, and the library has only: {}; did you mean chat?"),
        ("./none.yaml", "./none.yaml: no such file, and the library has only: {}"),
        ("/", "/: no such file, and the library has only: {}"),
    ],
)
def test_an_unknown_name_lists_the_library(name, message):
    with pytest.raises(WorkloadError) as raised:
        load_workload(name)
    assert str(raised.value) == message.format(", ".join(library()))


GOOD = """\
arrivals: {rate: 4/s}
classes:
  chat: {think_time: {law: lognormal, mean: 8s, p95: 20s}}
  rag: {shape: rag}
"""


BAD_OVERRIDES = [
    (
        {"classes.ragg.output_tokens": 3},
        "command line classes.ragg",
        "no such class; the workload has: chat, rag",
    ),
    (
        {"classes.rag.output_tokens": "x"},
        "command line classes.rag.output_tokens",
        "expected a number or a law such as {law: lognormal, mean: 60, p95: 200}, got 'x'",
    ),
    (
        {"classes.chat.turns": "{law: geometric"},
        "command line classes.chat.turns",
        "not valid YAML: expected ',' or '}', but got '<stream end>'",
    ),
    (
        {"arrivals.rte": "4"},
        "command line arrivals.rte",
        "unknown key 'rte', did you mean 'rate'? expected one of: process, rate, unit, "
        "cv, burst, pause, period, amplitude",
    ),
    (
        {"requests": 10, "duration": "5s"},
        "command line requests",
        "expected either requests or duration, not both, got 10",
    ),
    (
        {"concurrency": 2, "arrivals.rate": 5},
        "command line concurrency",
        "expected one kind of load: concurrency, users, or arrivals and stages, got 2",
    ),
    # The line is the file's where the value at fault is.
    (
        {"classes.chat.think_time.mean": "30s"},
        "w.yaml:3 classes.chat.think_time.p95",
        "expected p95 above the mean and at most 3.87 times the mean (30), got '20s'",
    ),
]


@pytest.mark.parametrize(("overrides", "where", "what"), BAD_OVERRIDES)
def test_bad_overrides_are_told_in_one_line(load, overrides, where, what):
    with pytest.raises(WorkloadError) as raised:
        load(GOOD, overrides)
    assert str(raised.value) == f"{where}: {what}"


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "\ud800", ".", "/dev/null/x"])
def test_names_of_files_that_cannot_be_are_told(name):
    for law in ({"law": "empirical", "file": name}, {"law": "pairs", "file": name}):
        key = "input_tokens" if law["law"] == "empirical" else "lengths"
        with pytest.raises(WorkloadError) as raised:
            load_workload("rag", {f"classes.rag.{key}": law})
        assert "\n" not in str(raised.value)
    with pytest.raises(WorkloadError, match=r"^command line trace.file: expected (text|a file that exists), got "):
        load_workload("chat", {"trace": {"file": name, "format": "csv"}})


def complaint(name, overrides=None):
    """What is said of a workload, nothing if it is good. Any other exception is a failure of the test."""
    try:
        load_workload(name, overrides)
    except WorkloadError as error:
        return str(error)
    return ""


@settings(deadline=None)
@given(st.text(max_size=200))
def test_whatever_is_in_the_file_the_error_is_one_line(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("w") / "w.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    assert "\n" not in complaint(str(path))


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(
            [
                "arrivals",
                "classes",
                "duration",
                "slo",
                "stages",
                "classes.chat.turns",
                "seed",
                "good",
                "trace",
                "users",
                "every",
                "classes.chat.lengths",
                "classes.chat.input_tokens",
                "trace.file",
            ]
        ),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.sampled_from(["law", "mean", "rate", "chat", "file", "format", "pairs"]), inner)
            ),
            max_leaves=6,
        ),
    )
)
def test_whatever_is_set_the_error_is_one_line(overrides):
    assert "\n" not in complaint("chat", overrides)
