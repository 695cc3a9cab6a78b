"""The shapes of traffic: what chance decides for each session, and the rounds that follow from it."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from workloads.arrivals import Floats
from workloads.lengths import AnyLaw, Constant, Ints, tokens
from workloads.request import HEAD, Passage, Round, Session, Turn
from workloads.spec import Agent, Chat, Documents, Rag, Reasoning, Workload
from workloads.tools import TOOL

AnyClass = Chat | Rag | Reasoning | Agent

BLOCK = 256
"""Sessions drawn at once. Every block has streams of its own, so that a plan is made only as far as it is used."""

# What each random stream decides: one stream a concern, so that a change of one leaves the others as they were.
ARRIVALS, CLASS, ROUNDS, WIDTHS, TASKS, INPUTS, OUTPUTS, THOUGHTS, PAUSES, RETRIEVAL, POOL = range(1, 12)

# The third part of a text's key: whose text it is. Parts count from 1, because trailing zeros do not change a stream.
SYSTEM, DOCUMENT, SESSION, BLOCKS, TALK, HEADS, TOOLS = range(1, 8)

COLD_TOKENS = 4
"""Words of its own that begin each prompt of a cold workload: 2^40 different beginnings."""

PRIMERS = 0
"""The number of the session, if it were one, to which the turns that warm up a cache belong: sessions count from 1 in
keys."""


def is_own(passage: Passage) -> bool:
    """Whether a text belongs to one session alone, so that no other prompt has it."""
    return passage.key[2] in (SESSION, TALK, HEADS)


class Draws(Struct, frozen=True):
    """What chance decided for one session: `widths` and `pauses_ns` by round, the token counts by turn."""

    widths: Sequence[int]
    pauses_ns: Sequence[int]
    inputs: Sequence[int]
    outputs: Sequence[int]
    thoughts: Sequence[int]
    documents: Sequence[int]

    @property
    def n_turns(self) -> int:
        return len(self.inputs)


class Traffic:
    """Every session of a workload under one seed, by number from 0, without end."""

    def __init__(self, workload: Workload, seed: int) -> None:
        self._seed = seed
        self._shapes = [Shape(name, spec, seed, cold=workload.cold) for name, spec in workload.classes.items()]
        weights = np.array([spec.weight for spec in workload.classes.values()])
        self._shares = np.cumsum(weights / weights.sum())

    def drawn(self, start: int = 0) -> "Iterator[tuple[int, Shape, Draws]]":
        """(number, class, draws) of each session from number `start` on."""
        block = start // BLOCK
        while True:
            for row, (shape, draws) in enumerate(self._block(block), block * BLOCK):
                if row >= start:
                    yield row, shape, draws
            block += 1

    def mean_turns(self) -> float:
        """Model calls that a session makes on average."""
        shares = np.diff(self._shares, prepend=0.0)
        return float(sum(share * shape.mean_turns() for share, shape in zip(shares, self._shapes, strict=True)))

    def _block(self, block: int) -> "Iterator[tuple[Shape, Draws]]":
        picks = np.random.default_rng((self._seed, CLASS, block + 1)).random(BLOCK)
        # The last share may round to just below 1.
        chosen = np.minimum(np.searchsorted(self._shares, picks, side="right"), len(self._shapes) - 1)
        drawn = [s.draw(block, int((chosen == i).sum())) for i, s in enumerate(self._shapes)]
        for i in chosen.tolist():
            yield self._shapes[i], next(drawn[i])


class Shape:
    """One class of traffic under one seed."""

    def __init__(self, name: str, spec: AnyClass, seed: int, *, cold: bool = False) -> None:
        self.name = name
        self.spec = spec
        self._cold = cold
        self._seed = seed
        # By name, so that a class keeps its sessions when another one is added.
        self._code = zlib.crc32(name.encode())
        self.body = _body(spec)
        self._scripted = isinstance(spec, Chat | Agent) and spec.history == "scripted"
        self._system = spec.system_tokens
        self.tools: tuple[Passage, ...] = ()
        if isinstance(spec, Agent) and spec.tool_calls == "native":
            keys = (self.key(TOOLS, i + 1) for i in range(spec.tools))
            self.tools = tuple(Passage(TOOL, key, spec.tool_definition_tokens) for key in keys)
        elif isinstance(spec, Agent):
            self._system += spec.tools * spec.tool_definition_tokens
        self._head = [Passage("system", self.key(SYSTEM), self._system)] if self._system else []
        pool = spec.documents if isinstance(spec, Rag) else None
        lengths = [] if pool is None else tokens(pool.tokens, self._stream(POOL, 0), pool.count).tolist()
        self._pool = [Passage("user", self.key(DOCUMENT, d), n) for d, n in enumerate(lengths, 1)]

    def mean_turns(self) -> float:
        rounds = _rounds_law(self.spec).expectation()
        if not isinstance(self.spec, Agent):
            return rounds
        parallel = self.spec.parallel
        return 1 + (rounds - 1) * (1 + parallel.probability * (parallel.width - 1))

    def draw(self, block: int, n: int) -> Iterator[Draws]:
        """The draws of the class's `n` sessions of one block, each put together when it is asked for: a run goes on
        meanwhile."""
        if n == 0:
            return iter(())
        spec = self.spec
        rounds = tokens(_rounds_law(spec), self._stream(ROUNDS, block), n)
        widths = self._widths(block, rounds)
        round_ends = np.cumsum(rounds)
        turn_ends = np.cumsum(widths)[round_ends - 1]
        n_turns = int(turn_ends[-1])
        thoughts = (
            tokens(spec.thinking_tokens, self._stream(THOUGHTS, block), n_turns)
            if isinstance(spec, Reasoning)
            else np.zeros(n_turns, dtype=np.int64)
        )
        by_round = (_split(array, round_ends) for array in (widths, self.pauses_ns(block, len(widths))))
        by_turn = (_split(array, turn_ends) for array in (*self._lengths(block, turn_ends), thoughts))
        return (Draws(*lists) for lists in zip(*by_round, *by_turn, self._retrieved(block, n), strict=True))

    def pauses_ns(self, block: int, n: int) -> Ints:
        return np.rint(_pause_law(self.spec).draw(self._stream(PAUSES, block), n) * 1e9).astype(np.int64)

    def session(self, number: int, due_ns: int | None, draws: Draws) -> Session:
        """The session that the draws stand for."""
        rounds = []
        context = call = 0
        for r, (width, pause_ns) in enumerate(zip(draws.widths, draws.pauses_ns, strict=True), 1):
            turns = tuple([self._turn(number, r, i, context, draws) for i in range(call, call + width)])
            rounds.append(Round(turns, pause_ns))
            call += width
            if call < draws.n_turns:
                # The unique beginning of a later prompt is not said again.
                unsaid = sum(p.tokens for t in turns for p in t.passages if p.role == HEAD and r > 1)
                context += sum(t.input_tokens - context + t.output_tokens - t.thinking_tokens for t in turns) - unsaid
        return Session(number, self.name, due_ns, tuple(rounds))

    def _turn(self, number: int, r: int, call: int, context: int, draws: Draws) -> Turn:
        key = (self._seed, self._code, SESSION, number + 1, call + 1)
        role = TOOL if r > 1 and self.tools else "user"
        passages: tuple[Passage, ...] = (Passage(role, key, draws.inputs[call]),)
        if r == 1 and (self._head or draws.documents):
            passages = (*self.prefix(draws.documents), *passages)
        passages = self.headed(passages, number, call)
        new = (*passages, *self.tools) if r == 1 else passages
        thinking, spoken = draws.thoughts[call], draws.outputs[call]
        return Turn(
            request_id=f"{self._seed:x}-{number}-{call + 1}",
            number=r,
            passages=passages,
            input_tokens=context + sum([p.tokens for p in new]),
            output_tokens=thinking + spoken,
            thinking_tokens=thinking,
            body=self._budgeted(thinking),
            tools=self.tools,
            scripted_answer=Passage("assistant", (*key, 1), spoken) if self._scripted else None,
        )

    def _budgeted(self, thinking: int) -> dict[str, Any]:
        """The class's body fields, with the thinking tokens of one request where the server is to be told."""
        if not isinstance(self.spec, Reasoning) or self.spec.budget_field is None:
            return self.body
        return _with(self.body, self.spec.budget_field.split("."), thinking)

    def prefix(self, documents: Sequence[int] = ()) -> list[Passage]:
        """What comes before the user's own words: the class's system prompt, then documents of its pool."""
        return self._head + [self._pool[d] for d in documents]

    def key(self, *whose: int) -> tuple[int, ...]:
        """The key of a text of this class."""
        return (self._seed, self._code, *whose)

    def headed(self, passages: tuple[Passage, ...], number: int, call: int = 0) -> tuple[Passage, ...]:
        """The passages of a session's call, in a cold workload begun by words that no other prompt begins with.

        The longest passage gives way to them as far as it can, so that prompts are hardly longer than planned.
        """
        if not self._cold:
            return passages
        longest = max(range(len(passages)), key=lambda i: passages[i].tokens)
        left = max(1, passages[longest].tokens - COLD_TOKENS)
        shorter = [replace(p, tokens=left) if i == longest else p for i, p in enumerate(passages)]
        return (Passage(HEAD, self.key(HEADS, number + 1, call + 1), COLD_TOKENS), *shorter)

    def primers(self) -> Iterator[Turn]:
        """A request of one token for each prefix that the class's prompts share: its system prompt and tools, with each
        document of its pool after it, in order of popularity."""
        ask = Passage("user", self.key(SESSION, PRIMERS, 1), 1)
        prefixes = [self.prefix((d,)) for d in range(len(self._pool))] or (
            [self.prefix()] if self._system or self.tools else []
        )
        for i, prefix in enumerate(prefixes, 1):
            n = sum(p.tokens for p in (*prefix, *self.tools, ask))
            name = f"{self._seed:x}-{self._code:x}-prime-{i}"
            yield Turn(name, 1, (*prefix, ask), n, 1, body=self.body, tools=self.tools)

    def _widths(self, block: int, rounds: Ints) -> Ints:
        """Turns in each round, sessions one after another. A task starts with one call."""
        widths = np.ones(int(rounds.sum()), dtype=np.int64)
        if isinstance(self.spec, Agent):
            at_once = self._stream(WIDTHS, block).random(len(widths)) < self.spec.parallel.probability
            at_once[np.cumsum(rounds) - rounds] = False
            widths[at_once] = self.spec.parallel.width
        return widths

    def _lengths(self, block: int, turn_ends: Ints) -> tuple[Ints, Ints]:
        """New input and output tokens of each turn."""
        n_turns = int(turn_ends[-1])
        if not isinstance(self.spec, Agent) and self.spec.lengths is not None:
            return self.spec.lengths.draw(self._stream(INPUTS, block), n_turns)
        return self._inputs(block, turn_ends), tokens(self.spec.output_tokens, self._stream(OUTPUTS, block), n_turns)

    def _inputs(self, block: int, turn_ends: Ints) -> Ints:
        """New tokens of each turn: the user's, and for an agent the task's, then the tools'."""
        if not isinstance(self.spec, Agent):
            return tokens(self.spec.input_tokens, self._stream(INPUTS, block), int(turn_ends[-1]))
        inputs = tokens(self.spec.tool_result_tokens, self._stream(INPUTS, block), int(turn_ends[-1]))
        firsts = np.concatenate([[0], turn_ends[:-1]])
        inputs[firsts] = tokens(self.spec.input_tokens, self._stream(TASKS, block), len(turn_ends))
        return inputs

    def _retrieved(self, block: int, n: int) -> list[list[int]]:
        if not isinstance(self.spec, Rag):
            return [[]] * n
        rows: list[list[int]] = _retrieve(self.spec.documents, self._stream(RETRIEVAL, block), n).tolist()
        return rows

    def _stream(self, concern: int, block: int) -> np.random.Generator:
        return np.random.default_rng((self._seed, concern, self._code, block + 1))


