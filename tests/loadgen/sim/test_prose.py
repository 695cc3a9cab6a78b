import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.sim.prose import ENCODED, WORDS, find_stop, offset_of, text_of

# With offset 0, token n is WORDS[n]: " The" is token 0, then " first token comes when the whole".

STRINGS = ["e", "to", "e w", "n t", ". ", ", when", "the whole prompt", "x"]


def test_words_are_tokens():
    assert text_of(0, 1, 3) == " first token comes"
    assert all(len(each.split()) == 1 and each.startswith(" ") for each in WORDS)
    assert [each.encode() for each in WORDS] == ENCODED


def test_answers_begin_in_different_places_the_same_each_time():
    offsets = [offset_of(f"r{i}") for i in range(100)]
    assert offsets == [offset_of(f"r{i}") for i in range(100)]
    assert len(set(offsets)) > 30
    assert all(0 <= offset < len(WORDS) for offset in offsets)


@pytest.mark.parametrize(
    ("strings", "first", "last", "least", "found"),
    [
        (["comes"], 1, 9, 0, ("comes", 3, 2, " ")),
        ([" comes"], 1, 9, 0, (" comes", 3, 2, "")),
        (["en co"], 1, 9, 0, ("en co", 3, 1, " tok")),
        (["whole", "comes"], 1, 9, 0, ("comes", 3, 2, " ")),  # whichever is complete first
        (["first token"], 1, 9, 0, ("first token", 2, 0, " ")),
        (["comes"], 1, 2, 0, None),  # the answer is over before
        (["comes"], 4, 9, 0, None),  # it was thought, not said
        (["token"], 1, 60, 3, ("token", 14, 13, " ")),  # the one before counts as too early: "every later token"
        (["nowhere"], 1, 100_000, 0, None),
        ([], 1, 9, 0, None),
    ],
)
def test_stop_strings(strings, first, last, least, found):
    stop = find_stop(0, first, last, least, strings)
    assert (stop and (stop.string, stop.token, stop.shown, stop.rest)) == found


@settings(deadline=None)
@given(
    st.integers(0, len(WORDS) - 1),
    st.integers(1, 5),
    st.integers(0, 150),
    st.lists(
        st.sampled_from(["e", "to", "e w", "n t", ". ", ", when", "the whole prompt", "x"]), min_size=1, max_size=3
    ),
)
def test_what_is_shown_ends_just_before_the_string(offset, first, length, strings):
    last = first + length
    whole = text_of(offset, first, last)
    stop = find_stop(offset, first, last, 0, strings)
    if stop is None:
        assert not any(string in whole for string in strings)
        return
    shown = text_of(offset, first, stop.shown) + stop.rest
    assert whole.startswith(shown + stop.string)
    generated = text_of(offset, first, stop.token)
    assert stop.string in generated
    assert not any(string in generated[: -len(WORDS[(offset + stop.token) % len(WORDS)])] for string in strings)
