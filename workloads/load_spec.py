"""Keys of the workload file that say when sessions come: arrivals, stages, a trace."""

import os
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from workloads.fields import Count, DataFile, Number, Positive, Rate, Seconds, Spec, problem

Above0 = Annotated[Seconds, Field(gt=0)]

_NEEDS = {
    "gamma": {"cv": "a cv such as 2"},
    "onoff": {"burst": "the length of a burst such as 10s", "pause": "the length of a pause such as 20s"},
    "sine": {"period": "a period such as 1h", "amplitude": "an amplitude of 0 to 1 such as 0.5"},
}
"""Keys that a process cannot do without, and what they are."""

_OWN = {"cv": "gamma", "burst": "onoff", "pause": "onoff", "period": "sine", "amplitude": "sine"}
"""Keys that only one process has."""


class Arrivals(Spec):
    """An open loop: sessions start when they are due, however slow the server is.

    `constant` has even gaps and `poisson` those of independent users; `gamma` has gaps with the coefficient of
    variation `cv`; `onoff` puts all arrivals into the first `burst` of every `burst` + `pause`, a Poisson process
    there; `sine` is a Poisson process whose rate goes up and down by `amplitude` times the mean over each `period`, as
    load does over a day.
    """

    process: Literal["constant", "poisson", "gamma", "onoff", "sine"] = "poisson"
    """How arrivals are spread in time."""
    rate: Rate | None = None
    """The mean rate; needed unless there are stages."""
    unit: Literal["sessions", "requests"] = "sessions"
    """What the rate counts: sessions, or the requests that they make on average."""
    cv: Positive | None = None
    """Of gamma, which needs it: standard deviation / mean of the gaps; 1 is Poisson, above it come bursts."""
    burst: Above0 | None = None  # not on and off: YAML takes those words for true and false
    """Of onoff, which needs it: how long arrivals come."""
    pause: Above0 | None = None
    """Of onoff, which needs it: how long then none comes."""
    period: Above0 | None = None
    """Of sine, which needs it: the length of one wave."""
    amplitude: Annotated[Number, Field(ge=0, le=1)] | None = None
    """Of sine, which needs it: how far the rate swings, as a share of the mean."""

    @field_validator("process", mode="before")
    @classmethod
    def _known_process(cls, value: Any) -> Any:
        if value == "trace":
            raise problem("a trace is a key of its own: trace: {file: …, format: …}")
        return value

    @model_validator(mode="after")
    def _keys_of_the_process(self) -> "Arrivals":
        for key, what in _NEEDS.get(self.process, {}).items():
            if getattr(self, key) is None:
                raise problem(f"expected {what} with process {self.process}", key)
        for key, process in _OWN.items():
            if getattr(self, key) is not None and process != self.process:
                raise problem(f"only process {process} has a key {key}: drop it", key)
        return self


class LoadStage(Spec):
    """A stretch of an open loop at one rate, or at one that goes from `from` to `to` in a straight line."""

    rate: Rate | None = None
    """The rate of all of it."""
    from_: Rate | None = Field(default=None, alias="from")
    """In place of rate, with to: the rate at its start."""
    to: Rate | None = None
    """The rate at its end."""
    duration: Above0
    """How long it lasts."""

    @model_validator(mode="after")
    def _one_kind_of_rate(self) -> "LoadStage":
        if self.rate is None and self.from_ is None and self.to is None:
            raise problem("expected a rate such as 4/s, or from and to", "rate")
        if self.rate is not None and (self.from_ is not None or self.to is not None):
            raise problem("expected either a rate, or from and to", "rate")
        for key, value in (("from", self.from_), ("to", self.to)):
            if self.rate is None and value is None:
                raise problem("expected a rate such as 4/s", key)
        return self

    def ends(self) -> tuple[float, float]:
        """The rates at the start and at the end."""
        return (self.rate or self.from_ or 0.0), (self.rate or self.to or 0.0)

    def mean_rate(self) -> float:
        return sum(self.ends()) / 2


TIMELESS = "sharegpt"
"""The one format of traces that has no times: its sessions come as arrivals or concurrency say."""


class Trace(Spec):
    """Recorded traffic to send again.

    Formats: `azure` (CSV: TIMESTAMP, ContextTokens, GeneratedTokens), `burstgpt` (CSV), `mooncake` (JSON Lines with
    hash_ids), `sharegpt` (JSON conversations without times), and our own `csv` and `jsonl`, with time_s, input_tokens,
    output_tokens and, if wanted, session and class.
    """

    file: DataFile
    """The file; a relative path counts from the workload file."""
    format: Literal["azure", "burstgpt", "mooncake", "sharegpt", "csv", "jsonl"]
    """What it is written in."""
    speed: Positive = 1
    """How much faster than recorded it is sent."""
    window: tuple[Seconds, Seconds] | None = None
    """The part that is sent, as in [0s, 10m], from the first request on and before speed; left out: all."""
    sample: Annotated[Number, Field(gt=0, le=1)] = 1
    """The share of its sessions that is kept, each whole."""
    max_input_tokens: Count | None = None
    """Requests with longer prompts are left out."""
    max_output_tokens: Count | None = None
    """Requests with longer answers are left out."""

    @property
    def has_times(self) -> bool:
        return self.format != TIMELESS

    @model_validator(mode="after")
    def _possible(self) -> "Trace":
        if not os.path.isfile(self.file):
            raise problem("expected a file that exists", "file")
        if self.window is not None and self.window[0] >= self.window[1]:
            raise problem("expected a window that ends after it starts, such as [0s, 10m]", "window")
        for key, is_set in (("speed", self.speed != 1), ("window", self.window is not None)):
            if is_set and not self.has_times:
                raise problem(f"a {self.format} trace has no times: drop this key", key)
        return self
