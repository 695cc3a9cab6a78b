"""Laws of token lengths, turn counts and pauses, and the arrays drawn from them.

A law is a key of the workload file (`{law: lognormal, mean: 60, p95: 200}`) and draws float64 arrays; `tokens` makes
whole numbers of them. The unit is the field's: tokens, turns or seconds.
"""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from workloads.fields import DURATION_SCHEMA, Count, DataFile, Number, Positive, Spec, Written, named, problem
from workloads.number_file import numbers
from workloads.units import duration_text, parse_duration

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_Z95 = 1.6448536269514722
"""The standard normal's 95th percentile."""

_LawT = TypeVar("_LawT", bound="_Random")


class Constant(Spec):
    """Always `value`."""

    law: Literal["constant"] = "constant"
    value: Annotated[Number, Field(ge=0)]
    """What every draw is."""

    def draw(self, rng: np.random.Generator, n: int) -> Floats:  # noqa: ARG002 - every law is drawn alike
        return np.full(n, self.value, dtype=np.float64)

    def expectation(self) -> float:
        return self.value


class _Random(Spec):
    """A law that varies; draws are clipped to `min` and `max` where given."""

    min: Annotated[Number, Field(ge=0)] = 0.0
    """Smaller draws become this."""
    max: Positive | None = None
    """Larger draws become this."""

    def free(self, rng: np.random.Generator, n: int) -> Floats:
        """Draws before they are clipped."""
        raise NotImplementedError

    def centre(self) -> float:
        """Mean before the clipping."""
        raise NotImplementedError

    def draw(self, rng: np.random.Generator, n: int) -> Floats:
        return np.clip(self.free(rng, n), self.min, math.inf if self.max is None else self.max)

    def expectation(self) -> float:
        if self.min == 0 and self.max is None:
            return self.centre()
        return float(self.draw(np.random.default_rng(0), 100_000).mean())

    @model_validator(mode="after")
    def _ordered(self: _LawT) -> _LawT:
        if self.max is not None and self.max < self.min:
            raise problem(f"expected max of at least min ({self.min:g})", "max")
        return self


class Uniform(_Random):
    """Evenly from `low` to `high`, both included."""

    law: Literal["uniform"] = "uniform"
    low: Annotated[Number, Field(ge=0)]
    """The least."""
    high: Annotated[Number, Field(ge=0)]
    """The most."""

    @model_validator(mode="after")
    def _low_to_high(self) -> "Uniform":
        if self.high < self.low:
            raise problem(f"expected high of at least low ({self.low:g})", "high")
        return self

    def free(self, rng: np.random.Generator, n: int) -> Floats:
        return rng.uniform(self.low, self.high, n)

    def centre(self) -> float:
        return (self.low + self.high) / 2


class Normal(_Random):
    """Normal with `mean` and `std`, negative draws taken as 0."""

    law: Literal["normal"] = "normal"
    mean: Positive
    """The average."""
    std: Annotated[Number, Field(ge=0)]
    """The standard deviation."""

    def free(self, rng: np.random.Generator, n: int) -> Floats:
        return rng.normal(self.mean, self.std, n)

    def centre(self) -> float:
        return self.mean


class LogNormal(_Random):
    """Log-normal with its own `mean` (not the logarithm's) and either its `p95` or the logarithm's `sigma`."""

    law: Literal["lognormal"] = "lognormal"
    mean: Positive
    """The average, not the logarithm's."""
    p95: Positive | None = None
    """What 95 of 100 draws stay below; at most 3.87 times the mean."""
    sigma: Annotated[Number, Field(ge=0)] | None = None
    """In place of p95: the standard deviation of the logarithm."""

    @model_validator(mode="after")
    def _one_spread(self) -> "LogNormal":
        if (self.p95 is None) == (self.sigma is None):
            raise problem("expected p95 or sigma beside mean, one of the two")
        # mean = exp(mu + s²/2) and p95 = exp(mu + z·s), so that p95 / mean = exp(z·s − s²/2) peaks at s = z.
        top = math.exp(_Z95**2 / 2)
        if self.p95 is not None and not 1 < self.p95 / self.mean <= top:
            raise problem(f"expected p95 above the mean and at most {top:.2f} times the mean ({self.mean:g})", "p95")
        return self

    @property
    def spread(self) -> float:
        """Sigma of the logarithm: as given, or the smaller root of ln(p95 / mean) = z·s − s²/2."""
        if self.p95 is None:
            return self.sigma or 0.0
        return _Z95 - math.sqrt(max(0.0, _Z95**2 - 2 * math.log(self.p95 / self.mean)))

    def free(self, rng: np.random.Generator, n: int) -> Floats:
        return rng.lognormal(math.log(self.mean) - self.spread**2 / 2, self.spread, n)

    def centre(self) -> float:
        return self.mean


class Geometric(_Random):
    """1, 2, 3 … with the same chance of stopping after each, and `mean` on average: for turns of a session."""

    law: Literal["geometric"] = "geometric"
    mean: Annotated[Number, Field(ge=1)]
    """The average."""

    def free(self, rng: np.random.Generator, n: int) -> Floats:
        return rng.geometric(1 / self.mean, n).astype(np.float64)

    def centre(self) -> float:
        return self.mean


