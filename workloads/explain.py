"""What pydantic found wrong with a workload, as one line that names file, line and key."""

from collections.abc import Mapping
from typing import Any

from pydantic_core import ErrorDetails

from workloads.lengths import LAWS
from workloads.yaml_file import Document, dotted

_EXPECTED = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "string_too_short": "text",
    "string_unicode": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "too_short": "at least one entry",
    "too_long": "at most {max_length} entries",
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than_equal": "at most {le:g}",
    "literal_error": "{expected}",
    "union_tag_invalid": "one of {expected_tags}",
    "missing": "this key",
}
"""What each of pydantic's errors says was wanted."""


def explain(error: ErrorDetails, document: Document) -> str:
    """`file:line key: what is wrong` for one of pydantic's errors."""
    context = error.get("ctx", {})
    wanted = _EXPECTED.get(error["type"])
    text = context.get("text") or (f"expected {wanted.format(**context)}" if wanted else error["msg"])
    path, found = _locate((*error["loc"], *_below(error)), document.data)
    if text.startswith("expected"):
        text += f", got {_short(found)}"
    return f"{document.place(path)} {dotted(path) or 'file'}: {text}"


def _below(error: ErrorDetails) -> tuple[str, ...]:
    """The keys below the reported location that an error is really about."""
    context = error.get("ctx", {})
    if error["type"] == "union_tag_invalid":
        return (context["discriminator"].strip("'"),)
    key = context.get("key")
    return key if isinstance(key, tuple) else () if key is None else (key,)


def _locate(loc: tuple[int | str, ...], data: Any) -> tuple[tuple[int | str, ...], Any]:
    """Pydantic's location without the union members that it mixes in, and the value there (None: a missing key)."""
    path: list[int | str] = []
    for i, step in enumerate(loc):
        if (isinstance(data, Mapping) and step in data) or (
            isinstance(data, list | tuple) and isinstance(step, int) and step < len(data)
        ):
            data = data[step]  # type: ignore[index]
            path.append(step)
        elif i == len(loc) - 1 and isinstance(data, Mapping) and not _is_union_member(step):
            return (*path, step), None
    return tuple(path), data


def _is_union_member(step: int | str) -> bool:
    """Whether pydantic put this into a location to say which shape or law it tried."""
    return step in ("chat", "rag", "reasoning", "agent", *LAWS)


def _short(value: Any) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
