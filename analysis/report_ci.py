"""The report for a pull request or a job summary: Markdown tables of the verdict, both phases, and what went wrong."""

from collections.abc import Iterator, Mapping
from typing import Any

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
    yield f"## loadgen: {_cell(run['workload'])} on {_cell(run['model'])}"
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
        yield f"- {_cell(name)} is undefined: {_cell(reason)}"
    for warning in summary["warnings"]:
        yield f"- warning `{_cell(warning['code'])}`: {_cell(warning['text'])}"


def _limits(limits: list[Part]) -> Iterator[str]:
    yield "| class | limit | value | verdict | reason |"
    yield "|---|---|---:|---|---|"
    for limit in limits:
        name = limit["metric"] + (f".{limit['statistic']}" if limit["statistic"] else "")
        value = "–" if limit["value"] is None else f"{limit['value']:.4g}"
        asked = f"{limit['operator']} {limit['limit']:g}" if "operator" in limit else f"{limit['limit']:g}"
        cells = [limit["class"], f"{name} {asked}", value, _WORDS[limit["verdict"]], limit["reason"] or ""]
        yield _row(cells)


def _latencies(metrics: Part) -> Iterator[str]:
    yield _row(["phase", "metric (ms)", *_PERCENTILES, "n"])
    yield "|---|---|" + "---:|" * (len(_PERCENTILES) + 1)
    for phase, names in (("prefill", _PREFILL), ("decode", _DECODE)):
        for name, title in names.items():
            block = metrics[name]
            if block["n"]:
                values = [f"{block[p] * 1e3:.1f}" for p in _PERCENTILES]
                yield _row([phase, title, *values, f"{block['n']:,}"])


def _facts(summary: Part) -> Iterator[str]:
    requests, stalls, good = summary["requests"], summary["stalls"], summary["goodput"]
    outcomes = ", ".join(f"{count} {name}" for name, count in requests["by_outcome"].items() if count)
    yield f"- {requests['planned']} requests planned: {outcomes or 'none'}"
    for error in requests["errors"]:
        yield f"  - {error['count']} × {_cell(error['outcome'])}: {_cell(error['message'] or '')}"
    if stalls["count"]:
        yield f"- {stalls['count']} stalls in {stalls['requests']} streams, the longest {stalls['longest_s']:.2f} s"
    if good["attainment"] is not None:
        yield f"- goodput {good['requests_per_s']:.3g} requests/s, attainment {good['attainment']:.1%}"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cell if cell.startswith("*") else _cell(cell) for cell in cells) + " |"


def _cell(text: object) -> str:
    """Text from files and servers must not become markup."""
    plain = " ".join(str(text).split())
    for char in "\\|`*_<>[]":
        plain = plain.replace(char, "\\" + char if char != "<" else "&lt;")
    return plain
