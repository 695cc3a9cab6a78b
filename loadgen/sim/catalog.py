"""Names of GPUs and models, and what is published about them (catalog.yaml)."""

from functools import cache
from importlib.resources import files
from typing import Any

from analysis.roofline import Gpu, Model


def gpu(name: str) -> Gpu:
    """Raises ValueError with a one-line message for an unknown name."""
    return Gpu(name=name, **_entry("gpus", name))


def model(name: str) -> Model:
    """Raises ValueError with a one-line message for an unknown name."""
    return Model(name=name, **_entry("models", name))


def _entry(kind: str, name: str) -> dict[str, Any]:
    entries = _catalog()[kind]
    if name not in entries:
        raise ValueError(f"unknown {kind.removesuffix('s')} {name!r}: choose one of {', '.join(sorted(entries))}")
    return {key: value for key, value in entries[name].items() if key != "source"}


@cache
def _catalog() -> dict[str, dict[str, dict[str, Any]]]:
    import yaml

    loaded: dict[str, dict[str, dict[str, Any]]] = yaml.safe_load(
        files("loadgen.sim").joinpath("catalog.yaml").read_text("utf-8")
    )
    return loaded
