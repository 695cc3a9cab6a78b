"""What the hostile server does with one request, from the seed and the number of the case alone. Pure."""

import gzip
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import pairwise

from tests.bench.fuzz.corpus import ANSWERS, UVICORN, Answer, captured, events


class Action(Enum):
    KEEP = "go on with the next request on this connection"
    CLOSE = "close"
    RESET = "reset"
    HANG = "say nothing more"


@dataclass(frozen=True)
class Repeat:
    """`data`, `times` over: what is too large to be made at once."""

    data: bytes
    times: int


Step = bytes | Repeat


@dataclass(frozen=True)
class Expected:
    """What a clean answer must be counted as: characters of its tokens, and usage."""

    chars: tuple[int, ...]
    prompt_tokens: int


@dataclass(frozen=True)
class Plan:
    """Steps are written one after the other, then the action. `early`: before the request has been read."""

    name: str
    endpoint: str
    steps: tuple[Step, ...]
    action: Action
    expected: Expected | None = None
    early: bool = False

    @property
    def one_write(self) -> bool:
        """Whether all is sent at once: whatever comes too much is there when the client reads the end."""
        return len(self.steps) == 1 and isinstance(self.steps[0], bytes) and len(self.steps[0]) < 16_384


CLEAN_EVERY = 4
HOSTILE_EVERY = 61
LARGE_EVERY = 4_001
LARGE_PROMPT_WORDS = 2_000_000


def plan(seed: int, case: int) -> Plan:
    rng = random.Random(f"{seed}:{case}")
    if case % CLEAN_EVERY == 0:
        return clean(case, rng)
    if case % HOSTILE_EVERY == 0:
        return hostile(rng, case)
    answer = rng.choice(CORPUS)
    body = mutated(rng, answer.body, BODY_MUTATIONS) if rng.random() < 0.6 else answer.body
    wire = framed(rng, answer.head, body)
    if body is answer.body or rng.random() < 0.3:
        wire = mutated(rng, wire, WIRE_MUTATIONS)
    early = case % LARGE_EVERY == 0
    return Plan(answer.name, answer.endpoint, cut(rng, wire), ending(rng), early=early)


def is_large(case: int) -> bool:
    """Whether the prompt of this case is larger than what the sockets' buffers hold."""
    return case % LARGE_EVERY == 0 and case % CLEAN_EVERY != 0


# --- clean ------------------------------------------------------------------------------------------------------------


def clean(case: int, rng: random.Random) -> Plan:
    """An answer like no other: words of random length, and the number of the case as the prompt's length."""
    lengths = tuple(rng.randint(1, 40) for _ in range(rng.randint(1, 12)))
    if case % (5 * CLEAN_EVERY) == 0:
        endpoint = "responses"
        words = [b'{"type":"response.output_text.delta","delta":"%b"}' % (b"w" * length) for length in lengths]
        usage = b'{"input_tokens":%d,"output_tokens":%d}' % (case, len(lengths))
        body = events(*words, b'{"type":"response.completed","response":{"usage":%b}}' % usage)
    else:
        endpoint = "chat"
        words = [b'{"choices":[{"index":0,"delta":{"content":"%b"}}]}' % (b"w" * length) for length in lengths]
        finish = b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
        usage = b'{"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}' % (case, len(lengths))
        body = events(*words, finish, usage, b"[DONE]")
    wire = framed(rng, UVICORN, body)
    closes = b"content-length" not in wire and b"chunked" not in wire
    steps = cut(rng, wire)
    return Plan("clean", endpoint, steps, Action.CLOSE if closes else Action.KEEP, Expected(lengths, case))


# --- framing and pacing -----------------------------------------------------------------------------------------------


def framed(rng: random.Random, head: bytes, body: bytes) -> bytes:
    kind = rng.choice(("chunked", "chunked", "length", "close")) if b" 204 " not in head else "close"
    if kind == "length":
        return head + b"content-length: %d\r\n\r\n" % len(body) + body
    if kind == "close":
        return head + b"connection: close\r\n\r\n" + body
    pieces = _pieces(rng, body, rng.choice((1, 4, 20)))
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece)
    return head + b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


def cut(rng: random.Random, wire: bytes) -> tuple[bytes, ...]:
    """In one write for half of the answers, else in up to 40."""
    return tuple(_pieces(rng, wire, 1 if rng.random() < 0.5 else rng.choice((2, 5, 40))))


