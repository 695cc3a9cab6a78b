"""The page of an estimate: the request to scale, and both phases on the roofline."""

import math
import re

import pytest
from hypothesis import given, settings

from analysis.estimate.numbers import Estimate
from analysis.page.estimate import render
from tests.analysis.estimate.test_estimate_text import CHAT, asks, made
from tests.analysis.test_report_html import EVIL, checked

DOCUMENT = render(CHAT)


def figures(document: str) -> dict[str, str]:
    return dict(re.findall(r'<figure[^>]* aria-label="([^"]+)">(.*?)</figure>', document, re.DOTALL))


def test_what_the_page_says() -> None:
    page = checked(DOCUMENT)
    assert [each["id"] for each in page.named("section")] == ["request", "phases", "meaning", "changes", "about"]
    for said in (
        "llama-3.1-8b on one h100: 4,000 prompt tokens, 500 output tokens",
        "126 ms TTFT, at the least compute is what bounds prefill 6.20 ms ITL, at the least memory is what bounds",
        "arithmetic 68.4 TFLOP 18.3 GFLOP",
        "KV cache 590 MB a request (131 kB a token); 94 such fit",
        "This request stresses decode",
        "as it is 126 ms 6.20 ms 3.22 s",
        "TTFT is a floor: queueing, the scheduler and the network come on top",
    ):
        assert said in page.text, said


def test_the_request_is_drawn_to_scale_without_the_headline_of_the_page() -> None:
    drawing = figures(DOCUMENT)["Where does the time go?"]
    rects = re.findall(r'<rect class="c-(\w+)" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)">', drawing)
    (_, _, _, prefill, _), (_, _, _, decode, _) = rects[0], rects[1]
    assert [each[0] for each in rects[:2]] == ["prefill", "decode"]
    assert float(prefill) / float(decode) == pytest.approx(CHAT.ttft_s / CHAT.decode_s, rel=1e-3)
    assert all(float(y) > 84 for y in re.findall(r'<text x="[\d.]+" y="([\d.]+)"', drawing))
    assert "500 output tokens" not in re.sub(r'aria-label="[^"]+"', "", drawing)


def at(drawing: str, name: str) -> tuple[float, float]:
    """The values of the one point of this name, read back through the axes of the drawing."""
    found = re.search(rf'd="M([\d.]+),([\d.]+)h0" class="points large c-\w+" data-name="{name}"', drawing)
    assert found is not None
    values = []
    for pixel, told in zip(found.groups(), re.findall(r'data-[xy]="([^"]+)"', drawing), strict=True):
        scale, _, low, high, start, end, *_ = told.split()
        assert scale == "log"
        share = (float(pixel) - float(start)) / (float(end) - float(start))
        values.append(10 ** (math.log10(float(low)) + share * math.log10(float(high) / float(low))))
    return values[0], values[1]


def test_both_phases_lie_on_the_roofline() -> None:
    drawing = figures(DOCUMENT)["What is each phase bound by?"]
    x, y = at(drawing, "prefill, as asked")
    assert (x, y) == (pytest.approx(4127, rel=0.02), pytest.approx(0.55 * 989e12, rel=0.03))
    x, y = at(drawing, "decode, as asked")
    assert (x, y) == (pytest.approx(1.10, rel=0.02), pytest.approx(1.10 * 0.8 * 3.35e12, rel=0.03))
    for words in ("ridge 295<", "prefill 4,127<", "decode 1.10<"):
        assert words in drawing


def test_company_is_told_for_as_many_as_fit() -> None:
    text = figures(DOCUMENT)["What does company cost a stream?"]
    batches = re.findall(r'<tr><td class="n" data-v="(\d+)">', text)
    assert batches == ["1", "2", "4", "8", "16", "32", "64", "94"]
    assert "as asked: 1<" in text


def test_an_answer_of_one_token_has_no_decode_to_draw() -> None:
    page = checked(render(made(4000, 1)))
    assert "What does company cost a stream? Not drawn" in page.text
    assert "decode, as asked" not in render(made(4000, 1))


def test_names_are_escaped() -> None:
    estimate = made()
    object.__setattr__(estimate.roofline.model, "name", EVIL)
    object.__setattr__(estimate.roofline.gpu, "name", EVIL)
    document = render(estimate)
    checked(document)
    assert document.count("</script>") == 1


@settings(deadline=None, max_examples=40)
@given(asks)
def test_any_estimate_makes_a_page(estimate: Estimate) -> None:
    document = render(estimate)
    checked(document)
    assert len(document) < 300_000
