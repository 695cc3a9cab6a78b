"""A first workload file to edit, every key explained, and the JSON Schema that editors check it with."""

from typing import Any

from workloads.spec import Workload
from workloads.units import duration_text

SHAPES = ("chat", "rag", "reasoning", "agent", "mixed")


def starter(shape: str) -> str:
    """A workload file with limits for one of `SHAPES`, which loads as it is. ValueError for any other shape."""
    if shape not in SHAPES:
        raise ValueError(f"no such shape: {shape}; there are {', '.join(SHAPES)}")
    classes = list(_CLASSES) if shape == "mixed" else [shape]
    blocks = "".join(_CLASSES[name] for name in classes)
    limits = "".join(f"  {name}: {_LIMITS[name]}\n" for name in classes)
    return _HEAD.format(name=shape, rate=_RATES[shape]) + blocks + _FOOT + limits


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of the workload file, in which durations and rates are text with a unit.

    `workload.schema.json` beside this module is its text.
    """
    whole = Workload.model_json_schema()
    definitions: dict[str, Any] = {}
    tidy = {key: _tidy(value, definitions) for key, value in whole.items() if key != "title"}
    tidy["$defs"] |= definitions
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A workload of loadgen",
        **tidy,
    }


def _tidy(node: Any, definitions: dict[str, Any]) -> Any:
    """Without pydantic's titles, and with what is marked by name moved to `definitions`."""
    if isinstance(node, list):
        return [_tidy(each, definitions) for each in node]
    if not isinstance(node, dict):
        return node
    tidy = {key: _tidy(value, definitions) for key, value in node.items() if not _is_noise(key, value)}
    if "const" in tidy.get("properties", {}).get("law", {}):
        tidy["required"] = sorted({"law", *tidy.get("required", ())})
    if "const" in tidy:  # says all; versions of pydantic differ in what they add
        tidy = {key: value for key, value in tidy.items() if key not in ("type", "enum")}
    if "$comment" not in tidy:
        return tidy
    name = tidy.pop("$comment")["name"]
    definitions[name] = _tidy(node["$comment"]["schema"], definitions)
    if tidy.get("default") is not None:
        tidy["default"] = _written_default(name, tidy["default"])
    return {"$ref": f"#/$defs/{name}", **tidy}


def _is_noise(key: str, value: Any) -> bool:
    """A title that says what the key says, or the default of a whole mapping or of a key that may be left out."""
    if key == "default":
        return value is None or (isinstance(value, dict) and "law" not in value)
    return key == "title" and isinstance(value, str)


def _written_default(name: str, value: Any) -> Any:
    """A default as the file would have it."""
    number = value["value"] if isinstance(value, dict) else value
    return duration_text(number) if name in ("duration", "times") else int(number)


_RATES = {"chat": "3/s", "rag": "12/s", "reasoning": "3/s", "agent": "1/s", "mixed": "4/s"}

_HEAD = """\
# A workload for loadgen: what to send, when, and what must hold.
# Check it with `loadgen plan FILE`, send it with `loadgen run FILE --target URL`. Every key has a default.
# Durations: 250ms 10s 5m 1h. Rates: 4/s 90/m. Lengths in tokens: a number, or a law such as {{law: lognormal, mean: 60,
# p95: 200}} (also constant, uniform, normal, geometric, zipf, empirical; min and max clip what is drawn).

name: {name}

# When sessions (conversations, tasks) come. An open loop: they come when due, however slow the server is.
arrivals:
  process: poisson        # constant | poisson | gamma (cv: 2) | onoff (burst: 10s, pause: 20s)
                          # | sine (period: 1h, amplitude: 0.5)
  rate: {rate}               # the mean
  unit: sessions          # what the rate counts: sessions or requests
# Instead of arrivals:
# concurrency: 32         # a closed loop: so many users, each sends again when answered
# users: 20               # so many users, each of whom starts a session
# every: 10s              #   every 10 s, start to start
# stages:                 # one rate after the other, or a ramp (with `arrivals: {{process: poisson}}`, and no duration)
#   - {{rate: 2/s, duration: 30s}}
#   - {{from: 2/s, to: 8/s, duration: 30s}}
# trace: {{file: traffic.jsonl, format: mooncake, speed: 2, window: [0s, 10m], sample: 0.1}}
#                         # recorded traffic: azure, burstgpt, mooncake, sharegpt, csv, jsonl

warmup: 10s               # sent first and not measured
duration: 60s             # measured; or  requests: 500  (model calls)
drain: 30s                # how long what is under way then may still take
# seed: 7                 # the same seed sends the same texts at the same times; without one, every run is fresh
# cold: true              # no two prompts begin alike, so that no prefix cache can help
# warm: true              # the prefixes that prompts share are sent once before the clock starts

# What the sessions are like. A class has its own shape, lengths and limits.
classes:
"""

