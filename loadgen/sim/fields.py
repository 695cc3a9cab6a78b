"""Typed reads of a request's body and headers. Each raises ApiError where there is something else than expected."""

from collections.abc import Mapping
from typing import Any

from loadgen.sim.errors import ApiError


def count(body: Mapping[str, Any], name: str, least: int = 1, most: int | None = None) -> int | None:
    """None where the field is absent or null."""
    value = body.get(name)
    if value is None:
        return None
    if type(value) is not int or value < least or (most is not None and value > most):
        upto = "" if most is None else f" and at most {most}"
        raise ApiError(400, f"{name} must be an integer of at least {least}{upto}, got {value!r}", name)
    return value


def mapping(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ApiError(400, f"{name} must be an object", name)
    return value


def texts(body: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """One text or a list of texts; empty ones are left out."""
    value = body.get(name)
    values = [value] if isinstance(value, str) else value or []
    if not isinstance(values, list) or not all(isinstance(text, str) for text in values):
        raise ApiError(400, f"{name} must be a string or a list of strings", name)
    return tuple(text for text in values if text)


def number_header(headers: Mapping[str, str], name: str, most: int = 2**63) -> int | None:
    value = headers.get(name)
    if value is None:
        return None
    if not (value.isascii() and value.isdecimal() and len(value) < 19 and int(value) <= most):
        raise ApiError(400, f"the header {name} must be a number up to {most}, got {value!r}")
    return int(value)
