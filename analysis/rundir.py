"""The run directory, format version 1: the one place of this package that touches files.

run.json           written first, closed last
journal.bin        while the run lasts (see `analysis.journal`); with workers, one more each: journal-0.bin, …
requests.parquet, chunks.parquet, client.parquet, server.parquet      once it has ended
gaps.parquet      beside them, where not all token events were kept (see `analysis.thin`)
summary.json
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.columns import (
    ARROW,
    CHUNKS,
    DERIVED,
    OPTIONAL,
    REQUESTS,
    ROW_FIELDS,
    Row,
    array_of,
    fitted,
    nullable,
    numbers,
    schema_of,
    tables_of,
)
from analysis.events import gaps_of
from analysis.journal import Journal, read_journals
from analysis.meta import check, plain, plain_table
from analysis.record import RequestRecord
from analysis.run import Run, derive
from analysis.stalls.frozen import settings
from analysis.thin import ALL, CELLS, COUNTED, thin, worth_keeping
from analysis.thin import tables_of as thinned_tables_of

FORMAT_VERSION = 1
_JOURNAL, _REQUESTS = "journal.bin", "requests.parquet"
_KIND = ROW_FIELDS.index("kind")
_ROW_GROUP_EVENTS = 200_000


class RunDirError(Exception):
    """A run directory cannot be made, written or read; the message is one line: what, where, what to do."""


class RunJournal:
    """Takes what a run measures while it lasts. Safe to call from one thread or several.

    An append that raises RunDirError has written nothing; it may be tried again.
    """

    def __init__(self, path: Path, journal: Journal) -> None:
        self.path, self._journal = path, journal

    @classmethod
    def of_worker(cls, path: Path, worker: int, keep_text: bool = False) -> "RunJournal":
        """A journal of its own in the directory of a run, for one of the processes that carry it."""
        with _plainly(path, "cannot create a journal"):
            meta = read_meta(path) if (path / "run.json").exists() else {}
            return cls(path, Journal(path / f"journal-{worker}.bin", keep_text, _thinner(meta)))

    def append(self, records: Sequence[RequestRecord]) -> None:
        with _plainly(self.path, "cannot write the journal"):
            self._journal.append_records(records)

    def append_client(self, sample: dict[str, Any]) -> None:
        with _plainly(self.path, "cannot write the journal"):
            self._journal.append("client", [sample])

    def append_server(self, samples: list[dict[str, Any]]) -> None:
        with _plainly(self.path, "cannot write the journal"):
            self._journal.append("server", samples)

    def end(self) -> None:
        """Stop writing; what was appended stays readable."""
        self._journal.close()


class RunWriter(RunJournal):
    """Writes one run: `append…` while it lasts, then `close`, or `abandon` where there is no time or room for that."""

    def __init__(self, path: Path, meta: dict[str, Any], journal: Journal, keep_text: bool) -> None:
        super().__init__(path, journal)
        self._meta, self._keep_text = meta, keep_text

    @classmethod
    def create(cls, path: Path, meta: Mapping[str, Any], keep_text: bool = False) -> "RunWriter":
        """Start a run in a new or empty directory. Answers are stored only with `keep_text`."""
        path = Path(path)
        with _plainly(path, "cannot create the run directory"):
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise RunDirError(f"{path}: not empty: name a new directory with --out, or remove this one")
            opened = {**meta, "format_version": FORMAT_VERSION, "complete": False}
            _write_json(path / "run.json", opened)
            return cls(path, opened, Journal(path / _JOURNAL, keep_text, _thinner(meta)), keep_text)

    def abandon(self, meta_updates: Mapping[str, Any] | None = None) -> None:
        """Stop writing at once; what was appended stays readable. The updates are noted if there is room for them."""
        self.end()
        if meta_updates:
            with suppress(OSError):
                _write_json(self.path / "run.json", {**self._meta, **meta_updates, "complete": False})

    def close(self, meta_updates: Mapping[str, Any]) -> None:
        """Turn the journals into Parquet and close run.json (complete unless the updates say otherwise).

        Where that fails, the journals stay.
        """
        self.end()
        made: list[Path] = []
        with _plainly(self.path, "cannot write the results"):
            journals = _journals(self.path)
            try:
                _convert(self.path, journals, _columns(self._meta, self._keep_text), made)
                self._meta = {**self._meta, "complete": True, **meta_updates}
                _write_json(self.path / "run.json", self._meta)
            except BaseException:
                for temporary in made:
                    temporary.unlink(missing_ok=True)
                raise
            for temporary in reversed(made):  # the requests last: until they are there, the journals count
                temporary.replace(temporary.with_name(temporary.name.removesuffix(".part")))
            for journal in journals:
                journal.unlink()


def read_run(path: Path) -> Run:
    """The run in a directory: its Parquet files, or its journals if it never came to its end."""
    path = Path(path)
    meta = read_meta(path)
    with _plainly(path, "cannot read the run"):
        journals = _journals(path)
        if journals and not (path / _REQUESTS).exists():
            return _from_journals(journals, meta)
        requests = _table(path / _REQUESTS, REQUESTS, DERIVED | OPTIONAL.keys())
        chunks = _table(path / "chunks.parquet", CHUNKS, frozenset())
        counted = _table(path / "gaps.parquet", CELLS, frozenset()) if _is_thinned(meta) else None
        return Run.from_frames(meta, requests, chunks, _samples(path, "server"), _samples(path, "client"), counted)


def read_meta(path: Path) -> dict[str, Any]:
    """run.json of a directory, with control characters out of its texts and every field of its type."""
    file = Path(path) / "run.json"
    if not file.is_file():
        raise RunDirError(f"{path}: no run.json there: name a directory that `loadgen run` wrote")
    with _plainly(file, "cannot read"):
        document = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(document, dict) or "format_version" not in document:
        raise RunDirError(f"{file}: not the description of a run")
    try:
        told = plain(document)
        if told["format_version"] != FORMAT_VERSION:
            raise ValueError(f"format version {told['format_version']!r}; this loadgen reads {FORMAT_VERSION}")
        if isinstance(told.get("workload"), str):  # as other writers may have it: its name
            told["workload"] = {"name": told["workload"]}
        check(told)
    except ValueError as problem:
        raise RunDirError(f"{file}: {_line(problem)}") from None
    meta: dict[str, Any] = told
    return meta


def write_run(path: Path, run: Run) -> None:
    """A run that was not measured (simulated, made up) as a new or empty directory."""
    path = Path(path)
    with _plainly(path, "cannot write the run"):
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise RunDirError(f"{path}: not empty: name a new directory with --out, or remove this one")
        for name, columns in (("requests", REQUESTS), ("chunks", CHUNKS)):
            pq.write_table(fitted(run.table(name), schema_of(columns)), path / f"{name}.parquet")
        for name, file in (("server", "server"), ("client", "client"), ("counted", "gaps")):
            if (table := run.table(name)) is not None:
                pq.write_table(table, path / f"{file}.parquet")
        _write_json(path / "run.json", {**run.meta, "format_version": FORMAT_VERSION})


def write_summary(path: Path, summary: Mapping[str, Any]) -> None:
    with _plainly(path, "cannot write summary.json"):
        _write_json(Path(path) / "summary.json", summary)


@contextmanager
def _plainly(path: Path, what: str) -> Iterator[None]:
    """What goes wrong with files, or with what strangers wrote in them, becomes one line."""
    try:
        yield
    except OSError as problem:
        raise RunDirError(f"{path}: {what}: {problem.strerror or _line(problem)}") from None
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError, pa.ArrowException) as problem:
        raise RunDirError(f"{path}: {what}: {_line(problem)}") from None


def _line(problem: Exception) -> str:
    return " ".join(str(problem).split())[:200] or type(problem).__name__


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    temporary = path.with_name(path.name + ".part")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(value, file, indent=2, allow_nan=False, ensure_ascii=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise


def _journals(path: Path) -> list[Path]:
    return sorted(path.glob("journal*.bin"))


def _is_thinned(meta: Mapping[str, Any]) -> bool:
    return bool(meta.get("keep_events", ALL) != ALL)


def _thinner(meta: Mapping[str, Any]) -> Callable[[Sequence[Row]], list[Row]] | None:
    """What makes rows of fewer events, if the run keeps fewer."""
    if not _is_thinned(meta):
        return None
    floor_s, factor = settings(meta)

    def thinned(rows: Sequence[Row]) -> list[Row]:
        requests, chunks, events = derive(*tables_of(rows))
        gaps = gaps_of(events)
        kept = worth_keeping(events, gaps, meta["keep_events"], floor_s * 1e9, factor)
        return thin(rows, requests, chunks, events, gaps, kept)

    return thinned


def _columns(meta: Mapping[str, Any], keep_text: bool) -> dict[str, Mapping[str, str]]:
    """The tables of a run and the columns of each."""
    requests = REQUESTS | ({"text": "string"} if keep_text else {})
    if not _is_thinned(meta):
        return {"requests": requests, "chunks": CHUNKS}
    return {"requests": requests | COUNTED, "chunks": CHUNKS, "gaps": CELLS}


def _convert(path: Path, journals: Sequence[Path], columns: Mapping[str, Mapping[str, str]], made: list[Path]) -> None:
    """Write the journals' content as Parquet, a bounded part at a time, under temporary names that go into `made`."""
    schemas = {name: schema_of(each) for name, each in columns.items()}
    samples: dict[str, list[dict[str, Any]]] = {"client": [], "server": []}
    made += [path / f"{name}.parquet.part" for name in schemas]
    with ExitStack() as files:
        writers = [files.enter_context(pq.ParquetWriter(*each)) for each in zip(made, schemas.values(), strict=True)]
        for rows in _groups(journals, samples):
            tables = thinned_tables_of(rows) if "gaps" in columns else derive(*tables_of(rows))[:2]
            for writer, table, schema in zip(writers, tables, schemas.values(), strict=True):
                writer.write_table(fitted(table, schema))
    for name, content in samples.items():
        if content:
            made.append(path / f"{name}.parquet.part")
            pq.write_table(_sample_table(content), made[-1])


