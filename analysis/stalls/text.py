"""The diagnosis of a run as text for a terminal: causes, episodes by harm, who hurts whom, a picture, remedies."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from analysis.report.terminal import as_text

Part = Mapping[str, Any]

SHOWN_EPISODES = 10
SIGNS = {"prefill": "░", "decode": "━", "frozen": "×"}
CULPRIT = "▓"
_STYLES = {"░": "cyan", "━": "green", "×": "bold red", "▓": "magenta"}
_LABEL = 26


def render_stalls(report: Part, width: int = 100, color: bool = False) -> str:
    """The whole diagnosis, or with a `timeline` in it that of one request; ends in a line break."""
    parts = _one_request(report["timeline"]) if report["timeline"] else _sections(report, width)
    return as_text(parts, width, color)


def _sections(report: Part, width: int) -> Iterator[RenderableType]:
    stalls = report["stalls"]
    if not stalls["count"]:
        lost = f"Not known: {stalls['undefined']}." if stalls.get("undefined") else "No answer was streamed."
        yield Text("No stream froze." if stalls["share_of_requests"] is not None else lost)
        return
    yield Text(
        f"{stalls['count']:,} stalls in {stalls['requests']:,} streams ({stalls['share_of_requests']:.1%}), "
        f"{_s(stalls['total_s'])} stalled in all, longest {_s(stalls['longest_s'])}",
        style="bold",
    )
    yield from _causes(report["causes"])
    yield from _episodes(stalls["episodes"])
    yield from _interference(report["interference"])
    yield from _picture(report["window"], width)
    yield from _server(report["server"])
    yield from _remedies(report["remedies"])


def _causes(causes: list[Part]) -> Iterator[RenderableType]:
    yield _title("Causes")
    table = _table(["cause", "episodes", "stalls", "frozen"], left=(0,))
    for each in causes:
        row = f"{each['episodes']:,}", f"{each['stalls']:,}", _s(each["frozen_s"])
        table.add_row(_words(each["cause"]), *row)
    yield _inset(table)


def _episodes(episodes: list[Part]) -> Iterator[RenderableType]:
    yield _title("Episodes, the most harmful first")
    for each in episodes[:SHOWN_EPISODES]:
        streams = f"{each['requests']} of {each['requests'] + each['bystanders']} streams"
        head = f"{each['start_s']:.2f} s, for {_s(each['duration_s'])}: {streams}, {_cause(each)}"
        yield _inset(Text(head, style="red" if each["cause"] == "prefill_interference" else ""))
        yield Padding(Text(" · ".join(_evidence(each)), style="dim"), (0, 0, 0, 4))
    if len(episodes) > SHOWN_EPISODES:
        yield _inset(Text(f"and {len(episodes) - SHOWN_EPISODES:,} more"))


def _cause(episode: Part) -> str:
    if episode["culprit_request_id"] is None:
        return _words(episode["cause"])
    tokens = episode["culprit_prompt_tokens"]
    size = "of unknown length" if tokens is None else f"of {tokens:,} tokens"
    return f"{_words(episode['cause'])} by {episode['culprit_request_id']}, prompt {size}"


_EVIDENCE: dict[str, Callable[[Any], str]] = {
    "frozen_s": lambda value: f"{_s(value)} frozen",
    "stopped_share": lambda value: f"{value:.0%} of the decoding streams stopped",
    "end_offset_s": lambda value: f"ended {_s(abs(value))} {'after' if value >= 0 else 'before'} its first token",
    "culprit_waited_s": lambda value: f"it had waited {_s(value)}",
    "explained_share": lambda value: f"prompts read account for {value:.0%}",
    "chance_share": lambda value: f"by chance {value:.0%}",
    "waiting_requests": lambda value: f"{value} requests waiting",
    "preemptions": lambda value: f"{value:.0f} preemptions",
    "kv_usage_peak": lambda value: f"KV cache {value:.0%} full",
    "server_waiting_peak": lambda value: f"queue of {value:.0f}",
    "burst_tokens": lambda value: f"{value:.0f} tokens came at once after it",
    "constant_step_s": lambda value: f"always about {_s(value)}, on reused connections",
    "loop_lag_s": lambda value: f"our event loop was {_s(value)} late",
}


def _evidence(episode: Part) -> list[str]:
    return [_EVIDENCE[name](value) for name, value in episode["evidence"].items() if name in _EVIDENCE]


def _interference(told: Part) -> Iterator[RenderableType]:
    if not told["episodes"]:
        return
    yield _title("Prefill interference")
    slope, effect = told["slope"], told["effect"]
    if slope:
        yield _line(f"each 1,000 prompt tokens stop the streams for {_s(slope['s_per_1k_tokens'])}")
    yield _line(
        f"{told['aligned_share']:.0%} of the engine's freezes end with such a prefill, "
        f"{told['chance_share']:.0%} would by chance (p = {told['p_value']:.2g})"
    )
    if effect and effect["with_long_prefill"]["per_1k_s"] is not None and effect["without"]["per_1k_s"] is not None:
        times = f", {effect['ratio']:,.0f} times as many" if effect["ratio"] else ""
        yield _line(
            f"{effect['with_long_prefill']['per_1k_s']:,.0f} stalls in 1,000 s of decoding beside a prompt of over "
            f"{effect['long_prompt_tokens']:,} tokens, {effect['without']['per_1k_s']:,.0f} without{times}"
        )
    table = _table(["prefill of", "froze", "stalls", "frozen"], left=(0, 1))
    for each in told["matrix"]:
        names = each["culprit_class"] or "–", each["victim_class"] or "–"
        table.add_row(*names, f"{each['stalls']:,}", _s(each["frozen_s"]))
    yield _inset(table)


def _picture(window: Part | None, width: int) -> Iterator[RenderableType]:
    if window is None:
        return
    yield _title(f"The worst of it: {window['start_s']:.2f} s to {window['end_s']:.2f} s")
    yield _inset(picture(window, max(40, min(120, width) - 2)))
    if window["left_out"]:
        yield _line(f"{window['left_out']:,} more streams are left out")
    yield _line("░ waiting or prefill   ▓ the same of the culprit   ━ decode   × frozen")


def picture(window: Part, width: int) -> Text:
    """Lanes over time, one line each; `width` columns, colours as styles."""
    columns = width - _LABEL
    rows = [(lane, _cells(lane, window, columns)) for lane in window["lanes"]]
    behind = {at for lane, cells in rows if lane["culprit"] for at, sign in enumerate(cells) if sign == CULPRIT}
    text = Text()
    for lane, cells in rows:
        text.append(_label(lane).ljust(_LABEL))
        for at, sign in enumerate(cells):
            text.append(sign, f"{_STYLES.get(sign, '')}{' on grey23' if at in behind else ''}".strip())
        text.append("\n")
    text.append(" " * _LABEL + _ruler(window, columns), "dim")
    return text


def _label(lane: Part) -> str:
    tokens = "" if lane["prompt_tokens"] is None else f" {lane['prompt_tokens']:,}"
    room = _LABEL - 2 - len(tokens)
    name = str(lane["request_id"])
    return (name if len(name) <= room else name[: room - 1] + "…") + tokens


def _cells(lane: Part, window: Part, columns: int) -> list[str]:
    """What a lane did for most of each column's time."""
    step_s = (window["end_s"] - window["start_s"]) / columns
    times: list[dict[str, float]] = [{} for _ in range(columns)]
    for each in lane["segments"]:
        sign = CULPRIT if lane["culprit"] and each["phase"] == "prefill" else SIGNS[each["phase"]]
        start, end = ((each[name] - window["start_s"]) / step_s for name in ("start_s", "end_s"))
        for at in range(max(0, int(start)), min(columns, int(end) + 1)):
            times[at][sign] = times[at].get(sign, 0.0) + max(0.0, min(end, at + 1) - max(start, at))
    return [max(each, key=lambda sign: each[sign]) if sum(each.values()) > 0.5 else " " for each in times]