_COMMON = """\
    # lengths: {law: pairs, pairs: [[100, 200, 3], [4000, 50, 1]]}  # [input, output, weight] instead of the two
    # model: NAME                 # another model than the run's
    # body: {temperature: 0}      # further fields of the request
"""

_CLASSES = {
    "chat": """\
  chat:
    shape: chat                   # conversations: each turn sends all that was said before
    weight: 10                    # this class's part of all sessions
    system_tokens: 200            # the system prompt, the same in every session
    turns: {law: geometric, mean: 3, max: 12}
    think_time: {law: lognormal, mean: 6s, p95: 15s}   # from the end of an answer to the next question
    input_tokens: {law: lognormal, mean: 60, p95: 200, max: 1000}   # the user's words of each turn
    output_tokens: {law: lognormal, mean: 200, p95: 500, max: 1000}
    history: live                 # live: the model's own answers; scripted: words of the planned length
"""
    + _COMMON,
    "rag": """\
  rag:
    shape: rag                    # one question over retrieved documents: long prompts, short answers
    weight: 8                     # this class's part of all sessions
    system_tokens: 200            # the system prompt, the same in every session
    documents:
      count: 500                  # so many documents in the pool,
      tokens: 250                 # of this length each,
      top_k: 5                    # so many of them in each prompt
      popularity: {law: zipf, s: 1.1}   # or {law: uniform}
      order: shuffled             # or ranked: the most popular first, which a prefix cache likes
    input_tokens: 40              # the question
    output_tokens: {law: lognormal, mean: 150, p95: 300, max: 600}
"""
    + _COMMON,
    "reasoning": """\
  reasoning:
    shape: reasoning              # a model that thinks before it answers
    weight: 1                     # this class's part of all sessions
    system_tokens: 0              # the system prompt, the same in every session
    input_tokens: {law: lognormal, mean: 200, p95: 500, max: 1500}
    thinking_tokens: {law: lognormal, mean: 700, p95: 1500, max: 2000}
    output_tokens: {law: lognormal, mean: 200, p95: 400, max: 600}   # the answer after the thinking
    # effort: high                # sent as reasoning_effort
    # enable_thinking: true       # sent in chat_template_kwargs
    # budget_field: thinking_token_budget   # the field that tells the server each request's thinking tokens
"""
    + _COMMON,
    "agent": """\
  agent:
    shape: agent                  # tasks of several model calls, each of which sends all steps before it
    weight: 1                     # this class's part of all sessions
    system_tokens: 300            # the system prompt, the same in every task
    tools: 6                      # so many tools, defined
    tool_definition_tokens: 80    # in so many tokens each
    steps: {law: uniform, low: 3, high: 8}
    parallel: {probability: 0.2, width: 3}   # how often a step is several calls at once
    tool_time: {law: lognormal, mean: 1s, p95: 3s}   # from the end of an answer to the next step
    input_tokens: 150             # the task
    tool_result_tokens: {law: lognormal, mean: 300, p95: 800, max: 2000}
    tool_calls: native            # native: tools, calls and results in the API's fields; text: in plain messages
    output_tokens: {law: lognormal, mean: 100, p95: 250, max: 500}
    history: live                 # live: the model's own answers; scripted: words of the planned length
    # model: NAME                 # another model than the run's
    # body: {temperature: 0}      # further fields of the request
""",
}

_FOOT = """
# When a pause between two tokens is a stall: above the floor and above so many times the request's median gap.
stall: {floor: 200ms, factor: 5}

# When tokens are due, for a limit such as 'fluidity>99%': the first after ttft, each further one tbt after the last.
# An early token leaves its slack to the next. With at_least, a good request has that share of its tokens in time.
fluidity: {ttft: 1s, tbt: 100ms}   # at_least: 0.9

# What a good request is, for goodput.
good: {ttft: 1s, gap_p99: 200ms}

# What must hold, for `all` or by class: the run's exit status says whether it did.
# ttft: to the first token; ttfat: to the first token of the answer, after the thinking; itl: between tokens.
slo:
  all: ['errors<1%']
"""

_LIMITS = {
    "chat": "['ttft.p95<500ms', 'itl.p99<150ms']",
    "rag": "['ttft.p90<1s', 'itl.p99<150ms']",
    "reasoning": "['ttfat.p90<30s', 'itl.p99<150ms']",
    "agent": "['itl.p99<150ms']",
}
