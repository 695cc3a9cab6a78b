"""`loadgen doctor`: is this machine fit to measure from?"""

from typing import Any

from loadgen.recipes.output import as_json, put


def doctor(arguments: dict[str, Any]) -> int:
    from loadgen.doctor import as_data, examine, render

    findings = examine()
    put(as_json(as_data(findings)) if arguments["format_"] == "json" else render(findings))
    return 0
