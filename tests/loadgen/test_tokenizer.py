"""A tokenizer of the user's own, where the server counts nothing."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from analysis.rundir import read_run
from loadgen.errors import UsageError
from loadgen.tokenizer import Tokenizer
from tests.loadgen.scripted import DONE, answer, content, delta, finish, reasoning, role
from tests.loadgen.test_end_to_end import against, loadgen
from workloads.prompts import words


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Each letter is a token; spaces are none."""
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    made = tokenizers.Tokenizer(models.WordLevel({letter: i for i, letter in enumerate(letters)}, unk_token="a"))
    each = pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), each])
    path = tmp_path / "tokenizer.json"
    made.save(str(path))
    return str(path)


def test_words_are_counted_in_the_middle_of_a_text(file: str) -> None:
    tokenizer = Tokenizer(Path(file))
    assert tokenizer.count("two words") == 8
    assert np.array_equal(tokenizer.word_tokens(), [len(word) for word in words()])


def test_lengths_without_any_usage(file: str, tmp_path: Path) -> None:
    workload = tmp_path / "w.yaml"
    workload.write_text("{requests: 4, classes: {c: {input_tokens: 90, output_tokens: 3}}}")
    call = delta(tool_calls=[{"index": 0, "id": "x", "function": {"name": "look", "arguments": "up"}}])
    said = answer(role(), reasoning("hm"), content("Hello there"), call, finish("length"), DONE)
    out = tmp_path / "run"
    words_ = [str(workload), "--tokenizer", file, "--out", str(out)]
    _, _, server = asyncio.run(against([said], words_))
    rows = read_run(out).requests
    assert rows["tokens_source"].tolist() == ["estimated"] * 4
    assert rows["output_tokens"].tolist() == [2 + 10 + 4 + 2] * 4
    assert "text" not in rows
    for request in server.requests:
        (message,) = request.json["messages"]
        assert abs(len(message["content"].replace(" ", "")) - 90) <= 2


@pytest.mark.parametrize(("text", "why"), [(None, "no such file"), ("{}", "not a tokenizer.json")])
def test_what_is_no_tokenizer_is_one_line(text: str | None, why: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=why) as problem:
        Tokenizer(path)
    assert "\n" not in str(problem.value)
    assert why in loadgen("run", "chat", "--tokenizer", str(path), "--target", "http://127.0.0.1:9", status=2).stderr
