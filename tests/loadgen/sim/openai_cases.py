"""What OpenAI's own Python client is asked to do; each case raises where it reads something else than what is said."""

import json
from typing import Any

import openai

SAID: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather for a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
USAGE: Any = {"include_usage": True}


def models(client: openai.OpenAI, model: str) -> str:
    assert [each.id for each in client.models.list()] == [model]
    return model


def whole(client: openai.OpenAI, model: str) -> str:
    answer = client.chat.completions.create(model=model, messages=SAID, max_completion_tokens=9)
    assert answer.usage is not None
    assert (answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("length", 9)
    return str(answer.choices[0].message.content)


def streamed(client: openai.OpenAI, model: str) -> str:
    chunks = list(client.chat.completions.create(
        model=model, messages=SAID, max_tokens=20, stream=True, stream_options=USAGE
    ))  # fmt: skip
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert (usage.completion_tokens, len(text.split())) == (20, 20)
    assert chunks[0].choices[0].delta.role == "assistant"
    return f"{len(chunks)} chunks, {usage.prompt_tokens_details.cached_tokens} prompt tokens cached"


def thinking(client: openai.OpenAI, model: str) -> str:
    stream = client.chat.completions.create(
        model=model, messages=SAID, max_tokens=10, stream=True, reasoning_effort="medium", stream_options=USAGE
    )
    chunks = list(stream)
    thought = [chunk for chunk in chunks if chunk.choices and "reasoning_content" in chunk.choices[0].delta.model_extra]
    details = chunks[-1].usage.completion_tokens_details
    assert len(thought) == details.reasoning_tokens == 5
    return f"{len(thought)} thoughts"


def tool_call(client: openai.OpenAI, model: str) -> str:
    with client.chat.completions.stream(
        model=model, messages=SAID, max_tokens=12, tools=[WEATHER], tool_choice="required"
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    (call,) = final.choices[0].message.tool_calls or ()
    assert final.choices[0].finish_reason == "tool_calls"
    assert (call.function.name, list(json.loads(call.function.arguments))) == ("get_weather", ["city"])
    assert kinds.count("tool_calls.function.arguments.done") == 1
    return call.function.arguments


def tool_conversation(client: openai.OpenAI, model: str) -> str:
    ask: dict[str, Any] = {"model": model, "max_tokens": 9, "tools": [WEATHER]}
    first = client.chat.completions.create(messages=SAID, tool_choice="required", **ask)
    message = first.choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny, 20 degrees"}
    second = client.chat.completions.create(messages=[*SAID, message, result], tool_choice="auto", **ask)
    assert second.usage.prompt_tokens > first.usage.prompt_tokens
    return str(second.choices[0].message.content)


def parallel_calls(client: openai.OpenAI, model: str) -> str:
    answer = client.chat.completions.create(
        model=model, messages=SAID, max_tokens=30, tools=[WEATHER], extra_headers={"x-loadgen-tool-calls": "3"}
    )
    calls = answer.choices[0].message.tool_calls or ()
    assert len({call.id for call in calls}) == 3
    return ", ".join(call.function.arguments for call in calls)


def choices(client: openai.OpenAI, model: str) -> str:
    answer = client.chat.completions.create(model=model, messages=SAID, max_tokens=5, n=3, stop="the")
    return " | ".join(f"{choice.index}:{choice.message.content} ({choice.finish_reason})" for choice in answer.choices)


def completions(client: openai.OpenAI, model: str) -> str:
    stream = client.completions.create(model=model, prompt="one two three", max_tokens=6, stream=True)
    text = "".join(chunk.choices[0].text for chunk in stream)
    assert len(text.split()) == 6
    return text


def responses(client: openai.OpenAI, model: str) -> str:
    ask: dict[str, Any] = {"model": model, "input": SAID, "max_output_tokens": 8}
    with client.responses.stream(**ask, reasoning={"effort": "medium"}) as stream:
        events: list[Any] = list(stream)
    kinds, final = [event.type for event in events], events[-1].response
    assert kinds[-1] == "response.incomplete"  # it ends at max_output_tokens
    assert kinds.count("response.output_text.delta") == kinds.count("response.reasoning_text.delta") == 4
    assert final.usage.output_tokens == 8
    tool: Any = {"type": "function", **WEATHER["function"], "strict": False}
    called = client.responses.create(**ask, tools=[tool], tool_choice="required").output[0]
    assert (called.type, list(json.loads(called.arguments))) == ("function_call", ["city"])
    return final.output_text


def unknown_model(client: openai.OpenAI, model: str) -> str:
    try:
        client.chat.completions.create(model=f"not-{model}", messages=SAID)
    except openai.NotFoundError as error:
        return str(error.body["message"])
    raise AssertionError("an unknown model was not refused")


CASES = (
    models, whole, streamed, thinking, tool_call, tool_conversation, parallel_calls, choices, completions, responses,
    unknown_model,
)  # fmt: skip
