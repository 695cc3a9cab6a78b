"""Records as no server would ever make them, for properties that hold whatever was measured."""

from typing import Any

from hypothesis import strategies as st

from analysis.record import OUTCOMES, RequestRecord

INT = st.none() | st.integers(0, 2**53)
EVENT = st.tuples(st.integers(0, 2**50), st.integers(-1, 9), st.integers(0, 3), st.integers(0, 99), st.integers(0, 99))


@st.composite
def any_records(draw: Any) -> list[RequestRecord]:
    return [draw(one_record(f"r{position}")) for position in range(draw(st.integers(0, 6)))]


@st.composite
def one_record(draw: Any, name: str) -> RequestRecord:
    result = RequestRecord(
        name,
        class_name=draw(st.sampled_from(["chat", "ärger 🙂", ""])),
        stage=draw(st.sampled_from(["warmup", "main"])),
        outcome=draw(st.sampled_from(OUTCOMES)),
        error=draw(st.none() | st.text(max_size=20).filter(lambda text: "\ud800" not in text)),
        status=draw(st.none() | st.integers(100, 599)),
        connect_s=draw(st.none() | st.floats(0, 100)),
        reused_connection=draw(st.none() | st.booleans()),
        **{key: draw(INT) for key in ("due_ns", "sent_ns", "end_ns", "completion_tokens", "prompt_tokens")},
    )
    for event in sorted(draw(st.lists(EVENT, max_size=5))):
        for column, value in zip(("arrival_ns", "n_tokens", "kind", "chars", "read_id"), event, strict=True):
            getattr(result, column).append(value)
    return result
