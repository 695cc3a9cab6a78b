"""The workload file: what its keys are, what they default to, and what each must hold."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from workloads.fields import Count, Number, Positive, Rate, Seconds, Size, Spec, nearest, problem, unknown
from workloads.lengths import LAWS, Constant, CountLaw, TimeLaw
from workloads.yaml_file import Document, WorkloadError, dotted, override, parse, read_text

__all__ = ["Arrivals", "Class", "Workload", "WorkloadError", "library", "load_workload"]

LIBRARY = Path(__file__).parent / "library"


class Arrivals(Spec):
    """An open loop's arrivals. `unit` says what the rate counts: sessions, or the requests they make on average."""

    process: Literal["constant", "poisson", "gamma"] = "poisson"
    rate: Rate | None = None
    unit: Literal["sessions", "requests"] = "sessions"
    cv: Positive | None = None

    @field_validator("process", mode="before")
    @classmethod
    def _known_process(cls, value: Any) -> Any:
        if value in ("onoff", "sine", "trace"):
            raise problem(f"not supported yet: arrival process {value} (use constant, poisson or gamma)")
        return value

    @model_validator(mode="after")
    def _cv_of_gamma(self) -> "Arrivals":
        if self.process == "gamma" and self.cv is None:
            raise problem("expected a cv such as 2 with process gamma", "cv")
        if self.process != "gamma" and self.cv is not None:
            raise problem("only process gamma has a cv: drop this key", "cv")
        return self


class LoadStage(Spec):
    """A stretch of an open loop at one rate."""

    rate: Rate
    duration: Annotated[Seconds, Field(gt=0)]


class Popularity(Spec):
    """How often each document of the pool is asked for: evenly, or in proportion to 1 / rank^s."""

    law: Literal["uniform", "zipf"] = "zipf"
    s: Annotated[Number, Field(ge=0)] = 1.0


class Documents(Spec):
    """A pool of `count` fixed documents of which each request retrieves `top_k` different ones."""

    count: Count = 500
    tokens: CountLaw = Constant(value=500)
    top_k: Count = 4
    popularity: Popularity = Popularity()
    order: Literal["shuffled", "ranked"] = "shuffled"

    @model_validator(mode="after")
    def _enough(self) -> "Documents":
        if self.top_k > self.count:
            raise problem(f"expected top_k of at most count ({self.count})", "top_k")
        return self


class Parallel(Spec):
    """With this probability, a step of an agent is `width` calls at once."""

    probability: Annotated[Number, Field(ge=0, le=1)] = 0.0
    width: Annotated[int, Field(strict=True, ge=2)] = 2


class _Class(Spec):
    """What the shapes of traffic have in common. `weight` is the class's share of sessions."""

    weight: Positive = 1
    input_tokens: CountLaw = Constant(value=100)
    output_tokens: CountLaw = Constant(value=200)
    system_tokens: Size = 0
    model: Annotated[str, Field(min_length=1)] | None = None
    body: dict[str, Any] = Field(default_factory=dict)


class Chat(_Class):
    """A conversation: each turn sends all that was said before, and the user thinks between turns."""

    shape: Literal["chat"] = "chat"
    turns: CountLaw = Constant(value=1)
    think_time: TimeLaw = Constant(value=0)
    history: Literal["live", "scripted"] = "live"


class Rag(_Class):
    """One question over documents: `input_tokens` is the question."""

    shape: Literal["rag"]
    documents: Documents = Documents()


class Reasoning(_Class):
    """One question that is thought about for `thinking_tokens`, then answered in `output_tokens`."""

    shape: Literal["reasoning"]
    thinking_tokens: CountLaw = Constant(value=1000)


class Agent(_Class):
    """A task of several model calls over a growing context, a tool call of `tool_time` between them.

    `input_tokens` is the task. A tool's result comes back as a user message of `tool_result_tokens`; `tools`
    definitions of `tool_definition_tokens` each are text of the system prompt, where chat templates put them.
    """

    shape: Literal["agent"]
    steps: CountLaw = Constant(value=5)
    tools: Size = 0
    tool_definition_tokens: Count = 80
    tool_time: TimeLaw = Constant(value=1)
    tool_result_tokens: CountLaw = Constant(value=500)
    parallel: Parallel = Parallel()
    history: Literal["live", "scripted"] = "live"


def _default_shape(value: Any) -> Any:
    if not isinstance(value, Mapping | Spec):
        raise problem("expected a mapping such as {shape: chat, input_tokens: 100, output_tokens: 200}")
    return {"shape": "chat", **value} if isinstance(value, Mapping) else value


Class = Annotated[
    Annotated[Chat | Rag | Reasoning | Agent, Field(discriminator="shape")], BeforeValidator(_default_shape)
]


