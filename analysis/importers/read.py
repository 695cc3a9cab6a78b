"""Results of other tools as runs of ours: which tool wrote a document, and what it says."""

import re

from analysis.importers import aiperf, guidellm, sglang, vllm
from analysis.importers.decode import Document
from analysis.importers.imported import Imported

KINDS = {"vllm": vllm.parse, "sglang": sglang.parse, "aiperf": aiperf.parse, "guidellm": guidellm.parse}

_MARKS = (
    ("guidellm", (rb"benchmarks", rb"requests")),
    ("aiperf", (rb"request_start_ns", rb"metadata")),
    ("sglang", (rb"ttfts", rb"sharegpt_output_len|total_output_tokens_retokenized|random_range_ratio")),
    ("vllm", (rb"ttfts", rb"itls")),
)
"""Keys that tell the tools apart, in the order of asking."""

_SUMMARIES = (
    (rb"mean_ttft_ms", "a summary without its requests: add --save-detailed (vLLM) or --output-details (SGLang)"),
    (rb"time_to_first_token", "a summary without its requests: import profile_export.jsonl, which lies beside it"),
)


def read_result(document: Document, file: str, kind: str | None = None) -> Imported:
    """The run in another tool's result.

    Args:
        document: The bytes of the file.
        file: Its name, for messages and for the run.
        kind: One of `KINDS`; None = found out from its keys.

    Raises:
        ValueError: One line: the file, the key, what is wrong.
    """
    if kind is not None and kind not in KINDS:
        raise ValueError(f"{kind}: no such kind of result: expected one of {', '.join(KINDS)}")
    try:
        found = detect(document, file)
    except ValueError:
        if kind is None:
            raise
        found = kind
    if kind not in (None, found):
        raise ValueError(f"{file}: a result of {found}, not of {kind}: leave --kind out")
    return KINDS[found](document, file)


def detect(document: Document, file: str) -> str:
    """The tool that wrote a document. ValueError if it is none of those we know, or only a summary."""
    if not re.search(rb"\S", document):
        raise ValueError(f"{file}: empty: the tool wrote no result")
    for kind, keys in _MARKS:
        if all(_has_key(document, key) for key in keys):
            return kind
    for key, what in _SUMMARIES:
        if _has_key(document, key):
            raise ValueError(f"{file}: {what}")
    raise ValueError(f"{file}: not a detailed result of {', '.join(KINDS)}: if it is one, name it with --kind")


def _has_key(document: Document, key: bytes) -> bool:
    """Whether an object has the key; in a string of JSON its quotes would be escaped."""
    return re.search(rb'"(?:' + key + rb')"\s*:', document) is not None
