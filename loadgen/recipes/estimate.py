"""The recipe of `loadgen estimate`: one request on paper, from the flags to text, JSON or a picture."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.errors import UsageError
from loadgen.recipes.output import as_json, colored, columns, put

if TYPE_CHECKING:
    from analysis.estimate.numbers import Estimate
    from analysis.roofline import Gpu


def estimate(arguments: dict[str, Any]) -> int:
    """Print the estimate, or write it as a page or a picture. Raises UsageError for what cannot be estimated."""
    try:
        made = _estimate(arguments)
        made.roofline.kv_capacity_tokens()  # a model that does not fit has no time to estimate
        if arguments["output"] is not None:
            _write(arguments["output"], _rendering(arguments["output"])(made))
    except ValueError as problem:
        raise UsageError(str(problem)) from None
    if arguments["output"] is None or arguments["format_"] != "html":
        put(_printed(made, arguments))
    return 0


def _estimate(arguments: Mapping[str, Any]) -> "Estimate":
    from analysis.estimate.numbers import Ask, Estimate
    from analysis.roofline import KV_DTYPES, WEIGHT_DTYPES, Roofline
    from loadgen.sim import catalog

    _choice("--dtype", arguments["dtype"], WEIGHT_DTYPES)
    _choice("--kv-dtype", arguments["kv_dtype"], KV_DTYPES)
    model = catalog.model(arguments["model"], arguments["catalog"])
    roofline = Roofline(
        _priced(catalog.gpu(arguments["gpu"], arguments["catalog"]), arguments["price_per_hour"]),
        model.stored_as(arguments["dtype"], arguments["kv_dtype"]),
        arguments["compute_efficiency"],
        arguments["bandwidth_efficiency"],
        arguments["tp"],
    )
    ask = Ask(
        arguments["prompt_tokens"],
        arguments["output_tokens"],
        arguments["cached_tokens"],
        arguments["batch"],
        arguments["others_decoding"],
        arguments["others_context"],
    )
    return Estimate(roofline, ask)


def _priced(gpu: "Gpu", price_per_hour: float | None) -> "Gpu":
    if price_per_hour is None:
        return gpu
    if not 0 < price_per_hour < math.inf:
        raise UsageError(f"--price-per-hour {price_per_hour:g}: expected dollars above 0")
    return replace(gpu, price_per_hour=price_per_hour)


def _choice(flag: str, value: str | None, known: Iterable[str]) -> None:
    if value is not None and value not in known:
        raise UsageError(f"{flag} {value}: expected {', '.join(known)}")


def _printed(made: "Estimate", arguments: Mapping[str, Any]) -> str:
    if arguments["format_"] == "json":
        from analysis.estimate.numbers import page

        return as_json(page(made))
    if arguments["format_"] == "html":
        return _page(made)
    from analysis.estimate.text import render

    return render(made, arguments["timeline"], arguments["explain"], max(80, columns()), colored())


def _page(made: "Estimate") -> str:
    from analysis.page.estimate import render

    return render(made)


def _rendering(path: Path) -> Callable[["Estimate"], str | bytes]:
    """What the ending of a file name asks for."""
    from analysis.estimate import png, svg

    known: dict[str, Callable[[Estimate], str | bytes]] = {
        ".html": _page,
        ".svg": svg.svg,
        ".png": png.png,
    }
    if path.suffix not in known:
        raise UsageError(f"--output {path}: expected a name that ends in {', '.join(known)}")
    return known[path.suffix]


def _write(path: Path, content: str | bytes) -> None:
    try:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    except OSError as problem:
        raise UsageError(f"--output {path}: {problem.strerror}") from None
