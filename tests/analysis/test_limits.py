"""The grammar of limits, and what is said of those that do not follow it."""

import pytest

from analysis.limits import Limit, good_limits, parse_good, parse_limit, parse_limits, quantile_of
from analysis.units import seconds, share


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("ttft.p95<500ms", Limit("ttft", "p95", "<", 0.5)),
        ("  ttft . p95  <  500 ms ", Limit("ttft", "p95", "<", 0.5)),
        ("itl.p99<=60ms", Limit("itl", "p99", "<=", 0.06)),
        ("gap.max < 2s", Limit("gap", "max", "<", 2.0)),
        ("tpot.mean<0.5s", Limit("tpot", "mean", "<", 0.5)),
        ("ttft_due.p99.9<1m", Limit("ttft_due", "p99.9", "<", 60.0)),
        ("ttfat.p7<250us", Limit("ttfat", "p7", "<", 0.00025)),
        ("stall.per_1k<0.5", Limit("stall", "per_1k", "<", 0.5)),
        ("stall.longest<1s", Limit("stall", "longest", "<", 1.0)),
        ("attainment>95%", Limit("attainment", None, ">", 0.95)),
        ("attainment>=0.95", Limit("attainment", None, ">=", 0.95)),
        ("errors<1%", Limit("errors", None, "<", 0.01)),
        ("output_tokens_per_s>100", Limit("output_tokens_per_s", None, ">", 100.0)),
    ],
)
def test_read(text: str, limit: Limit) -> None:
    assert parse_limit(text) == limit
    assert parse_limit(text, "chat").class_name == "chat"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ttft", "expected metric.statistic < value, such as 'ttft.p95 < 800ms'"),
        ("ttft.p95=500ms", "expected metric.statistic < value"),
        ("ttft.p95<", "expected metric.statistic < value"),
        ("tftt.p95<500ms", "unknown metric 'tftt', did you mean 'ttft'? (one of ttft, ttft_due, ttfat, itl, gap"),
        ("ttft<500ms", "the statistic of ttft is missing: one of mean, min, max, p50"),
        ("ttft.p100<1s", "unknown statistic of ttft 'p100'"),
        ("ttft.median<1s", "unknown statistic of ttft 'median', did you mean 'mean'?"),
        ("ttft.p95<500", "'500' is not a duration: write a number and a unit, such as 500ms or 2s"),
        ("ttft.p95<fast", "'fast' is not a number with a unit"),
        ("ttft.p95<-1s", "'-1s' is not a number with a unit"),
        ("stall.often<1", "unknown statistic of stall 'often' (one of per_1k, count, share, longest, total)"),
        ("stall.per_1k<1s", "'1s': expected a number without a unit"),
        ("errors<200%", "'200%' is not a share: write 95% or 0.95"),
        ("errors.p95<1%", "errors has no statistics: write errors < value"),
    ],
)
def test_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"^limit '") as caught:
        parse_limit(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_limit_on_e2e_alone_is_refused_unless_allowed() -> None:
    with pytest.raises(ValueError, match="hides which phase is slow"):
        parse_limits({"all": ["e2e.p95<9s", "errors<1%"]})
    assert len(parse_limits({"all": ["e2e.p95<9s"]}, allow_e2e=True)) == 1
    assert len(parse_limits({"all": ["e2e.p95<9s"], "chat": ["ttft.p95<1s"]})) == 2
    assert parse_limits({}) == []


@pytest.mark.parametrize(
    ("statistic", "q"),
    [("p50", 0.5), ("p5", 0.05), ("p99", 0.99), ("p999", 0.999), ("p99.9", 0.999), ("p9999", 0.9999), ("max", 1.0),
     ("min", 0.0), ("p100", None), ("p", None), ("mean", None), (None, None)],
)  # fmt: skip
def test_quantile_of(statistic: str | None, q: float | None) -> None:
    assert quantile_of(statistic) == q


@pytest.mark.parametrize(
    ("text", "name", "value_s"),
    [("ttft<500ms", "ttft", 0.5), ("gap_p99 < 200ms", "gap_p99", 0.2), ("gap.max<=2s", "gap_max", 2.0)],
)
def test_per_request_limits(text: str, name: str, value_s: float) -> None:
    assert parse_good(text) == (name, value_s)


@pytest.mark.parametrize("text", ["ttft", "itl<5ms", "ttft<5", "gap<1s", "<1s"])
def test_per_request_limits_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"good|duration") as caught:
        parse_good(text)
    assert "\n" not in str(caught.value)


def test_good_of_a_workload_takes_texts_and_seconds() -> None:
    assert good_limits({"ttft": "1s", "gap_p99": 0.2}) == {"ttft": 1.0, "gap_p99": 0.2}


def test_units() -> None:
    assert (seconds("250ms"), seconds(2), seconds("1.5 s")) == (0.25, 2.0, 1.5)
    assert (share("95%"), share(0.5)) == (0.95, 0.5)
