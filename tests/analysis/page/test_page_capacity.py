"""The page of a search for capacity."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.page.capacity import render
from tests.analysis.test_report_html import EVIL, checked

ABOUT: dict[str, Any] = {"workload": {"name": "chat", "slo": {"chat": ["ttft.p95<500ms", "itl.p99<60ms"], "rag": []}},
                         "target": "http://127.0.0.1:9", "model": "m"}  # fmt: skip


def row(load: float, verdict: str, ttft_s: float, **more: Any) -> dict[str, Any]:
    told = {
        "load": load, "measured_s": 60.0, "verdict": verdict, "meets": verdict != "fail",
        "requests_per_s": 2 * load, "ttft_p95_s": ttft_s, "itl_p99_s": 0.02, "goodput_rps": 1.9 * load,
        "attainment": 0.95, "output_tokens_per_s": 300 * load, "stream_tokens_per_s": 80 / load,
        "worst_limit": None if verdict == "pass" else "chat: ttft.p95",
    }  # fmt: skip
    return told | more


def found(*curve: dict[str, Any], **more: Any) -> dict[str, Any]:
    told = {
        "capacity": 2.0, "passes_at": 2.0, "fails_at": 4.0, "settled": True,
        "reason": "2 passes in 1 of 1 tries, 4 does not", "tries": 2, "unit": "sessions/s",
        "engine": "one simulated h100",
        "requests_per_s": 4.0, "knee": None, "pareto": [2.0, 4.0], "curve": list(curve),
    }  # fmt: skip
    return told | more


TWO = found(row(2.0, "pass", 0.21), row(4.0, "fail", 1.4))


def test_the_answer_is_on_top_and_every_try_is_told() -> None:
    document = render(TWO, ABOUT, ["01-2", "02-4"])
    page = checked(document)
    assert '<p class="verdict pass">2 sessions/s</p>' in document.split("<nav")[0]
    assert "http://127.0.0.1:9 · one simulated h100 · m" in page.text
    assert "2 passes in 1 of 1 tries, 4 does not." in page.text
    assert "The limits that have to pass are chat: ttft.p95<500ms, itl.p99<60ms." in page.text
    assert "At 2 sessions/s, the highest load tried that meets the limits: 210 ms TTFT p95" in page.text
    assert "210 ms TTFT p95 20.0 ms ITL p99 3.80 good requests/s 95% attainment" in page.text
    assert "2 pass 210 ms 20.0 ms 3.80 95% 4.00 600 40.0 01-2 4 fail 1.40 s" in page.text
    assert "75.0" not in page.text
    assert page.text.endswith("name: chat slo: chat: - ttft.p95<500ms - itl.p99<60ms rag: []")


def test_an_answer_between_two_loads_is_told_by_the_longest_try_of_the_lower_one() -> None:
    tries = [row(2.0, "pass", 0.31), row(2.0, "pass", 0.21, measured_s=600.0), row(4.0, "fail", 1.4)]
    text = checked(render(found(*tries, capacity=2.7), ABOUT)).text
    assert "At 2 sessions/s, the highest load tried that meets the limits: 210 ms TTFT p95" in text


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"settled": False, "reason": "stopped"}, '<p class="verdict no_verdict">2 sessions/s (not settled)</p>'),
        ({"settled": None}, '<p class="verdict pass">2 sessions/s</p>'),
        ({"capacity": None}, '<p class="verdict fail">No load that was tried passes</p>'),
    ],
)
def test_how_sure_the_answer_is(more: dict[str, Any], words: str) -> None:
    assert words in render(TWO | more, ABOUT)


def test_each_figure_marks_the_answer_the_limit_and_the_tries() -> None:
    document = render(found(*TWO["curve"], knee=2.0), ABOUT)
    parts = dict(re.findall(r'<figure tabindex="0" aria-label="([^"]+)">(.*?)</figure>', document, re.DOTALL))
    assert len(parts) == 6
    ttft = parts["What does the load do to TTFT p95?"]
    for words in ("capacity, knee 2<", "fails 4<", "chat &lt; 500 ms<"):
        assert words in ttft
    assert 'class="points large c-pass" data-name="2 sessions/s: passes"' in ttft
    assert 'class="points large c-fail" data-name="4 sessions/s: fails"' in ttft
    assert "chat &lt; 60.0 ms<" in parts["What does the load do to ITL p99?"]
    assert 'data-name="no load beats these"' in parts["What do users pay for throughput?"]


def test_repeated_loads_are_joined_by_their_mean() -> None:
    document = render(found(row(1.0, "pass", 0.1), row(2.0, "pass", 0.2), row(2.0, "pass", 0.4)), ABOUT)
    line = re.findall(r'd="([^"]+)" class="line c-good" data-name="attained"', document)
    assert len(line) == 1
    assert line[0].count("L") == 1


def test_a_simulated_search_names_its_engine() -> None:
    about = {"workload": {"name": "chat"}, "simulated": {"model": "m", "replicas": 4, "tp": 2, "gpu": "h100"}}
    assert "simulated: m on 4 × 2 h100" in checked(render(TWO, about)).text


def test_a_search_that_tried_nothing() -> None:
    nothing = found(capacity=None, fails_at=None, settled=False, reason="nothing was tried", pareto=[])
    page = checked(render(nothing, ABOUT))
    assert [each["id"] for each in page.named("section")] == ["answer", "tries", "about"]
    assert "No load was tried." in page.text


def test_text_from_outside_stays_text() -> None:
    workload = {"name": EVIL, "slo": {EVIL: ["ttft.p95<1s"]}}
    curve = found(row(2.0, "fail", 0.2, worst_limit=EVIL), reason=EVIL, unit=EVIL)
    document = render(curve, {"workload": workload, "target": EVIL, "model": EVIL}, [EVIL])
    page = checked(document)
    assert document.count("</script>") == 1
    assert page.text.count("onerror=alert(1)") >= 8


AMOUNTS = st.none() | st.just(0.0) | st.floats(1e-9, 1e6)
ROWS = st.fixed_dictionaries({
    "load": st.floats(1e-3, 1e6), "measured_s": st.floats(0, 1e6), "meets": st.none(),
    "verdict": st.sampled_from(["pass", "fail", "no_verdict"]),
    "worst_limit": st.none() | st.text(max_size=3), "attainment": st.none() | st.floats(0, 1),
    **dict.fromkeys(("requests_per_s", "ttft_p95_s", "itl_p99_s", "goodput_rps", "output_tokens_per_s",
                     "stream_tokens_per_s"), AMOUNTS),
})  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(st.lists(ROWS, max_size=6), st.booleans())
def test_any_curve_makes_a_page(curve: list[dict[str, Any]], passed: bool) -> None:
    loads = [each["load"] for each in curve]
    best = min(loads, default=None) if passed else None
    told = {"capacity": best, "passes_at": best, "fails_at": max(loads, default=None)}
    checked(render(found(*curve, **told, knee=loads[0] if loads else None, pareto=loads), ABOUT))
