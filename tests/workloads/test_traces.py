"""Traces in the formats of the public ones, and what becomes of them as a plan."""

import json
import pickle
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import workloads.trace_formats as formats
from workloads.plan_text import plan, render_plan
from workloads.prompts import Prompter
from workloads.schedule import build
from workloads.spec import Workload, WorkloadError, load_workload
from workloads.trace_formats import Row, TraceReport, conversations, timed_rows
from workloads.traces import in_order, sampled

DATA = Path(__file__).parent / "data"


def planned(file, format_, seed=1, classes=None, drain="30s", **keys):
    own = ("speed", "window", "sample", "max_input_tokens", "max_output_tokens")
    trace = {"file": str(DATA / file), "format": format_, **{k: keys.pop(k) for k in own if k in keys}}
    return build(Workload.model_validate({"trace": trace, "classes": classes or {"c": {}}, **keys}), seed)


def sent(schedule):
    """(due in s, input tokens, output tokens) of each session of one turn."""
    turns = [(s.due_ns / 1e9, *s.rounds) for s in schedule.sessions()]
    return [(due, this.turns[0].input_tokens, this.turns[0].output_tokens) for due, this in turns]


TIMED = [
    ("azure_2023.csv", "azure", [(0, 374, 44), (0.314579, 396, 109), (1.70941, 2879, 55), (12.0000001, 91, 16)]),
    ("azure_2024.csv", "azure", [(0, 2162, 5), (0.007405, 2399, 6), (0.99007, 76, 15)]),
    ("burstgpt_1.csv", "burstgpt", [(0, 472, 18), (40, 1087, 230), (113, 417, 276)]),
    ("burstgpt_2.csv", "burstgpt", [(0, 100, 20), (0.5, 64, 5), (7, 30, 12), (10.5, 150, 40)]),
    ("mooncake.jsonl", "mooncake", [(0, 1100, 52), (0, 1030, 26), (3.052, 700, 8), (6, 600, 9)]),
]


@pytest.mark.parametrize(("file", "format_", "rows"), TIMED)
def test_a_trace_keeps_its_times_and_lengths(file, format_, rows):
    schedule = planned(file, format_)
    assert sent(schedule) == rows
    assert [s.number for s in schedule.sessions()] == list(range(len(rows)))
    assert (schedule.loop, schedule.concurrency, schedule.requests) == ("open", None, None)
    assert schedule.trace_report.used == len(rows)


def test_failures_of_burstgpt_are_dropped_and_counted():
    assert planned("burstgpt_1.csv", "burstgpt").trace_report.dropped == {
        "a request that failed (0 response tokens)": (1, [4])
    }


@pytest.mark.parametrize(("file", "format_"), [("ours.csv", "csv"), ("ours.jsonl", "jsonl")])
def test_our_own_formats_may_name_sessions_and_classes(file, format_):
    schedule = planned(file, format_, classes={"chat": {"model": "m"}, "rag": {}})
    found = [(s.class_name, s.rounds[0].turns[0].number, s.rounds[0].turns[0].body) for s in schedule.sessions()]
    m = {"model": "m"}
    assert found[:3] == [("chat", 1, m), ("rag", 1, {}), ("chat", 2, m)]


def test_rows_of_an_unknown_class_are_dropped():
    schedule = planned("ours.csv", "csv", classes={"chat": {}})
    assert schedule.trace_report.dropped == {"class 'rag', which the workload does not have": (1, [3])}


def test_each_prompt_of_a_conversation_begins_with_the_one_before():
    prompter = Prompter(1)
    texts = [
        prompter.request(s.rounds[0].turns[0], (), keep_text=False).messages[-1].content
        for s in planned("ours.csv", "csv", classes={"chat": {}, "rag": {}}).sessions()
    ]
    first, other, second, alone = texts
    assert second.startswith(first + " ")
    assert len(second.split()) == 190
    assert len({tuple(t.split()[:8]) for t in (first, other, alone)}) == 3


