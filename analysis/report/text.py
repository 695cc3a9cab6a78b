"""The report as text for a terminal: prefill and decode apart, then what froze, what was good, and what to doubt."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from analysis.limits import ALL
from analysis.report.terminal import as_text
from analysis.report.wording import WEAK, digits, interval, is_weak, limit_name, milliseconds, number, quantity, seconds

Part = Mapping[str, Any]

_COLUMNS = ("mean", "p50", "p90", "p95", "p99", "max")
_BOUNDED = {"ttft_due_s": "TTFT from due", "ttft_s": "TTFT", "itl_s": "ITL", "gap_s": "gap", "tpot_s": "TPOT"}
_BOUNDS = ("p50", "p95", "p99")
_COLOURS = {"pass": "green", "fail": "red", "no_verdict": "yellow"}


def render(summary: Part, width: int = 100, color: bool = False) -> str:
    """The whole report, ending in a line break."""
    return as_text(_sections(summary), width, color)


def _sections(summary: Part) -> Iterator[RenderableType]:
    yield from _header(summary)
    yield from _verdict(summary["slo"])
    yield from _prefill(summary)
    yield from _decode(summary)
    yield from _intervals(summary["metrics"])
    yield from _stalls(summary["stalls"], summary["undefined"])
    yield from _goodput(summary["goodput"])
    for title, key in (("class", "by_class"), ("turn", "by_turn"), ("stage", "by_stage")):
        yield from _breakdown(title, summary[key])
    yield from _sessions(summary["by_class"])
    yield from _outcomes(summary["requests"])
    yield from _client(summary["client"])
    yield from _doubts(summary)


def _header(summary: Part) -> Iterator[RenderableType]:
    run = summary["run"]
    workload, model, target = (run[name] or f"unknown {name}" for name in ("workload", "model", "target"))
    engine = f" ({run['engine']})" if run["engine"] else ""
    yield Text(f"{workload} on {model} at {target}{engine}", style="bold")
    load = f"{run['loop'] or 'unknown'} loop"
    if run["offered_rps"]:
        load += f", {number(run['offered_rps'])} requests/s planned"
    if run["concurrency"]:
        load += f", {run['concurrency']} users"
    sent = f"{number(summary['throughput']['requests_per_s'])} requests/s sent"
    facts = [load, sent, f"{number(run['duration_s'])} s measured", f"seed {run['seed']}"]
    if summary.get("runs"):
        facts.insert(0, f"{len(summary['runs'])} runs together")
    if looks := run.get("looks"):
        facts.append(f"looked at up to {looks['planned']} times")
    if run["timestamp_source"]:
        facts.append(f"{run['timestamp_source']} timestamps")
    yield _line(*facts)


def _verdict(slo: Part) -> Iterator[RenderableType]:
    if slo["verdict"] is None:
        return
    yield _title(f"SLO: {_words(slo['verdict'])}", _COLOURS[slo["verdict"]])
    table = _table(["limit", "class", "value", "95% interval", "verdict"], left=(0, 1, 4))
    for each in slo["limits"]:
        unit = each["metric"], each["statistic"]
        verdict = Text(_words(each["verdict"]), style=_COLOURS[each["verdict"]])
        limit = f"{limit_name(each)} {each['operator']} {quantity(*unit, each['limit'])}"
        table.add_row(limit, each["class"], quantity(*unit, each["value"]), interval(*unit, each["ci95"]), verdict)
    yield _inset(table)
    for each in slo["limits"]:
        if each["reason"]:
            scope = "" if each["class"] == ALL else f" ({each['class']})"
            yield _line(f"{limit_name(each)}{scope}: {each['reason']}")


def _prefill(summary: Part) -> Iterator[RenderableType]:
    metrics, tokens = summary["metrics"], summary["tokens"]
    yield _title("Prefill")
    rows = {"TTFT from due": metrics["ttft_due_s"], "TTFT from sent": metrics["ttft_s"]}
    if not metrics["ttft_due_s"]["n"]:
        rows = {"TTFT": metrics["ttft_s"]}
    if summary["phases"]["thinking"]:
        rows["TTFAT (first answer)"] = metrics["ttfat_s"]
    yield _latencies(rows)
    if not tokens["prompt"]:
        return
    cached = [] if tokens["cached"] is None else [f"cached {tokens['cached'] / tokens['prompt']:.1%}"]
    rate = number(summary["throughput"]["prompt_tokens_per_s"])
    yield _line(f"prompt {_count(tokens['prompt'])} tokens", *cached, f"{rate} tokens/s")
    yield from _asked("prompts", tokens["asked"]["input"])


def _decode(summary: Part) -> Iterator[RenderableType]:
    metrics, tokens, phases = summary["metrics"], summary["tokens"], summary["phases"]
    yield _title("Decode")
    rows = {"ITL": metrics["itl_s"], "gap between events": metrics["gap_s"], "TPOT": metrics["tpot_s"]}
    for name in ("thinking", "answer"):
        if phases[name]:
            rows[f"gap, {name}"] = phases[name]["gap_s"]
            rows[f"TPOT, {name}"] = phases[name]["tpot_s"]
    if phases["answer"]:
        rows["silence before it"] = phases["answer"]["silence_s"]
    yield _latencies(rows)
    if tokens["output"] is None:
        return
    facts = [f"output {_count(tokens['output'])} tokens"]
    if tokens["source"] not in (None, "usage"):
        facts[0] += f" ({tokens['source']})"
    if phases["thinking"] and phases["thinking"]["share_of_decode_time"] is not None:
        facts.append(f"thinking {phases['thinking']['share_of_decode_time']:.0%} of decode time")
    yield _line(*facts, f"{number(summary['throughput']['output_tokens_per_s'])} tokens/s")
    yield from _asked("answers", tokens["asked"]["output"])


def _asked(what: str, lengths: Part | None) -> Iterator[RenderableType]:
    """Lengths planned beside lengths counted."""
    if lengths is None:
        return
    asked = f"{what} of {number(lengths['mean_asked'])} tokens asked, on average"
    if lengths["exact"] == 1:
        yield _line(asked, "all exactly so")
    else:
        off = f"got {lengths['mean_off']:+.3g}, at most {lengths['most_off']:+,}"
        yield _line(asked, off, f"{lengths['within']:.1%} within 2 tokens or 1%")


def _intervals(metrics: Part) -> Iterator[RenderableType]:
    """How well the run knows its percentiles."""
    known = {name: metrics[name]["ci95"] for name in _BOUNDED if metrics[name]["n"]}
    shown = {name: ends for name, ends in known.items() if any(ends[each] for each in _BOUNDS)}
    if not shown:
        return
    yield _title("95% intervals")
    table = _table(["", *_BOUNDS], left=(0,))
    for name, ends in shown.items():
        cells = [interval("ttft", each, ends[each]) or "too few" for each in _BOUNDS]
        table.add_row(_BOUNDED[name], *cells)
    yield _inset(table)


def _stalls(stalls: Part, undefined: Part) -> Iterator[RenderableType]:
    yield _title("Stalls")
    if stalls["share_of_requests"] is None:
        yield _line(f"not known: {stalls.get('undefined') or undefined.get('gap_s') or 'no answer was streamed'}")
        return
    if not stalls["count"]:
        yield _line("none")
        return
    yield _line(
        f"{stalls['count']} in {stalls['requests']} streams ({stalls['share_of_requests']:.1%})",
        f"{stalls['per_1k_tokens']:.2f} per 1k tokens",
        f"longest {seconds(stalls['longest_s'])}",
        f"{number(stalls['total_s'])} s stalled in all",
    )
    worst = stalls["worst"]
    where = f" (class {worst['class']})" if worst["class"] else ""
    yield _line(f"worst stream: {worst['request_id']}{where} froze for {seconds(worst['longest_gap_s'])} "
                f"at {worst['at_s']:.2f} s")  # fmt: skip
    yield from _episodes(stalls["episodes"])


def _episodes(episodes: list[dict[str, Any]], most: int = 5) -> Iterator[RenderableType]:
    """The longest episodes, in order of time; none where the run does not tell them."""
    if not episodes:
        return
    table = _table(["episode at", "lasted", "streams hit", "went on", "cause"], left=(4,))
    longest = sorted(episodes, key=lambda each: -each["duration_s"])[:most]
    for each in sorted(longest, key=lambda each: float(each["start_s"])):
        table.add_row(f"{each['start_s']:.2f} s", seconds(each["duration_s"]), str(each["requests"]),
                      str(each["bystanders"]), _words(each["cause"]))  # fmt: skip
    yield _inset(table)
    if len(episodes) > most:
        yield _line(f"and {len(episodes) - most} shorter episodes")


def _goodput(good: Part) -> Iterator[RenderableType]:
    if good["attainment"] is None:
        return
    yield _title("Goodput")
    yield _line(
        f"{number(good['requests_per_s'])} requests/s",
        f"{number(good['output_tokens_per_s'])} tokens/s",
        f"attainment {good['attainment']:.1%}",
        *(f"{name} met {share:.1%}" for name, share in good["by_limit"].items()),
    )


def _breakdown(title: str, parts: Part) -> Iterator[RenderableType]:
    """One line for each part, where there is more than one."""
    if len(parts) < 2:
        return
    yield _title(f"By {title}")
    shown = (("ttft_s", "p50"), ("ttft_s", "p95"), ("itl_s", "p50"), ("itl_s", "p99"), ("gap_s", "p99"))
    table = _table([title, "ok", "of", "TTFT p50", "p95", "ITL p50", "p99", "gap p99", "stalls", "attained"], left=(0,))
    for name, part in parts.items():
        metrics, requests, attained = part["metrics"], part["requests"], part["goodput"]["attainment"]
        cells = [milliseconds(metrics[name][statistic]) for name, statistic in shown]
        table.add_row(name, _count(requests["ok"]), _count(requests["planned"]), *cells,
                      _count(part["stalls"]["count"]), "–" if attained is None else f"{attained:.1%}")  # fmt: skip
    yield _inset(table)
    yield _line("latencies in ms")


def _sessions(parts: Part) -> Iterator[RenderableType]:
    """One line for each class whose sessions have several turns."""
    known = {name: part["sessions"] for name, part in parts.items() if part.get("sessions")}
    if not known:
        return
    yield _title("Sessions")
    table = _table(["class", "whole", "of", "steps", "wall", "model", "pauses", "prompt grew", "cached"], left=(0,))
    for name, one in known.items():
        times = [_short_seconds(one[key]["p50"]) for key in ("wall_s", "model_s", "pause_s")]
        grew, cached = one["context_growth_tokens"]["p50"], one["cached_share"]
        table.add_row(name, _count(one["n"]), _count(one["of"]), number(one["steps"]["mean"]), *times,
                      number(grew), "–" if cached is None else f"{cached:.1%}")  # fmt: skip
    yield _inset(table)
    yield _line("steps are means, the others medians; wall, model and pauses in s, growth in tokens")


def _short_seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.{digits(value)}f}"


def _outcomes(requests: Part) -> Iterator[RenderableType]:
    yield _title("Requests")
    named = ("ok", "failed", "cancelled", "skipped", "not_sent")
    facts = [f"{_count(requests[name])} {_words(name)}" for name in named if requests[name] or name == "ok"]
    rate = requests["error_rate"]
    facts += [f"error rate {rate:.2%}"] if requests["failed"] else []
    yield _line(f"{_count(requests['planned'])} planned", *facts)
    if requests["by_finish_reason"]:
        reasons = (f"{name} {_count(count)}" for name, count in requests["by_finish_reason"].items())
        yield _line("finished by " + ", ".join(reasons))
    for each in requests["errors"][:5]:
        status = f" {each['status']}" if each["status"] else ""
        yield _line(f"{_count(each['count'])} × {_words(each['outcome'])}{status}: {each['message'] or 'no message'} "
                    f"(first: {each['first_request_id']})")  # fmt: skip


def _client(client: Part) -> Iterator[RenderableType]:
    facts = {"send lag p99": client["send_lag_p99_s"], "event loop lag p99": client["loop_lag_p99_s"]}
    told = [f"{name} {seconds(value)}" for name, value in facts.items() if value is not None]
    if client["cpu_share"] is not None:
        told.append(f"CPU {client['cpu_share']:.0%} of a core")
    if told:
        yield _title("Client")
        yield _line(*told, *(["saturated"] if client["saturated"] else []))


def _doubts(summary: Part) -> Iterator[RenderableType]:
    if summary["warnings"]:
        yield _title("Warnings", "yellow")
        yield from (_line(f"{each['code']}: {each['text']}") for each in summary["warnings"])
    worth = ("ttft_s", "ttfat_s", "itl_s", "gap_s", "tpot_s")
    names: dict[str, list[str]] = {}
    for name in worth:
        if name in summary["undefined"]:
            names.setdefault(summary["undefined"][name], []).append(name.removesuffix("_s"))
    if names:
        yield _title("Undefined")
        yield from (_line(f"{', '.join(each)}: {reason}") for reason, each in names.items())


def _latencies(rows: Mapping[str, Part]) -> RenderableType:
    """One row a metric, in a unit of its own; `~` marks a percentile of fewer samples than it needs."""
    table = _table(["", "", *_COLUMNS, "n"], left=(0, 1))
    table.columns[0].min_width = 20
    weak = False
    for name, block in rows.items():
        if not block["n"]:
            table.add_row(name, "", *["–"] * len(_COLUMNS), "0")
            continue
        unit, scale = ("s", 1) if max(block["p50"], block["mean"]) >= 1 else ("ms", 1e3)
        places = digits(max(block["p50"], block["mean"]) * scale)
        marks = ["~" if is_weak(column, block["n"]) else "" for column in _COLUMNS]
        weak |= any(marks)
        cells = [f"{mark}{block[column] * scale:,.{places}f}" for mark, column in zip(marks, _COLUMNS, strict=True)]
        table.add_row(name, unit, *cells, _count(block["n"]))
    note = [Text(WEAK, style="dim")] if weak else []
    return _inset(Group(table, *note))


def _table(headings: list[str], left: tuple[int, ...]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for position, heading in enumerate(headings):
        table.add_column(heading, justify="left" if position in left else "right", overflow="fold")
    return table


def _title(text: str, style: str = "") -> RenderableType:
    return Padding(Text(text, style=f"bold {style}".strip()), (1, 0, 0, 0))


def _line(*facts: str) -> RenderableType:
    return _inset(Text(" · ".join(facts)))


def _inset(content: RenderableType) -> RenderableType:
    return Padding(content, (0, 0, 0, 2))


def _count(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _words(code: str) -> str:
    return code.replace("_", " ")