def _groups(journals: Sequence[Path], samples: dict[str, list[dict[str, Any]]]) -> Iterator[list[Row]]:
    """Rows of the journals in groups of a bounded number of events; what is no request goes into `samples`."""
    rows: list[Row] = []
    events = 0
    for kind, content in read_journals(journals):
        if kind == "requests":
            rows += content
            events += sum(len(row[_KIND]) + len(row[-1]) // 4 + 1 for row in content)
        else:
            samples.setdefault(kind, []).extend(content)
        if events >= _ROW_GROUP_EVENTS:
            yield rows
            rows, events = [], 0
    if rows:
        yield rows


def _from_journals(journals: Sequence[Path], meta: dict[str, Any]) -> Run:
    samples: dict[str, list[dict[str, Any]]] = {"client": [], "server": []}
    rows = [row for group in _groups(journals, samples) for row in group]
    server, client = (_sample_table(samples[name]) if samples[name] else None for name in ("server", "client"))
    tables = thinned_tables_of(rows) if _is_thinned(meta) else tables_of(rows)
    requests, chunks, *counted = map(plain_table, tables)
    return Run.from_frames(meta, requests, chunks, server, client, *counted)


def _sample_table(samples: Sequence[Mapping[str, Any]]) -> pa.Table:
    """A row each, of numbers by name; a name that is missing somewhere has floats elsewhere."""
    names = dict.fromkeys(name for sample in samples for name in sample)
    return pa.table({name: _sampled([sample.get(name) for sample in samples]) for name in names})


def _sampled(values: list[Any]) -> pa.Array:
    """What a server calls infinite it has not measured."""
    values = [None if isinstance(each, float) and not math.isfinite(each) else each for each in values]
    known = [each for each in values if each is not None]
    if not known:
        return pa.nulls(len(values))
    exact = len(known) == len(values) and all(isinstance(each, int) for each in known)
    return array_of(values, "int64" if exact else "Float64")


def _table(file: Path, columns: Mapping[str, str], optional: Iterable[str]) -> pa.Table:
    """A Parquet file with at least the columns that are not `optional`, in their types."""
    table = _read(file)
    known = set(table.column_names)
    if missing := [name for name in columns if name not in known and name not in set(optional)]:
        raise RunDirError(f"{file}: no column {missing[0]!r}: not a table of format version {FORMAT_VERSION}")
    found = {name: table[name] for name in table.column_names}
    for name, dtype in columns.items():
        if name in known:
            found[name] = _cast(file, table[name], name, dtype)
        elif name in OPTIONAL:
            found[name] = array_of([OPTIONAL[name]] * len(table), dtype)
    return _with_usage(plain_table(pa.table(found)))


def _with_usage(table: pa.Table) -> pa.Table:
    """Files of another writer may tell what the usage said by `tokens_source` alone."""
    names = table.column_names
    told = "completion_tokens" not in names or table["completion_tokens"].null_count < len(table)
    if told or not {"tokens_source", "output_tokens"} <= set(names):
        return table
    usage = np.array([each == "usage" for each in table["tokens_source"].to_pylist()], dtype=bool)
    tokens = nullable(np.where(usage, numbers(table, "output_tokens"), np.nan), "Int64")
    return table.set_column(names.index("completion_tokens"), "completion_tokens", tokens)


def _cast(file: Path, column: pa.ChunkedArray, name: str, dtype: str) -> pa.ChunkedArray:
    wanted = ARROW[dtype]
    try:
        if dtype == "category" and column.type != wanted:
            column = column.cast(pa.string()).dictionary_encode()
        elif column.type != wanted:
            column = column.cast(wanted)
    except (pa.ArrowException, ValueError, NotImplementedError):
        raise RunDirError(f"{file}: column {name!r}: expected {dtype.lower()}, got {column.type}") from None
    if dtype.islower() and pa.types.is_integer(wanted) and column.null_count:
        raise RunDirError(f"{file}: column {name!r}: expected {dtype}, got a null")
    return column


def _samples(path: Path, name: str) -> pa.Table | None:
    file = path / f"{name}.parquet"
    if not file.exists():
        return None
    table = _read(file)
    for each in table.schema:
        if not (pa.types.is_integer(each.type) or pa.types.is_floating(each.type) or pa.types.is_null(each.type)):
            raise RunDirError(f"{file}: column {each.name!r}: expected numbers, got {each.type}")
    return table


def _read(file: Path) -> pa.Table:
    if not file.is_file():
        raise RunDirError(f"{file}: missing: the run directory is not whole")
    with _plainly(file, "cannot read"):
        return pq.ParquetFile(file).read()