def _retrieve(pool: Documents, rng: np.random.Generator, n: int) -> Ints:
    """`n` rows of `top_k` different documents each, by popularity; document 0 is the most popular."""
    s = pool.popularity.s if pool.popularity.law == "zipf" else 0.0
    weights: Floats = np.arange(1, pool.count + 1, dtype=np.float64) ** -s
    # The documents drawn before leave at least the weight of the least popular ones to choose from.
    few = weights[pool.top_k - 1 :].sum() > _LEAST_LEFT * weights.sum()
    found = _drawn_again(weights, rng, n, pool.top_k) if few else _drawn_by_noise(weights, rng, n, pool.top_k)
    found.sort(axis=1)
    return rng.permuted(found, axis=1) if pool.order == "shuffled" else found


_LEAST_LEFT = 0.05


def _drawn_again(weights: Floats, rng: np.random.Generator, n: int, k: int) -> Ints:
    """`n` draws of k without replacement by weight: one after the other, again where it is one of those before."""
    cumulated = np.cumsum(weights)
    found = np.full((n, k), -1, dtype=np.int64)
    for j in range(k):
        todo = np.arange(n)
        while len(todo):
            drawn = np.searchsorted(cumulated, rng.random(len(todo)) * cumulated[-1], side="right")
            found[todo, j] = np.minimum(drawn, len(weights) - 1)  # the product may round up to the sum
            todo = todo[(found[todo, :j] == found[todo, j, None]).any(axis=1)]
    return found


