"""From the command line's words to typed options; every mistake is one line that says what was expected."""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from analysis.limits import ALL, good_limits, parse_good, parse_limit, parse_limits
from analysis.units import share
from loadgen.errors import UsageError
from loadgen.secrets_in_argv import HEADERS_VARIABLE, KEY_VARIABLE

if TYPE_CHECKING:
    from analysis.limits import Limit
    from loadgen.access import Access
    from loadgen.measure import RunOptions
    from loadgen.openai_http import HttpOptions
    from workloads.spec import Workload

Parsed = TypeVar("Parsed")

ENDPOINTS = ("chat", "completions", "responses")
TRANSPORTS = ("fast", "httpx")
MAX_TOKENS_FIELDS = ("max_tokens", "max_completion_tokens")
FLAG_PATHS = {
    "rate": "arrivals.rate",
    "concurrency": "concurrency",
    "requests": "requests",
    "duration": "duration",
    "warmup": "warmup",
    "drain": "drain",
    "seed": "seed",
    "input_tokens": "classes.*.input_tokens",
    "output_tokens": "classes.*.output_tokens",
}
YAML_FLAGS = frozenset({"rate", "duration", "warmup", "drain", "input_tokens", "output_tokens"})


def workload_of(arguments: Mapping[str, Any]) -> "Workload":
    """The workload with everything that the command line says of it, so that the run directory tells the whole."""
    from workloads.spec import load_workload

    workload = load_workload(arguments["workload"], _overrides(arguments))
    slo = merged_limits(workload.slo, arguments["slo"] or ()) if "slo" in arguments else workload.slo
    good = dict(workload.good) | dict(_parse(parse_good, text) for text in arguments.get("good") or ())
    _parse(parse_limits, slo, arguments.get("allow_e2e", True))
    _parse(good_limits, good)
    unknown = set(slo) - {*workload.classes, ALL}
    if unknown:
        known = ", ".join(workload.classes)
        raise UsageError(f"--slo {unknown.pop()}:…: no such class; this workload has {known}")
    return workload.model_copy(update={"slo": slo, "good": good})


