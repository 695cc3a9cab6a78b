import pytest

from workloads.request import Passage, Round, Session, Turn, cut, turn_count


def session(*widths):
    turns = iter(Turn(f"r{i}", 1, (Passage("user", (i,), 5),), 5, 5) for i in range(sum(widths)))
    return Session(0, "c", None, tuple(Round(tuple(next(turns) for _ in range(w)), pause_ns=9) for w in widths))


@pytest.mark.parametrize(
    ("widths", "n", "left"),
    [
        ((1, 1, 1), 2, (1, 1)),
        ((1, 3, 1), 3, (1, 2)),  # ends within a round
        ((1, 3, 1), 4, (1, 3)),
        ((1, 1), 5, (1, 1)),
        ((1, 1), 0, ()),
    ],
)
def test_a_cut_session_has_the_first_turns(widths, n, left):
    short = cut(session(*widths), n)
    assert tuple(len(r.turns) for r in short.rounds) == left
    assert turn_count(short) == min(n, sum(widths))
    assert [t.request_id for r in short.rounds for t in r.turns] == [f"r{i}" for i in range(turn_count(short))]
