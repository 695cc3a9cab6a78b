"""The nouns of a plan: a Session is rounds; a Round is turns sent together, then a pause; a Turn becomes a Request.

Chat has one turn a round. An agent that calls several models at once has several. A Turn says what is new in it; the
Request that goes over the wire carries everything said before as well, which is known only when the earlier turns
have been answered.

They are Structs since a plan makes a dozen of them a request: a frozen dataclass takes ten times as long to fill.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace


class Message(Struct, frozen=True):
    """One message of a conversation. `extra` holds further fields of the wire format (tool_calls, tool_call_id)."""

    role: str
    content: str
    extra: Mapping[str, Any] = {}


HEAD = "head"
"""The role of a passage that goes before the first word of the prompt, whoever speaks it, history included."""


class Passage(Struct, frozen=True):
    """Text that is not written yet: `tokens` tokens drawn from the stream of random words that `key` names.

    The same key gives the same words, whatever the length: that is how prompts share a prefix, and how a seed gives
    the same text. Text is made shortly before it is sent, so that a plan of a million requests fits in memory.
    """

    role: str
    key: tuple[int, ...]
    tokens: int


class Turn(Struct, frozen=True):
    """One planned model call.

    Attributes:
        request_id: Unique within the plan.
        number: The position of its round in the session, from 1.
        passages: What this turn adds to the conversation before the model answers.
        input_tokens: Length of the whole prompt as planned (history included, as if answers had their planned length).
        output_tokens: Length asked of the model, thinking included.
        thinking_tokens: The share of `output_tokens` meant to be thought, 0 for models that do not think.
        body: Further fields of the request body.
        tools: The definitions of what the model may call, the same in every turn of a session; their tokens are part of
            every prompt.
        scripted_answer: What the history takes as the answer where it is not the model's own.
    """

    request_id: str
    number: int
    passages: tuple[Passage, ...]
    input_tokens: int
    output_tokens: int
    thinking_tokens: int = 0
    body: Mapping[str, Any] = {}
    tools: tuple[Passage, ...] = ()
    scripted_answer: Passage | None = None


class Round(Struct, frozen=True):
    """Turns sent together; the next round starts `pause_ns` (think time, tool time) after the last of them ended."""

    turns: tuple[Turn, ...]
    pause_ns: int = 0


class Session(Struct, frozen=True):
    """One user's conversation or one agent's task.

    `due_ns` is when its first round should start, in nanoseconds from the start of the run; None in a closed loop,
    where a session starts when a user is free.
    """

    number: int
    class_name: str
    due_ns: int | None
    rounds: tuple[Round, ...]


class Request(Struct, frozen=True):
    """What an engine sends: one whole prompt and the length asked for."""

    request_id: str
    messages: tuple[Message, ...]
    input_tokens: int
    output_tokens: int
    thinking_tokens: int = 0
    body: Mapping[str, Any] = {}
    keep_text: bool = False


def cut(session: Session, n_turns: int) -> Session:
    """The session's first `n_turns` turns: whole rounds, and what is left of the round in which they end."""
    rounds = []
    for this in session.rounds:
        if n_turns <= 0:
            break
        rounds.append(replace(this, turns=this.turns[:n_turns]))
        n_turns -= len(this.turns)
    return replace(session, rounds=tuple(rounds))


def turn_count(session: Session) -> int:
    """How many model calls the session makes."""
    return sum(len(this.turns) for this in session.rounds)
