"""A YAML file as plain data that remembers where each key stands. Safe: no tags, no bombs, no duplicate keys."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

KeyPath = tuple[str | int, ...]

MAX_BYTES = 1_000_000
MAX_NODES = 50_000
"""Nodes after aliases are followed: a page of aliases of aliases can stand for billions."""


class WorkloadError(Exception):
    """A workload that cannot be used: one line that says where, what, and what to do."""


@dataclass
class Document:
    """Data of a file and the place each value came from (`rag.yaml:7`, or the command line)."""

    name: str
    data: dict[str, Any]
    places: dict[KeyPath, str] = field(default_factory=dict)

    def place(self, path: KeyPath) -> str:
        """Where `path` was written, or the nearest thing around it that was."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, self.name)


def dotted(path: KeyPath) -> str:
    """A path as people write it: `classes.rag.input_tokens`."""
    return ".".join(map(str, path))


def read_text(path: Path) -> str:
    """The file as text. WorkloadError if it cannot be read, is too large or is not UTF-8."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise WorkloadError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(raw) > MAX_BYTES:
        raise WorkloadError(f"{path}: larger than {MAX_BYTES:,} bytes: is it a workload file?")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise WorkloadError(f"{path}: not UTF-8 text (byte {error.start:,})") from None


def parse(text: str, name: str) -> Document:
    """A mapping from YAML text; `name` begins every error. WorkloadError for anything else."""
    data, places = _load(text, name)
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise WorkloadError(f"{name}: expected a mapping of keys such as arrivals, duration and classes")
    return Document(name, data, places)


def _load(text: str, name: str) -> tuple[Any, dict[KeyPath, str]]:
    """The one value of a YAML text, and where its parts stand."""
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        builder = _Builder(loader, name)
        return None if node is None else builder.build(node, ()), builder.places
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise WorkloadError(f"{name}{line}: not valid YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise WorkloadError(f"{name}: not valid YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise WorkloadError(f"{name}: nested too deeply") from None


class _Builder:
    """Plain data from YAML nodes."""

    def __init__(self, loader: yaml.SafeLoader, name: str) -> None:
        self._loader = loader
        self._name = name
        self._nodes = 0
        self.places: dict[KeyPath, str] = {}

    def build(self, node: yaml.Node, path: KeyPath) -> Any:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise WorkloadError(f"{self._name}: more than {MAX_NODES:,} values once its aliases are followed")
        self.places.setdefault(path, self._line(node))
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*path, i)) for i, item in enumerate(node.value)]
        return self._loader.construct_object(node)

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                merged |= self._merged(value_node, path)
                continue
            key = self._key(key_node)
            if key in own:
                raise WorkloadError(f"{self._line(key_node)} {dotted((*path, key))}: the key is there twice")
            self.places[(*path, key)] = self._line(key_node)
            own[key] = self.build(value_node, (*path, key))
        return merged | own

    def _merged(self, node: yaml.Node, path: KeyPath) -> dict[str, Any]:
        """What `<<:` brings in: one mapping, or several of which the first wins."""
        found = self.build(node, (*path, "<<"))
        mappings = found if isinstance(found, list) else [found]
        if not all(isinstance(one, dict) for one in mappings):
            raise WorkloadError(f"{self._line(node)}: '<<' merges mappings only")
        return {key: value for one in reversed(mappings) for key, value in one.items()}

    def _key(self, node: yaml.Node) -> str:
        key: Hashable = node.value if isinstance(node, yaml.ScalarNode) else None
        if not isinstance(key, str):
            raise WorkloadError(f"{self._line(node)}: expected a plain word as key")
        return key

    def _line(self, node: yaml.Node) -> str:
        return f"{self._name}:{node.start_mark.line + 1}"


COMMAND_LINE = "command line"


def override(document: Document, overrides: Mapping[str, Any]) -> None:
    """Sets dotted paths (`classes.rag.output_tokens`; `*` stands for every class) in place.

    Text is read as YAML, as it would be in the file. Choosing one kind of load or of length drops the others.
    """
    for key in overrides:
        for other in _DROPS.get(key, _DROPS.get(key.split(".")[0], ())):
            document.data.pop(other, None)
    for key, value in overrides.items():
        read = _scalar(value, key) if isinstance(value, str) else value
        _set(document, tuple(key.split(".")), read, ())


_DROPS = {
    "arrivals.rate": ("concurrency", "stages", "users", "every"),
    "arrivals": ("concurrency", "users", "every"),
    "stages": ("concurrency", "duration", "requests", "users", "every"),
    "concurrency": ("arrivals", "stages", "users", "every"),
    "users": ("arrivals", "stages", "concurrency"),
    "every": ("arrivals", "stages", "concurrency"),
    "duration": ("requests",),
    "requests": ("duration",),
}


def _scalar(text: str, key: str) -> Any:
    """Text from the command line as the YAML value it would be in the file."""
    try:
        return _load(text, "")[0]
    except WorkloadError as error:
        raise WorkloadError(f"{COMMAND_LINE} {key}: {str(error).removeprefix(':1').removeprefix(': ')}") from None


def _set(document: Document, keys: tuple[str, ...], value: Any, done: tuple[str, ...]) -> None:
    parent = document.data
    for key in done:
        parent = parent[key]
    key, *rest = keys
    if key == "*":
        for each in list(parent):
            _set(document, (each, *rest), value, done)
        return
    if done == ("classes",) and key not in parent:
        raise WorkloadError(f"{COMMAND_LINE} classes.{key}: no such class; the workload has: {', '.join(parent)}")
    path = (*done, key)
    if rest:
        if not isinstance(parent.get(key), dict):
            parent[key] = {}
            document.places[path] = COMMAND_LINE
        _set(document, tuple(rest), value, path)
        return
    parent[key] = value
    document.places = {p: at for p, at in document.places.items() if p[: len(path)] != path} | {path: COMMAND_LINE}