def test_blocks_of_mooncake_with_one_hash_are_one_text():
    turns = [s.rounds[0].turns[0] for s in planned("mooncake.jsonl", "mooncake").sessions()]
    assert [[p.tokens for p in t.passages] for t in turns] == [[512, 512, 76], [512, 512, 6], [512, 188], [512, 88]]
    first, second, third, fourth = ([p.key for p in t.passages] for t in turns)
    assert first[:2] == second[:2]
    assert first[2] != second[2]
    assert third[0] == first[0]
    assert third[1] not in first + second
    # One hash for two blocks: what it does not cover is the request's own.
    assert fourth[1] not in first + second + third
    texts = [Prompter(1).request(t, (), keep_text=False).messages[0].content.split() for t in turns]
    shared = [sum(np.cumprod([a == b for a, b in zip(texts[0], text, strict=False)])) for text in texts[1:3]]
    assert 1024 <= shared[0] < 1030
    assert 512 <= shared[1] < 530


def test_speed_and_window():
    rows = sent(planned("azure_2023.csv", "azure", speed=2, window=["300ms", "12s"]))
    assert rows == [(pytest.approx(0.0072895), 396, 109), (pytest.approx(0.704705), 2879, 55)]
    stage = planned("azure_2023.csv", "azure", speed=2, window=["300ms", "12s"]).stages[-1]
    assert (stage.start_ns, stage.end_ns, stage.offered_rps) == (0, 5_850_000_000, 2 / 5.85)


def test_warm_up_and_the_end_of_the_run_cut_the_trace():
    schedule = planned("mooncake.jsonl", "mooncake", warmup="2s", duration="2s")
    assert [t for t, _, _ in sent(schedule)] == [0, 0, 3.052]
    assert [(s.name, s.end_ns, s.measured, s.offered_rps) for s in schedule.stages] == [
        ("warmup", 2_000_000_000, False, 1.0),
        ("main", 4_000_000_000, True, 0.5),
    ]
    counted = planned("mooncake.jsonl", "mooncake", warmup="2s", requests=1)
    assert [t for t, _, _ in sent(counted)] == [0, 0, 3.052]
    whole = planned("mooncake.jsonl", "mooncake")
    assert whole.stages[0].end_ns == 8_000_000_001  # 0, 0, 3.052, 6: as long again as they are apart
    assert counted.trace_report.used == 3


def test_a_run_does_not_wait_beyond_the_end_of_the_trace():
    for more in ({"duration": "1h"}, {"window": ["0s", "1h"]}):
        assert planned("mooncake.jsonl", "mooncake", **more).stages[0].end_ns == 8_000_000_001
    both = planned("mooncake.jsonl", "mooncake", duration="5s", window=["0s", "4s"])
    assert both.stages[0].end_ns == 4_000_000_000
    with pytest.raises(WorkloadError, match="all 4 requests of the run fall in the warm-up: shorten it"):
        planned("mooncake.jsonl", "mooncake", warmup="7s")


def test_too_long_rows_are_dropped():
    schedule = planned("azure_2023.csv", "azure", max_input_tokens=400, max_output_tokens=50)
    assert [n for _, n, _ in sent(schedule)] == [374, 91]
    assert schedule.trace_report.dropped == {
        "more than max_output_tokens (50)": (1, [3]),
        "more than max_input_tokens (400)": (1, [4]),
    }


def test_odd_rows_are_told_by_line():
    schedule = planned("odd.csv", "csv")
    report = schedule.trace_report
    assert sent(schedule) == [(0, 10, 5), (1, 12, 5), (3, 10, 5)]
    assert (report.rows, report.used, report.n_dropped) == (11, 3, 8)
    assert report.dropped == {
        "a time that is no number": (1, [3]),
        "a negative time": (1, [4]),
        "other than 3 columns": (1, [5]),
        "input tokens that are no whole number": (2, [7, 11]),
        "no input tokens": (1, [9]),
        "no output tokens": (1, [10]),
        "negative input tokens": (1, [12]),
    }
    page = render_plan(plan(schedule))
    assert "odd.csv: 11 rows read, 3 used\n" in page
    assert "  2 dropped: input tokens that are no whole number (line 7, 11)\n" in page


