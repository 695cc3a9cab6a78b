"""The page of the experiment on interference, on servers whose passes are known to the microsecond."""

import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis.interfere.result import interfere
from analysis.page.interfere import render
from analysis.record import RequestRecord
from analysis.run import Run
from tests.analysis.any_records import any_records
from tests.analysis.test_interfere import LENGTHS, Server, experiment, made, victim
from tests.analysis.test_report_html import EVIL, checked


def page_of(run: Run, max_freeze_s: float | None = None) -> str:
    return render(interfere(run, max_freeze_s), run.meta)


def figures(document: str) -> dict[str, str]:
    return dict(re.findall(r'<figure tabindex="0" aria-label="([^"]+)">(.*?)</figure>', document, re.DOTALL))


@pytest.mark.parametrize(
    ("server", "verdict", "colour"),
    [
        (Server(), "Long prompts block decode", "fail"),
        (Server(budget=500), "Freezes are bounded by chunks", "none"),
        (Server(apart=True), "Decode is isolated from prefill", "pass"),
    ],
)
def test_the_verdict_is_on_top(server: Server, verdict: str, colour: str) -> None:
    document = page_of(experiment(server))
    assert f'<p class="verdict {colour}">{verdict}</p>' in document.split("<nav")[0]
    assert [each["id"] for each in checked(document).named("section")][:3] == ["verdict", "phases", "lengths"]


def test_the_numbers_of_the_experiment() -> None:
    """4,000 tokens at 0.1 ms each are read in one pass of 410 ms; the request waited half a pass and its own first."""
    page = checked(page_of(experiment(Server())))
    assert "A prompt of 4,000 tokens, the longest: 410 ms freeze of the streams 10.0 ms longest gap" in page.text
    assert "While a long prompt is read, no stream gets a token" in page.text
    assert re.search(r"4,000 4,000 41\d ms 410 ms \[[^]]+\] ms 410 ms 10\.0 ms", page.text)
    assert "15 of 15 injections count." in page.text
    assert "Prefill in chunks: 512 tokens a pass" in page.text


def test_each_figure_has_its_intervals_control_and_limit() -> None:
    drawn = figures(page_of(experiment(Server()), 0.2))
    assert len(drawn) == 3
    freeze = drawn["How long does a prompt stop the others?"]
    for words in ("limit 200 ms<", 'data-name="without a prompt, up to"', 'data-name="freeze, end of the interval"'):
        assert words in freeze
    assert freeze.count("<td") == 5 * len(LENGTHS)
    assert 'data-name="fit"' in drawn["How long does a prompt take itself?"]
    assert "100%" in drawn["For how much of that TTFT do the others stand still?"]


@pytest.mark.parametrize(("limit_s", "words"), [(0.2, "fail"), (0.9, "pass")])
def test_the_gate_colours_the_verdict(limit_s: float, words: str) -> None:
    document = page_of(experiment(Server()), limit_s)
    assert f'<p class="verdict {words}">Long prompts block decode: {words}</p>' in document
    assert re.search(rf"{words} freeze &lt; \d+ ms|{words} freeze < \d+ ms 410 ms", checked(document).text)


def test_itl_against_the_number_of_streams() -> None:
    run = experiment(Server())
    step_ms = {1: 10, 2: 12, 4: 15}
    baseline = [
        victim(f"b{n}.{i}", [90_000 * n + ms * k for k in range(200)], stage=f"baseline-{n}")
        for n, ms in step_ms.items()
        for i in range(n)
    ]
    requests = [*records(Server()), *baseline]
    drawn = figures(page_of(Run.from_records(run.meta, requests)))
    itl = drawn["Do streams slow each other down without any prompt?"]
    assert "From 1 to 4 it grew by 50%." in itl
    assert 'data-name="if each cost as much"' in itl


def records(server: Server) -> list[RequestRecord]:
    """Those of a short experiment."""
    server.decode(1000)
    return [victim("v", server.tokens_at)]


def test_an_experiment_without_a_verdict_says_why() -> None:
    page = checked(page_of(made([victim("v", [10, 20, 30])], LENGTHS, 1)))
    assert "No verdict" in page.text
    assert "How long does a prompt stop the others? Not drawn: no injected prompt counts." in page.text
    assert not page.named("figure")


def test_text_from_outside_stays_text() -> None:
    run = experiment(Server())
    told: dict[str, Any] = dict.fromkeys(("id", "target", "model", "started_at"), EVIL)
    result = interfere(run, 0.2)
    result |= {"run": result["run"] | told, "design": result["design"] | {"notes": [EVIL]}}
    result["verdict"] |= {"kind": None, "reason": EVIL}
    document = render(result, run.meta | told)
    page = checked(document)
    assert document.count("</script>") == 1
    assert page.text.count("onerror=alert(1)") >= 6


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(records=any_records(), streams=st.integers(1, 3))
def test_any_experiment_makes_a_page(records: list[RequestRecord], streams: int) -> None:
    for number, each in enumerate(records):
        each.class_name, each.stage = ("victim", "injected")[number % 2], "experiment"
        each.asked_input_tokens = 100 * number
    checked(page_of(made(records, [100, 300], streams), 0.2))
