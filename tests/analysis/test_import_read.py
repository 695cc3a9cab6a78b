"""Which tool wrote a document, and what becomes of documents that none of them wrote."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.importers.failures import failure
from analysis.importers.imported import Imported
from analysis.importers.read import KINDS, detect, read_result
from tests.analysis.imports import DATA, changed, import_json, imported, summary_of
from tests.analysis.test_import_serving import NATIVE, VLLM

LEAST = b'{"ttfts": [1], "itls": [[]], "output_lens": [1]}'
RAISED = "Traceback (most recent call last):\n  File …\naiohttp.client_exceptions."
FILES = {
    "vllm-chat.json": "vllm",
    "vllm-completions.json": "vllm",
    "aiperf.jsonl": "aiperf",
    "guidellm.json": "guidellm",
    "sglang-native.jsonl": "sglang",
}


@pytest.mark.parametrize(("name", "kind"), FILES.items())
def test_the_tool_is_found_out_from_the_keys(name: str, kind: str) -> None:
    assert detect((DATA / name).read_bytes(), name) == kind
    assert imported(name).meta == imported(name, kind).meta


def test_text_of_an_answer_is_no_key() -> None:
    document = VLLM | {"generated_texts": ['"benchmarks": "requests": "request_start_ns": "metadata":', "", ""]}
    assert detect(json.dumps(document).encode(), "f") == "vllm"


@pytest.mark.parametrize(
    ("document", "kind", "message"),
    [
        (b"", None, "f: empty: the tool wrote no result"),
        (b" \n", "vllm", "f: empty: the tool wrote no result"),
        (b"hello", None, "f: not a detailed result of vllm, sglang, aiperf, guidellm: if it is one,"),
        (b"hello", "vllm", "f: not JSON: invalid character (byte 0)"),
        (b"[]", "vllm", "f: expected object, got array"),
        (b"{}", "vllm", "f: no ttfts: not the detailed result of this tool"),
        (b"{}", "csv", "csv: no such kind of result: expected one of vllm, sglang, aiperf, guidellm"),
        (b'{"ttfts": [1], "itls": [[', None, "f: cut short: its JSON has no end"),
        (LEAST + b"\n" + LEAST, None, "f: holds several results, one a line: keep one of them in a file of its own"),
        (b'{"mean_ttft_ms": 5}', None, "f: a summary without its requests: add --save-detailed (vLLM) or"),
        (b'{"time_to_first_token": {"avg": 5}}', None, "f: a summary without its requests: import profile"),
    ],
)  # fmt: skip
def test_what_is_no_result_is_one_line(document: bytes, kind: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=r"\A[^\n]+\Z") as caught:
        read_result(document, "f", kind)
    assert str(caught.value).startswith(message)


def test_a_result_of_another_tool_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^result\.json: a result of sglang, not of vllm: leave --kind out$"):
        import_json(NATIVE, "vllm")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("ttfts",), [], "ttfts: empty: no request was made"),
        (("itls",), [[]], "itls: 1 entries, but ttfts has 3: the lists do not belong together"),
        (("errors",), ["", ""], "errors: 2 entries, but ttfts has 3"),
        (("ttfts", 1), -0.1, "ttfts[1]: -0.1 s: expected a time from 0 to 9e+06 s"),
        (("ttfts", 1), float("nan"), "ttfts[1]: expected float, got null or NaN"),
        (("ttfts", 1), 1e300, "ttfts[1]: 1e+300 s: expected a time"),
        (("ttfts", 1), "fast", "ttfts[1]: expected float, got str"),
        (("itls", 0, 1), -1e-9, "itls[0][1]: -1e-09 s: expected a time"),
        (("itls", 1, 0), float("inf"), "itls[1][0]: expected float, got null or NaN"),
        (("start_times", 2), 1e12, "start_times[2] after the first one: 1e+12 s: expected a time"),
        (("output_lens", 0), -1, "output_lens[0]: -1: expected a number of tokens from 0 to 2147483648"),
        (("output_lens", 0), 2**40, "output_lens[0]: 1099511627776: expected a number of tokens"),
        (("output_lens", 0), 1.5, "output_lens[0]: expected int | null, got float"),
        (("duration",), -1, "duration: -1 s: expected a time"),
        (("queue_times",), [0.1], "queue_times: 1 entries, but ttfts has 3"),
        (("loadgen",), {"tokens_sources": []}, "loadgen.tokens_sources: 0 entries, but ttfts has 3"),
        (("loadgen",), {"tokens_sources": [""] * 3, "event_tokens": [[1]] * 3}, "loadgen.event_tokens[0]: expected 3"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_list_is_named(path: tuple[Any, ...], value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=r"\A[^\n]+\Z") as caught:
        import_json(changed(VLLM, *path, to=value))
    assert str(caught.value).startswith(f"result.json: {message}")


@settings(deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_are_a_run_or_one_line(document: bytes) -> None:
    for kind in (None, *KINDS):
        with pytest.raises(ValueError, match=r"\A[^\n]+\Z"):
            read_result(document, "f", kind)


NUMBER = st.floats(0, 1e3) | st.sampled_from([-1.0, 1e308])


@st.composite
def any_lists(draw: Any) -> dict[str, Any]:
    """Results that are mostly whole, with the mistakes that make them none."""
    count = draw(st.integers(0, 4))
    size = st.just(count) | st.integers(0, 4)
    of = lambda each: draw(st.lists(each, min_size=(n := draw(size)), max_size=n))  # noqa: E731
    return {
        "backend": draw(st.sampled_from(["vllm", "sglang", None])),
        "ttfts": of(NUMBER),
        "itls": of(st.lists(NUMBER | st.just(0.02), max_size=4)),
        "output_lens": of(st.none() | st.integers(-1, 9)),
        "errors": of(st.sampled_from(["", "Not Found", "Traceback\nOSError: gone"])),
    }


@settings(deadline=None, max_examples=60)
@given(any_lists(), st.sampled_from(["vllm", "sglang"]))
def test_any_lists_are_a_run_that_can_be_counted_or_one_line(lists: dict[str, Any], kind: str) -> None:
    if kind == "sglang":
        lists |= {"sharegpt_output_len": None}
    found: Imported | str
    try:
        found = import_json(lists, kind)
    except ValueError as problem:
        found = str(problem)
    if isinstance(found, str):
        assert "\n" not in found
    else:
        assert summary_of(found)["requests"]["planned"] == len(lists["ttfts"])


@pytest.mark.parametrize(
    ("text", "code", "outcome", "status"),
    [
        ("Too Many Requests", None, "rate_limited", 429),
        ("Internal Server Error: {...}", None, "http_error", 500),
        ("I'm a teapot", None, "http_error", None),
        ("Client error '404 Not Found' for url 'http://x'", None, "http_error", 404),
        (RAISED + "ClientConnectorDNSError: Cannot connect to host h:443: Name", None, "connect_failed", None),
        (RAISED + "X: Cannot connect to host h:443 ssl:default [Connect call failed]", None, "connect_failed", None),
        (RAISED + "ClientConnectorSSLError: Cannot connect to host h:443 ssl:default [x]", None, "tls_failed", None),
        ("the engine cancelled the request", None, "http_error", None),
        ("anything", 503, "http_error", 503),
        (RAISED + "ServerDisconnectedError: Server disconnected", None, "broken", None),
        (RAISED + "ClientConnectorError: Cannot connect to host", None, "connect_failed", None),
        (RAISED + "ClientConnectorCertificateError: x", None, "tls_failed", None),
        (RAISED + "TimeoutError", None, "timeout_total", None),
        (RAISED + "KeyError: 'choices'", None, "broken", None),
        ("Never received a valid chunk to calculate TTFT.This response will be marked as failed!", None, "empty", None),
        ("json.decoder.JSONDecodeError: Expecting value", None, "malformed", None),
        ("httpx.ConnectTimeout", None, "timeout_connect", None),
        ("timeout_idle", None, "timeout_idle", None),
        ("http_error 418: no coffee", None, "http_error", 418),
        ("", None, "http_error", None),
    ],
)  # fmt: skip
def test_what_a_failure_was(text: str, code: int | None, outcome: str, status: int | None) -> None:
    found = failure(text, code)
    assert (found.outcome, found.status) == (outcome, status)
    assert found.message is None or "\n" not in found.message