def _pieces(rng: random.Random, data: bytes, most: int) -> list[bytes]:
    marks = [0, *sorted(rng.randint(0, len(data)) for _ in range(most - 1)), len(data)]
    return [data[low:high] for low, high in pairwise(marks) if high > low]


def ending(rng: random.Random) -> Action:
    return rng.choices(tuple(Action), (60, 20, 14, 6))[0]


# --- mutations --------------------------------------------------------------------------------------------------------

Mutation = Callable[[random.Random, bytes], bytes]

SPECIAL = (
    b"\x00", b"\r", b"\n", b"\r\n", b"\n\n", b"\r\n\r\n", b"\xff\xfe", b"\xef\xbb\xbf", b"\xc3", b"\xed\xa0\x80",
    b"data: [DONE]\n\n", b"data: {}\n\n", b"data:", b"event: error\n", b"event: error\ndata: x\n\n", b": ping\n\n",
    b'data: {"error":{"message":"a\\nb","code":"\\u0000x"}}\n\n',
    b'data: {"error":' + b'{"error":' * 900 + b"1" + b"}" * 901 + b"\n\n", b'data: {"object":"error"}\n\n',
    b"data: " + b"[" * 3000 + b"\n\n", b"data: 1e999\n\n", b"data: \x00\n\n", b"9" * 5000, b"-1",
    b"18446744073709551616", b"%s%n", b"\xf0\x9f\x98\x80", b"\x1b[2J", b"<" * 500, b"<script" * 80,
)  # fmt: skip

HOSTILE_JSON = (
    b"null", b"true", b"false", b"-1", b"0", b"1", b"2147483647", b"2147483648", b"9223372036854775807",
    b"9223372036854775808", b"1" + b"0" * 40, b"9" * 4400, b"1.5", b"1e308", b"1e400", b"-0.0", b'""', b'" "', b'"x"',
    b'"\\u0000"', b'"\\ud800"', b'"\\u202e"', b'"' + b"y" * 70_000 + b'"', b'"a\\nb\\u001b[31m"', b'"error"',
    b'"abort"', b"[]", b"{}", b"[[1]]", b'[""]', b'[{"text":"abc"}]', b'{"message":"m"}', b"[" * 500 + b"]" * 500,
    b'{"error":' * 400 + b"1" + b"}" * 400, b"\xff", b"NaN", b"[1,2",
)  # fmt: skip
JSON_VALUE = re.compile(rb'(?<=[:\[,])(?:-?\d[\d.eE+-]*|"(?:[^"\\]|\\.)*"|null|true|false|\{\}|\[\])')

HEADERS = (
    b"content-length: 5\r\n", b"content-length: -1\r\n", b"content-length: 99999999999999999999999\r\n",
    b"Content-Length: 1048576\r\n", b"content-length: 0\r\n", b"transfer-encoding: chunked\r\n",
    b"transfer-encoding: gzip, chunked\r\n", b"transfer-encoding: chunked, gzip\r\n",
    b"transfer-encoding: identity\r\n", b"content-encoding: gzip\r\n", b"content-encoding: deflate\r\n",
    b"content-encoding: br\r\n", b"content-encoding: \xff\x80\r\n", b"content-type: text/html\r\n",
    b"content-type: application/json\r\n", b"content-type: \x80\xa0\xad" + b"t" * 3000 + b"\r\n",
    b"connection: close\r\n", b"connection: upgrade\r\nupgrade: h2c\r\n",
    b"keep-alive: timeout=" + b"9" * 400 + b"\r\n", b"keep-alive: timeout=0\r\n", b"keep-alive: timeout=\xb2\r\n",
    b"retry-after: nan\r\n", b"retry-after: -5\r\n", b"retry-after: 1e400\r\n", b"location: /x y\r\n",
    b"location: \xff\xfe\r\n", b"location: /" + b"l" * 5000 + b"\r\n", b"location: //other/\r\n", b" folded\r\n",
    b"no colon\r\n", b": empty\r\n", b"x: \x00\r\n", b"x-a: b\r\n" * 200,
)  # fmt: skip
STATUSES = (
    b"000", b"099", b"100", b"101", b"102", b"199", b"200", b"201", b"204", b"205", b"206", b"299", b"300", b"304",
    b"307", b"308", b"400", b"418", b"429", b"500", b"503", b"599", b"600", b"999", b"20", b"2000", b"-20", b"abc",
)  # fmt: skip
SIZES = (
    b"0", b"-1", b"ffffffffffffffff", b"10000000000000000", b"fffffff", b"zz", b"", b" 5", b"5 ",
    b"5;x=" + b"y" * 3000, b"0x5",
)  # fmt: skip


