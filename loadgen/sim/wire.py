"""What the simulated server reads: request bodies of the OpenAI API, with what vLLM adds to it.

Beyond the OpenAI API: `ignore_eos` and `min_tokens` as vLLM has them; `prompt` as token ids; the header
`x-loadgen-causes: 1`, which adds to each token event what delayed the token: the truth that a diagnosis can be checked
against. How an answer is made to call tools is said in `tools`.

How long a chat answer thinks before it answers, in tokens; the first that is given counts:

1. the header `x-loadgen-thinking-tokens: n`, or `chat_template_kwargs: {"thinking_tokens": n}`: n;
2. `chat_template_kwargs: {"enable_thinking": false}`, or `reasoning_effort: "none"`: not at all;
3. `reasoning_effort` low, medium or high: a fifth, half or four fifths of the answer, but no more than a
   `thinking_budget` in `chat_template_kwargs`; `enable_thinking: true` alone is medium; a budget alone is used up.

Of the last, one token at least is left to answer.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from loadgen.sim.errors import ApiError
from loadgen.sim.fields import count, mapping, number_header, texts
from loadgen.sim.prompts import Tokens, prompt_of
from loadgen.sim.tools import CALL_TOKENS, Function, functions_called

Kind = Literal["chat", "completions", "responses"]
Finish = Literal["length", "stop", "tool_calls"]

ANSWER_TOKENS = 256
"""Length of an answer for which no length was asked."""

MOST_CHOICES = 128

_EFFORTS = {"none": 0.0, "low": 0.2, "medium": 0.5, "high": 0.8}
_SAFE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


@dataclass(frozen=True, slots=True)
class Limits:
    """What the server allows and adds of its own.

    Attributes:
        stop_early_tokens: Where answers end by themselves; 0: nowhere.
        auto_tool_calls: Calls in an answer that may call tools and was not asked for a number.
    """

    model: str
    context_tokens: int
    stop_early_tokens: int = 0
    auto_tool_calls: int = 0


@dataclass(frozen=True, slots=True)
class Ask:
    """One request body, understood. `output_tokens` is the length of a choice that no stop string ends."""

    kind: Kind
    stream: bool
    prompt: Tokens
    output_tokens: int
    finish: Finish
    n: int = 1
    thinking_tokens: int = 0
    functions: tuple[Function, ...] = ()
    stop: tuple[str, ...] = ()
    min_tokens: int = 0
    final_usage: bool = False
    running_usage: bool = False
    logprobs: bool = False
    causes: bool = False

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt)


def safe_id(header: str | None) -> str | None:
    """The client's own id where it can stand in JSON and a header as it is."""
    return header if header is not None and _SAFE_ID.fullmatch(header) else None


def choice_name(request_id: str, choice: int) -> str:
    """What the core calls a choice: the first one as the request, further ones with their number."""
    return f"{request_id}#{choice}" if choice else request_id


def request_of(name: str) -> str:
    """The id of the request that a choice belongs to."""
    return name.partition("#")[0]


def parse_body(raw: bytes) -> dict[str, Any]:
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise ApiError(400, "the body must be a JSON object")
    return body


def parse_ask(kind: Kind, body: Mapping[str, Any], headers: Mapping[str, str], limits: Limits) -> Ask:
    """Raises ApiError for what a server would refuse."""
    _check_model(body, limits)
    chat = kind != "completions"
    prompt = checked_prompt(body, limits)
    functions = functions_called(body, headers, limits.auto_tool_calls) if chat else ()
    output_tokens, finish = _output_length(body, limits, limits.context_tokens - len(prompt), len(functions))
    options = mapping(body, "stream_options")
    return Ask(
        kind=kind,
        stream=body.get("stream") is True,
        prompt=prompt,
        output_tokens=output_tokens,
        finish=finish,
        n=count(body, "n", most=MOST_CHOICES) or 1,
        thinking_tokens=_thinking(body, headers, output_tokens) if chat else 0,
        functions=functions,
        stop=texts(body, "stop"),
        min_tokens=count(body, "min_tokens", least=0) or 0,
        final_usage=options.get("include_usage") is True,
        running_usage=options.get("continuous_usage_stats") is True,
        logprobs=body.get("logprobs") not in (None, False),
        causes=headers.get("x-loadgen-causes") == "1",
    )


def checked_prompt(body: Mapping[str, Any], limits: Limits) -> Tokens:
    """The prompt's tokens. Raises ApiError where there are none, or more than the context has room for."""
    prompt = prompt_of(body)
    if len(prompt) >= limits.context_tokens:
        raise ApiError(
            400,
            f"this model's maximum context length is {limits.context_tokens} tokens, but the prompt has {len(prompt)}; "
            "shorten the prompt",
            "input_tokens",
        )
    return prompt


def _check_model(body: Mapping[str, Any], limits: Limits) -> None:
    name = body.get("model", limits.model)
    if name != limits.model:
        message = f"the model `{name}` does not exist; this server has `{limits.model}`"
        raise ApiError(404, message, "model", "NotFoundError")


def _output_length(body: Mapping[str, Any], limits: Limits, room: int, calls: int) -> tuple[int, Finish]:
    asked = count(body, "max_completion_tokens") or count(body, "max_tokens")
    if asked is not None and asked > room:
        raise ApiError(400, f"max_tokens is {asked}, but the prompt leaves {room} tokens of context", "max_tokens")
    natural = limits.stop_early_tokens or ((CALL_TOKENS * calls or ANSWER_TOKENS) if asked is None else 0)
    if natural == 0 or (body.get("ignore_eos") is True and asked is not None):
        return asked or room, "length"
    natural = max(natural, count(body, "min_tokens", least=0) or 0)
    most = room if asked is None else asked
    return (natural, "stop") if natural < most else (most, "length")


def _thinking(body: Mapping[str, Any], headers: Mapping[str, str], output_tokens: int) -> int:
    template = mapping(body, "chat_template_kwargs")
    exact = number_header(headers, "x-loadgen-thinking-tokens")
    if exact is None:
        exact = count(template, "thinking_tokens", least=0)
    if exact is not None:
        return min(exact, output_tokens)
    budget = count(template, "thinking_budget", least=0)
    share = _effort(body, template, alone=1.0 if budget else 0.0)
    wanted = round(share * output_tokens)
    return max(0, min(wanted, output_tokens - 1, wanted if budget is None else budget))


def _effort(body: Mapping[str, Any], template: Mapping[str, Any], alone: float) -> float:
    """The share of the answer that is thought; `alone` where nothing is said of it."""
    effort, enabled = body.get("reasoning_effort"), template.get("enable_thinking")
    if effort is not None and (not isinstance(effort, str) or effort not in _EFFORTS):
        raise ApiError(400, f"reasoning_effort must be one of {', '.join(_EFFORTS)}", "reasoning_effort")
    if enabled is False:
        return 0.0
    if effort is not None:
        return _EFFORTS[effort]
    return max(alone, _EFFORTS["medium"] if enabled is True else 0.0)
