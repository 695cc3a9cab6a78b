"""The numbers as CSV, for spreadsheets and dashboards: a row for each class and metric, `all` for the whole run.

Latencies are in seconds, their columns named as the statistics of the summary; the other metrics have their value under
`value`. A number that was not measured is blank.
"""

import csv
from collections.abc import Iterator, Mapping
from io import StringIO
from typing import Any

from analysis.limits import ALL
from analysis.quantiles import EMPTY, PERCENTILES

Part = Mapping[str, Any]
_STATISTICS = [name for name in EMPTY if name != "ci95"]
_ENDS = [f"{name}_{end}" for name in PERCENTILES for end in ("low", "high")]
COLUMNS = ["class", "metric", "value", "value_low", "value_high", *_STATISTICS, *_ENDS]


def csv_text(summary: Part) -> str:
    """The whole table, ending in a line break."""
    out = StringIO()
    writer = csv.DictWriter(out, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for name, part in {ALL: summary, **summary["by_class"]}.items():
        for values in _rows(part):
            writer.writerow({"class": _plain(name), **values})
    return out.getvalue()


def _rows(part: Part) -> Iterator[dict[str, Any]]:
    for metric, block in part["metrics"].items():
        ends = block["ci95"] or {}
        bounds = {f"{name}_{end}": value for name in PERCENTILES
                  for end, value in zip(("low", "high"), ends.get(name) or (), strict=False)}  # fmt: skip
        yield {"metric": metric, **{name: block[name] for name in _STATISTICS}, **bounds}
    requests, stalls = part["requests"], part["stalls"]
    for name in ("planned", "sent", "ok", "failed", "censored"):
        yield {"metric": f"requests_{name}", "value": requests[name]}
    yield _counted("error_rate", requests["error_rate"], requests["ci95"]["error_rate"])
    yield _counted("attainment", part["goodput"]["attainment"], requests["ci95"]["attainment"])
    yield _counted("goodput_per_s", part["goodput"]["requests_per_s"], requests["ci95"]["goodput_per_s"])
    yield _counted("stalls_per_1k_tokens", stalls["per_1k_tokens"], stalls["ci95"]["per_1k_tokens"])
    yield _counted("stall_longest_s", stalls["longest_s"], None)
    for name, ends in part["throughput"]["ci95"].items():
        yield _counted(name, part["throughput"][name], ends)


def _counted(metric: str, value: float | None, ends: list[float] | None) -> dict[str, Any]:
    low, high = ends or (None, None)
    return {"metric": metric, "value": value, "value_low": low, "value_high": high}


def _plain(name: str) -> str:
    """A class named like a formula must not become one in a spreadsheet."""
    return f"'{name}" if name[:1] in ("=", "+", "-", "@", "\t") else name
