"""One schedule under several policies, side by side: what each does to prefill, to decode and to the streams."""

from collections.abc import Mapping
from typing import Any

_ROWS = (
    ("TTFT p50", "ttft_p50_s", "ms"), ("TTFT p95", "ttft_p95_s", "ms"), ("TTFT p99", "ttft_p99_s", "ms"),
    ("ITL p50", "itl_p50_s", "ms"), ("ITL p99", "itl_p99_s", "ms"), ("longest gap", "gap_max_s", "ms"),
    ("stalls", "stalls", ""), ("per 1k tokens", "stalls_per_1k", ""), ("stalled", "stalled_s", "s"),
    ("good requests/s", "goodput_rps", ""), ("attained", "attainment", "%"), ("tokens/s", "output_tokens_per_s", ""),
    ("cached", "cached_share", "%"), ("preemptions", "preemptions", ""), ("verdict", "verdict", None),
)  # fmt: skip


def row(name: str, hardware: str, summary: Mapping[str, Any]) -> dict[str, Any]:
    """What is compared of one policy; durations in seconds, None where undefined."""
    metrics, stalls, goodput, tokens = (summary[key] for key in ("metrics", "stalls", "goodput", "tokens"))
    ttft = metrics["ttft_due_s"] if metrics["ttft_due_s"]["n"] else metrics["ttft_s"]
    itl = metrics["itl_s"] if metrics["itl_s"]["n"] else metrics["gap_s"]
    server = summary["server"] or {}
    return {
        "policy": name,
        "hardware": hardware,
        "ttft_p50_s": ttft["p50"],
        "ttft_p95_s": ttft["p95"],
        "ttft_p99_s": ttft["p99"],
        "itl_p50_s": itl["p50"],
        "itl_p99_s": itl["p99"],
        "gap_max_s": metrics["gap_s"]["max"],
        "stalls": stalls["count"],
        "stalls_per_1k": stalls["per_1k_tokens"],
        "stalled_s": stalls["total_s"],
        "goodput_rps": goodput["requests_per_s"],
        "attainment": goodput["attainment"],
        "output_tokens_per_s": summary["throughput"]["output_tokens_per_s"],
        "cached_share": tokens["cached"] / tokens["prompt"]
        if tokens["prompt"] and tokens["cached"] is not None
        else None,
        "preemptions": server.get("preemptions"),
        "verdict": summary["slo"]["verdict"],
    }


def render(document: Mapping[str, Any]) -> str:
    """A column for each policy; rows that no policy has a value for are left out."""
    policies = document["policies"]
    cells = [["", *(each["policy"] for each in policies)]]
    for label, key, unit in _ROWS:
        values = [each[key] for each in policies]
        if any(value is not None for value in values):
            cells.append(
                [f"{label} {unit}".rstrip() if unit in ("ms", "s") else label, *(_text(v, unit) for v in values)]
            )
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [f"{document['workload']}, seed {document['seed']}: the same schedule under each policy"]
    for first, *others in cells:
        padded = [text.rjust(width) for text, width in zip(others, widths[1:], strict=True)]
        lines.append(f"  {first.ljust(widths[0])}  " + "  ".join(padded))
    lines += [f"  {each['policy']}: {each['hardware']}" for each in policies]
    return "\n".join(lines) + "\n"


def _text(value: Any, unit: str | None) -> str:
    if value is None:
        return "–"
    if unit is None:
        return str(value)
    scaled = value * {"ms": 1000, "%": 100}.get(unit, 1)
    number = f"{scaled:,.0f}" if scaled >= 1000 or scaled == int(scaled) else f"{scaled:.3g}"
    return f"{number}%" if unit == "%" else number