def _overrides(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Flags of the load as dotted paths of the workload file; `--set` comes last and wins."""
    found: dict[str, Any] = {}
    if arguments.get("arrival"):
        process, _, cv = arguments["arrival"].partition(":")
        found["arrivals.process"] = process
        if cv:
            found["arrivals.cv"] = _yaml("--arrival", cv)
    for name, path in FLAG_PATHS.items():
        if arguments.get(name) is not None:
            value = arguments[name]
            found[path] = _yaml(f"--{name.replace('_', '-')}", value) if name in YAML_FLAGS else value
    for text in arguments.get("set_") or ():
        path, sign, value = text.partition("=")
        if not sign or not path.strip():
            raise UsageError(f"--set {text}: expected path=value, as in classes.rag.input_tokens=80")
        found[path.strip()] = _yaml("--set", value)
    return found


def _yaml(flag: str, text: str) -> Any:
    """A value as the workload file would have it: a number, a duration, `{law: uniform, low: 1, high: 9}`."""
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise UsageError(f"{flag} {text}: not a value that a workload file could have") from None


def merged_limits(slo: Mapping[str, Sequence[str]], texts: Sequence[str]) -> dict[str, list[str]]:
    """The file's limits and the command line's; one of the latter replaces one of the same metric, statistic, class."""
    limits = {name: list(own) for name, own in slo.items()}
    for text in texts:
        match = re.fullmatch(r"\s*(?:([^:<>]+):)?(.*)", text, re.DOTALL)
        name, limit = (match[1] or ALL).strip() if match else ALL, match[2] if match else text
        new = _parse(parse_limit, limit)
        same = [old for old in limits.get(name, []) if _subject(_parse(parse_limit, old)) == _subject(new)]
        limits[name] = [old for old in limits.get(name, []) if old not in same] + [limit]
    return limits


def _subject(limit: "Limit") -> tuple[str, str | None, bool]:
    return limit.metric, limit.statistic, limit.is_upper


class Served(NamedTuple):
    """What is to be driven; `model` None: the one that it lists; `engine`: what it is, where that is sure already."""

    url: str
    model: str | None
    engine: str | None = None


def run_options(arguments: Mapping[str, Any], served: Served, out: Path) -> "RunOptions":
    from loadgen.measure import RunOptions
    from loadgen.outlet import Export

    _one_of(arguments, "transport", TRANSPORTS)
    _one_of(arguments, "max_tokens_field", MAX_TOKENS_FIELDS)
    _one_of(arguments, "keep_events", ("all", "stalls", "none"))
    if arguments["keep_events"] != "all" and arguments["cluster"] is not None:
        raise UsageError("--keep-events: with --cluster all events are kept: leave it out")
    tokenizer = None
    if arguments["tokenizer"] is not None:
        from loadgen.tokenizer import Tokenizer

        tokenizer = Tokenizer(arguments["tokenizer"])
    return RunOptions(
        access=access_of(arguments, served.url),
        out=out,
        model=served.model,
        endpoint=arguments["endpoint"],
        body=body_fields(arguments["body"] or ()),
        max_tokens_field=arguments["max_tokens_field"],
        ignore_eos=arguments["ignore_eos"],
        per_event_usage=arguments["per_event_usage"],
        http=_http_options(arguments),
        transport=arguments["transport"],
        max_in_flight=arguments["max_in_flight"],
        calibrate=not arguments["no_calibrate"],
        show_progress=not (arguments["no_progress"] or arguments["quiet"]),
        quiet=arguments["quiet"],
        tokenizer=tokenizer,
        gate=gate_rules(arguments),
        workers=_workers(arguments["workers"]),
        cluster=cluster_of(arguments["cluster"]),
        priority=not arguments["no_priority"],
        ca_file=arguments["ca_file"],
        client_cert=arguments["client_cert"],
        metrics=tuple(arguments["metrics"] or ()),
        own_metrics=not arguments["no_metrics"],
        engine=served.engine,
        until_verdict=arguments.get("until_verdict", False),
        keep_events=arguments["keep_events"],
        export=Export(arguments.get("prometheus_port"), arguments.get("prometheus_file")),
    )


def _workers(text: str) -> int | None:
    """How many processes; None for auto."""
    if text == "auto":
        return None
    if not text.isascii() or not text.isdigit() or not int(text):
        raise UsageError(f"--workers {text}: expected a number of processes, or auto")
    return int(text)


def cluster_of(text: str | None) -> str | None:
    """An address that Ray takes, and only one of those that mean what the help says."""
    if text is None or text in ("auto", "local") or re.fullmatch(r"ray://[^/\s]+:\d+", text):
        return text
    raise UsageError(f"--cluster {text}: expected ray://HOST:10001, auto or local")


def access_of(arguments: Mapping[str, Any], target: str) -> "Access":
    from loadgen.access import make_access
    from loadgen.target import parse_target

    _one_of(arguments, "endpoint", ENDPOINTS)
    key = arguments["api_key"] or os.environ.get(KEY_VARIABLE) or os.environ.get("OPENAI_API_KEY")
    return make_access(
        parse_target(target, arguments["endpoint"]),
        headers=dict(_header(text) for text in [*(arguments["header"] or ()), *_hidden_headers()]),
        api_key=key or None,
        ca_file=arguments["ca_file"],
        client_cert=arguments["client_cert"],
        insecure=arguments["insecure"],
        proxy=arguments["proxy"],
    )


def _one_of(arguments: Mapping[str, Any], name: str, known: Sequence[str]) -> None:
    if arguments[name] not in known:
        raise UsageError(f"--{name.replace('_', '-')} {arguments[name]}: expected {', '.join(known)}")


def _http_options(arguments: Mapping[str, Any]) -> "HttpOptions":
    from loadgen.exchange import Limits
    from loadgen.openai_http import HttpOptions

    return HttpOptions(
        limits=Limits(
            connect_s=limit_s("--connect-timeout", arguments["connect_timeout"]),
            first_token_s=limit_s("--first-token-timeout", arguments["first_token_timeout"]),
            idle_s=limit_s("--idle-timeout", arguments["idle_timeout"]),
            total_s=limit_s("--timeout", arguments["timeout"]),
        ),
        retries=arguments["retries"],
        kernel_stamps=os.environ.get("LOADGEN_TIMESTAMPS") != "user",
        save_text=arguments["save_text"],
    )


def _hidden_headers() -> list[str]:
    """The -H flags of this command, which are not among its arguments any more."""
    hidden = os.environ.get(HEADERS_VARIABLE)
    return hidden.split("\n") if hidden else []


def _header(text: str) -> tuple[str, str]:
    name, sign, value = text.partition(":")
    if not sign or not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name.strip()) or re.search(r"[\r\n\0]", value):
        raise UsageError("-H: expected 'name: value'")  # the text is not shown: it may hold a key
    return name.strip(), value.strip()


def body_fields(texts: Sequence[str]) -> dict[str, Any]:
    """`key=json` with dots for nested keys; a value that is no JSON is text: temperature=0, user=anna,
    chat_template_kwargs.enable_thinking=false."""
    from loadgen.openai_api import laid_over

    body: dict[str, Any] = {}
    for text in texts:
        path, sign, value = text.partition("=")
        if not sign or not all(path.split(".")):
            raise UsageError(f"--body {text}: expected key=value, as in temperature=0")
        try:
            field: Any = json.loads(value)
        except ValueError:
            field = value
        for name in reversed(path.split(".")):
            field = {name: field}
        body = laid_over(body, field)
    return body


def limit_s(flag: str, text: str) -> float | None:
    """Seconds; None for 0. Raises UsageError, as all that reads a flag here does."""
    from workloads.units import parse_duration

    return _parse(parse_duration, 0 if text.strip() == "0" else text, where=f"{flag} {text}") or None


def gate_rules(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The rules of judging: recorded with the run, so that a later report judges alike."""
    max_errors = arguments["max_errors"]
    return {
        "strict_point": arguments["strict_point"],
        "allow_e2e": arguments["allow_e2e"],
        "max_errors": None if max_errors is None else _parse(share, max_errors, where=f"--max-errors {max_errors}"),
    }


def _parse(reader: Callable[..., Parsed], *values: Any, where: str = "") -> Parsed:
    """What `reader` makes of the values; its ValueError becomes the user's."""
    try:
        return reader(*values)
    except ValueError as problem:
        raise UsageError(f"{where}: {problem}" if where else str(problem)) from None
