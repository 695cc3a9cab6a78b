"""What must be known of an endpoint before the load starts: does it answer, which model, how long is our text for it.

Every request here carries the header `x-loadgen-probe`, so that a server's log can tell it from the load; none of them
is in any number.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import httpx
import numpy as np
from numpy.typing import NDArray

from loadgen.access import Access, parsed
from loadgen.error_text import words_of
from loadgen.errors import UsageError
from loadgen.openai_api import BodyOptions, request_body
from workloads.prompts import Calibration, words
from workloads.request import Message, Request
from workloads.tools import ToolCosts, definition, results, scripted_call

FEW_WORDS = 64
FIT_TEXTS = 4
NO_USAGE = "the server states no usage"


async def find_model(access: Access) -> str:
    """The name of the one model that the server lists.

    Raises:
        NoVerdictError: the server cannot be reached.
        UsageError: it lists none, or several.
    """
    async with access.client() as client:
        names = await list_models(client, access)
    if names is None:
        raise UsageError(f"{access.target.origin} lists no models; name one with --model")
    if len(names) == 1:
        return names[0]
    listed = ", ".join(map(access.shown, names[:10])) or "none"
    raise UsageError(f"{access.target.origin} lists {len(names)} models ({listed}); choose one with --model")


async def list_models(client: httpx.AsyncClient, access: Access) -> list[str] | None:
    """The names that the server lists; None where it has no such list. Raises NoVerdictError."""
    async with access.ask(client, "GET", f"{access.target.base}/models") as reply:
        body = await access.whole(reply)
    try:
        return [str(model["id"]) for model in parsed(body)["data"]]
    except (KeyError, TypeError):
        return None


class _NoCountError(Exception):
    """The server does not say how long a prompt is, and why."""


async def calibrate(
    access: Access, options: BodyOptions, *, tools: bool = False, word_tokens: NDArray[np.float64] | None = None
) -> tuple[Calibration, list[str]]:
    """How many tokens each of our words and the model's template come to, by the server's own count.

    Four one-token requests are enough where every word is one token, as with the usual vocabularies. Elsewhere the
    server's /tokenize tells each word's tokens; where it has none, a few more requests fit them to the words' lengths.
    With `tools`, three more tell what definitions, calls and results cost; where the server refuses tools, they are
    to be told in words. `word_tokens` are those of a tokenizer that the user gave: they are believed. If the server
    does not count prompts at all, the defaults are taken. The notes say so.

    Raises:
        NoVerdictError: the server cannot be reached.
    """
    async with access.client() as client:

        async def count(*messages: Message | tuple[str, str], **body: Any) -> int:
            said = tuple(each if isinstance(each, Message) else Message(*each) for each in messages)
            return await _prompt_tokens(client, access, options, said, body)

        known, notes = Calibration(word_tokens), []
        try:
            known = await _measured(client, access, options, count, word_tokens)
        except _NoCountError as problem:
            what = "prompt lengths are" if word_tokens is None else "the template's share of prompts is"
            notes.append(f"{what} not calibrated: {problem}")
        if tools:
            known, note = await _with_tools(known, options, count)
            notes += [note] if note else []
        return known, notes


Count: TypeAlias = Callable[..., Awaitable[int]]


async def _with_tools(known: Calibration, options: BodyOptions, count: Count) -> tuple[Calibration, str | None]:
    if options.endpoint != "chat":
        return replace(known, tools=None), None
    try:
        return replace(known, tools=await _tool_costs(known, count)), None
    except _NoCountError as problem:
        if str(problem) == NO_USAGE:
            return known, None
        note = f"tools are told in the prompt's words, not in the API's fields: {problem}"
        return replace(known, tools=None), note


async def _tool_costs(known: Calibration, count: Count) -> ToolCosts:
    """What the template adds for definitions, and for an answer with a call and its result."""
    texts = [_text(range(start, start + FEW_WORDS)) for start in range(0, 4 * FEW_WORDS, FEW_WORDS)]
    costs = np.ones(len(words())) if known.word_tokens is None else known.word_tokens
    spent = [float(costs[start : start + FEW_WORDS].sum()) for start in range(0, 4 * FEW_WORDS, FEW_WORDS)]
    two = [definition(i, text) for i, text in enumerate(texts[:2])]
    bare = spent[2] + known.request_overhead_tokens
    one_defined = await count(("user", texts[2]), tools=two[:1])
    both_defined = await count(("user", texts[2]), tools=two)
    if both_defined - one_defined < spent[1] / 2:
        raise _NoCountError("the model's template leaves them out")
    call = scripted_call("0-0-1")
    answered = Message("assistant", texts[3], {"tool_calls": [call]})
    exchange = await count(("user", texts[2]), answered, *results([call], [texts[0]]), tools=two)
    each = both_defined - one_defined - spent[1]
    frame = one_defined - bare - each - spent[0]
    return ToolCosts(max(0.0, frame), max(0.0, each), max(0.0, exchange - both_defined - spent[3] - spent[0]))


async def _measured(
    client: httpx.AsyncClient,
    access: Access,
    options: BodyOptions,
    count: Count,
    given: NDArray[np.float64] | None,
) -> Calibration:
    some, more = _text(range(FEW_WORDS)), _text(range(FEW_WORDS, 2 * FEW_WORDS))
    few = await count(("user", some))
    word_tokens = await _word_tokens(client, access, options, count, few) if given is None else given
    first, second = float(word_tokens[:FEW_WORDS].sum()), float(word_tokens[FEW_WORDS : 2 * FEW_WORDS].sum())
    frame = few - first
    system = await count(("system", some), ("user", more)) - frame - first - second
    if options.endpoint == "completions":
        return Calibration(word_tokens, frame, system, system)
    spoken = await count(("user", some), ("assistant", more), ("user", some)) - frame - 2 * first - second
    return Calibration(word_tokens, frame, system, spoken / 2)


async def _word_tokens(
    client: httpx.AsyncClient, access: Access, options: BodyOptions, count: Count, few: int
) -> NDArray[np.float64]:
    """Tokens of each word; `few` is the count of the first `FEW_WORDS`."""
    every = await count(("user", _text(range(len(words())))))
    if every - few == len(words()) - FEW_WORDS:
        return np.ones(len(words()))
    told = await _tokenized(client, access, options)
    return await _fitted(count) if told is None else told


async def prime(access: Access, options: BodyOptions, requests: Iterable[Request]) -> int:
    """Send each request once, for its prompt to be in the server's prefix cache; how many there were.

    Raises:
        NoVerdictError: the server cannot be reached.
        UsageError: it refuses one.
    """
    sent = 0
    async with access.client() as client:
        for request in requests:
            sent += 1
            try:
                await _prompt_tokens(client, access, options, request.messages, request.body)
            except _NoCountError as problem:
                if str(problem) != NO_USAGE:
                    raise UsageError(f"{access.target.origin}: a prefix cannot be primed: {problem}") from None
    return sent


def _text(indices: Iterable[int]) -> str:
    return " ".join(words()[list(indices)].tolist())


async def _fitted(count: Count) -> NDArray[np.float64]:
    """Tokens of each word as a line over its length, from texts of few and many, short and long words."""
    lengths = np.array([len(word) for word in words()])
    blocks = np.array_split(np.argsort(lengths, kind="stable"), FIT_TEXTS)
    blocks += [block[: len(block) // 4] for block in blocks]  # tells the template's share from a word's
    rows = [[len(block), float(lengths[block].sum()), 1.0] for block in blocks]
    counts = [await count(("user", _text(block.tolist()))) for block in blocks]
    (per_word, per_char, _), *_ = np.linalg.lstsq(np.array(rows), np.array(counts, dtype=float), rcond=None)
    fitted = per_word + per_char * lengths
    if fitted.min() <= 0:
        raise _NoCountError("the server's count does not grow with the prompt")
    return np.asarray(fitted, dtype=np.float64)


async def _tokenized(client: httpx.AsyncClient, access: Access, options: BodyOptions) -> NDArray[np.float64] | None:
    """Tokens of each word by the server's own tokenizer, if it offers one: each word on a line of its own, and the
    most frequent token, the line break's, parts them."""
    text = "\n".join(f" {word}" for word in words())
    root = access.target.base.removesuffix("/v1")
    for body in ({"model": options.model, "prompt": text, "add_special_tokens": False}, {"content": text}):
        async with access.ask(client, "POST", f"{root}/tokenize", body) as answer:
            told = await access.whole(answer)
        try:
            tokens = list(parsed(told)["tokens"]) if answer.is_success else []
            parted = _parted([int(token) for token in tokens])
        except (ValueError, KeyError, TypeError):
            continue
        if parted is not None:
            return parted
    return None


