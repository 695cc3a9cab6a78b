"""`loadgen serve`: the simulated engine in this process, until a signal comes."""

import sys
from collections.abc import Mapping
from typing import Any


def serve(arguments: dict[str, Any]) -> int:
    """The simulated engine in this process, until a signal comes."""
    from loadgen.sim.options import Options
    from loadgen.sim.server import serve as serve_forever

    options = Options.of(arguments)

    def announce(where: Mapping[str, Any]) -> None:
        print(f"loadgen: {where['model']} on {where['hardware']} at {where['url']} (Ctrl-C ends)", file=sys.stderr)

    serve_forever(options, arguments["host"], arguments["port"], announce)
    return 0
