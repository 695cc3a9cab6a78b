"""Pages of text for a terminal."""

from collections.abc import Iterable
from io import StringIO

from rich.console import Console, Group, RenderableType


def as_text(sections: Iterable[RenderableType], width: int, color: bool) -> str:
    """The sections one below the other in at most `width` columns, without trailing blanks, ending in a line break."""
    out = StringIO()
    console = Console(
        file=out, width=width, force_terminal=color, no_color=not color, markup=False, highlight=False, emoji=False,
        legacy_windows=False,
    )  # fmt: skip
    console.print(Group(*sections))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"
