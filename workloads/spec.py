"""The workload file: what its keys are, what they default to, and what each must hold."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from workloads.explain import explain
from workloads.fields import Count, Number, Positive, Seconds, Size, Spec, nearest, problem, unknown
from workloads.lengths import Constant, CountLaw, TimeLaw
from workloads.load_spec import TIMELESS, Above0, Arrivals, LoadStage, Trace
from workloads.pairs import Pairs
from workloads.yaml_file import WorkloadError, override, parse, read_text

__all__ = ["Class", "Workload", "WorkloadError", "library", "load_workload"]

LIBRARY = Path(__file__).parent / "library"


class Popularity(Spec):
    """How often each document of the pool is asked for: evenly, or in proportion to 1 / rank^s."""

    law: Literal["uniform", "zipf"] = "zipf"
    """Which of the two."""
    s: Annotated[Number, Field(ge=0)] = 1.0
    """Of zipf: the exponent; the larger, the more often the same few are asked for."""


class Documents(Spec):
    """A pool of fixed documents of which each request retrieves some."""

    count: Count = 500
    """Documents in the pool."""
    tokens: CountLaw = Constant(value=500)
    """Tokens of each."""
    top_k: Count = 4
    """Different documents in each prompt."""
    popularity: Popularity = Popularity()
    """How often each is asked for."""
    order: Literal["shuffled", "ranked"] = "shuffled"
    """Their order in the prompt: by chance, or the most popular first, which a prefix cache likes."""

    @model_validator(mode="after")
    def _enough(self) -> "Documents":
        if self.top_k > self.count:
            raise problem(f"expected top_k of at most count ({self.count})", "top_k")
        return self


class Parallel(Spec):
    """How often a step of an agent is several calls at once."""

    probability: Annotated[Number, Field(ge=0, le=1)] = 0.0
    """The share of such steps."""
    width: Annotated[int, Field(strict=True, ge=2)] = 2
    """Calls in such a step."""


class _Class(Spec):
    """What the shapes of traffic have in common."""

    weight: Positive = 1
    """The class's part of all sessions, beside the weights of the others."""
    input_tokens: CountLaw = Constant(value=100)
    """Tokens of what the user says: a turn of a chat, the question, an agent's task."""
    output_tokens: CountLaw = Constant(value=200)
    """Tokens of each answer, after any thinking."""
    system_tokens: Size = 0
    """Tokens of the system prompt, the same in every session."""
    model: Annotated[str, Field(min_length=1)] | None = None
    """Another model than the run's."""
    body: dict[str, Any] = Field(default_factory=dict)
    """Further fields of each request, as in {temperature: 0}."""


class _PairedClass(_Class):
    """A class whose input and output lengths may come in pairs, in place of the two laws."""

    lengths: Pairs | None = None
    """In place of input_tokens and output_tokens: pairs of the two."""

    @model_validator(mode="after")
    def _one_source_of_lengths(self) -> "_PairedClass":
        for key in ("input_tokens", "output_tokens"):
            # Not whether it was written: a resolved workload has the defaults written out.
            if self.lengths is not None and getattr(self, key) != type(self).model_fields[key].default:
                raise problem("lengths has pairs of both: drop this key", key)
        return self


class Chat(_PairedClass):
    """A conversation: each turn sends all that was said before, and the user thinks between turns."""

    shape: Literal["chat"] = "chat"
    """What the sessions are like."""
    turns: CountLaw = Constant(value=1)
    """Questions of a conversation."""
    think_time: TimeLaw = Constant(value=0)
    """From the end of an answer to the next question."""
    history: Literal["live", "scripted"] = "live"
    """What earlier turns are made of: the model's own answers, or words of the planned length."""


class Rag(_PairedClass):
    """One question over documents that were retrieved for it: a long prompt, a short answer."""

    shape: Literal["rag"]
    """What the sessions are like."""
    documents: Documents = Documents()
    """The pool, and how much of it each prompt has."""