ODD_JSON = [
    ("nonsense", "not a JSON object"),
    ("[1]", "not a JSON object"),
    ("[" * 3000, "not a JSON object"),
    ('{"input_length": 5, "output_length": 5}', "a time that is no number"),
    ('{"timestamp": 1e999, "input_length": 5, "output_length": 5}', "a time that is no number"),
    ('{"timestamp": 0, "output_length": 5}', "input tokens that are no whole number"),
    ('{"timestamp": 0, "input_length": true, "output_length": 5}', "input tokens that are no whole number"),
    ('{"timestamp": 0, "input_length": 5, "output_length": 1e9}', "more than 10,000,000 output tokens"),
    ('{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": 3}', "hash_ids that are no list"),
    ('{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [-1]}', "hash_ids that are no list"),
]


@pytest.mark.parametrize(("line", "reason"), ODD_JSON)
def test_odd_lines_of_json(tmp_path, line, reason):
    path = tmp_path / "t.jsonl"
    path.write_text('{"timestamp": 5, "input_length": 5, "output_length": 5}\n\n' + line + "\n")
    report = TraceReport()
    assert len(list(timed_rows(str(path), "mooncake", report))) == 1
    ((found, counts),) = report.dropped.items()
    assert found.startswith(reason)
    assert counts == (1, [3])


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1970-01-01 00:00:01.5", 1_500_000_000),
        ("1970-01-01T00:00:01Z", 1_000_000_000),
        ("1970-01-01 01:00:00.000000001+01:00", 1),
        ("1970-01-01 00:00:00.1234567", 123_456_700),
        ("1970-01-32 00:00:00", None),
        ("12", None),
    ],
)
def test_instants(text, ns):
    if ns is None:
        with pytest.raises(formats.OddRow):
            formats._instant_ns(text)
    else:
        assert formats._instant_ns(text) == ns


def rows_at(*times_ns):
    return [Row(line, t, 1, 1) for line, t in enumerate(times_ns, 2)]


def test_rows_a_little_late_are_put_in_order_and_others_dropped(monkeypatch):
    monkeypatch.setattr("workloads.traces.REORDER_ROWS", 2)
    report = TraceReport()
    ordered = list(in_order(iter(rows_at(10, 30, 20, 40, 50, 60, 15, 55)), report))
    assert [row.time_ns for row in ordered] == [10, 20, 30, 40, 50, 55, 60]
    assert report.dropped == {"a time that lies more than 2 rows back": (1, [8])}
    assert report.reordered == 2


@given(st.lists(st.integers(0, 100), max_size=60))
def test_no_row_is_lost_in_putting_in_order(times):
    report = TraceReport()
    assert [row.time_ns for row in in_order(iter(rows_at(*times)), report)] == sorted(times)
    assert not report.dropped


@pytest.mark.parametrize(
    ("text", "format_", "message"),
    [
        ("", "jsonl", r"^{path}: this jsonl trace is empty$"),
        ("a,b\n1,2\n", "azure", r"^{path}:1: no column 'TIMESTAMP'; its columns are: a, b$"),
        ("", "csv", r"^{path}:1: no column 'time_s'; its columns are: $"),
        (
            "time_s,input_tokens,output_tokens\n1,0,1\n2,0,1\n",
            "csv",
            r"^{path}:2: no usable row in this csv trace; 2 "
            r"of 2: no input tokens$",
        ),
        ("{}", "sharegpt", r"^{path}:1: no usable row in this sharegpt trace; 1 of 1: no list of conversations$"),
        ("", "sharegpt", r"^{path}: this sharegpt trace is empty$"),
    ],
)
def test_a_file_of_which_nothing_can_be_used_is_an_error(tmp_path, text, format_, message):
    path = tmp_path / "t"
    path.write_text(text)
    with pytest.raises(WorkloadError, match=message.format(path=path)):
        planned(path, format_)