def flip_bits(rng: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 3, 12))):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def truncate(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data))]


def remove(rng: random.Random, data: bytes) -> bytes:
    start = rng.randrange(len(data))
    return data[:start] + data[start + rng.choice((1, 2, 10, 200)) :]


def duplicate(rng: random.Random, data: bytes) -> bytes:
    low, high = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    return data[:high] + data[low:high] * rng.choice((1, 1, 2, 9)) + data[high:]


def insert(rng: random.Random, data: bytes) -> bytes:
    place = rng.randrange(len(data) + 1)
    piece = rng.choice(SPECIAL) if rng.random() < 0.7 else rng.randbytes(rng.choice((1, 2, 8, 300)))
    return data[:place] + piece + data[place:]


def swap_json(rng: random.Random, data: bytes) -> bytes:
    """Values of the JSON inside replaced by hostile ones: usage that lies, wrong types, too deep, too large."""
    found = list(JSON_VALUE.finditer(data))
    for _ in range(rng.choice((1, 1, 2, 5))):
        if not found:
            break
        one = found.pop(rng.randrange(len(found)))
        data = data[: one.start()] + rng.choice(HOSTILE_JSON) + data[one.end() :]
        found = [other for other in found if other.end() <= one.start()]
    return data


def shuffle_events(rng: random.Random, data: bytes) -> bytes:
    """Events in another order: tokens after [DONE], usage first, the role last."""
    parts = data.split(b"\n\n")
    rng.shuffle(parts)
    return b"\n\n".join(parts) + b"\n\n"


def replace_head_line(rng: random.Random, data: bytes) -> bytes:
    start = data.find(b"\r\n") + 2
    header = rng.choice(HEADERS)
    if rng.random() < 0.5:  # in place of a line
        end = data.find(b"\r\n", start) + 2
        return data[:start] + header + data[max(start, end) :]
    return data[:start] + header + data[start:]


def replace_status(rng: random.Random, data: bytes) -> bytes:
    lines = rng.choice((1, 2))
    return re.sub(rb"(HTTP/1\.\d) \d+", lambda found: found[1] + b" " + rng.choice(STATUSES), data, count=lines)


def replace_chunk_size(rng: random.Random, data: bytes) -> bytes:
    found = list(re.finditer(rb"(?<=\r\n)[0-9a-f]+(?=\r\n)", data))
    if not found:
        return data
    one = rng.choice(found)
    return data[: one.start()] + rng.choice(SIZES) + data[one.end() :]


def replace_length(rng: random.Random, data: bytes) -> bytes:
    wrong = rng.choice((b"0", b"1", b"100", b"-5", b"1000000", b"1" * 30, b"5, 5", b"0x10", b"", b" 7"))
    return re.sub(rb"content-length: \d+", lambda _: b"content-length: " + wrong, data, count=1)


def append(rng: random.Random, data: bytes) -> bytes:
    """More after the end: stray bytes, or a second answer that nobody asked for, whole or cut."""
    second = framed(rng, UVICORN, ANSWERS[0].body)
    return data + rng.choice((b"\r\n", b"x", b"\x00", b"HTTP/1.1 ", second, second[: rng.randrange(len(second))], data))


def flood_informational(rng: random.Random, data: bytes) -> bytes:
    return b"HTTP/1.1 %d x\r\n\r\n" % rng.choice((100, 102, 103)) * rng.choice((1, 30, 900)) + data


BODY_MUTATIONS: Sequence[Mutation] = (
    flip_bits, truncate, remove, duplicate, insert, swap_json, swap_json, swap_json, shuffle_events,
)  # fmt: skip
WIRE_MUTATIONS: Sequence[Mutation] = (
    flip_bits, truncate, remove, duplicate, insert, replace_head_line, replace_head_line, replace_status,
    replace_chunk_size, replace_length, append, append, flood_informational,
)  # fmt: skip


def mutated(rng: random.Random, data: bytes, mutations: Sequence[Mutation]) -> bytes:
    for _ in range(rng.choice((1, 1, 2, 4))):
        if data:
            data = rng.choice(mutations)(rng, data)
    return data