def _ruler(window: Part, columns: int) -> str:
    start, end = f"{window['start_s']:.2f} s", f"{window['end_s']:.2f} s"
    return start + end.rjust(columns - len(start))


def _server(server: Part | None) -> Iterator[RenderableType]:
    if server is None:
        return
    yield _title("The server's own numbers")
    running, waiting, kv = (server[name] or {} for name in ("running", "waiting", "kv_usage"))
    facts = [f"running {running['mean']:.1f} (peak {running['peak']:.0f})"] if running else []
    facts += [f"waiting {waiting['mean']:.1f} (peak {waiting['peak']:.0f})"] if waiting else []
    facts += [f"KV cache {kv['mean']:.0%} (peak {kv['peak']:.0%})"] if kv else []
    facts += [f"{server['preemptions']:.0f} preemptions"] if server["preemptions"] is not None else []
    phases = {"queue": "queue", "prefill": "prefill", "decode": "decode"}
    facts += [
        f"{word} {_s(server[f'{name}_s_per_request'])} a request"
        for name, word in phases.items()
        if server[f"{name}_s_per_request"] is not None
    ]
    yield _line(*facts)


def _remedies(remedies: list[Part]) -> Iterator[RenderableType]:
    if not remedies:
        return
    yield _title("What fits, and its price")
    for each in remedies:
        yield _inset(Text(f"{_words(each['cause'])}, saves up to {_s(each['saves_s'])}: {each['remedy']}"))
        yield Padding(Text(f"price: {each['price']}", style="dim"), (0, 0, 0, 4))


def _one_request(told: Part) -> Iterator[RenderableType]:
    size = ", ".join(
        f"{told[f'{name}_tokens']:,} {name} tokens"
        for name in ("prompt", "output")
        if told[f"{name}_tokens"] is not None
    )
    about = [each for each in (told["class"], told["outcome"], size) if each]
    yield Text(f"{told['request_id']} ({', '.join(about)})", style="bold")
    events = [(at_s, _words(name)) for name, at_s in told["at_s"].items() if at_s is not None]
    for each in told["freezes"]:
        by = f" by {each['culprit_request_id']}" if each["culprit_request_id"] else ""
        length = _s(each["end_s"] - each["start_s"])
        what = f"frozen for {length} after {each['events_before']:,} events: {_words(each['cause'])}{by}"
        events.append((each["start_s"], what))
    zero_s = min((at_s for at_s, _ in events), default=0.0)
    table = _table(["at", "since the first", ""], left=(2,))
    for at_s, what in sorted(events, key=lambda event: event[0]):
        table.add_row(f"{at_s:.3f} s", f"{at_s - zero_s:.3f} s", what)
    yield _inset(table)


def _table(headings: list[str], left: tuple[int, ...]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for position, heading in enumerate(headings):
        table.add_column(heading, justify="left" if position in left else "right", overflow="fold")
    return table


def _title(text: str) -> RenderableType:
    return Padding(Text(text, style="bold"), (1, 0, 0, 0))


def _line(*facts: str) -> RenderableType:
    return _inset(Text(" · ".join(facts)))


def _inset(content: RenderableType) -> RenderableType:
    return Padding(content, (0, 0, 0, 2))


def _s(value: float) -> str:
    if abs(value) >= 1:
        return f"{value:,.{0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2}f} s"
    return f"{value * 1e3:.{0 if abs(value) >= 0.1 else 1}f} ms"


def _words(code: str) -> str:
    return code.replace("_", " ")
