"""The kinds of value a workload file may hold, each with the text that says what was expected."""

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator
from pydantic_core import PydanticCustomError

from workloads.units import duration_text, parse_duration, parse_rate, rate_text


def nearest(word: object, known: Iterable[str]) -> str | None:
    """The known word that was most likely meant, if any is close."""
    return next(iter(get_close_matches(str(word), list(known), n=1, cutoff=0.6)), None)


def problem(text: str, key: object = None) -> PydanticCustomError:
    """An error at `key` below the value being validated, or at the value itself."""
    return PydanticCustomError("problem", "{text}", {"text": text, "key": key})


def unknown(what: str, word: object, known: Iterable[str]) -> str:
    """'unknown key 'x', did you mean 'y'? (expected one of …)'."""
    close = nearest(word, known)
    hint = f", did you mean {close!r}?" if close else ";"
    return f"unknown {what} {str(word)!r}{hint} expected one of: {', '.join(known)}"


def reading(parse: Callable[[object], float]) -> Callable[[object], float]:
    """`parse` as a validator that leaves numbers alone once they have been read."""

    def validate(value: object) -> float:
        try:
            return parse(value)
        except ValueError as error:
            raise problem(str(error)) from None

    return validate


class Spec(BaseModel):
    """A mapping of the workload file. Unknown keys are errors that name the nearest known one."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _only_known_keys(cls, data: Any) -> Any:
        if isinstance(data, cls):
            return data
        if not isinstance(data, Mapping):
            raise problem("expected a mapping")
        for key in data:
            if key not in cls.model_fields:
                raise problem(unknown("key", key, cls.model_fields), key)
        return data


Seconds = Annotated[float, BeforeValidator(reading(parse_duration)), PlainSerializer(duration_text)]
Rate = Annotated[float, BeforeValidator(reading(parse_rate)), PlainSerializer(rate_text)]
Number = Annotated[float, Field(strict=True)]
Positive = Annotated[float, Field(strict=True, gt=0)]
Count = Annotated[int, Field(strict=True, ge=1)]
Size = Annotated[int, Field(strict=True, ge=0)]
