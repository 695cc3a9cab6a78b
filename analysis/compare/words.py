"""What a comparison says of a metric, for text and page alike."""

from collections.abc import Mapping
from typing import Any

from analysis.report.wording import quantity

Part = Mapping[str, Any]


def values(each: Part) -> list[str]:
    """Of the base and of the candidate."""
    return [quantity(each["metric"], each["statistic"], each[side]) for side in ("base", "candidate")]


def change(each: Part) -> str:
    """+12.3%, or +1.20 pp where shares are compared by their difference; – where it is not known."""
    if each["difference"] is not None:
        return f"{100 * each['difference']:+.2f} pp"
    return "–" if each["ratio"] is None else f"{100 * (each['ratio'] - 1):+.1f}%"


def ends(each: Part) -> str:
    """The interval of the change; empty where there is none."""
    if each["ci95"] is None:
        return ""
    low, high = each["ci95"]
    if each["difference"] is not None:
        return f"[{100 * low:+.2f}, {100 * high:+.2f}] pp"
    return f"[{100 * (low - 1):+.1f}, {100 * (high - 1):+.1f}]%"
