"""From JSON to typed values; what is wrong becomes one line that names the file and the key."""

import re
from typing import TypeVar

import msgspec

Decoded = TypeVar("Decoded")
Document = bytes | bytearray | memoryview

_CONSTANT = re.compile(rb"(?<=[\s:,\[])(?:NaN|-?Infinity)(?=[\s,\]}])")
_WHERE = re.compile(r"(.+?)(?: - at `\$\.?(.*)`)?", re.DOTALL)


def decode(document: Document, file: str, kind: type[Decoded]) -> Decoded:
    """One JSON document as `kind`; fields that `kind` lacks are passed over unread.

    Python writes NaN and Infinity, which JSON does not know: they are read as null, which is nothing measured.

    Raises:
        ValueError: Not JSON, several documents, or not of that type.
    """
    try:
        return msgspec.json.decode(document, type=kind)
    except msgspec.ValidationError as problem:
        raise ValueError(f"{file}: {_plain(problem)}") from None
    except msgspec.DecodeError as problem:
        return _decode_again(document, file, kind, str(problem))


def _decode_again(document: Document, file: str, kind: type[Decoded], problem: str) -> Decoded:
    if not re.search(rb"\S", document):
        raise ValueError(f"{file}: empty: the tool wrote no result")
    if "trailing characters" in problem and re.search(rb"\}\s*\{", document):
        raise ValueError(f"{file}: holds several results, one a line: keep one of them in a file of its own")
    if "truncated" in problem:
        raise ValueError(f"{file}: cut short: its JSON has no end")
    if not _CONSTANT.search(document):
        raise ValueError(f"{file}: not JSON: {problem.removeprefix('JSON is malformed: ')}")
    return decode(_CONSTANT.sub(b"null", document), file, kind)


def _plain(problem: msgspec.ValidationError) -> str:
    """`Expected `float`, got `str` - at `$.ttfts[3]`` as `ttfts[3]: expected float, got str`."""
    match = _WHERE.fullmatch(str(problem))
    what, where = (match[1], match[2] or "") if match else (str(problem), "")
    if missing := re.search(r"missing required field `(.+)`", what):
        what = f"no {missing[1]}: not the detailed result of this tool"
    what = what.replace("`", "").replace("got null", "got null or NaN")
    return f"{where}{': ' if where else ''}{what[:1].lower()}{what[1:]}"
