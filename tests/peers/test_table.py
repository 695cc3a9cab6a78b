"""The bench against other tools: from trials to the table."""

import pytest

from tests.bench.peers.table import (
    cell,
    cost_us,
    digits,
    error_ms,
    figure,
    kept,
    kept_rates,
    marginal_us,
    markdown,
    table,
)
from tests.bench.peers.trial import Figures, Load, Trial


def trial(streams: int, freeze: bool = False, tool: str = "one", **figures: float | None) -> Trial:
    return Trial(tool, Load(streams, freeze=freeze), dict(figures))


FAILED = Trial("one", Load(200), failure="status 1")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12345.6, "12,346"),
        (100.4, "100"),
        (52.34, "52.3"),
        (-10.06, "-10.1"),
        (1.005, "1.00"),
        (0.0123, "0.012"),
        (-0.0004, "0"),
        (0.0, "0"),
    ],
)
def test_digits(value: float, text: str) -> None:
    assert digits(value) == text


@pytest.mark.parametrize(
    ("samples", "text"),
    [
        ([], "–"),  # not measured is not 0
        ([7.25], "7.25"),
        ([3.0, 1.0, 8.0], "3.00 (1.00 to 8.00)"),
        ([1.0, 2.0], "1.50 (1.00 to 2.00)"),
        ([520.11, 520.13], "520"),
    ],
)
def test_a_cell_is_the_median_and_the_range(samples: list[float], text: str) -> None:
    assert cell(samples) == text


def test_cost_of_a_token() -> None:
    runs = [trial(200, cpu_s=0.8, tokens=80_000), trial(1000, cpu_s=4.0, tokens=400_000), FAILED]
    assert cost_us(200)(runs) == pytest.approx([10])
    # 3.2 s for 320,000 further tokens
    assert marginal_us(200, 1000)(runs) == pytest.approx([10])


def test_errors_need_both_numbers() -> None:
    runs = [
        trial(200, said_itl_p99=25.0, true_itl_p99=20.5),
        trial(200, said_itl_p99=None, true_itl_p99=20.5),
        trial(200, True, said_itl_p99=520.0, true_itl_p99=20.5),  # with a freeze: not of this row
    ]
    assert error_ms("itl_p99", 200)(runs) == pytest.approx([4.5])
    assert figure("said_itl_p99", 200, True)(runs) == [520.0]


@pytest.mark.parametrize(("figures", "wanted"), [({"slower": 0.1}, True), ({"slower": 0.11}, False), ({}, False)])
def test_kept(figures: Figures, wanted: bool) -> None:
    assert kept(Trial("one", Load(200), figures)) is wanted


def test_the_rate_kept_is_that_of_the_last_load_before_the_first_miss() -> None:
    ladder = [
        trial(200, slower=0.0, rate=9_800), trial(500, slower=0.02, rate=24_000), trial(1000, slower=0.4, rate=35_000),
        trial(2000, slower=0.0, rate=90_000),
    ]  # fmt: skip
    again = [trial(200, slower=0.0, rate=9_700), trial(500, slower=0.3, rate=20_000)]
    assert kept_rates([*ladder, *again]) == [24_000, 9_700]


def test_no_rate_was_kept() -> None:
    assert kept_rates([trial(200, slower=0.5, rate=6_000)]) == [0.0]
    assert kept_rates([FAILED]) == [0.0]
    assert kept_rates([trial(200, True, slower=0.0, rate=9_000)]) == []


def test_a_tool_that_failed_is_a_column_of_dashes() -> None:
    runs = [trial(200, tool="one", cpu_s=0.8, tokens=80_000), Trial("two", Load(200), failure="status 1")]
    found = table(runs, ["one", "two"], (200, 1000, 50))
    assert found.loc["CPU µs/token, all in, 200 streams"].tolist() == ["10.0", "–"]
    assert found.loc["error of ITL p99, ms, 1,000 streams"].tolist() == ["–", "–"]


def test_markdown() -> None:
    found = table([trial(200, cpu_s=0.8, tokens=80_000)], ["one"], (200, 1000, 50))
    lines = markdown(found).splitlines()
    assert lines[0] == "|  | one |"
    assert lines[1] == "| --- | --- |"
    assert lines[2] == "| CPU µs/token, all in, 200 streams | 10.0 |"
    assert len(lines) == 2 + len(found)
