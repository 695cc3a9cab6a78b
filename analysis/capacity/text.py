"""What a search for capacity found, as JSON data and as a page of text."""

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.capacity.search import Point, Search, knee, outcome, pareto
from analysis.slo import NO_VERDICT, PASS

BAR_CHARS = 10


def document(
    points: Sequence[Point], summaries: Sequence[Mapping[str, Any]], search: Search | None, unit: str
) -> dict[str, Any]:
    """The answer and its curve. Without a search (a plain sweep) there is no settled answer, only the best load tried.

    Each row of `curve` is one try: rates in 1/s, latencies in seconds, None where undefined. `knee` and `pareto` go by
    the longest try of each load; `pareto` are the loads whose tokens per second in all and per stream no other load
    beats in both. `engine` is what the server said that it is (see `engine` of a run), else None.
    """
    curve = [_row(point, summary) for point, summary in zip(points, summaries, strict=True)]
    found = outcome(points, search) if search else _best(points)
    known = list(longest(curve).values())
    rows = [row for row in known if row["output_tokens_per_s"] and row["stream_tokens_per_s"]]
    front = pareto([(row["output_tokens_per_s"], row["stream_tokens_per_s"]) for row in rows])
    rates = [(row["load"], row["goodput_rps"]) for row in known if row["goodput_rps"] is not None]
    return found | {
        "unit": unit,
        "engine": next((each["run"].get("engine") for each in summaries), None),
        "requests_per_s": _requests_per_s(found, curve),
        "knee": knee([load for load, _ in rates], [rate for _, rate in rates]),
        "pareto": sorted({rows[i]["load"] for i in front}),
        "curve": curve,
    }


def longest(curve: Sequence[Mapping[str, Any]]) -> dict[float, Mapping[str, Any]]:
    """The longest try of each load; of equally long ones the last."""
    return {row["load"]: row for row in sorted(curve, key=lambda row: float(row["measured_s"]))}


def _requests_per_s(found: Mapping[str, Any], curve: Sequence[Mapping[str, Any]]) -> float | None:
    """At capacity, in proportion to the longest try of the load that passes: as its plan has it, which chance does not
    touch; what was sent, where users set the pace."""
    best = longest(curve).get(found["passes_at"])
    rate_rps = best and (best["offered_rps"] or best["requests_per_s"])
    return float(rate_rps * found["capacity"] / best["load"]) if best and rate_rps else None


def _best(points: Sequence[Point]) -> dict[str, Any]:
    """The highest load that passes; where none does, the highest that meets the limits by its values."""
    bad = min((point.load for point in points if point.meets is False), default=None)
    good = max((point.load for point in points if point.verdict == PASS), default=None)
    likely = max((point.load for point in points if point.meets and (bad is None or point.load < bad)), default=None)
    why = "the highest of the loads asked for that passes"
    if good is None:
        why = "none of the loads asked for passes"
    if likely is not None and likely > (good or 0.0):
        why += f"; {likely:g} meets the limits, but not with the whole of its intervals: run longer"
    best = likely if good is None else good
    return {"capacity": best, "ci95": None, "passes_at": best, "fails_at": bad,
            "settled": False if good is None and best else None, "reason": why, "tries": len(points)}  # fmt: skip


def _row(point: Point, summary: Mapping[str, Any]) -> dict[str, Any]:
    metrics, throughput = summary["metrics"], summary["throughput"]
    ttft = metrics["ttft_due_s"] if metrics["ttft_due_s"]["n"] else metrics["ttft_s"]
    itl = metrics["itl_s"] if metrics["itl_s"]["n"] else metrics["gap_s"]
    tpot = metrics["tpot_s"]["p50"]
    worst = max((limit for limit in summary["slo"]["limits"] if limit["verdict"] != PASS), key=_badness, default=None)
    return {
        "load": point.load,
        "measured_s": summary["run"]["duration_s"],
        "verdict": point.verdict,
        "meets": point.meets,
        "offered_rps": summary["run"]["offered_rps"],
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
    """The page."""
    lines = [_answer(found), f"  {found['reason']}", ""]
    ordered = sorted(found["curve"], key=lambda row: (row["load"], row["measured_s"]))
    lines += _table([_HEADS, *(_cells(row, found) for row in ordered)])
    lines += ["", f"  load in {found['unit']}, latencies in ms, tokens/s in all and as the median user sees them"]
    if any(row["verdict"] == NO_VERDICT for row in ordered):
        lines.append("  likely: by its values alone; the intervals leave it open")
    if found["knee"] is not None:
        lines.append(f"  knee: up to {found['knee']:g} more load brings more goodput, beyond it little or none")
    lines += _front(found)
    if found["engine"]:
        lines.append(f"  engine: {found['engine']}")
    return "\n".join(lines) + "\n"


_HEADS = ["load", "for", "TTFT p95", "ITL p99", "good/s", "", "attained", "tokens/s", "per user", "verdict"]
_LEFT = (5, 9)
"""The columns whose cells stand to the left."""


def _cells(row: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    top = max(each["goodput_rps"] or 0.0 for each in found["curve"])
    good = row["goodput_rps"]
    return [
        f"{row['load']:g}",
        _length(row["measured_s"]),
        _ms(row["ttft_p95_s"]),
        _ms(row["itl_p99_s"]),
        _number(good),
        "█" * round(good / top * BAR_CHARS) if good and top else "",
        _percent(row["attainment"]),
        _number(row["output_tokens_per_s"]),
        _number(row["stream_tokens_per_s"]),
        _verdict(row),
    ]


def _verdict(row: Mapping[str, Any]) -> str:
    word = {True: "likely pass", False: "likely fail", None: "unknown"}[row["meets"]]
    word = row["verdict"] if row["verdict"] != NO_VERDICT else word
    return f"{word}: {row['worst_limit']}" if row["worst_limit"] and "fail" in word else word


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        ("  " + "  ".join(cell.ljust(width) if i in _LEFT else cell.rjust(width)
                          for i, (cell, width) in enumerate(zip(cells, widths, strict=True)))).rstrip()
        for cells in rows
    ]  # fmt: skip


def _front(found: Mapping[str, Any]) -> list[str]:
    """What users pay for throughput, at the ends of the Pareto front within the limits."""
    rows = longest(found["curve"])
    front = [rows[load] for load in found["pareto"] if rows[load]["meets"]]
    if len(front) < 2:
        return []
    return [f"  what users pay for throughput: {_paid(front[0])}, {_paid(front[-1])}"]


def _paid(row: Mapping[str, Any]) -> str:
    each, total = _number(row["stream_tokens_per_s"]), _number(row["output_tokens_per_s"])
    return f"{each} tokens/s each at {row['load']:g} ({total} in all)"


def _answer(found: Mapping[str, Any]) -> str:
    if found["capacity"] is None:
        return "Capacity: none found"
    rate, ends = found["requests_per_s"], found["ci95"]
    requests = "" if rate is None or found["unit"] == "requests/s" else f" ({rate:.3g} requests/s)"
    interval = "" if ends is None or ends[0] == ends[1] else f", 95 % interval {ends[0]:g} to {ends[1]:g}"
    unsure = "" if found["settled"] in (True, None) else ", not settled"
    return f"Capacity: {found['capacity']:g} {found['unit']}{requests}{interval}{unsure}"


def _length(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else (f"{seconds / 3600:.1f} h")
    )


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1000:,.3g}" if seconds < 1 else f"{seconds * 1000:,.0f}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
