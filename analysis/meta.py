"""What run.json may say: the type of each field that this package reads, checked once where it is read.

Whatever else it holds is kept, and not looked at. A field may be missing or null unless it says otherwise here. Texts
of strangers, in tables too, are made such that a terminal can show them, so that no format has to.
"""

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
from msgspec import Meta, Struct, ValidationError, convert

from analysis.columns import ARROW
from analysis.units import seconds, share

_LONGEST_S = 1e9
_DEEPEST = 64  # far above what a workload needs, far below what recursion takes

Instant = Annotated[int, Meta(ge=0, le=2**60)]
"""Nanoseconds of a run's timeline; several runs put one behind the other stay below 2**63."""
Count = Annotated[int, Meta(ge=0, le=2**53)]
Quantity = str | float
LimitText = Annotated[str, Meta(max_length=200)]  # a number of hundreds of digits would be infinite


class Stage(Struct):
    """A part of the load."""

    name: str
    start_ns: Instant | None = None
    end_ns: Instant | None = None
    measured: bool = True
    offered_rps: Annotated[float, Meta(ge=0)] | None = None

    def __post_init__(self) -> None:
        if self.end_ns is not None and self.end_ns < (self.start_ns or 0):
            raise ValueError(".end_ns: expected no instant before start_ns")


class Stall(Struct):
    """What counts as a stall."""

    floor: Quantity | None = None
    factor: Annotated[float, Meta(ge=0, le=1e9)] | None = None

    def __post_init__(self) -> None:
        _check_durations(floor=self.floor or 0)


class Fluidity(Struct):
    """Deadlines of tokens."""

    ttft: Quantity = 1.0
    tbt: Quantity = 0.1
    at_least: Quantity | None = None

    def __post_init__(self) -> None:
        _check_durations(ttft=self.ttft, tbt=self.tbt)
        try:
            share(self.at_least or 0)
        except ValueError as problem:
            raise ValueError(f".at_least: {problem}") from None


class Workload(Struct):
    """The workload as it was resolved; what follows `good` is of an experiment (see `analysis.interfere`)."""

    name: str | None = None
    concurrency: Count | None = None
    classes: dict[str, Any] | None = None
    slo: dict[str, list[LimitText]] | None = None
    stall: Stall | None = None
    fluidity: Fluidity | None = None
    good: dict[str, Quantity] | None = None
    streams: Count | None = None
    lengths: list[Count] | None = None
    repeats: Count | None = None
    rest_s: float | None = None
    max_freeze_s: float | None = None
    notes: list[str] | None = None

    def __post_init__(self) -> None:
        _check_durations(**{f"good.{name}": value for name, value in (self.good or {}).items()})


class Clock(Struct):
    """Where the timeline lies on the wall clock."""

    epoch_ns_at_start: Annotated[int, Meta(ge=0, le=2**62)] | None = None
    stepped_ns: Annotated[int, Meta(ge=-(2**62), le=2**62)] | None = None


class Warned(Struct):
    """A doubt that was told when the run was made."""

    code: str
    text: str


class Gate(Struct):
    """The rules by which the run is judged."""

    max_errors: Annotated[float, Meta(ge=0, le=1)] | None = None
    strict_point: bool | None = None
    allow_e2e: bool | None = None


class Limits(Struct):
    """What a request was allowed."""

    max_in_flight: Count | None = None


class Looks(Struct):
    """When a run that goes on until a verdict is looked at."""

    ends_ns: list[Instant]
    taken: Count | None = None


class Imported(Struct):
    """The tool that measured the run, where that was another."""

    kind: str
    file: str | None = None
    tool_version: str | None = None


class Description(Struct):
    """run.json."""

    format_version: int
    id: str | None = None
    name: str | None = None
    workload: Workload | None = None
    target: str | None = None
    engine: str | None = None
    model: str | None = None
    endpoint: str | None = None
    transport: str | None = None
    ignore_eos: bool | None = None
    seed: int | None = None
    loop: str | None = None
    stages: list[Stage] | None = None
    clock: Clock | None = None
    timestamp_source: str | None = None
    started_at: str | None = None
    duration_s: float | None = None
    host: dict[str, Any] | None = None
    versions: dict[str, Any] | None = None
    workers: Count | None = None
    limits: Limits | None = None
    gate: Gate | None = None
    looks: Looks | None = None
    keep_events: Literal["all", "stalls", "none"] = "all"
    complete: bool = True
    interrupted_by: str | None = None
    warnings: list[Warned] | None = None
    undefined: dict[str, str] | None = None
    imported: Imported | None = None
    pooled: None = None  # runs are put together in memory only


