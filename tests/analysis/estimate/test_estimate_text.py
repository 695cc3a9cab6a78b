import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.estimate.numbers import Ask, Estimate
from analysis.estimate.text import render
from analysis.estimate.units import amount, dollars, duration, share
from analysis.estimate.words import crossover_tokens, explain, stressed, what_ifs
from analysis.roofline import Roofline
from loadgen.sim import catalog


def made(prompt_tokens=4000, output_tokens=500, gpu="h100", model="llama-3.1-8b", tp=1, **keys):
    roofline = Roofline(catalog.gpu(gpu), catalog.model(model), tp=tp)
    return Estimate(roofline, Ask(prompt_tokens, output_tokens, **keys))


CHAT = made()


def row(text, name):
    return re.split(r"\s{2,}", next(line.strip() for line in text.splitlines() if line.strip().startswith(name)))


def test_both_phases_stand_side_by_side():
    text = render(CHAT)
    assert text.startswith("llama-3.1-8b on one h100: 4,000 prompt tokens, 500 output tokens\n")
    assert row(text, "tokens in the pass")[1:] == ["4,000", "1"]
    assert row(text, "arithmetic")[1:] == ["68.4 TFLOP", "18.3 GFLOP"]
    assert row(text, "of it attention")[1:] == ["6%", "12%"]
    assert row(text, "memory traffic")[1:] == ["16.6 GB", "16.6 GB"]
    assert row(text, "of the ridge's 295")[1:] == ["14.0 x", "0.0037 x"]
    assert row(text, "bottleneck")[1:] == ["compute", "memory"]
    assert row(text, "in all")[1:] == ["126 ms", "3.09 s"]
    assert row(text, "TTFT")[1:] == ["126 ms", "a floor: queueing, scheduler and network come on top"]
    assert row(text, "ITL")[1:] == ["6.20 ms", "161 tokens/s a stream"]
    assert row(text, "KV cache")[1:] == ["590 MB", "a request (131 kB a token); 94 such fit"]
    assert row(text, "Output")[1] == "$5.77"
    assert "links" not in text


def test_what_was_assumed_is_always_said():
    text = " ".join(render(made(gpu="h200", model="llama-3.1-70b-fp8", tp=2), width=120).split())
    assert "989 TFLOP/s (bf16) and 4.80 TB/s a GPU at the peaks, of which 55% and 80% are reached" in text
    assert "1 byte a weight, 2 bytes a cached value; 90% of the memory for weights and cache" in text
    assert "links of 450 GB/s a GPU one way, and 10.0 µs for each all-reduce" in text
    assert "TTFT is a floor: queueing, the scheduler and the network come on top" in text


def drawn(estimate, width):
    """The whole request and the close-up of a timeline."""
    lines = [line.strip() for line in render(estimate, timeline=True, width=width).splitlines()]
    return [line for line in lines if re.match(r"[█▒…]{2}|█▏", line)]


@pytest.mark.parametrize("width", [80, 120])
def test_the_request_is_drawn_to_scale(width):
    whole, close = drawn(CHAT, width)
    assert len(whole) == min(width - 4, 112)
    assert whole.count("█") == round(len(whole) * CHAT.ttft_s / CHAT.e2e_s)
    step = re.search("▏▒+", close).group()
    assert close.count("█") / len(step) == pytest.approx(CHAT.ttft_s / CHAT.itl_s, rel=0.3)  # a step is whole columns
    assert close.endswith(" …")


def test_a_close_up_leaves_out_the_beginning_of_a_long_prefill():
    _, close = drawn(made(32_000, 20), 80)
    assert close.startswith("…█")
    assert close.count("▏") == 14  # of 19: what 76 columns hold beside a prefill of 46


def test_an_answer_of_one_token_has_nothing_to_show_of_decode():
    text = render(made(50, 1), timeline=True, explained=True)
    assert "▒" not in text
    assert row(text, "ITL")[1:] == ["–", "an answer of one token has no decode"]
    assert "\n  decode " not in text


def test_meters_show_shares_of_the_peaks():
    text = render(CHAT, timeline=True, width=80)
    assert "prefill      ██████████░░░░░░░░  55%   █░░░░░░░░░░░░░░░░░  4%" in text
    assert "decode       ░░░░░░░░░░░░░░░░░░  0.3%  ██████████████░░░░  80%" in text


