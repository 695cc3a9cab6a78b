"""The verdicts as JUnit XML, which CI systems show test by test: a case for each limit of each class.

A missed limit is a `failure`. One without a verdict is an `error`: the run could not tell, and a gate that could not
tell has not passed.
"""

import re
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

from analysis.report.wording import interval, limit_name, quantity

Part = Mapping[str, Any]
_UNFIT = re.compile(r"[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(summary: Part) -> str:
    """The whole document, ending in a line break; a run that asked for no limit has an empty suite."""
    run, limits = summary["run"], summary["slo"]["limits"]
    verdicts = [limit["verdict"] for limit in limits]
    counts = {"tests": len(limits), "failures": verdicts.count("fail"), "errors": verdicts.count("no_verdict")}
    attributes = {name: str(count) for name, count in counts.items()} | {"skipped": "0"}
    time_s = f"{run['duration_s'] or 0:.3f}"
    root = ElementTree.Element("testsuites", {"name": "loadgen", "time": time_s, **attributes})
    name = _clean(f"loadgen {run['workload']}")
    suite = ElementTree.SubElement(root, "testsuite", {"name": name, "time": time_s, **attributes})
    if run["started_at"]:
        suite.set("timestamp", _clean(run["started_at"]))
    properties = ElementTree.SubElement(suite, "properties")
    for key in ("id", "model", "target", "seed", "loop", "timestamp_source"):
        ElementTree.SubElement(properties, "property", {"name": key, "value": _clean(run[key])})
    for limit in limits:
        _case(suite, limit)
    if summary["warnings"]:
        told = [f"warning {each['code']}: {each['text']}" for each in summary["warnings"]]
        ElementTree.SubElement(suite, "system-err").text = _clean("\n".join(told))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _case(suite: ElementTree.Element, limit: Part) -> None:
    unit = limit["metric"], limit["statistic"]
    asked = f"{limit_name(limit)} {limit['operator']} {quantity(*unit, limit['limit'])}"
    ends = interval(*unit, limit["ci95"])
    told = f"{quantity(*unit, limit['value'])}{f', 95% interval {ends}' if ends else ''}"
    told += f": {limit['reason']}" if limit["reason"] else ""
    case = ElementTree.SubElement(suite, "testcase", {"classname": _clean(limit["class"]), "name": asked, "time": "0"})
    if limit["verdict"] == "pass":
        ElementTree.SubElement(case, "system-out").text = _clean(told)
        return
    tag = "failure" if limit["verdict"] == "fail" else "error"
    ElementTree.SubElement(case, tag, {"type": limit["verdict"], "message": _clean(f"{asked}: {told}")})


def _clean(text: object) -> str:
    """Without the characters that XML cannot hold."""
    return _UNFIT.sub("", "" if text is None else str(text))
