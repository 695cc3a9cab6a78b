"""The prompt of a request as the tokens that a server would make of it, and the hashes that its prefix is found by.

Tokens are words: whatever stands between white space is one. A conversation is rendered as a chat template does it:
tool definitions first, `<|start|> role <|message|>` before and `<|end|>` behind each message, and the first three of
these once more for the answer to come. So the prompt of the next turn begins with this one. A call is its name and the
words of its arguments, as many as it was when a simulated model made it. Of a tool's definition, each run of letters in
the JSON is a token, and each run of signs.
"""

import re
import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, cast

import msgspec

from loadgen.sim.errors import ApiError
from loadgen.sim.kv import BLOCK_TOKENS

MESSAGE_TOKENS = 4
TEMPLATE_TOKENS = 3

_JSON_TOKEN = re.compile(r"\w+|[^\w\s]+")
_ROLE = re.compile(r"\S+")

Tokens = list[str] | list[int]


def prompt_of(body: Mapping[str, Any]) -> Tokens:
    """The tokens of `messages` or `prompt`. Raises ApiError where there are none."""
    return _conversation(body) if "messages" in body or "prompt" not in body else _plain(body["prompt"])


def block_hashes(tokens: Sequence[str] | Sequence[int], before: int = 0) -> list[int]:
    """A 64-bit number for each full block; equal numbers mean equal tokens up to there. The same in every process.

    `before` is the number of the block in front, so that a long prompt can be done in pieces of whole blocks.
    """
    hashes = []
    for start in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        content = _bytes(tokens[start : start + BLOCK_TOKENS])
        before = int.from_bytes(blake2b(content, digest_size=8, salt=before.to_bytes(8, "little")).digest(), "little")
        hashes.append(before)
    return hashes


def token_ids(tokens: Tokens) -> list[int]:
    """A number for each token, the same for the same word."""
    return [token if isinstance(token, int) else 1000 + zlib.crc32(token.encode()) % 31_000 for token in tokens]


def _bytes(tokens: Sequence[str] | Sequence[int]) -> bytes:
    if isinstance(tokens[0], str):
        return " ".join(cast(Sequence[str], tokens)).encode()
    return array("q", cast(Sequence[int], tokens)).tobytes()


def _conversation(body: Mapping[str, Any]) -> list[str]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, "messages must be a list with at least one message", "messages")
    if not all(isinstance(message, dict) for message in messages):
        raise ApiError(400, "each message must be an object", "messages")
    words = [] if body.get("tool_choice") == "none" else _definitions(body.get("tools"))
    for message in messages:
        words += ["<|start|>", _role(message), "<|message|>", *_text(message.get("content")).split()]
        words += _calls(message.get("tool_calls"))
        words.append("<|end|>")
    return [*words, "<|start|>", "assistant", "<|message|>"]


def _role(message: Mapping[str, Any]) -> str:
    role = message.get("role", "user")
    return role if isinstance(role, str) and _ROLE.fullmatch(role) else "user"


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        return " ".join(str(part.get("text", "")) for part in content)
    raise ApiError(400, "content must be a string or a list of parts", "messages")


def _definitions(tools: Any) -> list[str]:
    return [token for tool in _objects(tools or [], "tools") for token in _json_tokens(tool)]


def _calls(calls: Any) -> list[str]:
    """The name and the arguments of each; its id says nothing to a model."""
    words: list[str] = []
    for call in _objects(calls or [], "messages"):
        function = call.get("function")
        named = function if isinstance(function, dict) else {}
        words += [str(named.get("name")), *str(named.get("arguments", "")).split()]
    return words


def _objects(values: Any, param: str) -> list[dict[str, Any]]:
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise ApiError(400, "tools and tool_calls must be lists of objects", param)
    return values


def _json_tokens(value: Any) -> list[str]:
    return _JSON_TOKEN.findall(msgspec.json.encode(value).decode())


def _plain(prompt: Any) -> Tokens:
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt.strip():
        return prompt.split()
    if isinstance(prompt, list) and prompt and _are_ids(prompt):
        return prompt
    raise ApiError(400, "prompt must be one non-empty string, or a list of token ids", "prompt")


def _are_ids(tokens: Iterable[Any]) -> bool:
    return all(type(token) is int and 0 <= token < 2**63 for token in tokens)
