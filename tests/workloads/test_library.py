import re

import pytest

from workloads.plan_text import plan
from workloads.schedule import build
from workloads.spec import LIBRARY, library, load_workload


def test_the_library_has_the_shapes_of_real_products():
    assert library() == ("agent", "chat", "mixed", "rag", "reasoning")


@pytest.mark.parametrize("name", library())
def test_a_library_file_says_what_it_stresses_and_has_an_slo(name):
    text = (LIBRARY / f"{name}.yaml").read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert "# Stresses " in text
    workload = load_workload(name)
    assert workload.name == name
    assert set(workload.slo) >= set(workload.classes)
    assert workload.duration <= 90


def samples_needed(quantile):
    return 10 / (1 - quantile)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", library())
def test_a_default_run_decides_its_own_slo(name, seed):
    workload = load_workload(name)
    schedule = build(workload, seed)
    start_ns, end_ns = schedule.stages[-1].start_ns, schedule.stages[-1].end_ns
    requests = dict.fromkeys(workload.classes, 0)
    tokens = dict.fromkeys(workload.classes, 0)
    for session in schedule.sessions():
        due_ns = session.due_ns
        for this in session.rounds:
            # Later rounds come after the answer, taken as 10 ms a token here, and after the pause.
            if start_ns <= due_ns < end_ns:
                requests[session.class_name] += len(this.turns)
                tokens[session.class_name] += sum(t.output_tokens - 1 for t in this.turns)
            due_ns += this.pause_ns + 10_000_000 * max(t.output_tokens for t in this.turns)
    for name_of_class in workload.classes:
        for limit in workload.slo[name_of_class]:
            if quantile := re.match(r"(\w+)\.p(\d+)<", limit):
                have = tokens if quantile[1] == "itl" else requests
                assert have[name_of_class] >= samples_needed(int(quantile[2]) / 100), limit


def test_a_short_rag_run_still_decides():
    for seed in range(5):
        page = plan(build(load_workload("rag", {"duration": "20s", "warmup": "0s"}), seed))
        assert page["totals"]["requests"] >= samples_needed(0.95)
