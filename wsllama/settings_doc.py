"""Writes docs/settings.md from the models of settings.py: `python -m wsllama.settings_doc`. A test keeps the two equal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from wsllama.settings import Settings
from wsllama.settings_base import Topic

PAGE = Path(__file__).resolve().parents[1] / "docs" / "settings.md"
HEAD = """\
# Settings

Generated from `wsllama/settings.py` and `settings_wsl.py` by `.venv/bin/python -m wsllama.settings_doc`; do not edit it by hand.

A host's settings are merged key by key; the later wins:
`group_data/all.py`, `group_data/<group>.py`, the host's own data in the inventory,
`<inventory>.recovery.json` (`wsllama doctor --apply`), `--data`.

```python
# group_data/all.py
model = {"path": "/data/model.gguf"}
server = {"ctx_size": 32768}
```

Only `model.path` has to be set, or `model.name` for one of `wsllama.lock`. An unknown name, a wrong value or a contradiction is
refused for all hosts at once before anything connects (exit code 2); `wsllama check inventory` does only that.

"""
# What JSON schema calls a type, in the words of somebody who writes Python data.
KINDS = {"boolean": "`True` or `False`", "array": "list of text", "string": "text"}


def page() -> str:
    """The whole page, as it has to stand in docs/settings.md."""
    return HEAD + "".join(_parts(Settings, ""))


def _parts(model: type[BaseModel], path: str) -> Iterator[str]:
    """A model's own settings, then those of the models in it, each below a heading."""
    topics = {name: type(f.default) for name, f in model.model_fields.items() if isinstance(f.default, Topic)}
    if own := [name for name in model.model_fields if name not in topics]:
        yield "\n" * bool(path) + _table(model, own)
    for name, topic in topics.items():
        whole = f"{path}.{name}" if path else name
        yield f"\n#{'#' * len(whole.split('.'))} {whole}\n\n{' '.join((topic.__doc__ or '').split())}\n"
        yield from _parts(topic, whole)


def _table(model: type[BaseModel], names: list[str]) -> str:
    properties = model.model_json_schema()["properties"]
    rows = ["| name | value | default | meaning |", "|---|---|---|---|"]
    for name in names:
        told, default = properties[name], model.model_fields[name].default
        rows.append(f"| `{name}` | {_value(told)} | {_default(default)} | {told.get('description', '')} |")
    return "\n".join(row.replace("\n", " ") for row in rows) + "\n"


def _default(value: Any) -> str:
    return "`[]`" if value == () else f"`{value!r}`".replace("'", '"')


def _value(told: dict[str, Any]) -> str:
    """What may stand there, in words."""
    if "anyOf" in told:
        return " or ".join("`None`" if kind.get("type") == "null" else _value(kind) for kind in told["anyOf"])
    if "enum" in told:
        return ", ".join(f'`"{choice}"`' for choice in told["enum"])
    if told["type"] == "integer" and "minimum" not in told:
        return "whole number"
    if told["type"] == "integer":
        return f"{told['minimum']} to {told['maximum']}"
    if told["type"] == "array" and told["items"].get("type") == "integer":
        return "list of whole numbers"
    pattern = f" like `{told['pattern']}`" if "pattern" in told else ""
    return KINDS[told["type"]] + pattern


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE} written")