def test_without_colour_there_is_not_one_escape():
    assert "\x1b" not in render(CHAT, True, True)
    assert "\x1b[" in render(CHAT, True, True, color=True)


asks = st.builds(
    made,
    st.integers(1, 200_000),
    st.integers(1, 20_000),
    st.sampled_from(["l4", "h100", "b200"]),
    st.sampled_from(["llama-3.1-8b", "llama-3.2-1b"]),
    st.sampled_from([1, 8]),
    batch=st.integers(1, 5000),
    others_decoding=st.integers(0, 5000),
)


@settings(deadline=None, max_examples=60)
@given(asks, st.sampled_from([80, 120]))
def test_every_estimate_fits_the_terminal(estimate, width):
    lines = render(estimate, True, True, width).splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(line for line in lines if "█" not in line and "▒" not in line)  # nothing was cut off


@pytest.mark.parametrize(
    ("ask", "phase", "buy"),
    [
        ((300, 300), "decode", "Buy memory bandwidth"),
        ((10_000, 20), "prefill", "Buy FLOP/s"),
        ((10_000, 60), "both phases", "Buy FLOP/s"),
        ((50, 1), "prefill", "Buy memory bandwidth"),
    ],
)  # fmt: skip
def test_the_phase_decides_what_to_buy(ask, phase, buy):
    estimate = made(*ask)
    assert stressed(estimate) == phase
    assert explain(estimate)[0].startswith(f"This request stresses {phase}: of ")
    assert any(paragraph.startswith(buy) for paragraph in explain(estimate))


def test_what_if_names_the_lever_that_works():
    chat = {each.change: each.estimate.e2e_s / CHAT.e2e_s for each in what_ifs(CHAT)}
    rag = made(10_000, 20)
    long = {each.change: each.estimate.e2e_s / rag.e2e_s for each in what_ifs(rag)}
    assert chat["twice the memory bandwidth"] < 0.55 < 0.95 < chat["twice the FLOP/s"]
    assert long["twice the FLOP/s"] < 0.7 < 0.8 < long["twice the memory bandwidth"]
    assert long["half of the prompt in the prefix cache"] < 0.7
    assert "2 GPUs, tensor-parallel" in chat
    assert not [each for each in what_ifs(made(gpu="h200", tp=8)) if "GPUs" in each.change]


def test_the_crossover_is_where_arithmetic_overtakes_memory():
    tokens = crossover_tokens(CHAT)
    assert tokens == pytest.approx(295 * 0.8 / 0.55 * 0.55 / 0.8 * 0.55 / 0.8, rel=0.01)
    assert made(round(0.95 * tokens), 1).prefill.bound == "memory"
    assert made(round(1.05 * tokens), 1).prefill.bound == "compute"


def test_chunks_bound_what_others_wait():
    assert "chunks of 2,048 tokens bound that to" in explain(made(16_000, 10))[-1]
    assert "chunks" not in explain(made(1000, 10))[-1]
    assert explain(made(1000, 10, batch=3))[-1].startswith("While these prompts are computed, ")


def test_links_are_told_of_where_they_take_long():
    # 64 all-reduces of 10 µs beside 0.54 ms of memory traffic; of 10 + 159 µs beside 15.7 ms of arithmetic.
    said = "The links between the GPUs take 41% of a prefill and 54% of a decode step"
    assert any(paragraph.startswith(said) for paragraph in explain(made(tp=8, gpu="h200")))
    assert not any(paragraph.startswith("The links") for paragraph in explain(made(tp=1)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (duration(None), "–"),
        (duration(0), "0 s"),
        (duration(3.2e-5), "32.0 µs"),
        (duration(0.0062), "6.20 ms"),
        (duration(45.34), "45.3 s"),
        (duration(4534), "4,534 s"),
        (amount(6.4e13, "FLOP"), "64.0 TFLOP"),
        (amount(131_072, "B"), "131 kB"),
        (amount(12, "B"), "12.0 B"),
        (dollars(None), "–"),
        (dollars(0), "$0.00"),
        (dollars(1234.5), "$1,234.50"),
        (dollars(0.0293), "$0.0293"),
        (dollars(8.59e-6), "$0.00000859"),
        (share(0), "0%"),
        (share(0.0004), "<0.1%"),
        (share(0.0031), "0.3%"),
        (share(0.061), "6%"),
        (share(0.998), ">99%"),
        (share(1), "100%"),
    ],
)
def test_numbers_as_people_read_them(text, expected):
    assert text == expected
