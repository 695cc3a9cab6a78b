"""What is on the screen, whatever its width and its characters."""

import io
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from loadgen.progress import Second
from loadgen.screen import ECHO, Standing, flowing, line_of, panel_of, span, sparkline
from loadgen.streams import Stalled
from tests.loadgen.plans import main_stage

S = 1_000_000_000
SECONDS = [
    *(None for _ in range(57)),
    Second(1, 3, 100_000_000, 20_000_000),
    Second(2, 4, 400_000_000, 21_000_000),
    Second(3, 0, None, None),
]

STANDING = Standing(
    name="möbel", now_ns=21 * S, stage=main_stage(60_000), end_ns=60 * S, requests=None, measured=99, sent=99,
    in_flight=12, waiting=3, outcomes={"ok": 80, "broken": 1, "rate_limited": 5, "cancelled": 1, "skipped": 2},
    error=("chat", "rate_limited", "429 " + "the rate limit … is reached; " * 9), ttft_ns=(112_000_000, 1_480_000_000),
    itl_ns=(6_000_000, 20_600_000), seconds=SECONDS, tokens_per_s=1234.0, ended_per_s=4.1,
    stalled=Stalled(9, 19_500_000_000), stalls=7, note="unsettled after 30 s: ttft.p95",
)  # fmt: skip


def shown(standing: Standing, width: int, encoding: str = "utf-8") -> str:
    """The panel, `width` columns wide where that is not more than it ever is."""
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding, newline="\n")
    console = Console(file=out, force_terminal=True, width=width + ECHO, color_system=None)
    console.print(panel_of(standing, console))
    out.flush()
    return raw.getvalue().decode(encoding)


def test_the_screen_at_100_columns() -> None:
    assert shown(STANDING, 100).splitlines()[1:9] == [
        f"│ {line:<96} │" for line in (
            "main  0:21 of 1:00, 0:39 left  ━━━━━━━━━━━━━━",
            "102 due   99 sent   12 in flight   80 ok   1,234 tok/s   6 failed   5 rate_limited   1 broken",
            f"TTFT  p50  112 ms  p95  1.48 s  {'▃█':>59}",
            f"ITL   p50 6.00 ms  p99 20.6 ms  {'██':>59}",
            f"ended 4.10/s                    {'▇█▁':>60}",
            "stalled: 9 streams, up to 1.50 s",
            f"last failure: chat: rate_limited: 429 {'the rate limit … is reached; ' * 2}"[:95] + "…",
            "unsettled after 30 s: ttft.p95",
        )
    ]  # fmt: skip


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
@pytest.mark.parametrize("width", [20, 38, 40, 58, 99, 100, 200])
def test_no_line_is_wrapped_or_longer_than_the_screen(width: int, encoding: str) -> None:
    lines = shown(STANDING, width, encoding).splitlines()
    assert {len(line) for line in lines} == {min(width, 100)}
    assert len(lines) <= (17 if width == 20 else 13)


def test_a_screen_without_unicode_gets_ascii() -> None:
    text = shown(STANDING, 60, "ascii")
    assert text.isascii()
    assert "TTFT  p50  112 ms  p95  1.48 s" in text
    assert "loadgen: m?bel" in text
    assert "-*" not in text.splitlines()[0]


def test_half_a_screen_has_the_upper_percentiles_and_all_counts() -> None:
    text = shown(STANDING, 38)
    for part in (
        "102 due",
        "99 sent",
        "12 in flight",
        "80 ok",
        "1,234 tok/s",
        "6 failed",
        "5 rate_limited",
        "1 broken",
    ):
        assert part in text
    assert "TTFT  p95  1.48 s  " in text
    assert "p50" not in text
    assert "stalled: 9 streams, up to 1.50 s" in text


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"stalled": Stalled(1, 20_700_000_000)}, "stalled: 1 stream, up to 300 ms"),
        ({"stalled": Stalled()}, "7 stalls so far"),
        ({"stalled": None, "stalls": 0}, "0 stalls"),
        ({"waiting": None}, "│ 99 sent   12 in flight"),
        ({"requests": 400, "stage": main_stage(None)}, "main  0:21, 99 of 400"),
        ({"now_ns": 61 * S}, "main  1:01, waiting for the last answers"),
        ({"end_ns": 4000 * S}, "main  0:21 of 1:00, 1:06:19 left"),
    ],
)
def test_what_is_told(change: dict[str, Any], text: str) -> None:
    assert text in shown(replace(STANDING, **change), 100)


def test_all_of_it_in_a_line() -> None:
    assert line_of(replace(STANDING, error=("chat", "broken", "reset"))) == (
        "loadgen: main  0:21 of 1:00, 0:39 left: 102 due, 99 sent, 12 in flight, 80 ok, 1,234 tok/s, 6 failed "
        "(5 rate_limited, 1 broken); TTFT p50 112 ms p95 1.48 s, ITL p50 6.00 ms p99 20.6 ms; stalled: 9 streams, "
        "up to 1.50 s; last failure: chat: broken: reset; unsettled after 30 s: ttft.p95"
    )


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([], ""),
        ([None, 0, 0], " ▁▁"),
        ([0, 1, 2, 3, 4, 5, 6, 7, 8], "▁▂▃▄▅▆▇██"),
        ([None, 100, None], " █ "),
        ([1, 1000], "▁█"),
    ],
)
def test_sparkline(values: list[float | None], line: str) -> None:
    assert sparkline(values) == line


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (None, "–"), (0, "0.00 ms"), (2_100, "0.00 ms"), (8_312_000, "8.31 ms"), (9_996_000, "10.0 ms"),
        (99_960_000, "100 ms"), (480_400_000, "480 ms"), (999_000_000, "999 ms"), (1_254_000_000, "1.25 s"),
        (61_000_000_000, "61.0 s"), (3_600_000_000_000, "3,600 s"),
    ],
)  # fmt: skip
def test_span(ns: int | None, text: str) -> None:
    assert span(ns) == text


@given(st.lists(st.text("ab", min_size=1, max_size=9), max_size=9), st.integers(1, 40))
def test_parts_flow_whole_and_in_order(texts: list[str], width: int) -> None:
    lines = ["".join(text for text, _ in line) for line in flowing([(text, "") for text in texts], width)]
    assert [part for line in lines for part in line.split("   ")] == texts
    assert all(len(line) <= width or line in texts for line in lines)
