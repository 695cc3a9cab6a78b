"""The truth about every token that left, as a file: when it was due, when it was written, and what delayed it.

A row per token event: `request_id`, `choice`, `number` (of its last token, from 1), `count` (tokens in it), `due_ns`
(the end of the simulated pass), `sent_ns` (just before its bytes were handed to the kernel), `cause`, `culprit`,
`delay_ns`. Instants are nanoseconds since the epoch, so that a client on the same machine can be held against them.
Causes are those of the engine; where an injected fault held the token back, the fault's kind, `delay_ns` being how long
it did.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec


class Row(msgspec.Struct, gc=False):
    request_id: str
    choice: int
    number: int
    count: int
    due_ns: int
    sent_ns: int
    cause: str
    culprit: str | None
    delay_ns: int


class TruthFile:
    """Writes rows as JSON lines, at once: some 1 µs each, and one write to the file system's memory for each `add`.

    No thread does it: one that holds the interpreter while tokens are due would cost more. A name that ends in .parquet
    is made at the end of the JSON lines, which until then lie beside it. Raises OSError where the file cannot be made;
    where it can no longer be written, one line on stderr says so, and the rest is lost.
    """

    def __init__(self, path: Path) -> None:
        self._parquet = path if path.suffix == ".parquet" else None
        self._lines = path.with_name(f"{path.name}.jsonl") if self._parquet else path
        self._file = self._lines.open("wb", buffering=0)
        self._encode = msgspec.json.Encoder().encode_lines
        self._broken = False

    def add(self, rows: Sequence[Row]) -> None:
        if self._broken:
            return
        try:
            self._file.write(self._encode(rows))
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        self._file.close()
        if self._parquet is None or self._broken:
            return
        try:
            _to_parquet(self._lines, self._parquet)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self._broken = True
        print(f"loadgen: --truth: {error.strerror or error}: what is written is in {self._lines}", file=sys.stderr)


def _to_parquet(lines: Path, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.json
    import pyarrow.parquet as pq

    texts = {"request_id": pa.string(), "cause": pa.string(), "culprit": pa.string()}
    schema = pa.schema([(name, texts.get(name, pa.int64())) for name in Row.__struct_fields__])
    if lines.stat().st_size:
        table = pa.json.read_json(lines, parse_options=pa.json.ParseOptions(explicit_schema=schema))
    else:
        table = schema.empty_table()
    pq.write_table(table, path)
    lines.unlink()
