"""The result of the experiment on interference as text for a terminal: the verdict, the rungs, a sketch, what to do."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from analysis.interfere.verdict import BLOCKED, CHUNKED
from analysis.interfere.words import KINDS, counted, ends, nothing_to_do, remedies, rounded, whose
from analysis.report.terminal import as_text
from analysis.report.wording import number, seconds

Part = Mapping[str, Any]

FROZEN, READ = "█", "░"
_LABEL, _VALUES = 10, 26
_FLAT, _STEEP = 0.25, 0.75
_MARKS = {"pass": "green", "fail": "bold red", "no_verdict": "bold yellow"}


def render_interfere(result: Part, width: int = 100, color: bool = False) -> str:
    """The whole result; ends in a line break."""
    return as_text(_sections(result, width), width, color)


def _sections(result: Part, width: int) -> Iterator[RenderableType]:
    yield Text(_headline(result), style="bold")
    yield Text(_where(result["run"]), style="dim")
    yield from _gate(result["gate"])
    yield from _rungs(result)
    yield from _sketch(result["rungs"], width)
    yield from _phases(result)
    yield from _advice(result)
    yield from _notes(result)


# --- the verdict ------------------------------------------------------------------------------------------------------


def _headline(result: Part) -> str:
    verdict = result["verdict"]
    if verdict["kind"] is None:
        return f"No verdict: {verdict['reason']}"
    longest = result["rungs"][-1]
    tokens, ttft = f"{longest['prompt_tokens']:,.0f} tokens", seconds(longest["ttft_s"]["median"])
    freeze = f"{seconds(longest['freeze_s']['median'])} {ends(longest['freeze_s']['ci95'])}".rstrip()
    kind = KINDS[verdict["kind"]]
    if verdict["kind"] == BLOCKED:
        return f"{kind}: one of {tokens} stops the streams for {freeze}; its TTFT is {ttft}."
    if verdict["kind"] == CHUNKED:
        return (
            f"{kind} of about {rounded(verdict['chunk_tokens'])} tokens: a prompt of {tokens} stops the streams for "
            f"{freeze} at a time; its TTFT is {ttft}."
        )
    return (
        f"{kind}: beside a prompt of {tokens} the longest gap is {freeze}; in as long without one it is up to "
        f"{_s(longest['control']['high_s'])}."
    )


def _where(run: Part) -> str:
    engine = f" ({run['engine']})" if run["engine"] else ""
    return f"{run['model'] or 'unknown model'} at {run['target'] or 'unknown target'}{engine}"


def _gate(gate: Part) -> Iterator[RenderableType]:
    if gate["max_freeze_s"] is None or gate["verdict"] is None:
        return
    mark = gate["verdict"].replace("_", " ")
    value = "" if gate["value_s"] is None else f": {seconds(gate['value_s'])} {ends(gate['ci95'])}".rstrip()
    reason = f" ({gate['reason']})" if gate["reason"] and gate["value_s"] is not None else ""
    text = Text(f"{mark:<10}  ", _MARKS[gate["verdict"]])
    yield _inset(text.append(f"freeze < {seconds(gate['max_freeze_s'])}{value}{reason}", ""))


# --- numbers ----------------------------------------------------------------------------------------------------------


def _rungs(result: Part) -> Iterator[RenderableType]:
    count = result["design"]["streams"]
    yield _title(f"What an injected prompt does to {f'{count} streams that decode' if count > 1 else 'a stream'}")
    table = _table(["prompt", "TTFT", "freeze", "95 %", "worst", "without", "tokens", "pieces", "n"])
    for rung in (result["one_token"], *result["rungs"]):
        freeze = rung["freeze_s"]
        table.add_row(
            f"{rung['tokens'] if rung['prompt_tokens'] is None else rung['prompt_tokens']:,.0f}",
            _s(rung["ttft_s"]["median"]),
            _s(freeze["median"]),
            ends(freeze["ci95"]).removesuffix(_s(freeze["median"]).lstrip("0123456789.,")),
            _s(freeze["max"]),
            _s(rung["control"]["high_s"]),
            number(rung["tokens_meanwhile"]),
            "–" if rung["chunks"] is None else f"{rung['chunks']:.1f}",
            str(rung["n"]),
        )
    yield _inset(table)
    if told := whose(result):
        yield _line(told)
    yield _dim(
        "freeze: longest gap of a stream, median over streams and injections · without: 97.5 % of windows as long with "
        "no prompt in them · tokens: of a stream, meanwhile · pieces: in which the prompt was read · "
        f"{counted(result['injections'])}"
    )


def _sketch(rungs: list[Part], width: int) -> Iterator[RenderableType]:
    """A bar a rung, as long as its TTFT: the part in which the streams stood still at a stretch, then the rest."""
    known = [rung for rung in rungs if rung["n"]]
    if not known:
        return
    yield _title("Longest freeze, within the TTFT of the prompt that makes it")
    columns = max(10, min(width, 120) - 2 - _LABEL - _VALUES)
    most_s = max(max(rung["ttft_s"]["median"], rung["freeze_s"]["median"]) for rung in known)
    text = Text()
    for rung in known:
        freeze_s, ttft_s = rung["freeze_s"]["median"], rung["ttft_s"]["median"]
        frozen, whole = (max(1, round(columns * each / most_s)) for each in (freeze_s, max(freeze_s, ttft_s)))
        text.append(f"{rung['prompt_tokens']:>{_LABEL - 2},.0f}  ")
        text.append(FROZEN * frozen, "red").append(READ * (whole - frozen), "cyan")
        text.append(f"  {seconds(freeze_s)} of {seconds(ttft_s)}\n")
    text.append(f"{'':{_LABEL}}{FROZEN} streams frozen   {READ} the rest of its TTFT", "dim")
    yield _inset(text)


def _phases(result: Part) -> Iterator[RenderableType]:
    yield _title("Prefill and decode")
    prefill, freeze = result["prefill"], result["freeze"]
    if prefill and prefill["tokens_per_s"]:
        yield _line(
            f"prefill: {seconds(max(0.0, prefill['at_zero_s']))} in the queue and on the way, then {_slope(prefill)} "
            f"({prefill['tokens_per_s']:,.0f} tokens/s)"
        )
    if freeze:
        yield _line(f"freeze: grows by {_slope(freeze)}")
    levels = [each for each in result["decode"]["by_streams"] if each["itl_s"]]
    if levels:
        itl = ", ".join(f"{each['streams']}: {seconds(each['itl_s'])}" for each in levels)
        yield _line(f"decode: ITL by number of streams {itl}{_growth(result['decode']['power'])}")


def _slope(line: Part) -> str:
    return f"{seconds(line['s_per_1k_tokens'])} per 1,000 tokens {ends(line['ci95'])}".rstrip()


def _growth(power: float | None) -> str:
    if power is None:
        return ""
    if power < _FLAT:
        return "; bound by memory bandwidth, which all streams of a pass share: more of them come nearly free"
    if power < _STEEP:
        return "; more streams already slow each other down"
    return "; no longer bound by what streams share: each costs about as much as the first"


# --- what to do -------------------------------------------------------------------------------------------------------


def _advice(result: Part) -> Iterator[RenderableType]:
    kind, advice = result["verdict"]["kind"], result["advice"]
    if kind is None:
        return
    yield _title("What to do")
    if advice is None:
        yield _line(nothing_to_do(kind))
        return
    yield from (_line(f"{what}: {brings}; {price}") for what, brings, price in remedies(kind, advice))


def _notes(result: Part) -> Iterator[RenderableType]:
    notes = result["design"]["notes"] or []
    if notes:
        yield _title("Notes")
        yield from (_line(note) for note in notes)


# --- words ------------------------------------------------------------------------------------------------------------


def _s(value: float | None) -> str:
    return "–" if value is None else seconds(value)


def _table(headings: list[str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for heading in headings:
        table.add_column(heading, justify="right", overflow="fold")
    return table


def _title(text: str) -> RenderableType:
    return Padding(Text(text, style="bold"), (1, 0, 0, 0))


def _line(text: str) -> RenderableType:
    return _inset(Text(text))


def _dim(text: str) -> RenderableType:
    return _inset(Text(text, style="dim"))


def _inset(content: RenderableType) -> RenderableType:
    return Padding(content, (0, 0, 0, 2))