def test_an_empty_window_is_an_error_too():
    with pytest.raises(WorkloadError, match="has no row in the window, the run and the sample"):
        planned("azure_2023.csv", "azure", window=["1h", "2h"])


@settings(deadline=None, max_examples=60)
@given(
    format_=st.sampled_from(["azure", "burstgpt", "mooncake", "sharegpt", "csv", "jsonl"]), raw=st.binary(max_size=300)
)
def test_whatever_is_in_the_file_the_error_is_one_line(tmp_path_factory, format_, raw):
    path = tmp_path_factory.mktemp("t") / "t"
    path.write_bytes(raw)
    with pytest.raises(WorkloadError) as raised:
        planned(path, format_)
    assert "\n" not in str(raised.value)


# ShareGPT: conversations without times.


def test_a_conversation_is_a_session_with_lengths_by_words():
    chat = {"system_tokens": 9, "think_time": "2s", "history": "scripted"}
    schedule = planned("sharegpt.json", "sharegpt", classes={"c": chat}, concurrency=3)
    first, second = islice(schedule.sessions(), 2)
    assert [[(t.input_tokens, t.output_tokens) for t in r.turns] for r in first.rounds] == [
        [(9 + 7, 14)],
        [(16 + 14 + 3, 13)],
    ]
    assert {r.pause_ns for r in first.rounds} == {2_000_000_000}
    assert first.rounds[0].turns[0].scripted_answer.tokens == 14
    # A leading answer is left out, and so is a last unanswered question; the system's words count as asked.
    assert [[(t.input_tokens, t.output_tokens) for t in r.turns] for r in second.rounds] == [[(9 + 2 + 3, 1)]]
    assert schedule.trace_report == TraceReport(
        rows=4, used=2, turns=3, dropped={"no answered question": (1, [21]), "an empty turn": (1, [22])}
    )


def test_conversations_come_round_again_with_other_words():
    schedule = planned("sharegpt.json", "sharegpt", arrivals={"process": "constant", "rate": "1/s"}, duration="7s")
    plan_ = list(schedule.sessions())
    assert [len(s.rounds) for s in plan_] == [2, 1, 2, 1, 2, 1, 2]
    assert [s.due_ns for s in plan_] == [i * 10**9 for i in range(7)]
    assert schedule.stages[0].offered_rps == 1.5
    keys = [t.passages[-1].key for s in plan_ for r in s.rounds for t in r.turns]
    assert len(set(keys)) == len(keys)


def test_requests_count_the_turns_of_conversations():
    schedule = planned("sharegpt.json", "sharegpt", arrivals={"rate": "1/s"}, requests=7)
    assert [len(s.rounds) for s in schedule.sessions()] == [2, 1, 2, 1, 1]


def test_conversations_are_cut_where_they_become_too_long():
    schedule = planned("sharegpt.json", "sharegpt", max_input_tokens=20, concurrency=1)
    assert [len(s.rounds) for s in islice(schedule.sessions(), 2)] == [1, 1]
    short = planned("sharegpt.json", "sharegpt", max_output_tokens=5, concurrency=1)
    assert short.trace_report.dropped["more than max_output_tokens (5)"] == (1, [2])


@pytest.mark.parametrize("chunk", [1, 7, 1 << 18])
@pytest.mark.parametrize("indent", [None, 1])
def test_json_is_read_piece_by_piece(tmp_path, monkeypatch, chunk, indent):
    monkeypatch.setattr(formats, "CHUNK", chunk)
    said = [{"from": "human", "value": 'a "b] }\\\n'}, {"from": "gpt", "value": "{[ c, d"}]
    path = tmp_path / "t.json"
    path.write_text(json.dumps([{"id": str(i), "conversations": said * (i + 1)} for i in range(5)], indent=indent))
    report = TraceReport()
    found = list(conversations(str(path), report))
    assert [len(turns) for _, turns in found] == [1, 2, 3, 4, 5]
    lines = path.read_text().split("\n")
    assert all(lines[line - 1].lstrip(" [").startswith("{") for line, _ in found)
    assert not report.dropped


