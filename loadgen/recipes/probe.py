"""`loadgen probe`: what an endpoint can do."""

from typing import TYPE_CHECKING, Any

from loadgen.arguments import access_of, body_fields
from loadgen.recipes.output import as_json, put

if TYPE_CHECKING:
    from loadgen.probe import Findings


def probe(arguments: dict[str, Any]) -> int:
    """What the endpoint can do; exit status 3 where it gives no streamed answer."""
    import asyncio

    from loadgen.calibrate import find_model
    from loadgen.openai_api import BodyOptions
    from loadgen.probe import explore
    from loadgen.probe_text import findings_json, render_findings

    access = access_of(arguments, arguments["target"])
    body = body_fields(arguments["body"] or ())

    async def look() -> "Findings":
        model = arguments["model"] or await find_model(access)
        return await explore(access, BodyOptions(model=model, endpoint=arguments["endpoint"], extra=body))

    found = asyncio.run(look())
    put(as_json(findings_json(access, found)) if arguments["format_"] == "json" else render_findings(access, found))
    return 0 if found.streams else 3
