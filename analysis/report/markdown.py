"""The report for a pull request or a job summary: Markdown tables of the verdict, both phases, and what went wrong."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from analysis.report.wording import WEAK, interval, is_weak, limit_name, quantity

Part = Mapping[str, Any]
_PERCENTILES = ("p50", "p90", "p95", "p99", "max")
_PREFILL = {"ttft_due_s": "TTFT from due", "ttft_s": "TTFT"}
_DECODE = {"itl_s": "ITL", "gap_s": "gap", "tpot_s": "TPOT"}
_WORDS = {"pass": "pass", "fail": "**fail**", "no_verdict": "*no verdict*", None: "–"}


def markdown(summary: Part) -> str:
    """The whole report, ending in a line break."""
    return "\n".join(_lines(summary)) + "\n"


def _lines(summary: Part) -> Iterator[str]:
    run, slo = summary["run"], summary["slo"]
    yield f"## loadgen: {cell(run['workload'])} on {cell(run['model'])}"
    yield ""
    if slo["verdict"] is not None:
        yield f"SLO: {_WORDS[slo['verdict']]}"
        yield ""
        yield from _limits(slo["limits"])
        yield ""
    yield from _latencies(summary["metrics"])
    yield ""
    yield from _facts(summary)
    for name, reason in summary["undefined"].items():
        if not name.endswith(".ci95"):
            yield f"- {cell(name)} is undefined: {cell(reason)}"
    for warning in summary["warnings"]:
        yield f"- warning `{cell(warning['code'])}`: {cell(warning['text'])}"


def _limits(limits: list[Part]) -> Iterator[str]:
    yield from head(["class", "limit", "value", "95% interval", "verdict", "reason"], left=(0, 1, 4, 5))
    for limit in limits:
        unit = limit["metric"], limit["statistic"]
        asked = f"{limit_name(limit)} {limit['operator']} {quantity(*unit, limit['limit'])}"
        known = quantity(*unit, limit["value"]), interval(*unit, limit["ci95"]) or "–"
        yield row([limit["class"], asked, *known, _WORDS[limit["verdict"]], limit["reason"] or ""])


def _latencies(metrics: Part) -> Iterator[str]:
    """Each percentile in milliseconds, with its interval where it has one; `~` marks those of too few samples."""
    shown = [metrics[name] for name in (*_PREFILL, *_DECODE) if metrics[name]["n"]]
    yield from head(["phase", "metric (ms)", *_PERCENTILES, "n"], left=(0, 1))
    for phase, names in (("prefill", _PREFILL), ("decode", _DECODE)):
        for name, title in names.items():
            block = metrics[name]
            if block["n"]:
                yield row([phase, title, *(_bounded(block, each) for each in _PERCENTILES), f"{block['n']:,}"])
    if any(is_weak(statistic, block["n"]) for block in shown for statistic in _PERCENTILES):
        yield ""
        yield WEAK


def _bounded(block: Part, statistic: str) -> str:
    ends = (block["ci95"] or {}).get(statistic)
    value = f"{'~' if is_weak(statistic, block['n']) else ''}{block[statistic] * 1e3:.1f}"
    return f"{value} ({ends[0] * 1e3:.1f}–{ends[1] * 1e3:.1f})" if ends else value


def _facts(summary: Part) -> Iterator[str]:
    requests, stalls, good = summary["requests"], summary["stalls"], summary["goodput"]
    outcomes = ", ".join(f"{count} {name}" for name, count in requests["by_outcome"].items() if count)
    yield f"- {requests['planned']} requests planned: {outcomes or 'none'}"
    for error in requests["errors"]:
        yield f"  - {error['count']} × {cell(error['outcome'])}: {cell(error['message'] or '')}"
    if stalls["count"]:
        yield f"- {stalls['count']} stalls in {stalls['requests']} streams, the longest {stalls['longest_s']:.2f} s"
    if good["attainment"] is not None:
        ends = requests["ci95"]["attainment"]
        known = f" ({ends[0]:.1%}–{ends[1]:.1%})" if ends else ""
        yield f"- goodput {good['requests_per_s']:.3g} requests/s, attainment {good['attainment']:.1%}{known}"


def head(names: Sequence[str], left: Sequence[int]) -> Iterator[str]:
    """The first two lines of a table, its columns aligned right but for those at `left`."""
    yield row(names)
    yield "|" + "".join("---|" if position in left else "---:|" for position in range(len(names)))


def row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(each if each.startswith("*") else cell(each) for each in cells) + " |"


def cell(text: object) -> str:
    """Text from files and servers must not become markup."""
    plain = " ".join(str(text).split())
    for char in "\\|`*_<>[]":
        plain = plain.replace(char, "\\" + char if char != "<" else "&lt;")
    return plain
