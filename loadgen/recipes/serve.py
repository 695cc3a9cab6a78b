"""`loadgen serve`: the simulated engine in this process, until a signal comes."""

import sys
from collections.abc import Mapping
from dataclasses import fields
from typing import Any


def serve(arguments: dict[str, Any]) -> int:
    """The simulated engine in this process, until a signal comes."""
    from loadgen.sim.options import Options
    from loadgen.sim.server import serve as serve_forever

    def announce(where: Mapping[str, Any]) -> None:
        print(
            f"loadgen: {where['model']} on one simulated {options.gpu} at {where['url']} (Ctrl-C ends)", file=sys.stderr
        )

    own = {f.name for f in fields(Options)}
    options = Options(**{name: value for name, value in arguments.items() if name in own})
    serve_forever(options, arguments["host"], arguments["port"], announce)
    return 0
