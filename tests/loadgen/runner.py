"""A measured run in a process of its own, without the command line: for tests that end it from outside.

    python -m tests.loadgen.runner '{"url": …, "out": …, "workload": …, "workers": 2}'

A key may come on standard input, in the same form. Further fields are those of RunOptions; `file_bytes` stands in for a
full disk: no file may grow beyond it.
"""

import json
import resource
import sys
from pathlib import Path
from typing import Any

from loadgen.access import make_access
from loadgen.errors import LoadgenError
from loadgen.measure import RunOptions, measure
from loadgen.target import parse_target
from workloads.schedule import build
from workloads.spec import load_workload


def options(url: str, out: str, **more: Any) -> RunOptions:
    access = make_access(
        parse_target(url, "chat"),
        headers={},
        api_key=more.pop("api_key", None),
        ca_file=more.get("ca_file"),
        client_cert=None,
        insecure=False,
        proxy=None,
    )
    plain = dict.fromkeys(("calibrate", "show_progress", "priority", "own_metrics"), False)
    return RunOptions(access=access, out=Path(out), **({"model": "m", **plain} | more))


def main() -> int:
    asked = json.loads(sys.argv[1]) | json.loads(sys.stdin.readline() or "{}")
    workload = load_workload(asked.pop("workload"), {})
    if "file_bytes" in asked:
        resource.setrlimit(resource.RLIMIT_FSIZE, (asked.pop("file_bytes"), resource.RLIM_INFINITY))
    try:
        stopped = measure(workload, build(workload, 7), options(asked.pop("url"), asked.pop("out"), **asked))
    except LoadgenError as problem:
        print(f"loadgen: {problem}", file=sys.stderr)
        return problem.exit_status
    return 0 if stopped is None else 128 + stopped


if __name__ == "__main__":
    sys.exit(main())
