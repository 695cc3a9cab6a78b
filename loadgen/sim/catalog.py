"""GPUs and models by name: what is published about them (catalog.yaml), what a file of the user's adds or changes, and
models as their own config.json describes them."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from analysis.estimate.config import model_from_config
from analysis.roofline import Gpu, Model

Entries = dict[str, dict[str, Any]]
NOTES = ("source", "price_source")


def gpu(name: str, file: Path | None = None) -> Gpu:
    """A GPU of `file` laid over the catalog. ValueError (one line) if there is none, or it is not whole."""
    return Gpu(name=name, **_figures(Gpu, "gpus", name, file))


def model(name: str, file: Path | None = None) -> Model:
    """A model of `file` laid over the catalog, or the one that a Hugging Face config.json (or its folder) describes.

    Raises ValueError with a one-line message if there is none, or it is not whole.
    """
    config = _config_path(name)
    if config is not None:
        named = config.resolve().parent.name if config.name == "config.json" else config.stem
        return model_from_config(_json(config), named, str(config))
    return Model(name=name, **_figures(Model, "models", name, file))


def _config_path(name: str) -> Path | None:
    path = Path(name)
    if path.suffix == ".json":
        return path
    return path / "config.json" if name not in _builtin()["models"] and (path / "config.json").is_file() else None


def _json(path: Path) -> object:
    try:
        return json.loads(path.read_text("utf-8"))
    except OSError as problem:
        raise ValueError(f"{path}: cannot be read: {problem.strerror}") from None
    except ValueError as problem:
        raise ValueError(f"{path}: not JSON: {problem}") from None


def _figures(kind: type[Gpu] | type[Model], section: str, name: str, file: Path | None) -> dict[str, Any]:
    """The fields of an entry, each checked; what the user's file says comes before what the catalog says."""
    own = _read_entries(file)[section] if file else {}
    builtin = _builtin()[section]
    if name not in own and name not in builtin:
        names = ", ".join(sorted({*own, *builtin}))
        raise ValueError(f"unknown {section.removesuffix('s')} {name!r}: choose one of {names}")
    figures = {key: value for key, value in (builtin.get(name, {}) | own.get(name, {})).items() if key not in NOTES}
    return _checked(kind, f"{file or 'catalog'}: {section}.{name}", figures)


def _checked(kind: type[Gpu] | type[Model], where: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    known = {field.name: field for field in fields(kind) if field.name != "name"}
    for key in figures:
        if key not in known:
            raise ValueError(f"{where}.{key}: unknown key: choose one of {', '.join([*known, *NOTES])}")
    for key, field in known.items():
        if key not in figures and field.default is MISSING:
            raise ValueError(f"{where}.{key} is missing: the entry needs it")
    return {key: _value(f"{where}.{key}", known[key].type, value) for key, value in figures.items()}


def _value(where: str, kind: object, value: Any) -> Any:
    """A number above 0, whole where it counts things; or the name of an arithmetic."""
    if "Literal" in str(kind):
        if value not in ("bf16", "fp8"):
            raise ValueError(f"{where}: expected bf16 or fp8, got {value!r}")
        return value
    try:
        number = float(value)  # YAML reads 1e12, without a point and a sign, as text
    except (TypeError, ValueError):
        number = -1
    if isinstance(value, bool) or not 0 < number < float("inf") or (kind is int and number % 1):
        raise ValueError(f"{where}: expected a {'whole ' if kind is int else ''}number above 0, got {value!r}")
    return int(number) if kind is int else number


@cache
def _builtin() -> dict[str, Entries]:
    import yaml

    loaded: dict[str, Entries] = yaml.safe_load(files("loadgen.sim").joinpath("catalog.yaml").read_text("utf-8"))
    return loaded


def _read_entries(file: Path) -> dict[str, Entries]:
    """The user's entries by section. ValueError with a one-line message for a file that is not of that form."""
    from workloads.yaml_file import WorkloadError, parse, read_text

    try:
        data = parse(read_text(file), str(file)).data
    except WorkloadError as problem:
        raise ValueError(str(problem)) from None
    sections: dict[str, Entries] = {"gpus": {}, "models": {}}
    for section, entries in data.items():
        if section not in sections:
            raise ValueError(f"{file}: {section}: unknown key: choose gpus or models")
        if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
            raise ValueError(f"{file}: {section}: expected entries by name, each with its figures")
        sections[section] = {str(name): entry for name, entry in entries.items()}
    return sections