class Reasoning(_PairedClass):
    """One question that is thought about for `thinking_tokens`, then answered in `output_tokens`.

    The two together are the `max_tokens` of the request.
    """

    shape: Literal["reasoning"]
    """What the sessions are like."""
    thinking_tokens: CountLaw = Constant(value=1000)
    """Tokens of the thinking before the answer."""
    effort: Annotated[str, Field(min_length=1)] | None = None
    """Sent as reasoning_effort."""
    enable_thinking: Annotated[bool, Field(strict=True)] | None = None
    """Sent in chat_template_kwargs."""
    budget_field: Annotated[str, Field(pattern=r"^\w+(\.\w+)*$")] | None = None
    """The field that tells the server each request's thinking tokens; dots for nested names."""


class Agent(_Class):
    """A task of several model calls over a growing context, a tool call between them.

    With `tool_calls: native` tools travel as the API has them: `tools` in the body, calls in the model's messages (its
    own, else scripted ones), results as messages of the tool. With `text`, or where an endpoint refuses tools,
    definitions are text of the system prompt and results are the user's messages.
    """

    shape: Literal["agent"]
    """What the sessions are like."""
    steps: CountLaw = Constant(value=5)
    """Model calls one after the other; steps that are several calls at once count once."""
    tools: Size = 0
    """Tools that are defined."""
    tool_definition_tokens: Count = 80
    """Tokens of each definition."""
    tool_time: TimeLaw = Constant(value=1)
    """From the end of an answer to the next step."""
    tool_result_tokens: CountLaw = Constant(value=500)
    """Tokens that a tool says."""
    tool_calls: Literal["native", "text"] = "native"
    """Whether tools, calls and results travel in the API's fields or in plain messages."""
    parallel: Parallel = Parallel()
    """How often a step is several calls at once."""
    history: Literal["live", "scripted"] = "live"
    """What earlier steps are made of: the model's own answers, or words of the planned length."""


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
    """Shorter gaps are none."""
    factor: Positive = 5.0
    """Nor are those of fewer times the median gap."""


class Fluidity(Spec):
    """When each token of an answer is due, for limits such as `fluidity > 99%`."""

    ttft: Above0 = 1.0
    """The first, after the send."""
    tbt: Above0 = 0.1
    """Each further one, after the one before it was due; an early token leaves its slack to the next."""
    at_least: Annotated[Number, Field(ge=0, le=1)] | None = None
    """The share of its tokens in time that a good request has."""


def _has_times(trace: Any) -> bool:
    """Whether a trace, read or not, has times of its own."""
    if isinstance(trace, Trace):
        return trace.has_times
    return isinstance(trace, Mapping) and trace.get("format") != TIMELESS


def _one_chat() -> dict[str, Chat | Rag | Reasoning | Agent]:
    return {"chat": Chat()}


