"""Rows of recorded traffic, as public traces write them. Files are read in a stream and never held whole."""

import csv
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from io import TextIOBase
from pathlib import Path
from typing import Any

from workloads.yaml_file import WorkloadError

LINES_SHOWN = 3


@dataclass
class TraceReport:
    """What became of a trace.

    Attributes:
        rows: Rows, or conversations, that were read; reading stops at the end of the window and of the run.
        used: Those that the plan has.
        turns: Requests in those.
        to_the_end: Whether the run goes on to the end of the file.
        reordered: Rows a little out of order, put right.
        dropped: Odd ones: why, how many, and the lines of the first few. What is neither used nor dropped was not asked
            for: outside the window, the run or the sample.
    """

    rows: int = 0
    used: int = 0
    turns: int = 0
    reordered: int = 0
    to_the_end: bool = False
    dropped: dict[str, tuple[int, list[int]]] = field(default_factory=dict)

    def drop(self, reason: str, line: int) -> None:
        count, lines = self.dropped.get(reason, (0, []))
        self.dropped[reason] = (count + 1, [*lines, line][:LINES_SHOWN])

    @property
    def n_dropped(self) -> int:
        return sum(count for count, _ in self.dropped.values())


class OddRow(ValueError):  # noqa: N818 - it is about the row, and never leaves this package
    """A row that cannot be used; the text says why, and counts as the reason."""


@dataclass(frozen=True, slots=True)
class Row:
    """One recorded request: `time_ns` on the trace's own clock, the whole prompt's length, and the answer's.

    `blocks` are the hashes of the prompt's blocks of 512 tokens: the same hash is the same text.
    """

    line: int
    time_ns: int
    input_tokens: int
    output_tokens: int
    session: str | None = None
    class_name: str | None = None
    blocks: tuple[int, ...] = ()


Fields = Mapping[str, Any]


def timed_rows(path: str, format_: str, report: TraceReport) -> Iterator[Row]:
    """The usable rows of a trace with times, as they stand in the file."""
    records, read = _TIMED[format_]
    with _opened(path) as file:
        for line, fields in records(file, path, report):
            try:
                yield read(line, fields)
            except OddRow as odd:
                report.drop(str(odd), line)


Conversation = tuple[tuple[int, int], ...]
"""New input tokens and output tokens of each turn."""


def conversations(path: str, report: TraceReport) -> Iterator[tuple[int, Conversation]]:
    """(line, turns) of each usable conversation of a ShareGPT file; a word counts as a token."""
    with _opened(path) as file:
        for line, value in _json_values(file, report):
            report.rows += 1
            try:
                yield line, _conversation(value)
            except OddRow as odd:
                report.drop(str(odd), line)


def _opened(path: str) -> TextIOBase:
    try:
        # Bytes that are no text make odd rows, not a failure of the whole file.
        return Path(path).open(encoding="utf-8-sig", errors="replace", newline="")
    except OSError as error:
        raise WorkloadError(f"{path}: cannot be read: {error.strerror or error}") from None


# Records of a file: CSV with a header, JSON Lines, one JSON array.


def _csv_records(*columns: str) -> Callable[[TextIOBase, str, TraceReport], Iterator[tuple[int, Fields]]]:
    """A reader of CSV files that must have these columns; names are taken in any case."""

    def records(file: TextIOBase, path: str, report: TraceReport) -> Iterator[tuple[int, Fields]]:
        reader = csv.reader(file)
        names = [name.strip().casefold() for name in next(reader, [])]
        for column in columns:
            if column.casefold() not in names:
                raise WorkloadError(f"{path}:1: no column {column!r}; its columns are: {', '.join(names)[:200]}")
        while True:
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error:
                report.rows += 1
                report.drop("not valid CSV", reader.line_num)
                continue
            if cells:
                report.rows += 1
                if len(cells) != len(names):
                    report.drop(f"other than {len(names)} columns", reader.line_num)
                else:
                    yield reader.line_num, dict(zip(names, cells, strict=True))

    return records


def _json_lines(file: TextIOBase, path: str, report: TraceReport) -> Iterator[tuple[int, Fields]]:  # noqa: ARG001
    for line, text in enumerate(file, 1):
        if not text.strip():
            continue
        report.rows += 1
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            yield line, value
        else:
            report.drop("not a JSON object", line)


CHUNK = 1 << 18
MAX_VALUE_CHARS = 64 << 20
_BETWEEN = re.compile(r"[\s,\[\]]*")


def _json_values(file: TextIOBase, report: TraceReport) -> Iterator[tuple[int, Any]]:
    """Each element of a JSON array, or each value of a file of many, with its line; one at a time in memory."""
    text, at, line, chunk = "", 0, 1, CHUNK
    while True:
        start = _end_of(_BETWEEN, text, at)
        line += text.count("\n", at, start)
        at = start
        value, end = _decoded(text, at)
        if end is not None:
            yield line, value
            line += text.count("\n", at, end)
            at, chunk = end, CHUNK
            continue
        more = file.read(chunk) if len(text) - at < MAX_VALUE_CHARS else ""
        if not more:
            break
        text, at = text[at:] + more, 0
        chunk *= 2  # so that a long value is not tried again and again
    if at < len(text):
        report.rows += 1
        report.drop("not valid JSON from here on", line)


