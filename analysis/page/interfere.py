"""The experiment on interference as one HTML page: the verdict, freeze and TTFT against the prompt, the controls."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from analysis.interfere.verdict import BLOCKED, CHUNKED, ISOLATED
from analysis.interfere.words import KINDS, counted, ends, nothing_to_do, remedies, rounded, whose
from analysis.page.axes import Axis, linear, spanning
from analysis.page.figures import Limit, Line, Mark, Points, draw
from analysis.page.prefill import near
from analysis.page.run import about
from analysis.page.shell import (
    Cell,
    Figure,
    Html,
    Number,
    Section,
    Swatch,
    Table,
    absent,
    count,
    element,
    facing,
    figure,
    number,
    page,
    seconds,
    share,
    table,
    text,
    tiles,
)
from analysis.quantiles import Floats
from analysis.report.wording import seconds as words

Part = Mapping[str, Any]

_ROLES = {BLOCKED: "fail", CHUNKED: "none", ISOLATED: "pass"}
_GATES = {"pass": "pass", "fail": "fail", "no_verdict": "no verdict"}


def render(result: Part, meta: Mapping[str, Any]) -> str:
    """The whole page.

    Args:
        result: `analysis.interfere.result.interfere` of a run.
        meta: That run's own description, for what ran where.
    """
    told = result["run"]
    title = f"Interference on {told['model'] or 'unknown model'}"
    return page(title, list(_sections(result, meta)), [_about_line(result), *_verdict_line(result)])


def _about_line(result: Part) -> Html:
    design, run = result["design"], result["run"]
    facts = [_streams(design["streams"]), f"{result['injections']['sent']} injected prompts"]
    facts += [str(run[name]) for name in ("started_at", "target", "engine") if run[name]]
    return element("p", " · ".join(facts), class_="sub")


def _streams(n: int) -> str:
    return "one stream that decodes" if n == 1 else f"{n} streams that decode"


def _verdict_line(result: Part) -> Iterator[Html]:
    """The kind, coloured by the gate where there is one."""
    kind, gate = result["verdict"]["kind"], result["gate"]["verdict"]
    role = gate or ("no_verdict" if kind is None else _ROLES[kind])
    said = KINDS[kind] if kind else "No verdict"
    yield element("p", f"{said}{f': {_GATES[gate]}' if gate and kind else ''}", class_=f"verdict {role}")


def _sections(result: Part, meta: Mapping[str, Any]) -> Iterator[Section]:
    yield Section("verdict", "Verdict", list(_verdict(result)))
    left = [_freeze(result), _held(result)]
    right = [_ttft(result), _itl(result)]
    yield Section("phases", "What a prompt does to others, and what it takes itself", [facing(left, right)])
    yield Section("lengths", "Every length", list(_lengths(result)))
    if advice := list(_advice(result)):
        yield Section("advice", "What to do", advice)
    if notes := result["design"]["notes"]:
        yield Section("notes", "Notes", [element("ul", *(element("li", str(each)) for each in notes))])
    yield Section("about", "What ran where", about(meta))


def _known(result: Part) -> list[Part]:
    return [rung for rung in result["rungs"] if rung["n"]]


# --- the verdict ------------------------------------------------------------------------------------------------------


def _verdict(result: Part) -> Iterator[Html]:
    verdict, rungs = result["verdict"], _known(result)
    yield text(f"{verdict['reason']}." if verdict["kind"] is None else _meaning(verdict))
    if rungs:
        yield text(f"A prompt of {rungs[-1]['prompt_tokens']:,.0f} tokens, the longest:", role="sub")
        yield tiles(_tiles(result, rungs[-1]))
    gate = result["gate"]
    if gate["verdict"]:
        yield table(_gate_table(gate), "The limit and its verdict")


def _meaning(verdict: Part) -> str:
    told = "–" if verdict["chunk_tokens"] is None else rounded(verdict["chunk_tokens"])
    return {
        BLOCKED: "While a long prompt is read, no stream gets a token: the whole prompt goes through in one piece.",
        CHUNKED: f"A long prompt is read in pieces of about {told} tokens, and streams get "
        "a token between two pieces: they slow down, but never stand still for longer than a piece takes.",
        ISOLATED: "Streams hardly notice a long prompt: their gaps beside one are as long as without any.",
    }[verdict["kind"]]


def _tiles(result: Part, longest: Part) -> list[tuple[str, str, str]]:
    freeze_s, ttft_s = longest["freeze_s"]["median"], longest["ttft_s"]["median"]
    told = [
        ("freeze", seconds(freeze_s), "freeze of the streams"),
        ("muted", seconds(longest["control"]["high_s"]), "longest gap without it"),
        ("prefill", seconds(ttft_s), "its own TTFT"),
        ("decode", number(longest["tokens_meanwhile"]), "tokens a stream got meanwhile"),
        ("decode", seconds(result["decode"]["step_s"]), "usual step of a stream"),
    ]
    if result["prefill"] and result["prefill"]["tokens_per_s"]:
        told.append(("prefill", count(result["prefill"]["tokens_per_s"]), "prompt tokens/s"))
    return [(role, value.text, label) for role, value, label in told]


def _gate_table(gate: Part) -> Table:
    verdict = element("b", gate["verdict"].replace("_", " "), class_=gate["verdict"])
    row: list[Cell] = [verdict, f"freeze < {words(gate['max_freeze_s'])}", seconds(gate["value_s"]),
                       ends(gate["ci95"]) or "–", count(gate["tokens"]), gate["reason"] or ""]  # fmt: skip
    return Table(("verdict", "limit", "value", "95% interval", "prompt tokens", "why"), [row])


# --- figures ----------------------------------------------------------------------------------------------------------


def _freeze(result: Part) -> Html:
    question, rungs = "How long does a prompt stop the others?", _known(result)
    if not rungs:
        return absent(question, "no injected prompt counts")
    x, tokens = _prompts(rungs), _column(rungs, "prompt_tokens")
    control = np.array([_value(rung["control"]["high_s"]) for rung in rungs])
    limit_s = result["gate"]["max_freeze_s"]
    asked = [] if limit_s is None else [Limit(f"limit {words(limit_s)}", limit_s, across=True)]
    medians = _column(rungs, "freeze_s", "median")
    marks: list[Mark] = [
        Line("without a prompt, up to", "queue", tokens, control, dashed=True),
        *_with_intervals("freeze", "freeze", rungs, "freeze_s"),
    ]
    reached = [*medians, *_tops(rungs, "freeze_s"), *control, *near(asked, medians)]
    return figure(
        Figure(
            question,
            "The longest gap of a stream while the prompt was read: the median over streams and repeats. A straight "
            "line upwards means that the whole prompt goes through at once; one that levels off, chunks. The control "
            "is the longest gap in as long a time without a prompt.",
            draw(x, linear("freeze", reached, "s"), marks, asked, label=question),
            _data(rungs, "freeze_s"),
            [
                Swatch("freeze, with its 95% interval", "freeze", "line"),
                Swatch("control: 97.5% of windows without a prompt", "queue", "dashed"),
            ],
        )
    )


def _ttft(result: Part) -> Html:
    question, rungs = "How long does a prompt take itself?", _known(result)
    if not rungs:
        return absent(question, "no injected prompt counts")
    marks: list[Mark] = [
        *_fit(result["prefill"], _column(rungs, "prompt_tokens")),
        *_with_intervals("TTFT", "prefill", rungs, "ttft_s"),
    ]
    y = linear("TTFT", [*_column(rungs, "ttft_s", "median"), *_tops(rungs, "ttft_s")], "s")
    return figure(
        Figure(
            question,
            f"Beside {_streams(result['design']['streams'])}. Prefill is bound by compute, so TTFT grows with the "
            f"prompt.{_pace(result['prefill'])}",
            draw(_prompts(rungs), y, marks, label=question),
            _data(rungs, "ttft_s"),
            [Swatch("TTFT, with its 95% interval", "prefill", "line"), Swatch("fit", "ink", "dashed")],
        )
    )


def _pace(line: Part | None) -> str:
    if not line or not line["tokens_per_s"]:
        return ""
    return (
        f" Here by {words(line['s_per_1k_tokens'])} per 1,000 tokens {ends(line['ci95'])}".rstrip() + ", after "
        f"{words(max(0.0, line['at_zero_s']))} in the queue and on the way."
    )


def _fit(line: Part | None, tokens: Floats) -> list[Mark]:
    if line is None:
        return []
    x = np.linspace(float(tokens.min()), float(tokens.max()), 40)
    return [Line("fit", "ink", x, line["at_zero_s"] + line["s_per_1k_tokens"] / 1000 * x, dashed=True)]


def _held(result: Part) -> Html:
    question = "For how much of that TTFT do the others stand still?"
    rungs = [rung for rung in _known(result) if rung["ttft_s"]["median"]]
    if not rungs:
        return absent(question, "no injected prompt has a TTFT")
    tokens = _column(rungs, "prompt_tokens")
    part = np.minimum(1.0, _column(rungs, "freeze_s", "median") / _column(rungs, "ttft_s", "median"))
    rows: list[list[Cell]] = [
        [count(n), share(float(value)), number(rung["tokens_meanwhile"]), number(rung["chunks"])]
        for n, value, rung in zip(tokens, part, rungs, strict=True)
    ]
    return figure(
        Figure(
            question,
            "All of it: read at one go. A small part: read in pieces, with a token for every stream between them. "
            "Short prompts take hardly longer than a step, so theirs says little.",
            draw(
                _prompts(rungs),
                Axis("longest freeze as a share of TTFT", "linear", 0.0, 1.0, "share"),
                [Line("share", "freeze", tokens, part), Points("share", "freeze", tokens, part, large=True)],
                label=question,
            ),
            Table(("prompt tokens", "share", "tokens meanwhile", "pieces"), rows),
            [Swatch("freeze / TTFT", "freeze", "line")],
        )
    )


def _itl(result: Part) -> Html:
    question = "Do streams slow each other down without any prompt?"
    levels = [each for each in result["decode"]["by_streams"] if each["itl_s"]]
    if not levels:
        return absent(question, "no baseline was measured")
    x, y = _column(levels, "streams"), _column(levels, "itl_s")
    marks: list[Mark] = [Line("ITL", "decode", x, y), Points("ITL", "decode", x, y, large=True)]
    swatches, dear = [Swatch("ITL", "decode", "line")], y[0] * x / x[0]
    if len(levels) > 1:
        marks.insert(0, Line("if each cost as much", "queue", x, dear, dashed=True))
        swatches.append(Swatch("if each stream cost as much as the first", "queue", "dashed"))
    rows: list[list[Cell]] = [[count(each["streams"]), seconds(each["itl_s"]), count(each["n"])] for each in levels]
    return figure(
        Figure(
            question,
            "The median ITL of streams that decode together, before any prompt. Decode is bound by memory: all streams "
            "share one reading of the weights, so the line is flat until something else is the limit."
            + _growth(levels),
            draw(linear("streams that decode together", x), linear("ITL", [*y, *dear], "s"), marks, label=question),
            Table(("streams", "ITL p50", "tokens"), rows),
            swatches,
        )
    )


def _growth(levels: Sequence[Part]) -> str:
    few, many = levels[0], levels[-1]
    if few["streams"] == many["streams"]:
        return ""
    return f" From {few['streams']} to {many['streams']} it grew by {many['itl_s'] / few['itl_s'] - 1:.0%}."


def _with_intervals(name: str, role: str, rungs: Sequence[Part], key: str) -> list[Mark]:
    """The medians joined by a line, and an upright one through each as long as its interval."""
    x, y = _column(rungs, "prompt_tokens"), _column(rungs, key, "median")
    known = [rung[key]["ci95"] or (np.nan, np.nan) for rung in rungs]
    upright = np.array([[low, high, np.nan] for low, high in known]).ravel()
    return [
        Line(name, role, x, y),
        Points(f"{name} (median)", role, x, y, large=True),
        Line(f"{name}, end of the interval", role, np.repeat(x, 3), upright),
    ]


def _tops(rungs: Sequence[Part], key: str) -> list[float]:
    return [rung[key]["ci95"][1] for rung in rungs if rung[key]["ci95"]]


def _prompts(rungs: Sequence[Part]) -> Axis:
    return spanning("tokens of the injected prompt", _column(rungs, "prompt_tokens"))


def _column(rows: Sequence[Part], *path: str) -> Floats:
    found = []
    for row in rows:
        value: Any = row
        for key in path:
            value = value[key]
        found.append(_value(value))
    return np.array(found, dtype=np.float64)


def _value(value: float | None) -> float:
    return np.nan if value is None else value


# --- tables -----------------------------------------------------------------------------------------------------------


def _data(rungs: Sequence[Part], key: str) -> Table:
    rows: list[list[Cell]] = [
        [
            count(rung["prompt_tokens"]),
            seconds(rung[key]["median"]),
            ends(rung[key]["ci95"]) or "–",
            seconds(rung[key]["max"]),
            count(rung["n"]),
        ]
        for rung in rungs
    ]
    return Table(("prompt tokens", "median", "95% interval", "max", "n"), rows)


def _lengths(result: Part) -> Iterator[Html]:
    rungs = [result["one_token"], *result["rungs"]]
    headings = ("planned", "prompt tokens", "TTFT", "freeze", "95% interval", "worst stream", "without a prompt",
                "windows", "tokens meanwhile", "pieces", "n")  # fmt: skip
    caption = "The first row is a prompt of one word, for what any request costs the others"
    yield table(Table(headings, [_length_row(rung) for rung in rungs], caption), "Every length")
    if told := whose(result):
        yield text(f"{told[:1].upper()}{told[1:]}.", role="note")
    yield text(f"{counted(result['injections'])}.", role="note")


def _length_row(rung: Part) -> list[Cell]:
    freeze, control = rung["freeze_s"], rung["control"]
    return [
        count(rung["tokens"]),
        count(rung["prompt_tokens"]),
        seconds(rung["ttft_s"]["median"]),
        seconds(freeze["median"]),
        ends(freeze["ci95"]) or "–",
        seconds(freeze["max"]),
        seconds(control["high_s"]),
        count(control["n"]),
        number(rung["tokens_meanwhile"]),
        Number("–" if rung["chunks"] is None else f"{rung['chunks']:.1f}", rung["chunks"]),
        count(rung["n"]),
    ]


# --- what to do -------------------------------------------------------------------------------------------------------


def _advice(result: Part) -> Iterator[Html]:
    kind, advice = result["verdict"]["kind"], result["advice"]
    if kind is None:
        return
    if advice is None:
        yield text(nothing_to_do(kind))
        return
    caption = f"To keep every freeze within {words(advice['target_s'])}"
    rows = remedies(kind, advice)
    yield table(Table(("what helps", "what it brings", "at what price"), rows, caption, sortable=False), "Remedies")