def _drawn_by_noise(weights: Floats, rng: np.random.Generator, n: int, k: int) -> Ints:
    """The same where k takes nearly all the weight: with Gumbel noise on the logarithms, the largest k are the draw."""
    with np.errstate(divide="ignore"):
        scores = rng.gumbel(size=(n, len(weights))) + np.log(weights)
    return np.argpartition(-scores, k - 1, axis=1)[:, :k].astype(np.int64)


def _body(spec: AnyClass) -> dict[str, Any]:
    """The fields that every request of a class has; those written out under `body` win."""
    body: dict[str, Any] = {"model": spec.model} if spec.model else {}
    if isinstance(spec, Reasoning):
        if spec.effort is not None:
            body["reasoning_effort"] = spec.effort
        if spec.enable_thinking is not None:
            body["chat_template_kwargs"] = {"enable_thinking": spec.enable_thinking}
    for name, value in spec.body.items():
        known = body.get(name)
        body[name] = {**known, **value} if isinstance(value, Mapping) and isinstance(known, Mapping) else value
    return body


def _with(body: Mapping[str, Any], path: Sequence[str], value: int) -> dict[str, Any]:
    """The body with a value at a path of names, unless the body has one there already."""
    name, *rest = path
    inner = body.get(name, {})
    if not rest or not isinstance(inner, Mapping):
        return {name: value, **body}
    return {**body, name: _with(inner, rest, value)}


def _split(array: Ints, ends: Ints) -> Iterator[list[int]]:
    values, start = array.tolist(), 0
    for end in ends.tolist():
        yield values[start:end]
        start = end


def _rounds_law(spec: AnyClass) -> AnyLaw:
    if isinstance(spec, Chat):
        return spec.turns
    return spec.steps if isinstance(spec, Agent) else Constant(value=1)


def _pause_law(spec: AnyClass) -> AnyLaw:
    if isinstance(spec, Chat):
        return spec.think_time
    return spec.tool_time if isinstance(spec, Agent) else Constant(value=0)