class Stall(Spec):
    """A gap is a stall above max(floor, factor × the request's median gap)."""

    floor: Seconds = 0.2
    factor: Positive = 5.0


_LATER = {
    "users": "a fixed period per user (use concurrency)",
    "every": "a fixed period per user (use concurrency)",
    "trace": "replay of a trace (use arrivals)",
}


def _one_chat() -> dict[str, Chat | Rag | Reasoning | Agent]:
    return {"chat": Chat()}


class Workload(Spec):
    """What to send and how much of it. Times in seconds, rates per second."""

    name: Annotated[str, Field(min_length=1)] = "workload"
    arrivals: Arrivals | None = None
    concurrency: Count | None = None
    stages: Annotated[tuple[LoadStage, ...], Field(min_length=1)] | None = None
    duration: Annotated[Seconds, Field(gt=0)] | None = None
    requests: Count | None = None
    warmup: Seconds = 0.0
    drain: Seconds = 30.0
    seed: Size | None = None
    classes: Annotated[dict[str, Class], Field(min_length=1)] = Field(default_factory=_one_chat)
    stall: Stall = Stall()
    good: dict[str, Seconds] = Field(default_factory=dict)
    slo: dict[str, list[str]] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, data: Any) -> Any:
        """Defaults that hang on other keys: one user, 60 s, Poisson arrivals for stages."""
        if not isinstance(data, Mapping):
            return data
        for key in _LATER.keys() & data.keys():
            raise problem(f"not supported yet: {_LATER[key]}", key)
        full = {k: v for k, v in data.items() if v is not None}
        if not full.keys() & {"arrivals", "concurrency", "stages"}:
            full["concurrency"] = 1
        if "stages" in full:
            full.setdefault("arrivals", {})
        elif not full.keys() & {"duration", "requests"}:
            full["duration"] = "60s"
        return full

    @model_validator(mode="after")
    def _one_load(self) -> "Workload":
        if self.concurrency is not None and (self.arrivals or self.stages):
            raise problem("expected one kind of load: concurrency, or arrivals and stages", "concurrency")
        if self.stages and (self.duration is not None or self.requests is not None):
            key = "requests" if self.requests else "duration"
            raise problem("stages have durations of their own: drop this key", key)
        if self.duration is not None and self.requests is not None:
            raise problem("expected either requests or duration, not both", "requests")
        if self.arrivals and (self.arrivals.rate is None) != bool(self.stages):
            if self.stages:
                raise problem("stages have rates of their own: drop this key", ("arrivals", "rate"))
            raise problem("expected a rate such as 4/s", ("arrivals", "rate"))
        return self

    @model_validator(mode="after")
    def _classes_known(self) -> "Workload":
        for name in self.classes:
            if name == "all" or not name.isprintable() or not name.strip():
                raise problem(f"{name!r} cannot name a class", ("classes", name))
        for name in self.slo:
            if name not in (*self.classes, "all"):
                raise problem(unknown("class", name, (*self.classes, "all")), ("slo", name))
        return self

    def resolved(self) -> dict[str, Any]:
        """Plain JSON data with every default written out; `Workload.model_validate` makes the same workload of it."""
        return self.model_dump(mode="json", exclude_none=True)


def library() -> tuple[str, ...]:
    """Names of the workloads that come with the package."""
    return tuple(sorted(path.stem for path in LIBRARY.glob("*.yaml")))


def load_workload(name_or_path: str, overrides: Mapping[str, Any] | None = None) -> Workload:
    """A workload by path or library name, with dotted paths set on top of what the file says.

    Raises:
        WorkloadError: One line that names file, line and key, what was expected and what was found.
    """
    path = _find(name_or_path)
    document = parse(read_text(path), path.name if path.parent == LIBRARY else name_or_path)
    override(document, overrides or {})
    document.data.setdefault("name", path.stem)
    try:
        return Workload.model_validate(document.data)
    except ValidationError as error:
        raise WorkloadError(_explain(error.errors()[0], document)) from None


def _find(name_or_path: str) -> Path:
    path = Path(name_or_path)
    if path.is_file():
        return path
    name = name_or_path.removesuffix(".yaml")
    if name in library():
        return LIBRARY / f"{name}.yaml"
    close = nearest(name, library())
    hint = f"; did you mean {close}?" if close else ""
    raise WorkloadError(f"{name_or_path}: no such file, and the library has only: {', '.join(library())}{hint}")


_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "string_too_short": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "too_short": "at least one entry",
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than_equal": "at most {le:g}",
    "literal_error": "{expected}",
    "union_tag_invalid": "one of {expected_tags}",
    "missing": "this key",
}
"""What each of pydantic's errors says was wanted."""


def _explain(error: ErrorDetails, document: Document) -> str:
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
        if (isinstance(data, Mapping) and step in data) or (isinstance(data, list | tuple) and isinstance(step, int)):
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
