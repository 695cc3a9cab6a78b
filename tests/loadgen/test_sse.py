from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.sse import EventTooLargeError, SseParser

CASES = {
    "plain": (b"data: a\n\n", [(b"", b"a")]),
    "no space": (b"data:a\n\n", [(b"", b"a")]),
    "only one space goes": (b"data:  a\n\n", [(b"", b" a")]),
    "crlf": (b"data: a\r\n\r\n", [(b"", b"a")]),
    "cr": (b"data: a\r\rdata: b\r\r", [(b"", b"a"), (b"", b"b")]),
    "mixed": (b"data: a\r\n\ndata: b\n\r\ndata: c\r\r\n", [(b"", b"a"), (b"", b"b"), (b"", b"c")]),
    "several lines": (b"data: {\ndata: }\n\n", [(b"", b"{\n}")]),
    "named": (b"event: error\ndata: a\n\ndata: b\n\n", [(b"error", b"a"), (b"", b"b")]),
    "comments": (b": ping\n\n:\n\ndata: a\n\n", [(b"", b"a")]),
    "other fields": (b"id: 1\nretry: 10\nfoo: x\nnocolon\ndata: a\n\n", [(b"", b"a")]),
    "data without colon": (b"data\n\n", [(b"", b"")]),
    "a name without data is no event": (b"event: x\n\ndata: a\n\n", [(b"", b"a")]),
    "two blank lines": (b"\n\ndata: a\n\n\n\n", [(b"", b"a")]),
    "byte order mark": (b"\xef\xbb\xbfdata: a\n\n", [(b"", b"a")]),
    "colon in the data": (b'data: {"a": 1}\n\n', [(b"", b'{"a": 1}')]),
    "two in one read": (b"data: a\n\ndata: b\n\n", [(b"", b"a"), (b"", b"b")]),
    "cut before the blank line": (b"data: a\n", []),
}


@pytest.mark.parametrize("case", CASES)
def test_whole_streams(case: str) -> None:
    stream, events = CASES[case]
    assert SseParser().feed(stream) == events


@pytest.mark.parametrize("case", CASES)
def test_one_byte_at_a_time(case: str) -> None:
    stream, events = CASES[case]
    parser = SseParser()
    assert [event for byte in stream for event in parser.feed(bytes([byte]))] == events


def test_cr_completes_the_event_before_its_line_feed_comes() -> None:
    parser = SseParser()
    assert parser.feed(b"data: a\r\n\r") == [(b"", b"a")]
    assert parser.feed(b"\ndata: b\n\n") == [(b"", b"b")]


def test_close_takes_an_event_without_its_blank_line() -> None:
    parser = SseParser()
    assert parser.feed(b"data: [DONE]") == []
    assert parser.close() == [(b"", b"[DONE]")]
    assert parser.close() == []


def test_a_line_and_an_event_without_end_are_cut() -> None:
    with pytest.raises(EventTooLargeError):
        SseParser(max_event_bytes=100).feed(b"data: " + b"x" * 100)
    parser = SseParser(max_event_bytes=1000)
    assert parser.feed(b"data: 123456789\n" * 10) == []
    with pytest.raises(EventTooLargeError):
        parser.feed(b"data: 123456789\n" * 10)
    with pytest.raises(EventTooLargeError):  # each takes memory, if it says nothing
        SseParser(max_event_bytes=1000).feed(b"data\n" * 1000)


LINES = st.sampled_from(
    [b"data: {}", b"data:", b"event: error", b": c", b"", b"", b"data: \xc3\xa9\xf0\x9f\x98\x80", b"id"]
)
ENDS = st.sampled_from([b"\n", b"\r", b"\r\n"])


@given(st.lists(st.tuples(LINES, ENDS), max_size=30), st.lists(st.integers(0, 400)))
def test_any_split_gives_the_same_events(lines: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    stream = b"".join(line + end for line, end in lines)
    marks = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    whole, pieces = SseParser(), SseParser()
    expected = whole.feed(stream) + whole.close()
    got = [event for low, high in pairwise(marks) for event in pieces.feed(stream[low:high])]
    assert got + pieces.close() == expected
