"""What a search for capacity found, as JSON data and as a page of text."""

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.capacity.search import Point, Search, knee, outcome, pareto
from analysis.slo import PASS

BAR_CHARS = 24
LEFT = 7
"""From this column on, cells stand to the left."""


def document(
    points: Sequence[Point], summaries: Sequence[Mapping[str, Any]], search: Search | None, unit: str
) -> dict[str, Any]:
    """The answer and its curve. Without a search (a plain sweep) there is no settled answer, only the best load tried.

    Each row of `curve` is one try: rates in 1/s, latencies in seconds, None where undefined. `pareto` are the loads
    whose tokens per second in all and per stream no other load beats in both.
    """
    curve = [_row(point, summary) for point, summary in zip(points, summaries, strict=True)]
    found = outcome(points, search) if search else _best(points)
    rows = [row for row in curve if row["output_tokens_per_s"] and row["stream_tokens_per_s"]]
    front = pareto([(row["output_tokens_per_s"], row["stream_tokens_per_s"]) for row in rows])
    rates = [(row["load"], row["goodput_rps"]) for row in curve if row["goodput_rps"] is not None]
    return found | {
        "unit": unit,
        "requests_per_s": next((r["requests_per_s"] for r in curve if r["load"] == found["capacity"]), None),
        "knee": knee([load for load, _ in rates], [rate for _, rate in rates]),
        "pareto": sorted({rows[i]["load"] for i in front}),
        "curve": curve,
    }


def _best(points: Sequence[Point]) -> dict[str, Any]:
    good = [point.load for point in points if point.verdict == PASS]
    why = "the highest of the loads asked for that passes" if good else "none of the loads asked for passes"
    bad = min((point.load for point in points if point.meets is False), default=None)
    return {"capacity": max(good, default=None), "fails_at": bad, "settled": None, "reason": why, "tries": len(points)}


def _row(point: Point, summary: Mapping[str, Any]) -> dict[str, Any]:
    metrics, throughput = summary["metrics"], summary["throughput"]
    ttft = metrics["ttft_due_s"] if metrics["ttft_due_s"]["n"] else metrics["ttft_s"]
    itl = metrics["itl_s"] if metrics["itl_s"]["n"] else metrics["gap_s"]
    tpot = metrics["tpot_s"]["p50"]
    worst = max((limit for limit in summary["slo"]["limits"] if limit["verdict"] != PASS), key=_badness, default=None)
    return {
        "load": point.load,
        "verdict": point.verdict,
        "meets": point.meets,
        "requests_per_s": throughput["requests_per_s"],
        "ttft_p95_s": ttft["p95"],
        "itl_p99_s": itl["p99"],
        "goodput_rps": summary["goodput"]["requests_per_s"],
        "attainment": summary["goodput"]["attainment"],
        "output_tokens_per_s": throughput["output_tokens_per_s"],
        "stream_tokens_per_s": 1 / tpot if tpot else None,
        "worst_limit": worst and _limit_text(worst),
    }


def _badness(limit: Mapping[str, Any]) -> bool:
    return bool(limit["verdict"] == "fail")


def _limit_text(limit: Mapping[str, Any]) -> str:
    name = ".".join(filter(None, (limit["metric"], limit["statistic"])))
    where = "" if limit["class"] == "all" else f"{limit['class']}: "
    return f"{where}{name}"


def render(found: Mapping[str, Any]) -> str:
    """The page; at most 100 columns."""
    lines = [_answer(found), f"  {found['reason']}", ""]
    rows = [["load", "TTFT p95", "ITL p99", "good/s", "attained", "tokens/s", "a stream", "", "verdict"]]
    ordered = sorted(enumerate(found["curve"]), key=lambda pair: (pair[1]["load"], pair[0]))
    top = max((row["goodput_rps"] or 0.0 for row in found["curve"]), default=0.0)
    for _, row in ordered:
        good = row["goodput_rps"]
        bar = "" if not top or good is None else "█" * round(good / top * BAR_CHARS)
        why = f" ({row['worst_limit']})" if row["worst_limit"] else ""
        numbers = (good, row["output_tokens_per_s"], row["stream_tokens_per_s"])
        per_s, tokens, stream = map(_number, numbers)
        latencies = [_ms(row["ttft_p95_s"]), _ms(row["itl_p99_s"])]
        rows.append(
            [
                f"{row['load']:g}",
                *latencies,
                per_s,
                _percent(row["attainment"]),
                tokens,
                stream,
                bar,
                row["verdict"] + why,
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        pairs = enumerate(zip(cells, widths, strict=True))
        aligned = [cell.ljust(width) if i >= LEFT else cell.rjust(width) for i, (cell, width) in pairs]
        lines.append(("  " + "  ".join(aligned)).rstrip())
    lines += ["", "  latencies in ms; load in " + found["unit"] + "; the bar is goodput"]
    if found["knee"] is not None:
        lines.append(f"  goodput bends away at {found['knee']:g}")
    if len(found["pareto"]) > 1:
        listed = ", ".join(f"{load:g}" for load in found["pareto"])
        lines.append(f"  tokens per second in all against per stream: no load beats {listed} in both")
    return "\n".join(lines) + "\n"


def _answer(found: Mapping[str, Any]) -> str:
    if found["capacity"] is None:
        return "Capacity: none found"
    rate = found["requests_per_s"]
    requests = "" if rate is None or found["unit"] == "requests/s" else f" ({rate:.3g} requests/s)"
    unsure = "" if found["settled"] in (True, None) else ", not settled"
    return f"Capacity: {found['capacity']:g} {found['unit']}{requests}{unsure}"


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1000:,.3g}" if seconds < 1 else f"{seconds * 1000:,.0f}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