def _parted(tokens: list[int]) -> NDArray[np.float64] | None:
    """How many tokens lie between line breaks; None if that does not come to one run a word."""
    if not tokens:
        return None
    line_break = max(set(tokens), key=tokens.count)
    ends = np.flatnonzero(np.array([*tokens, line_break]) == line_break)
    runs = np.diff(ends, prepend=-1) - 1
    return runs.astype(np.float64) if len(runs) == len(words()) and runs.min() > 0 else None


async def _prompt_tokens(
    client: httpx.AsyncClient,
    access: Access,
    options: BodyOptions,
    messages: tuple[Message, ...],
    fields: Mapping[str, Any],
) -> int:
    """The server's count of a prompt. Raises _NoCountError."""
    body = request_body(Request("probe", messages, 0, 1, body=fields), options)
    body = {**body, "stream": False}
    body.pop("stream_options", None)
    async with access.ask(client, "POST", access.target.path, body) as answer:
        told = await access.whole(answer)
    if not answer.is_success:
        raise _NoCountError(f"HTTP {answer.status_code}: {access.shown(words_of(told)) or answer.reason_phrase}")
    try:
        usage = parsed(told)["usage"]
        return int(usage.get("prompt_tokens", usage.get("input_tokens")))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _NoCountError(NO_USAGE) from None
