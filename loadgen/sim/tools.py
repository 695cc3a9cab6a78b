"""Tool calls: which functions an answer calls, and the tokens that a call is made of.

With `tool_choice` "required", or where it names a function, an answer is one call. Where it is "auto", or is not given,
it is text, unless calls are asked for: by the header `x-loadgen-tool-calls: n`, by `chat_template_kwargs:
{"tool_calls": n}`, or by the server's own option. More than one call are made side by side, of one function after
another; `parallel_tool_calls: false` makes it one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from loadgen.sim.errors import ApiError
from loadgen.sim.fields import count, mapping, number_header
from loadgen.sim.prose import WORDS

CALL_TOKENS = 32
"""Length of a call for which no length was asked."""

MOST_CALLS = 128


@dataclass(frozen=True, slots=True)
class Function:
    """A function that can be called, and the argument that a simulated call writes its words into."""

    name: str
    argument: str


@dataclass(frozen=True, slots=True)
class Call:
    """One call as tokens: `first` (of the answer) is the name, those up to `last` are the arguments.

    The arguments are one JSON object with one text, without a space before its first word: as many words as tokens. A
    call of a single token has a name only.
    """

    function: Function
    index: int
    first: int
    last: int

    def arguments(self, offset: int, number: int) -> str:
        """What token `number` adds to the arguments."""
        before = f'{{{_quoted(self.function.argument)}:"' if number == self.first + 1 else ""
        word = WORDS[(offset + number) % len(WORDS)]
        return before + (word.strip() if before else word) + ('"}' if number == self.last else "")

    @property
    def whole(self) -> bool:
        return self.last > self.first


def functions_called(body: Mapping[str, Any], headers: Mapping[str, str], auto_calls: int) -> tuple[Function, ...]:
    """The functions that the answer calls, in order; none: it is text. Raises ApiError for what cannot be called."""
    functions = _functions(body.get("tools"))
    choice = body.get("tool_choice") or "auto"
    if choice == "none" or (choice == "auto" and not functions):
        return ()
    if not functions:
        raise ApiError(400, "tool_choice needs tools", "tool_choice")
    asked = _asked(body, headers)
    if choice == "auto":
        n = auto_calls if asked is None else asked
    elif choice == "required":
        n = asked or 1
    else:
        functions, n = [_named(functions, choice)], asked or 1
    n = min(n, 1) if body.get("parallel_tool_calls") is False else n
    return tuple(functions[i % len(functions)] for i in range(n))


def calls_in(functions: Sequence[Function], first: int, last: int) -> tuple[Call, ...]:
    """Shares out tokens `first` to `last`; where there are fewer tokens than calls, the last calls are not made."""
    tokens = last - first + 1
    made = functions[:tokens]
    edges = [first + tokens * i // len(made) for i in range(len(made) + 1)] if made else []
    return tuple(Call(function, i, edges[i], edges[i + 1] - 1) for i, function in enumerate(made))


def _functions(tools: Any) -> list[Function]:
    if tools is None:
        return []
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise ApiError(400, "tools must be a list of objects", "tools")
    return [_function(tool.get("function")) for tool in tools]


def _function(definition: Any) -> Function:
    name = definition.get("name") if isinstance(definition, dict) else None
    if not isinstance(name, str) or not name:
        raise ApiError(400, "each tool must be {'type': 'function', 'function': {'name': …}}", "tools")
    parameters = definition.get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    texts = [
        key
        for key, schema in (properties.items() if isinstance(properties, dict) else ())
        if isinstance(schema, dict) and schema.get("type") == "string"
    ]
    return Function(name, texts[0] if texts else "input")


def _named(functions: Sequence[Function], choice: Any) -> Function:
    named = choice.get("function") if isinstance(choice, dict) else None
    name = named.get("name") if isinstance(named, dict) else None
    for function in functions:
        if function.name == name:
            return function
    raise ApiError(400, "tool_choice must be none, auto, required or name one of the tools", "tool_choice")


def _asked(body: Mapping[str, Any], headers: Mapping[str, str]) -> int | None:
    header = number_header(headers, "x-loadgen-tool-calls", MOST_CALLS)
    return header if header is not None else count(mapping(body, "chat_template_kwargs"), "tool_calls", 0, MOST_CALLS)


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()