def test_json_that_breaks_off_is_told(tmp_path):
    text = (DATA / "sharegpt.json").read_text()
    path = tmp_path / "t.json"
    path.write_text(text[: text.index("goes on")])
    report = TraceReport()
    assert len(list(conversations(str(path), report))) == 1
    assert report.dropped == {"not valid JSON from here on": (1, [11])}


# As a plan.


ALL = [(file, format_) for file, format_, _ in TIMED] + [("ours.csv", "csv"), ("sharegpt.json", "sharegpt")]


@pytest.mark.parametrize(("file", "format_"), ALL)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_shards_together_are_the_whole_and_the_seed_decides(file, format_, n):
    def whole(seed):
        return list(islice(planned(file, format_, seed, classes={"chat": {}}).sessions(), 12))

    parts = [planned(file, format_, 7, classes={"chat": {}}).shard(i, n) for i in range(n)]
    for i, part in enumerate(parts):
        assert pickle.dumps(list(islice(part.sessions(), len(whole(7)[i::n])))) == pickle.dumps(whole(7)[i::n])
    assert pickle.dumps(whole(7)) == pickle.dumps(whole(7)) != pickle.dumps(whole(8))


def test_a_sample_keeps_sessions_whole_and_grows():
    names = [str(i) for i in range(20_000)]
    tenth, half = ({n for n in names if sampled(n, share)} for share in (0.1, 0.5))
    assert tenth < half
    assert len(tenth) == pytest.approx(2000, rel=0.1)
    assert all(sampled(n, 1) for n in names)


def test_a_sample_of_bursts_is_still_bursts(tmp_path):
    # A burst of 100 rows in each tenth second.
    path = tmp_path / "t.csv"
    lines = [f"{10 * burst + i / 1000},{burst + 1},5" for burst in range(40) for i in range(100)]
    path.write_text("time_s,input_tokens,output_tokens\n" + "\n".join(lines))
    schedule = planned(path, "csv", sample=0.2)
    due = np.array([t for t, _, _ in sent(schedule)])
    assert len(due) == pytest.approx(800, rel=0.1)
    assert (due % 10).max() < 0.1
    assert schedule.trace_report.n_dropped == 0
    assert f"  {4000 - len(due):,} outside the window, the run or the sample" in render_plan(plan(schedule))


def test_a_cold_trace_shares_nothing_and_a_system_prompt_is_within_the_prompt():
    turns = [
        s.rounds[0].turns[0]
        for s in planned("mooncake.jsonl", "mooncake", classes={"c": {"system_tokens": 100}}, cold=True).sessions()
    ]
    prompts = [Prompter(1).request(t, (), keep_text=False) for t in turns]
    assert len({" ".join(p.messages[0].content.split()[:4]) for p in prompts}) == 4
    assert [[m.role for m in p.messages] for p in prompts] == [["system", "user"]] * 4
    lengths = [sum(len(m.content.split()) for m in p.messages) for p in prompts]
    assert lengths == [t.input_tokens for t in turns] == [1100, 1030, 700, 600]


def test_a_trace_is_looked_for_beside_the_workload_file(tmp_path, monkeypatch):
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "w.yaml").write_text("trace: {file: t.csv, format: csv}")
    (tmp_path / "w" / "t.csv").write_text((DATA / "ours.csv").read_text())
    monkeypatch.chdir(tmp_path)
    workload = load_workload("w/w.yaml")
    assert workload.trace.file == "w/t.csv"
    assert Workload.model_validate(json.loads(json.dumps(workload.resolved()))) == workload
    assert load_workload("w/w.yaml", {"trace.speed": 3, "duration": "1s"}).trace.speed == 3
