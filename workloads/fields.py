"""The kinds of value a workload file may hold, each with the text that says what was expected."""

import os
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainSerializer,
    ValidationInfo,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from workloads.units import DURATION, RATE, duration_text, parse_duration, parse_rate, rate_text


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

    # The text below each key is its description in the schema and in docs/workloads.md.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _only_known_keys(cls, data: Any) -> Any:
        if isinstance(data, cls):
            return data
        if not isinstance(data, Mapping):
            raise problem("expected a mapping")
        known = [field.alias or name for name, field in cls.model_fields.items()]
        for key in data:
            if key not in known:
                raise problem(unknown("key", key, known), key)
        return data


def named(name: str, schema: JsonSchemaValue) -> JsonSchemaValue:
    """A schema that is to stand among the definitions; what a key adds to it (a default, a text) stays with the key."""
    return {"$comment": {"name": name, "schema": deepcopy(schema)}}


@dataclass(frozen=True)
class Written:
    """What a value looks like in the file, as JSON Schema made of that of the value once read.

    `workloads.init_text` puts the schema among the definitions, under `name`.
    """

    name: str
    schema: Callable[[JsonSchemaValue], JsonSchemaValue]

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return named(self.name, self.schema(handler(core)))


def _beside_the_workload(value: Any, info: ValidationInfo) -> Any:
    """A relative path from the folder of the workload file, if there is such a file, else from where we are."""
    folder = (info.context or {}).get("folder")
    # os.path: unlike Path, it takes names that cannot be for files that are not there.
    if isinstance(value, str) and folder is not None and os.path.isfile(Path(folder) / value):
        return str(Path(folder) / value)
    return value


DURATION_SCHEMA: JsonSchemaValue = {
    "description": "A duration such as 250ms, 10s, 5m or 1h",
    "anyOf": [{"type": "string", "pattern": rf"^\s*{DURATION}\s*$"}, {"const": 0}],
}
_RATE_SCHEMA: JsonSchemaValue = {
    "description": "A rate such as 4/s, 90/m or 100/h; a number counts per second",
    "anyOf": [{"type": "string", "pattern": rf"^\s*{RATE}\s*$"}, {"type": "number", "exclusiveMinimum": 0}],
}

Seconds = Annotated[
    float,
    BeforeValidator(reading(parse_duration)),
    PlainSerializer(duration_text),
    Written("duration", lambda _: DURATION_SCHEMA),
]
Rate = Annotated[
    float, BeforeValidator(reading(parse_rate)), PlainSerializer(rate_text), Written("rate", lambda _: _RATE_SCHEMA)
]
DataFile = Annotated[str, Field(min_length=1), BeforeValidator(_beside_the_workload)]
Number = Annotated[float, Field(strict=True)]
Positive = Annotated[float, Field(strict=True, gt=0)]
Count = Annotated[int, Field(strict=True, ge=1)]
Size = Annotated[int, Field(strict=True, ge=0)]