def _end_of(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return at if match is None else match.end()


def _decoded(text: str, at: int) -> tuple[Any, int | None]:
    """The JSON value that begins at `at` and where it ends; None where it does not end yet, or is none."""
    try:
        return json.JSONDecoder().raw_decode(text, at) if at < len(text) else (None, None)
    except (ValueError, RecursionError):
        return None, None


# Fields of a record.


MAX_TOKENS = 10_000_000


def _whole(value: Any, what: str) -> int:
    """A whole number of at least 1, from JSON or text."""
    try:
        number = float("nan" if isinstance(value, bool) else value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (math.isfinite(number) and number.is_integer()):
        raise OddRow(f"{what} that are no whole number")
    if number < 1:
        raise OddRow(f"negative {what}" if number < 0 else f"no {what}")
    if number > MAX_TOKENS:
        raise OddRow(f"more than {MAX_TOKENS:,} {what}")
    return int(number)


def _seconds_ns(value: Any, unit_ns: int = 1_000_000_000) -> int:
    try:
        number = float("nan" if isinstance(value, bool) else value) * unit_ns
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or abs(number) > 2**62:
        raise OddRow("a time that is no number")
    if number < 0:
        raise OddRow("a negative time")
    return round(number)


_INSTANT = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?\s*(Z|[+-]\d\d:?\d\d)?")


def _instant_ns(text: str) -> int:
    """`2023-11-16 18:15:46.6805900` or `2024-05-10 00:00:00.009930+00:00`; without a zone, UTC."""
    match = _INSTANT.fullmatch(text.strip())
    try:
        moment = datetime.fromisoformat(f"{match[1]}{match[3] or 'Z'}") if match else None
    except ValueError:
        moment = None
    if match is None or moment is None:
        raise OddRow("a time that is no date and time")
    return int(moment.timestamp()) * 1_000_000_000 + int((match[2] or "0").ljust(9, "0"))


def _some(value: Any) -> str | None:
    text = "" if value is None else str(value).strip()
    return text or None


# The formats.


def _azure(line: int, row: Fields) -> Row:
    inputs, outputs = _whole(row["contexttokens"], "input tokens"), _whole(row["generatedtokens"], "output tokens")
    return Row(line, _instant_ns(row["timestamp"]), inputs, outputs)


def _burstgpt(line: int, row: Fields) -> Row:
    if row["response tokens"].strip() == "0":
        raise OddRow("a request that failed (0 response tokens)")
    inputs, outputs = _whole(row["request tokens"], "input tokens"), _whole(row["response tokens"], "output tokens")
    return Row(line, _seconds_ns(row["timestamp"]), inputs, outputs, _some(row.get("session id")))


BLOCK_TOKENS = 512


def _mooncake(line: int, row: Fields) -> Row:
    inputs, outputs = _whole(row.get("input_length"), "input tokens"), _whole(row.get("output_length"), "output tokens")
    blocks = row.get("hash_ids") or []
    if not isinstance(blocks, list) or not all(type(block) is int and block >= 0 for block in blocks):
        raise OddRow("hash_ids that are no list of whole numbers")
    return Row(line, _seconds_ns(row.get("timestamp"), 1_000_000), inputs, outputs, blocks=tuple(blocks))


def _ours(line: int, row: Fields) -> Row:
    inputs, outputs = _whole(row.get("input_tokens"), "input tokens"), _whole(row.get("output_tokens"), "output tokens")
    return Row(
        line, _seconds_ns(row.get("time_s")), inputs, outputs, _some(row.get("session")), _some(row.get("class"))
    )


_TIMED: dict[str, tuple[Callable[..., Iterator[tuple[int, Fields]]], Callable[[int, Fields], Row]]] = {
    "azure": (_csv_records("TIMESTAMP", "ContextTokens", "GeneratedTokens"), _azure),
    "burstgpt": (_csv_records("Timestamp", "Request tokens", "Response tokens"), _burstgpt),
    "mooncake": (_json_lines, _mooncake),
    "csv": (_csv_records("time_s", "input_tokens", "output_tokens"), _ours),
    "jsonl": (_json_lines, _ours),
}

_USER = ("human", "user")
_MODEL = ("gpt", "chatgpt", "assistant", "bing", "bard", "model")


def _conversation(value: Any) -> Conversation:
    """What is said before each answer, and the answer; leading answers and a last unanswered question are left out."""
    said = value.get("conversations") if isinstance(value, dict) else None
    if not isinstance(said, list):
        raise OddRow("no list of conversations")
    turns: list[tuple[int, int]] = []
    asked = answered = 0
    for message in said:
        who, n_words = _message(message)
        if who in _MODEL:
            answered += n_words if asked else 0
            continue
        if answered:
            turns.append((asked, answered))
            asked = answered = 0
        asked += n_words
    if asked and answered:
        turns.append((asked, answered))
    if not turns:
        raise OddRow("no answered question")
    return tuple(turns)


def _message(message: Any) -> tuple[str, int]:
    """Who speaks, and how many words."""
    if not isinstance(message, dict) or not isinstance(text := message.get("value"), str):
        raise OddRow("a message that has no text")
    who = str(message.get("from")).casefold()
    if who not in (*_USER, *_MODEL, "system"):
        raise OddRow("a message of an unknown speaker")
    n_words = len(text.split())
    if not n_words and who != "system":
        raise OddRow("an empty turn")
    return who, n_words