class Zipf(_Random):
    """Whole numbers from `low` to `high` with chances in proportion to 1 / k^s: most are short, a few very long."""

    law: Literal["zipf"] = "zipf"
    s: Annotated[Number, Field(ge=0)]
    """The exponent: the larger, the rarer are long ones."""
    low: Count = 1
    """The least."""
    high: Annotated[int, Field(strict=True, ge=1, le=10_000_000)]
    """The most."""

    @model_validator(mode="after")
    def _low_to_high(self) -> "Zipf":
        if self.high < self.low:
            raise problem(f"expected high of at least low ({self.low})", "high")
        return self

    def free(self, rng: np.random.Generator, n: int) -> Floats:
        sums = _zipf_sums(self.s, self.low, self.high)
        # The last sum may round to just below 1.
        return np.minimum(self.low + np.searchsorted(sums, rng.random(n), side="right"), self.high).astype(np.float64)

    def centre(self) -> float:
        k = np.arange(self.low, self.high + 1, dtype=np.float64)
        return float((k ** (1 - self.s)).sum() / (k**-self.s).sum())


class Empirical(_Random):
    """The numbers of a file, each as likely as it is frequent there: one a line, or a column of a CSV file."""

    law: Literal["empirical"] = "empirical"
    file: DataFile
    """The file; a relative path counts from the workload file."""
    column: str | None = None
    """The column to take of a CSV file with a header; left out: one number a line."""

    @model_validator(mode="after")
    def _readable(self) -> "Empirical":
        try:
            self._values()
        except ValueError as error:
            raise problem(str(error), "file") from None
        return self

    def free(self, rng: np.random.Generator, n: int) -> Floats:
        values = self._values()
        return values[rng.integers(0, len(values), n)]

    def centre(self) -> float:
        return float(self._values().mean())

    def _values(self) -> Floats:
        return numbers(self.file, () if self.column is None else (self.column,))[:, 0]


@lru_cache(maxsize=16)
def _zipf_sums(s: float, low: int, high: int) -> Floats:
    sums = np.cumsum(np.arange(low, high + 1, dtype=np.float64) ** -s)
    return np.asarray(sums / sums[-1], dtype=np.float64)


AnyLaw = Constant | Uniform | Normal | LogNormal | Geometric | Zipf | Empirical
Law = Annotated[AnyLaw, Field(discriminator="law")]


def tokens(law: AnyLaw, rng: np.random.Generator, n: int) -> Ints:
    """`n` whole numbers of at least 1."""
    if isinstance(law, Uniform):  # rounding would halve the chance of both ends
        drawn = np.floor(law.low + rng.random(n) * (law.high - law.low + 1))
        drawn = np.clip(drawn, law.min, math.inf if law.max is None else law.max)
    else:
        drawn = np.rint(law.draw(rng, n))
    return np.maximum(1, drawn).astype(np.int64)


LAWS = ("constant", "uniform", "normal", "lognormal", "geometric", "zipf", "empirical")
_HELP = "a law such as {law: lognormal, mean: 60, p95: 200}"
_TIMES = ("value", "mean", "p95", "low", "high", "std", "min", "max")


def _named(value: Any) -> Any:
    """The mapping itself, if it says which law it is."""
    if isinstance(value, Mapping) and "law" not in value:
        raise problem(f"expected one of {', '.join(map(repr, LAWS))}", "law")
    return value


def _count_law(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value < 1:
            raise problem("expected at least 1")
        return {"law": "constant", "value": value}
    if not isinstance(value, Mapping | Spec):
        raise problem(f"expected a number or {_HELP}")
    return _named(value)


def _seconds(value: object, key: str | None = None) -> float:
    try:
        return parse_duration(value)
    except ValueError as error:
        text = f"{error} or a law such as {{law: lognormal, mean: 8s, p95: 20s}}" if key is None else str(error)
        raise problem(text, key) from None


def _time_law(value: object) -> object:
    if isinstance(value, Spec):
        return value
    if not isinstance(value, Mapping):
        return {"law": "constant", "value": _seconds(value)}
    if value.get("law") == "zipf":
        raise problem("zipf is a law of whole numbers: take lognormal for times", "law")
    return {k: _seconds(v, k) if k in _TIMES and v is not None else v for k, v in _named(value).items()}


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _count_text(law: AnyLaw) -> Any:
    if isinstance(law, Constant):
        return _whole(law.value)
    return {"law": law.law} | {k: _whole(v) for k, v in law.model_dump(exclude_defaults=True).items()}


def _time_text(law: AnyLaw) -> Any:
    if isinstance(law, Constant):
        return duration_text(law.value)
    return {k: duration_text(v) if k in _TIMES else v for k, v in _count_text(law).items()}


_TIME_LAW = {
    "type": "object",
    "properties": {
        "law": {"enum": [law for law in LAWS if law != "zipf"]},
        **{key: named("duration", DURATION_SCHEMA) for key in _TIMES},
        "sigma": {"type": "number", "minimum": 0},
        "file": {"type": "string", "description": "A file of seconds, one number a line"},
        "column": {"type": "string"},
    },
    "required": ["law"],
    "additionalProperties": False,
}

CountLaw = Annotated[
    Law,
    BeforeValidator(_count_law),
    PlainSerializer(_count_text),
    Written("lengths", lambda law: {"anyOf": [{"type": "number", "minimum": 1}, law]}),
]
"""A number or a law; whole numbers of at least 1 once drawn by `tokens`."""
TimeLaw = Annotated[
    Law,
    BeforeValidator(_time_law),
    PlainSerializer(_time_text),
    Written("times", lambda _: {"anyOf": [named("duration", DURATION_SCHEMA), _TIME_LAW]}),
]
"""A duration or a law of durations, in seconds."""