class Workload(Spec):
    """What to send and how much of it.

    There is one kind of load: `arrivals` (with or without `stages`), `concurrency`, `users` with `every`, or a `trace`
    with times of its own; without any, one user who sends again when answered. It lasts for `duration` or `requests`,
    60 s where neither is said.
    """

    name: Annotated[str, Field(min_length=1, max_length=100)] = "workload"
    """What reports call it; left out: the name of the file."""
    arrivals: Arrivals | None = None
    """An open loop: when sessions come."""
    concurrency: Count | None = None
    """A closed loop: so many users, each of whom sends again when answered."""
    users: Count | None = None
    """With every: so many users who start sessions by the clock, evenly staggered; an open loop."""
    every: Above0 | None = None
    """From start to start of one user's sessions, also where the last one still runs."""
    stages: Annotated[tuple[LoadStage, ...], Field(min_length=1)] | None = None
    """Stretches of an open loop one after the other, each with a rate or a ramp and a duration of its own."""
    trace: Trace | None = None
    """Recorded traffic to send again."""
    duration: Above0 | None = None
    """How long is measured."""
    requests: Count | None = None
    """In place of duration: how many requests (model calls, not sessions) are measured."""
    warmup: Seconds = 0.0
    """Load before that, which is sent and not measured."""
    drain: Seconds = 30.0
    """How long what is under way at the end may still take."""
    seed: Size | None = None
    """The same seed sends the same texts at the same times; left out: drawn, and recorded."""
    cold: Annotated[bool, Field(strict=True)] = False
    """No two prompts begin alike, so that no prefix cache can help."""
    warm: Annotated[bool, Field(strict=True)] = False
    """The prefixes that prompts share are sent once before the clock starts."""
    classes: Annotated[dict[str, Class], Field(min_length=1)] = Field(default_factory=_one_chat)
    """Kinds of sessions by a name of yours, each with a shape, lengths and limits; left out: one chat."""
    stall: Stall = Stall()
    """When a pause between two tokens is a stall."""
    fluidity: Fluidity = Fluidity()
    """When tokens are due."""
    good: dict[str, Seconds] = Field(default_factory=dict)
    """What a good request is, for goodput: limits on ttft, ttft_due, ttfat, tpot, e2e, gap_max, gap_p99 and such."""
    slo: dict[str, list[str]] = Field(default_factory=dict)
    """What must hold, by class or for all, as in {all: ['errors<1%'], chat: ['ttft.p95<500ms']}."""

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, data: Any) -> Any:
        """Defaults that hang on other keys: one user, 60 s, Poisson arrivals for stages. A timed trace needs none."""
        if not isinstance(data, Mapping):
            return data
        full = {k: v for k, v in data.items() if v is not None}
        if _has_times(full.get("trace")):
            return full
        if not full.keys() & {"arrivals", "concurrency", "stages", "users", "every"}:
            full["concurrency"] = 1
        if "stages" in full:
            full.setdefault("arrivals", {})
        elif not full.keys() & {"duration", "requests"}:
            full["duration"] = "60s"
        return full

    @model_validator(mode="after")
    def _one_load(self) -> "Workload":
        kinds = {
            "concurrency": self.concurrency,
            "users": self.users or self.every,
            "arrivals": self.arrivals or self.stages,
        }
        given = [kind for kind, value in kinds.items() if value]
        if self.trace and self.trace.has_times and given:
            key = "stages" if self.stages else given[0]
            raise problem(f"the {self.trace.format} trace has times of its own: drop this key", key)
        if len(given) > 1:
            raise problem("expected one kind of load: concurrency, users, or arrivals and stages", given[0])
        if (self.users is None) != (self.every is None):
            missing = "users" if self.users is None else "every"
            raise problem("expected users and every, as in users: 20 and every: 10s", missing)
        if self.arrivals:
            self._rates_somewhere(self.arrivals)
        return self

    def _rates_somewhere(self, arrivals: Arrivals) -> None:
        """Raises unless the rate stands either in the arrivals or in the stages."""
        if self.stages is None:
            if arrivals.rate is None:
                raise problem("expected a rate such as 4/s", ("arrivals", "rate"))
            return
        if arrivals.rate is not None:
            raise problem("stages have rates of their own: drop this key", ("arrivals", "rate"))
        for i, stage in enumerate(self.stages):
            if stage.rate is None and arrivals.process in ("onoff", "sine"):
                raise problem(f"process {arrivals.process} cannot be on a ramp: give a rate", ("stages", i, "from"))

    @model_validator(mode="after")
    def _one_length(self) -> "Workload":
        if self.stages and (self.duration is not None or self.requests is not None):
            key = "requests" if self.requests else "duration"
            raise problem("stages have durations of their own: drop this key", key)
        if self.duration is not None and self.requests is not None:
            raise problem("expected either requests or duration, not both", "requests")
        return self

    @model_validator(mode="after")
    def _prompts_possible(self) -> "Workload":
        if self.cold and self.warm:
            raise problem("cold shares nothing that could be made warm: drop one of the two", "warm")
        if self.trace and not self.trace.has_times:
            first, *others = self.classes.values()
            if others or not isinstance(first, Chat):
                raise problem("a sharegpt trace is one class of conversations: keep one of shape chat", "classes")
        return self

    @model_validator(mode="after")
    def _named(self) -> "Workload":
        """Results lie in a directory called so."""
        if not self.name.isprintable() or not self.name.strip() or set("/\\") & set(self.name):
            raise problem(f"{self.name!r} cannot name a directory: leave out /, \\ and what does not print", "name")
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
        return self.model_dump(mode="json", exclude_none=True, by_alias=True)


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
        return Workload.model_validate(document.data, context={"folder": path.parent})
    except ValidationError as error:
        raise WorkloadError(explain(error.errors()[0], document)) from None


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
