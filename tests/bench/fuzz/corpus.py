"""What honest servers send, as bytes: the answers that the fuzzer spoils."""

import base64
import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path

CAPTURES = Path(__file__).parents[2] / "data" / "captures"


@dataclass(frozen=True)
class Answer:
    """Headers without those that frame the body, and the body; `endpoint` says who reads it."""

    name: str
    head: bytes
    body: bytes
    endpoint: str = "chat"


UVICORN = (
    b"HTTP/1.1 200 OK\r\ndate: Fri, 02 Jan 2026 10:11:12 GMT\r\nserver: uvicorn\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\nx-request-id: 41\r\n"
)
LLAMA_CPP = (
    b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=5, max=100\r\nContent-Type: text/event-stream\r\nServer: llama.cpp\r\n"
    b"Access-Control-Allow-Origin: \r\n"
)
UNTYPED = b"HTTP/1.1 200 OK\r\nserver: gateway\r\n"
OLD = b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n"
EARLY = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
JSON = b"content-type: application/json\r\n"


def events(*datas: bytes, end: bytes = b"\n") -> bytes:
    return b"".join(b"data: " + data + end + end for data in datas)


def typed(*datas: bytes) -> bytes:
    return b"".join(b"event: %b\ndata: %b\n\n" % (data.split(b'"')[3], data) for data in datas)


def vllm(choices: bytes, more: bytes = b"") -> bytes:
    return (
        b'{"id":"chatcmpl-8f3a1c","object":"chat.completion.chunk","created":1767348672,"model":"Qwen/Qwen3-8B",'
        b'"choices":[%b]%b}' % (choices, more)
    )


def delta(fields: bytes, finish: bytes = b"null", more: bytes = b"") -> bytes:
    return vllm(b'{"index":0,"delta":{%b},"logprobs":null,"finish_reason":%b}' % (fields, finish), more)


def used(prompt: int, completion: int, more: bytes = b"") -> bytes:
    counts = (prompt, prompt + completion, completion, more)
    return b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d%b}' % counts


ROLE = delta(b'"role":"assistant","content":""')
SAID = (b"The", b" cat", b" \xf0\x9f\x90\x88", b" sat\\n", b"\\ud83d\\ude00")
WORDS = [delta(b'"content":"%b"' % word) for word in SAID]
STOP = delta(b"", b'"stop"', b',"stop_reason":null')
CHAT = events(ROLE, *WORDS, STOP, vllm(b"", used(21, 5)), b"[DONE]")
DETAILS = b',"completion_tokens_details":{"reasoning_tokens":2},"prompt_tokens_details":{"cached_tokens":16}'
THINKING = events(
    ROLE,
    delta(b'"reasoning_content":"Hm"'),
    delta(b'"reasoning":" so","reasoning_content":" so"'),
    *WORDS[:3],
    STOP,
    vllm(b"", used(40, 220, DETAILS)),
    b"[DONE]",
)
RUNNING = events(
    delta(b'"role":"assistant","content":""', more=used(21, 0)),
    *[delta(b'"content":" word"', more=used(21, count)) for count in (1, 5, 6, 12)],
    delta(b"", b'"length"', used(21, 12)),
    vllm(b"", used(21, 12)),
    b"[DONE]",
)
TOOLS = events(
    ROLE,
    delta(b'"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"look_up","arguments":""}}]'),
    delta(b'"tool_calls":[{"index":0,"function":{"arguments":"{\\"city\\":"}}]'),
    delta(b'"tool_calls":[{"index":0,"function":{"arguments":" \\"Oslo\\"}"}}]'),
    delta(b"", b'"tool_calls"'),
    vllm(b"", used(300, 18)),
    b"[DONE]",
)
LOGPROBS = events(
    vllm(b'{"index":0,"delta":{"content":"ab"},"logprobs":{"content":[{"token":"a","logprob":-0.1},{"token":"b"}]}}'),
    vllm(b'{"index":1,"delta":{"content":"ab"},"token_ids":[7,8],"finish_reason":"stop"}'),
    vllm(b'{"index":0,"delta":{"refusal":"no"},"finish_reason":"stop"}'),
    b"[DONE]",
)
COMPLETIONS = events(
    b'{"id":"cmpl-1","object":"text_completion","choices":[{"index":0,"text":"It","logprobs":null,"finish_reason":null}]}',
    b'{"id":"cmpl-1","choices":[{"index":0,"text":" is","logprobs":{"tokens":[" is"]},"finish_reason":"length"}]}',
    b'{"id":"cmpl-1","choices":[],"usage":{"prompt_tokens":4,"completion_tokens":2}}',
    b"[DONE]",
)
LLAMA = events(
    b'{"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}],"system_fingerprint":"b6000"}',
    b'{"choices":[{"finish_reason":null,"index":0,"delta":{"content":"Hi"}}],"object":"chat.completion.chunk"}',
    b'{"choices":[{"finish_reason":"stop","index":0,"delta":{}}],"object":"chat.completion.chunk"}',
    b'{"choices":[],"usage":{"completion_tokens":1,"prompt_tokens":9},"timings":{"prompt_n":9,"predicted_per_second":71.3}}',
    b"[DONE]",
)
CRLF = b"\r\n"
PINGED = b": ping\r\n\r\n" + events(ROLE, WORDS[0], end=CRLF) + b":\r\n\r\n" + events(STOP, b"[DONE]", end=CRLF)
LATE_ERROR = events(ROLE, WORDS[0], b'{"error":{"message":"CUDA out of memory","type":"InternalServer","code":500}}')
NAMED_ERROR = events(WORDS[0]) + b'event: error\ndata: {"message":"no worker is free"}\n\n'
RESPONSES = typed(
    b'{"type":"response.created","response":{"id":"resp_1","status":"in_progress","usage":null}}',
    b'{"type":"response.output_item.added","output_index":0,"item":{"type":"message","content":[]}}',
    b'{"type":"response.reasoning_text.delta","delta":"Hm"}',
    b'{"type":"response.output_text.delta","item_id":"m","delta":"The"}',
    b'{"type":"response.output_text.delta","item_id":"m","delta":" cat"}',
    b'{"type":"response.completed","response":{"status":"completed","usage":{"input_tokens":9,"output_tokens":3,'
    b'"input_tokens_details":{"cached_tokens":0},"output_tokens_details":{"reasoning_tokens":1}}}}',
)
RESPONSES_CALL = typed(
    b'{"type":"response.output_item.added","item":{"type":"function_call","name":"look_up"}}',
    b'{"type":"response.function_call_arguments.delta","delta":"{}"}',
    b'{"type":"response.incomplete","response":{"incomplete_details":{"reason":"max_output_tokens"},"usage":null}}',
)
RESPONSES_FAILED = typed(
    b'{"type":"response.output_text.delta","delta":"The"}',
    b'{"type":"response.failed","response":{"error":{"code":"server_error","message":"the engine died"}}}',
)
ZIPPED = gzip.compress(CHAT, mtime=0)
TWICE_ZIPPED = gzip.compress(CHAT[:900], mtime=0) + gzip.compress(CHAT[900:], mtime=0)
ERROR = b'{"error":{"message":"max_tokens is too large","type":"BadRequestError","param":null,"code":400}}'
INVALID = b'{"detail":[{"loc":["body","messages"],"msg":"field required","type":"value_error.missing"}]}'
WHOLE = b'{"id":"c","choices":[{"index":0,"message":{"role":"assistant","content":"Hi"}}],"usage":null}'
GATEWAY = b"<html><head><title>502 Bad Gateway</title></head><body><center>nginx</center><script>x</script></body>"

