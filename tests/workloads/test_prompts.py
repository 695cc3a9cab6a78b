import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from workloads.prompts import Calibration, Prompter, words
from workloads.request import HEAD, Message, Passage, Turn


def turn(*passages, output_tokens=7, **more):
    total = sum(p.tokens for p in passages)
    return Turn("r", 1, passages, input_tokens=total, output_tokens=output_tokens, **more)


def n_words(request):
    return sum(len(message.content.split()) for message in request.messages)


def test_the_word_list_is_short_plain_and_without_repeats():
    assert len(words()) == len(set(words())) == 1024
    assert all(word.isalpha() and word.islower() and 2 <= len(word) <= 8 for word in words())


@given(key=st.lists(st.integers(0, 2**40), min_size=1, max_size=5), a=st.integers(1, 300), b=st.integers(1, 300))
def test_one_key_one_text_whatever_the_length(key, a, b):
    passage = Passage("user", tuple(key), 10)
    short, long = sorted((a, b))
    texts = Prompter(1).text(passage, short), Prompter(1).text(passage, long)
    assert texts[1].split()[:short] == texts[0].split()
    assert len(texts[1].split()) == long


@given(st.integers(3, 3000), st.integers(0, 1000))
def test_any_length_comes_out_exactly_where_words_differ(tokens, seed):
    costs = np.random.default_rng(seed).integers(1, 4, len(words())).astype(float)
    index = {word: number for number, word in enumerate(words())}
    text = Prompter(seed, Calibration(costs)).text(Passage("user", (seed,), tokens))
    assert sum(costs[index[word]] for word in text.split()) == tokens


@given(st.integers(3, 3000), st.integers(0, 1000))
def test_lengths_by_characters_come_within_a_token(tokens, seed):
    costs = np.array([(len(word) + 1) / 4 for word in words()])
    text = Prompter(seed, Calibration(costs)).text(Passage("user", (seed,), tokens))
    assert abs((len(text) + 1) / 4 - tokens) < 1


def test_other_keys_and_other_seeds_give_other_text():
    key = (5, 1, 2)
    texts = {
        Prompter(seed).text(Passage("user", k, 50)) for seed in (1, 2) for k in (key, (5, 1, 3), (6, 1, 2), (5, 1))
    }
    assert len(texts) == 8


def test_a_text_is_as_many_words_as_its_tokens_come_to():
    prompter = Prompter(1, Calibration(np.full(len(words()), 1.25)))
    assert len(prompter.text(Passage("user", (1,), 1000)).split()) == 800
    assert len(prompter.text(Passage("user", (1,), 1000), 0).split()) == 1


def test_neighbours_of_one_role_are_one_message():
    # Many chat templates refuse two user messages in a row.
    prompt = turn(Passage("system", (1,), 4), Passage("user", (2,), 3), Passage("user", (3,), 2))
    request = Prompter(1).request(prompt, (), keep_text=True)
    assert [(m.role, len(m.content.split())) for m in request.messages] == [("system", 4), ("user", 5)]
    assert request.keep_text
    assert (request.input_tokens, request.output_tokens) == (9, 7)


def test_history_comes_first_and_is_left_as_it_is():
    history = (Message("user", "a b"), Message("assistant", "c"))
    request = Prompter(1).request(turn(Passage("user", (2,), 3)), history, keep_text=False)
    assert request.messages[:2] == history
    assert len(request.messages) == 3


def test_the_template_s_tokens_are_taken_off_the_last_passage():
    # As the server counts: 20 for a prompt of one message and 4 for each further one.
    prompter = Prompter(1, Calibration(request_overhead_tokens=20, system_overhead_tokens=4, message_overhead_tokens=4))
    system, first, second = Passage("system", (1,), 50), Passage("user", (2,), 60), Passage("user", (3,), 40)
    one = prompter.request(turn(system, first), (), keep_text=False)
    assert n_words(one) + 20 + 4 == 110
    answer = prompter.answer(turn(first, output_tokens=30), None)
    two = prompter.request(turn(second), (*one.messages, answer), keep_text=False)
    assert n_words(two) + 20 + 3 * 4 == 110 + 30 + 40


def test_a_passage_shorter_than_the_template_keeps_a_word():
    prompter = Prompter(1, Calibration(request_overhead_tokens=20))
    assert n_words(prompter.request(turn(Passage("user", (2,), 3)), (), keep_text=False)) == 1


def test_the_answer_is_the_model_s_unless_the_plan_has_one():
    script = Passage("assistant", (9,), 4)
    asked = Passage("user", (2,), 3)
    live, scripted = turn(asked, thinking_tokens=5), turn(asked, scripted_answer=script)
    prompter = Prompter(1)
    assert prompter.answer(live, "as it said") == Message("assistant", "as it said")
    assert len(prompter.answer(live, None).content.split()) == 2  # what is thought is not said
    assert len(prompter.answer(live, "").content.split()) == 2
    assert prompter.answer(scripted, "as it said").content == prompter.text(script)


def test_the_cache_gives_way_before_it_is_too_large(monkeypatch):
    monkeypatch.setattr("workloads.prompts.CACHE_CHARS", 20_000)
    prompter = Prompter(1)
    shared = Passage("system", (1,), 1000)
    first = prompter.text(shared)
    for i in range(2, 9):
        prompter.text(Passage("user", (i,), 1500))
        assert prompter.text(shared) is first
    assert prompter._chars == sum(len(text) for text in prompter._texts.values()) <= 20_000


def test_a_head_goes_before_all_that_was_said_and_is_not_kept():
    prompter = Prompter(1, Calibration(request_overhead_tokens=20, system_overhead_tokens=4, message_overhead_tokens=4))
    head, own = Passage(HEAD, (8,), 4), Passage("user", (2,), 60)
    history = (Message("system", "a b"), Message("user", "c"), Message("assistant", "d"))
    request = prompter.request(turn(head, own), history, keep_text=False)
    assert request.messages[0].content == prompter.text(head) + " a b"
    assert request.messages[1:3] == history[1:]
    assert len(request.messages[3].content.split()) == 60 - 8  # the answer before it and its own message
    assert history[0].content == "a b"
    first = prompter.request(turn(head, own), (), keep_text=False)
    assert first.messages[0].content.startswith(prompter.text(head) + " ")
    assert len(first.messages[0].content.split()) == 4 + 60 - 20