def check(meta: Mapping[str, Any]) -> None:
    """ValueError, naming the field and what was expected there, unless every field has its type."""
    try:
        convert(meta, Description, strict=True)
    except ValidationError as problem:
        raise ValueError(_told(str(problem))) from None


def plain(value: Any, where: str = "", depth: int = 0) -> Any:
    """A JSON value with `plain_text` for its texts. ValueError, naming the field, for a number that is not finite."""
    if isinstance(value, str):
        return plain_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where or 'it'}: expected a finite number")
    if not isinstance(value, dict | list):
        return value
    if depth >= _DEEPEST:
        raise ValueError(f"{where[:40]}…: nested deeper than {_DEEPEST} levels")
    if isinstance(value, list):
        return [plain(each, f"{where}[{i}]", depth + 1) for i, each in enumerate(value)]
    named = ((plain_text(key), each) for key, each in value.items())
    return {key: plain(each, f"{where}.{key}" if where else key, depth + 1) for key, each in named}


_BREAKS = re.compile(r"[\t-\r\u2028\u2029]")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def plain_text(text: str) -> str:
    """A text that a terminal can show: it breaks no line, moves no cursor, turns no writing around, and is Unicode."""
    return _CONTROLS.sub("\ufffd", _BREAKS.sub(" ", text))


def plain_table(table: pa.Table) -> pa.Table:
    """With `plain_text` for the words that are told of requests; the text of an answer stays as it came."""
    for at, name in enumerate(table.column_names):
        kind = table[name].type
        if name == "text" or kind not in (pa.string(), ARROW["category"]):
            continue
        chunks = table[name].chunks
        if any(map(_may_hold_controls, chunks)):
            table = table.set_column(at, name, pa.chunked_array(map(_plain_words, chunks), kind))
    return table


def _may_hold_controls(words: pa.Array) -> bool:
    """By the bytes, of which plain ASCII has none out of bounds: to look at each of a million names takes long."""
    texts = words.dictionary if isinstance(words, pa.DictionaryArray) else words
    data = np.frombuffer(texts.buffers()[2] or b"", dtype=np.uint8)
    return len(data) > 0 and bool(data.min() < 0x20 or data.max() >= 0x7F)


def _plain_words(words: pa.Array) -> pa.Array:
    if isinstance(words, pa.DictionaryArray):
        return pa.DictionaryArray.from_arrays(words.indices, _plain_words(words.dictionary))
    return pa.array([each and plain_text(each) for each in words.to_pylist()], pa.string())


def _check_durations(**quantities: Quantity) -> None:
    """ValueError that begins with the field, as those do which `_told` puts behind the path of the whole."""
    for name, value in quantities.items():
        try:
            found_s = seconds(value)
        except ValueError as problem:
            raise ValueError(f".{name}: {problem}") from None
        if not 0 <= found_s <= _LONGEST_S:
            raise ValueError(f".{name}: expected a duration from 0 to {_LONGEST_S:.0e} s")


_TYPES = {"str": "a text", "int": "a whole number", "float": "a number", "bool": "true or false", "array": "a list",
          "object": "a mapping", "null": "nothing"}  # fmt: skip


def _told(problem: str) -> str:
    """In the words of this package: `stages[0].offered_rps: expected a number`."""
    what, _, path = problem.partition(" - at `$")
    what = re.sub(r", got `\w+`$", "", what).replace("Object missing required field", "no field")
    what = re.sub(r"`([\w |]+)`", lambda found: _type(found[1]), what.replace("enum value", "value"))
    where = path.rstrip("`").lstrip(".")
    if what.startswith("."):
        return f"{where}{what}"
    return f"{where or 'it'}: {what[:1].lower()}{what[1:]}"


def _type(names: str) -> str:
    known = names.split(" | ")
    return " or ".join(_TYPES.get(each, repr(each)) for each in known if each != "null" or known == ["null"])