ANSWERS = (
    Answer("chat", UVICORN, CHAT),
    Answer("thinking", UVICORN, THINKING),
    Answer("running usage", UVICORN, RUNNING),
    Answer("tool calls", UVICORN, TOOLS),
    Answer("logprobs, two choices", UVICORN, LOGPROBS),
    Answer("completions", UVICORN, COMPLETIONS),
    Answer("llama.cpp", LLAMA_CPP, LLAMA),
    Answer("pings", LLAMA_CPP, PINGED),
    Answer("late error", UVICORN, LATE_ERROR),
    Answer("named error", LLAMA_CPP, NAMED_ERROR),
    Answer("early hints", EARLY + UVICORN, CHAT),
    Answer("no type", UNTYPED, CHAT),
    Answer("HTTP/1.0", OLD, CHAT),
    Answer("gzip", UVICORN + b"content-encoding: gzip\r\n", ZIPPED),
    Answer("two gzip members", UVICORN + b"content-encoding: gzip\r\n", TWICE_ZIPPED),
    Answer("deflate", UVICORN + b"content-encoding: deflate\r\n", zlib.compress(RUNNING)),
    Answer("responses", UVICORN, RESPONSES, "responses"),
    Answer("responses, a call", UVICORN, RESPONSES_CALL, "responses"),
    Answer("responses, failed", UVICORN, RESPONSES_FAILED, "responses"),
    Answer("one JSON body", b"HTTP/1.1 200 OK\r\n" + JSON, WHOLE),
    Answer("400", b"HTTP/1.1 400 Bad Request\r\n" + JSON, ERROR),
    Answer("422", b"HTTP/1.1 422 Unprocessable Entity\r\n" + JSON, INVALID),
    Answer("429", b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 2\r\n" + JSON, ERROR),
    Answer("502", b"HTTP/1.1 502 Bad Gateway\r\ncontent-type: text/html\r\n", GATEWAY),
    Answer("redirect", b"HTTP/1.1 307 Temporary Redirect\r\nlocation: /elsewhere\r\n", b""),
    Answer("204", b"HTTP/1.1 204 No Content\r\n", b""),
)


def captured() -> tuple[Answer, ...]:
    """Recorded answers: a file has a line for each read, in base64. What framed them is cut: they are framed anew."""
    return tuple(_captured(path) for path in sorted(CAPTURES.glob("*.b64")))


def _captured(path: Path) -> Answer:
    head, _, body = b"".join(base64.b64decode(line) for line in path.read_text().split()).partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    kept = [line for line in lines if not line.lower().startswith((b"content-length", b"transfer-encoding"))]
    chunked = b"transfer-encoding: chunked" in head.lower()
    return Answer(path.stem, b"\r\n".join([*kept, b""]), _dechunked(body) if chunked else body)


def _dechunked(body: bytes) -> bytes:
    pieces = []
    while body:
        size, _, rest = body.partition(b"\r\n")
        pieces.append(rest[: int(size, 16)])
        body = rest[int(size, 16) + 2 :]
    return b"".join(pieces)
