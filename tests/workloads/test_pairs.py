from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from workloads.number_file import numbers
from workloads.pairs import Pairs
from workloads.schedule import build
from workloads.spec import Workload

DATA = Path(__file__).parent / "data"


def drawn(n=100_000, **keys):
    inputs, outputs = Pairs(law="pairs", **keys).draw(np.random.default_rng(3), n)
    assert inputs.dtype == outputs.dtype == np.int64
    pairs, counts = np.unique(np.stack([inputs, outputs]), axis=1, return_counts=True)
    return dict(zip(map(tuple, pairs.T.tolist()), counts / n, strict=True))


def test_pairs_come_together_by_weight():
    shares = drawn(pairs=[[100, 200, 3], [4000, 50], [100, 50, 0.5]])
    assert shares == pytest.approx({(100, 200): 3 / 4.5, (4000, 50): 1 / 4.5, (100, 50): 0.5 / 4.5}, rel=0.05)


def test_pairs_of_a_file():
    assert drawn(file=str(DATA / "lengths.csv")) == pytest.approx({(100, 900): 1 / 3, (3000, 20): 2 / 3}, rel=0.03)


def test_pairs_take_the_place_of_both_lengths():
    lengths = {"law": "pairs", "pairs": [[10, 20], [300, 4, 2]]}
    for shape, extra in (("chat", 0), ("rag", 4 * 500), ("reasoning", 0)):
        spec = {"shape": shape, "lengths": lengths, **({"thinking_tokens": 7} if shape == "reasoning" else {})}
        plan = build(Workload.model_validate({"classes": {"c": spec}}), 1).sessions()
        turns = [next(plan).rounds[0].turns[0] for _ in range(50)]
        found = {(t.input_tokens - extra, t.output_tokens - t.thinking_tokens) for t in turns}
        assert found == {(10, 20), (300, 4)}


def test_pairs_read_back_from_what_they_are_written_as():
    pairs = Pairs(law="pairs", pairs=[[10, 20], [300, 4, 0.5]])
    assert pairs.model_dump(mode="json")["pairs"] == [[10, 20], [300, 4, 0.5]]
    assert Pairs.model_validate(pairs.model_dump(mode="json")) == pairs


@pytest.mark.parametrize("pair", [[1], [1, 2, 3, 4], [0, 5], [1.5, 5], [1, 5, 0], [1, 5, -1], ["1", 5], [True, 5], 7])
def test_what_is_no_pair(pair):
    with pytest.raises(ValidationError, match=r"expected \[input tokens, output tokens\]"):
        Pairs(law="pairs", pairs=[[1, 2], pair])


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("1\n2\nx\n", (), r":3 has 'x' where a whole number of at least 0 was expected"),
        ("1\n-2\n", (), r":2 has '-2' where"),
        ("1.5\n", (), r":1 has '1.5' where"),
        ("nan\n", (), r":1 has 'nan' where"),
        ("", (), r" holds no numbers"),
        ("a,b\n", ("b",), r" holds no numbers"),
        ("a, b\n1,2\n", ("c",), r":1 has no column 'c'; its columns are: a, b"),
        ("a,b\n1,2\n3\n", ("b",), r":3 has '' where"),
        ("\x00" * 9, (), " where a whole number|not a text file"),
    ],
)
def test_bad_files_of_numbers_are_told_by_line(tmp_path, text, columns, message):
    path = tmp_path / "n.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as raised:
        numbers(str(path), columns)
    assert "\n" not in str(raised.value)


def test_numbers_may_have_a_byte_order_mark_quotes_and_windows_lines(tmp_path):
    path = tmp_path / "n.csv"
    path.write_bytes(b'\xef\xbb\xbf"out",in\r\n"3",4\r\n\r\n5.0,6\r\n')
    assert numbers(str(path), ("in", "out")).tolist() == [[4, 3], [6, 5]]
    path.write_bytes(b"\xef\xbb\xbf7\r\n8")
    assert numbers(str(path)).tolist() == [[7], [8]]
