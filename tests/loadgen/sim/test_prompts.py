from itertools import takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.sim.errors import ApiError
from loadgen.sim.prompts import block_hashes, prompt_of, token_ids

HELLO = {"role": "user", "content": "two words"}
TOOL = {"type": "function", "function": {"name": "find", "description": "Find a word"}}
CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q": "x"}'}}


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"messages": [HELLO]}, 2 + 4 + 3),
        ({"messages": [{"role": "system", "content": "a  b\nc"}, {"role": "user", "content": ""}]}, 3 + 2 * 4 + 3),
        ({"messages": [{"content": [{"type": "text", "text": "a b"}, {"type": "text", "text": "c"}]}]}, 3 + 4 + 3),
        ({"messages": [{"role": "assistant", "content": None}]}, 4 + 3),
        ({"messages": [{"role": "no role", "content": "a"}]}, 1 + 4 + 3),
        # {" type ":" function "," function ":{" name ":" find "," description ":" Find a word "}}
        ({"messages": [HELLO], "tools": [TOOL]}, 9 + 17),
        ({"messages": [HELLO], "tools": [TOOL, TOOL]}, 9 + 2 * 17),
        ({"messages": [HELLO], "tools": [TOOL], "tool_choice": "none"}, 9),
        ({"messages": [{"role": "assistant", "content": None, "tool_calls": [CALL]}]}, 4 + 1 + 2 + 3),
        ({"messages": [{"role": "assistant", "content": "so", "tool_calls": [CALL, CALL]}]}, 1 + 4 + 2 * 3 + 3),
        ({"messages": [{"role": "tool", "tool_call_id": "c1", "content": "it is there"}]}, 3 + 4 + 3),
        ({"prompt": "one two three"}, 3),
        ({"prompt": ["one two three"]}, 3),
        ({"prompt": [5, 6, 7, 8]}, 4),
        ({"prompt": [[5, 6, 7, 8]]}, 4),
    ],
)
def test_length(body, tokens):
    prompt = prompt_of(body)
    assert len(prompt) == tokens, prompt
    assert len(token_ids(prompt)) == tokens


def test_the_same_word_has_the_same_id():
    first, second, third = token_ids(["a", "b", "a"])
    assert first == third != second
    assert token_ids([7, 8]) == [7, 8]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages"),
        ({"messages": [{"content": 5}]}, "messages"),
        ({"messages": [{"content": ["hi"]}]}, "messages"),
        ({"messages": [{"content": "a", "tool_calls": ["find"]}]}, "messages"),
        ({"messages": [{"content": "a"}], "tools": "find"}, "tools"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": 5}, "prompt"),
    ],
)
def test_what_is_no_prompt_is_refused(body, param):
    with pytest.raises(ApiError) as refused:
        prompt_of(body)
    assert (refused.value.status, refused.value.param) == (400, param)


def test_the_next_prompt_of_a_conversation_begins_with_this_one_and_its_answer():
    answer = "and five words of answer"
    first = prompt_of({"messages": [HELLO]})
    second = prompt_of({"messages": [HELLO, {"role": "assistant", "content": answer}, HELLO]})
    assert second[: len(first) + 5] == [*first, *answer.split()]


WORDS = st.lists(st.text("ab", min_size=1, max_size=2), max_size=80)


@settings(deadline=None)
@given(WORDS, WORDS, WORDS)
def test_equal_hashes_are_equal_beginnings(shared, one, other):
    first, second = shared + one, shared + other
    same = takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    common = sum(1 for _ in same)
    hashes = block_hashes(first), block_hashes(second)
    assert [len(each) for each in hashes] == [len(first) // 16, len(second) // 16]
    equal = [a == b for a, b in zip(*hashes, strict=False)]
    assert equal == [16 * (i + 1) <= common for i in range(len(equal))]


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**63 - 1), max_size=100), st.integers(0, 4))
def test_hashes_can_be_taken_in_pieces(tokens, blocks):
    cut = 16 * blocks
    first = block_hashes(tokens[:cut])
    assert first + block_hashes(tokens[cut:], first[-1] if first else 0) == block_hashes(tokens)


def test_hashes_are_the_same_in_every_process():
    assert block_hashes(["word"] * 16) == [2546864335216632058]
    assert block_hashes([7] * 16) == [5001179823960431406]