# --- what is too large ------------------------------------------------------------------------------------------------

MIB = 1 << 20
LARGE = 80 * MIB
LINES, COMMENTS, BLANKS = b"x" * 4096, b":\n" * 2048, b"\n" * 4096
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
UNTIL_CLOSE = HEAD + b"\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
ONE_TOKEN = ANSWERS[0].body.split(b"\n\n")[1] + b"\n\n"


def bomb(unit: bytes, size: int, times: int = 1) -> tuple[Step, ...]:
    return (HEAD + b"content-encoding: gzip\r\n\r\n", Repeat(_packed(unit, size), times))


@cache
def _packed(unit: bytes, size: int) -> bytes:
    return gzip.compress(unit * (size // len(unit)), mtime=0)


def prepare() -> None:
    """Make what takes long once, before the server forks and anything is timed."""
    for unit in (LINES, COMMENTS, BLANKS):
        for size in (MIB, LARGE):
            _packed(unit, size)


def hostile(rng: random.Random, case: int) -> Plan:
    size = LARGE if case % 29 == 0 else MIB
    kinds: dict[str, Callable[[], tuple[Step, ...]]] = {
        "endless header": lambda: (b"HTTP/1.1 200 OK\r\n", Repeat(b"x-a: b\r\n" * 512, size // 4096)),
        "endless header line": lambda: (b"HTTP/1.1 200 OK\r\nx: ", Repeat(b"b" * 4096, size // 4096)),
        "endless status line": lambda: (b"HTTP/1.1 200 ", Repeat(b"O" * 4096, size // 4096)),
        "endless trailers": lambda: (CHUNKED + b"0\r\n", Repeat(b"x-a: b\r\n" * 512, size // 4096)),
        "endless trailer line": lambda: (CHUNKED + b"0\r\nx: ", Repeat(b"b" * 4096, size // 4096)),
        "endless chunk extension": lambda: (CHUNKED + b"5;x=", Repeat(b"y" * 4096, size // 4096)),
        "endless line": lambda: (UNTIL_CLOSE + b"data: ", Repeat(b"x" * 32_768, size // 32_768)),
        "endless event": lambda: (UNTIL_CLOSE, Repeat(b"data: x\n" * 512, size // 4096)),
        "endless empty lines of data": lambda: (UNTIL_CLOSE, Repeat(b"data\n" * 512, size // 2560)),
        "endless comments": lambda: (UNTIL_CLOSE + ONE_TOKEN, Repeat(b": ping\n\n" * 64, 2000)),
        "endless blank lines": lambda: (UNTIL_CLOSE, Repeat(b"\n" * 4096, MIB // 4096)),
        "endless error": lambda: (b"HTTP/1.1 500 Oops\r\n\r\n", Repeat(b"<script>" * 512, size // 4096)),
        "endless less-than": lambda: (b"HTTP/1.1 500 Oops\r\n\r\n", Repeat(b"<" * 4096, MIB // 4096)),
        "endless tokens": lambda: (UNTIL_CLOSE, Repeat(ONE_TOKEN * 8, 500)),
        "1xx flood": lambda: (Repeat(b"HTTP/1.1 100 Continue\r\n\r\n" * 128, MIB // 3200),),
        "a byte at a time": lambda: tuple(bytes([byte]) for byte in framed(rng, UVICORN, ANSWERS[0].body)),
        "a slow header": lambda: (b"HTTP/1.1 200 OK\r\nx: ", Repeat(b"y", 3000)),
        "bomb of one line": lambda: bomb(LINES, size),
        "bomb of comments": lambda: bomb(COMMENTS, size),
        "bomb of blank lines": lambda: bomb(BLANKS, size),
        "bomb of events": lambda: bomb(b"data: {}\n\n", MIB * 4),
        "bombs in a row": lambda: bomb(b": ping\n\n", MIB * 4, 300),
        "after the end of gzip": lambda: (*bomb(ONE_TOKEN, 4096), Repeat(b"\x00" * 4096, size // 4096)),
    }
    name = rng.choice(tuple(kinds))
    return Plan(name, "chat", kinds[name](), rng.choice((Action.CLOSE, Action.RESET, Action.HANG)))


CORPUS: tuple[Answer, ...] = ANSWERS + captured()
