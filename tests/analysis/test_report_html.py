"""The HTML report: whatever a run holds, a page that is whole, escaped, small, and loads nothing."""

import re
from collections.abc import Callable
from functools import cache
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings

from analysis.page.lanes import pack
from analysis.page.report import render
from analysis.page.requests import longest_wait_s
from analysis.page.run import floors, itl_multiples, multiples
from analysis.page.view import View
from analysis.roofline import Gpu, Model, Roofline
from analysis.run import Run
from analysis.summary import summarize
from tests.analysis.any_records import any_records
from tests.analysis.records import every, meta, record, run_of
from tests.analysis.synthetic import Server, simulate

S = 1_000_000_000
EVIL = "</script><img src=x onerror=alert(1)>\x00\x1b[31m\" onload='x'"


class Outline(HTMLParser):
    """What a browser would see: elements, their attributes, text; and whether every element is closed in order."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(document)
        self.close()
        assert self._open == [], f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1] not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def named(self, *tags: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag in tags]


def rendered(run: Run, **more: Any) -> str:
    return render(run, summarize(run), **more)


def checked(document: str) -> Outline:
    """What holds of every page."""
    page = Outline(document)
    for name in ("src", "href", "xlink:href", "action", "data"):
        values = [attributes[name] or "" for _, attributes in page.elements if name in attributes]
        assert all(value.startswith("#") for value in values), f"{name} leads out of the page: {values}"
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert not page.named("img", "link", "iframe", "object", "embed", "base")
    assert "url(" not in document
    assert "@import" not in document
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {link["href"] for link in page.named("a")} <= {f"#{each}" for each in ids}
    for drawing in re.findall(r"<svg.*?</svg>", document, re.DOTALL):
        assert "nan" not in drawing_numbers(drawing)
    return page


def drawing_numbers(drawing: str) -> str:
    """The text of all attributes of a well-formed drawing that hold numbers."""
    names = ("d", "x", "y", "width", "height", "viewBox", "data-x", "data-y", "data-at")
    root = ElementTree.fromstring(drawing)
    return " ".join(each.get(name) or "" for each in root.iter() for name in names).lower()


def stage(name: str, start_s: float, end_s: float, measured: bool = True) -> dict[str, Any]:
    window = {"start_ns": round(start_s * S), "end_ns": round(end_s * S)}
    return {"name": name, **window, "measured": measured, "offered_rps": 20.0}


@cache
def mixed() -> Run:
    """Two classes and several turns; now and then a long prompt stops all other streams for as long as it is read."""
    long_prompts = {i: 2000 + 20 * i for i in (12, 31, 47, 71, 86, 109, 122, 146, 171, 187, 209, 226)}
    freezes = [(50 * i + 1.0, tokens / 10) for i, tokens in long_prompts.items()]
    records = []
    for i in range(240):
        due, long, bad = 50.0 * i, i in long_prompts, i % 60 == 7
        tokens = long_prompts.get(i, 200 + i % 40)
        at = every(10, 150, tokens / 10 + 1) if long else frozen(due, every(10, 150, 30), freezes)
        records.append(
            record(
                f"r{i:03d}", [] if bad else at, class_name="rag" if long else "chat", turn=1 + i % 3, session=i // 3,
                stage="warmup" if i < 40 else "main", due=due, sent=due, outcome="http_error" if bad else "ok",
                status=503 if bad else 200, error="overloaded" if bad else None, usage=None if bad else 150,
                prompt_tokens=tokens, asked_input_tokens=tokens, asked_output_tokens=150,
            )
        )  # fmt: skip
    slo = {"all": ["errors<3%"], "chat": ["ttft.p95<200ms", "itl.p99<60ms"], "rag": ["ttft.p95<2s", "itl.p99<60ms"]}
    described: dict[str, Any] = {
        "loop": "open", "stages": [stage("warmup", 0, 2, measured=False), stage("main", 2, 12)],
        "workload": {"name": "mixed", "slo": slo, "good": {"ttft": "500ms"}}, "model": "llama-3.1-8b",
    }  # fmt: skip
    return Run.from_records(meta(**described), records)


@cache
def mixed_page() -> str:
    return rendered(mixed())


def frozen(due: float, at: list[float], freezes: list[tuple[float, float]]) -> list[float]:
    """Times after `due` with what is left of every freeze (start, length in ms) cut in where it comes."""
    for start, length in freezes:
        left = length - max(0.0, due - start)
        if left > 0:
            at = [each + left if due + each > start else each for each in at]
    return at


def empty() -> Run:
    return run_of()


def failed() -> Run:
    return run_of(*[record(f"f{i}", sent=None, outcome="connect_failed", error="refused") for i in range(3)])


def one_token() -> Run:
    return run_of(record("only", [40], usage=1, prompt_tokens=5), loop="open", due=0)


def closed_loop() -> Run:
    return run_of(*[record(f"c{i}", every(10, 20, 50), usage=20, sent=300 * i, prompt_tokens=9) for i in range(30)])


def bundled() -> Run:
    """Several tokens an event, and nobody says how many."""
    return run_of(*[record(f"b{i}", every(40, 50, 200), usage=200, sent=90 * i) for i in range(5)], complete=False)


def played_back() -> Run:
    return run_of(record("p", every(0.01, 50, 4000), usage=50))


CASES: dict[str, Callable[[], Run]] = {
    "mixed": mixed, "empty": empty, "failed": failed, "one_token": one_token, "closed_loop": closed_loop,
    "bundled": bundled, "played_back": played_back,
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_page_is_whole_and_loads_nothing(name: str) -> None:
    page = checked(rendered(CASES[name]()))
    assert [each["id"] for each in page.named("section")] == [
        "verdict", "phases", "stalls", "load", "parts", "worst", "outcomes", "about",
    ]  # fmt: skip


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(any_records())
def test_any_run_makes_a_page(records: Any) -> None:
    checked(rendered(Run.from_records(meta(), records)))


def test_every_figure_has_a_question_a_name_and_its_data() -> None:
    document = mixed_page()
    page = checked(document)
    figures = re.findall(r"<figure.*?</figure>", document, re.DOTALL)
    assert len(figures) >= 13
    for each in figures:
        assert re.search(r"<figcaption><b>[^<]+\?</b> \S", each)
        assert re.search(r'<svg[^>]* aria-label="[^"]+"', each)
        assert "<details><summary>Data</summary>" in each
        assert each.count("<td") > 1
    assert all(each["tabindex"] == "0" and each["aria-label"] for each in page.named("figure"))


def test_what_has_no_data_says_why_instead_of_an_empty_figure() -> None:
    page = checked(rendered(empty()))
    assert not page.named("figure")
    assert "Does TTFT grow with the prompt? Not drawn: no request with a first token" in page.text
    assert "No SLO was asked" in page.text


def test_verdicts_show_value_interval_and_reason() -> None:
    run = mixed()
    summary = summarize(run)
    limit = next(each for each in summary["slo"]["limits"] if each["metric"] == "ttft" and each["class"] == "chat")
    limit |= {"value": 0.1234, "ci95": [0.1, 0.15], "verdict": "fail", "reason": "because of this"}
    page = checked(render(run, summary))
    assert "fail chat ttft.p95 < 200 ms 123 ms [100, 150] ms because of this" in page.text


def test_text_of_the_server_stays_text() -> None:
    run = run_of(
        record("ok", every(10, 20, 50), usage=20, class_name=EVIL, prompt_tokens=10, stage="main"),
        record(EVIL, every(10, 20, 50), usage=20, class_name="c", sent=5, finish_reason="stop"),
        record("bad", outcome="http_error", status=500, error=EVIL),
        model=EVIL, target=EVIL, interrupted_by=EVIL, complete=False, started_at=EVIL, host={EVIL: EVIL},
        workload={"name": EVIL, "note": "half a character \ud800", "classes": {EVIL: {}}},
    )  # fmt: skip
    document = rendered(run)
    page = checked(document)
    document.encode("utf-8")
    assert document.count("</script>") == 1
    assert "\x00" not in document
    assert page.text.count("</script><img src=x onerror=alert(1)>��[31m\" onload='x'") >= 8


def test_stalls_name_who_hurts_whom() -> None:
    page = checked(mixed_page())
    hurts = next(each for each in re.findall(r"prompts of .*?Data", page.text) if "froze streams of" in each)
    assert re.search(r"prompts of rag froze streams of chat: \d", hurts)
    assert "prompts of chat froze streams of rag: –" in hurts or "prompts of chat" not in hurts
    assert "prefill interference" in page.text
    assert "What would help" in page.text


def test_queue_and_prefill_are_told_apart_where_the_server_does() -> None:
    told = pd.DataFrame({
        "t_ns": np.arange(15) * S, "queue_s": np.arange(15) * 3.0, "queue_requests": np.arange(15) * 10.0,
        "prefill_s": np.arange(15) * 1.0, "prefill_requests": np.arange(15) * 10.0,
    })  # fmt: skip
    page = checked(rendered(mixed().but(server=told)))
    assert "Here the queue is 75% of both." in page.text
    whole, apart = "Does TTFT stay the same while the load lasts?", "Is it the queue or the prefill?"
    assert [each["aria-label"] for each in page.named("figure")].count(f"{whole} {apart}") == 1
    (data,) = re.findall(r"Does TTFT stay.*? Data (from .*?) Does", page.text)
    assert data.startswith("from (s) TTFT p50 TTFT p95 queue prefill 0.00 30.0 ms")
    assert " 300 ms 100 ms 1.00 " in data
    unscraped = checked(rendered(mixed()))
    assert f"{apart} Not drawn" in unscraped.text
    assert whole in [each["aria-label"] for each in unscraped.named("figure")]


def test_a_floor_is_shown_where_the_replica_is_known() -> None:
    # 1 GFLOP a token over 1 TFLOP/s: 1 ms a prompt token. 1 GB over 0.1 TB/s: 10 ms a step. No attention, no KV.
    model = Model("toy", params=0.5e9, layers=0, hidden=1, heads=1, kv_heads=1, head_dim=1, context_tokens=99)
    gpu = Gpu("toy gpu", flops=1e12, bandwidth=1e11, memory_bytes=1e12)
    roofline = Roofline(gpu, model, compute_efficiency=1, bandwidth_efficiency=1)
    run = run_of(record("a", [200, 220, 260], usage=3, prompt_tokens=100))
    view = View(run, summarize(run))
    floors_s = floors(view, roofline)
    ttft, tpot = multiples(view, *floors_s)
    assert ttft.tolist() == pytest.approx([2.0])
    assert tpot.tolist() == pytest.approx([3.0])
    assert itl_multiples(view, floors_s[1]).tolist() == pytest.approx([2.0, 4.0])
    page = checked(rendered(run, roofline=roofline))
    assert "toy on one toy gpu" in page.text
    assert "ITL 3× 3.9× 3.98×" in page.text
    assert "floor" in [each["id"] for each in page.named("section")]


def test_ten_minutes_stay_small_and_say_what_is_left_out() -> None:
    run = simulate(Server(load=0.9, service_s=0.09), 6000, 200, 1)
    assert len(run.chunks) == 1_200_000
    document = rendered(run)
    page = checked(document)
    assert len(document.encode()) < 1_000_000
    assert re.search(r"2,\d\d\d of 6,000 requests are drawn", page.text)


def test_a_run_of_nothing_but_stalls_stays_small() -> None:
    run = simulate(Server(load=0.9, service_s=0.09, itl_s=0.1, token=2.0), 3000, 200, 1)
    summary = summarize(run)
    assert summary["stalls"]["count"] > 30_000
    document = render(run, summary)
    checked(document)
    assert len(document.encode()) < 2_000_000


def test_a_long_run_is_drawn_where_it_froze_most() -> None:
    records = [record(f"r{i}", every(10, 20, 50), usage=20, sent=100 * i) for i in range(1000)]
    records[800] = record("stuck", every(10, 9, 50) + every(10, 11, 2000), usage=20, sent=80_000)
    page = checked(rendered(run_of(*records)))
    start, end = map(float, re.findall(r"those open from ([\d.]+) s to ([\d.]+) s", page.text)[0])
    assert start < 80.0 < end
    assert end - start < 20


@pytest.mark.parametrize(
    ("start", "end", "lanes"),
    [
        ([], [], []),
        ([0, 1, 2], [3, 2, 4], [0, 1, 1]),  # the third starts when the second is over
        ([0, 0, 0], [1, 1, 1], [0, 1, 2]),
        ([0, 5, 6], [5, 6, 7], [0, 0, 0]),
    ],
)
def test_pack(start: list[float], end: list[float], lanes: list[int]) -> None:
    assert pack(np.array(start, dtype=float), np.array(end, dtype=float)).tolist() == lanes


def test_the_longest_wait_is_before_or_after_the_first_token() -> None:
    run = run_of(record("first", [500, 510, 520]), record("later", [50, 60, 900]), record("none", outcome="empty"))
    wait_s = longest_wait_s(View(run, summarize(run)))
    assert wait_s[:2].tolist() == pytest.approx([0.5, 0.84])
    assert np.isnan(wait_s[2])
