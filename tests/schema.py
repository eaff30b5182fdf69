"""JSON Schema, as much of it as docs/*.schema.json use."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

_KINDS: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_KNOWN = {
    *("$schema", "title", "description", "type", "required", "properties", "additionalProperties", "items", "enum"),
    *("const", "minItems", "minimum", "pattern"),
}
_DOCS = Path(__file__).parents[1] / "docs"


@cache
def schema(name: str) -> dict[str, Any]:
    """A published schema: ``answer``, ``dataset``, ``conformal``, ``radii`` or ``specification``."""
    found: dict[str, Any] = json.loads((_DOCS / f"{name}.schema.json").read_text(encoding="utf-8"))
    return found


def _resolved(reference: str) -> dict[str, Any]:
    """What ``FILE.schema.json#/a/b`` points to."""
    file, _, place = reference.partition("#/")
    found = schema(file.removesuffix(".schema.json"))
    for name in place.split("/"):
        found = found[name]
    return found


def complaints(value: Any, schema: dict[str, Any], place: str = "$") -> Iterator[str]:
    """What of a value the schema does not allow; an unknown keyword of the schema is a complaint, too."""
    if "$ref" in schema:
        yield from complaints(value, _resolved(schema["$ref"]), place)
        return
    if strange := schema.keys() - _KNOWN:
        yield f"{place}: the schema uses {sorted(strange)}, which is not checked"
    kinds = schema.get("type", [])
    allowed = [kind for name in ([kinds] if isinstance(kinds, str) else kinds) for kind in _KINDS[name]]
    if allowed and (not isinstance(value, tuple(allowed)) or (isinstance(value, bool) and bool not in allowed)):
        yield f"{place}: {value!r} is not of type {kinds}"
        return
    if "const" in schema and value != schema["const"]:
        yield f"{place}: {value!r} is not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{place}: {value!r} is none of {schema['enum']}"
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        yield f"{place}: {value!r} is not like {schema['pattern']}"
    if isinstance(value, int | float) and value < schema.get("minimum", value):
        yield f"{place}: {value} is too small"
    if isinstance(value, list):
        if len(value) < schema.get("minItems", 0):
            yield f"{place}: too short"
        for number, item in enumerate(value):
            yield from complaints(item, schema.get("items", {}), f"{place}[{number}]")
    if isinstance(value, dict):
        for name in set(schema.get("required", ())) - value.keys():
            yield f"{place}: {name} is missing"
        rest = schema.get("additionalProperties", True)
        for name, item in value.items():
            if name in schema.get("properties", {}):
                yield from complaints(item, schema["properties"][name], f"{place}.{name}")
            elif rest is False:
                yield f"{place}: {name} is not in the schema"
            elif isinstance(rest, dict):
                yield from complaints(item, rest, f"{place}.{name}")
