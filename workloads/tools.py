"""An agent's tools in the form of the OpenAI API: definitions of a wanted length, calls, and who answers which.

The model is free to call them. Where it does, its own calls are answered; where it only talks, a scripted call goes
into the history beside its words, so that the conversation has the same shape either way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workloads.request import Message

TOOL = "tool"
"""The role of a message that brings a tool's result."""

NAMES = ("read_file", "find_text", "list_files", "run_tests", "open_page", "ask_data", "edit_file", "send_mail")
HINT = "This tool can"
"""Begins each description, so that every word of our own stands behind a space, as its tokens were counted."""
ARGUMENTS = '{"query": "what comes next"}'


@dataclass(frozen=True, slots=True)
class ToolCosts:
    """Tokens that an endpoint's template adds to our words where tools are in play.

    Attributes:
        frame_tokens: Once, for a prompt that has any tool definition.
        each_tokens: For each definition, beside the words of its description.
        exchange_tokens: For an answer with a call and the tool's result, beside the words of both.
    """

    frame_tokens: float = 0.0
    each_tokens: float = 0.0
    exchange_tokens: float = 0.0


def name(i: int) -> str:
    """The name of tool `i`, counted from 0."""
    return NAMES[i % len(NAMES)] + (f"_{i // len(NAMES) + 1}" if i >= len(NAMES) else "")


def definition(i: int, words: str) -> dict[str, Any]:
    """Tool `i` as it stands in the body's `tools`."""
    query = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
    return {
        "type": "function",
        "function": {"name": name(i), "description": f"{HINT} {words}", "parameters": query},
    }


def scripted_call(turn_id: str, i: int = 0) -> dict[str, Any]:
    """A call of tool `i`, for an answer in which the model called none. Its id is that of the turn."""
    return {"id": f"call_{turn_id}", "type": "function", "function": {"name": name(i), "arguments": ARGUMENTS}}


def calls_of(message: Message) -> Sequence[Mapping[str, Any]]:
    """The calls that a message makes; none for most."""
    calls: Sequence[Mapping[str, Any]] = message.extra.get("tool_calls") or ()
    return calls


def results(calls: Sequence[Mapping[str, Any]], texts: Sequence[str]) -> list[Message]:
    """A tool's message for each call, in order."""
    return [Message(TOOL, text, {"tool_call_id": call["id"]}) for call, text in zip(calls, texts, strict=True)]


def answering(before: Message, said: Sequence[Message]) -> Message:
    """What several messages say as one tool's answer to the first call of the message before."""
    (made, *_) = results(calls_of(before)[:1], [" ".join(message.content for message in said)])
    return made
