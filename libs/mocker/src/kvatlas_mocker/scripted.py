"""Output that is not mere words: JSON that fits a schema, and the arguments of a tool call.

The values depend on the seed alone. The schema language is the part of JSON Schema that clients
send: types, `properties`, `items`, `enum`, `const`, limits of numbers, strings and arrays, `anyOf`,
`oneOf`, `allOf`, and references inside the document. Other keywords are ignored.
"""

import itertools
import json
import math
import random
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from kvatlas_mocker.bodies import ApiError
from kvatlas_mocker.tokenizer import Tokenizer

_WORDS: Final = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath", "inlet")
_DEPTH_MAX: Final = 12  # of a schema that refers to itself; beyond it, only required properties
_DEPTH_GIVEN_UP: Final = 48
_ANY: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {"answer": {"type": "string"}},
    "required": ["answer"],
}


@dataclass(frozen=True, slots=True)
class Script:
    """A text with its tokens. `pieces` are the parts of the text that the tokens add."""

    text: str
    tokens: "array[int]"
    pieces: list[str]
    tool: str | None = None  # the called function, whose arguments the text is


async def write_script(tokenizer: Tokenizer, value: object, *, tool: str | None = None) -> Script:
    """The script of a JSON value. It is ASCII, so that it may be cut anywhere."""
    text = json.dumps(value)
    tokens = await tokenizer.encode(text, add_special_tokens=False)
    length, count = len(text), len(tokens)
    cuts = (at * length // count for at in range(count + 1))
    pieces = [text[start:end] for start, end in itertools.pairwise(cuts)]
    return Script(text, tokens, pieces, tool)


def instance(schema: Mapping[str, Any], seed: int) -> object:
    """A value that fits a schema.

    Raises:
        ApiError: 400, the schema cannot be used.
    """
    return _Writer(schema, random.Random(seed)).value(schema, 0)


def any_object(seed: int) -> object:
    """The value for `json_object`, which has no schema."""
    return instance(_ANY, seed)


class _Writer:
    def __init__(self, root: Mapping[str, Any], rng: random.Random) -> None:
        self._root = root
        self._rng = rng

    def value(self, given: object, depth: int) -> object:
        if depth > _DEPTH_GIVEN_UP:
            raise ApiError("the schema has no finite value", param="response_format")
        if given is True:
            return self._word()
        if not isinstance(given, dict):
            raise ApiError("a schema must be an object", param="response_format")
        schema = self._resolved(cast("dict[str, Any]", given), depth)
        if "const" in schema:
            return schema["const"]
        if isinstance(options := schema.get("enum"), list) and options:
            return self._rng.choice(cast("list[object]", options))
        for key in ("anyOf", "oneOf"):
            if isinstance(several := schema.get(key), list) and several:
                return self.value(self._simplest(cast("list[object]", several), depth), depth + 1)
        kind = schema.get("type")
        if isinstance(kind, list):
            kinds = cast("list[object]", kind)
            kind = kinds[-1] if depth > _DEPTH_MAX else kinds[0]
        if kind is None:
            kind = "object" if "properties" in schema else "string"
        return self._typed(str(kind), schema, depth)

    def _typed(self, kind: str, schema: dict[str, Any], depth: int) -> object:  # noqa: PLR0911 - one for each type
        match kind:
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "string":
                return self._string(schema)
            case "integer":
                low, high = self._range(schema)
                return self._rng.randint(math.ceil(low), max(math.ceil(low), math.floor(high)))
            case "number":
                low, high = self._range(schema)
                return round(self._rng.uniform(low, high), 3) if high > low else low
            case "boolean":
                return self._rng.random() < 0.5  # noqa: PLR2004 - a coin
            case "null":
                return None
            case _:
                raise ApiError(f"type {kind!r} is no type of a schema", param="response_format")

    def _resolved(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        """The schema with its reference and its `allOf` merged in."""
        merged = dict(schema)
        parts: list[object] = list(merged.pop("allOf", ()))
        if isinstance(reference := merged.pop("$ref", None), str):
            parts.append(self._referred(reference))
        for part in parts:
            if not isinstance(part, dict) or depth > _DEPTH_GIVEN_UP:
                raise ApiError("a schema must be an object", param="response_format")
            other = self._resolved(cast("dict[str, Any]", part), depth + 1)
            properties = {**other.get("properties", {}), **merged.get("properties", {})}
            required = [*other.get("required", ()), *merged.get("required", ())]
            merged = {**other, **merged}
            if properties:
                merged |= {"properties": properties, "required": required}
        return merged

    def _referred(self, reference: str) -> object:
        found: object = self._root
        for name in reference.removeprefix("#").strip("/").split("/"):
            key = name.replace("~1", "/").replace("~0", "~")
            if key:
                found = cast("dict[str, Any]", found).get(key) if isinstance(found, dict) else None
        if found is None:
            raise ApiError(f"the schema has no {reference}", param="response_format")
        return found

    def _simplest(self, several: list[object], depth: int) -> object:
        """The first option; deep inside, one that ends: without a reference if possible."""
        if depth <= _DEPTH_MAX:
            return several[0]
        return min(several, key=lambda option: "$ref" in json.dumps(option))

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, object]:
        properties = cast("dict[str, object]", schema.get("properties") or {})
        required = cast("list[str]", schema.get("required") or [])
        return {
            name: self.value(each, depth + 1)
            for name, each in properties.items()
            if depth <= _DEPTH_MAX or name in required
        }

    def _array(self, schema: dict[str, Any], depth: int) -> list[object]:
        few = int(schema.get("minItems", 0 if depth > _DEPTH_MAX else 1))
        count = min(max(few, 0 if depth > _DEPTH_MAX else 1), int(schema.get("maxItems", 1 << 10)))
        if isinstance(first := schema.get("prefixItems"), list):
            return [self.value(each, depth + 1) for each in cast("list[object]", first)]
        return [self.value(schema.get("items", True), depth + 1) for _ in range(count)]

    def _string(self, schema: dict[str, Any]) -> str:
        shortest = int(schema.get("minLength", 0))
        text = self._word()
        while len(text) < shortest:
            text += " " + self._word()
        return text[: max(int(schema.get("maxLength", len(text))), 0)]

    def _range(self, schema: dict[str, Any]) -> tuple[float, float]:
        low = schema.get("minimum", schema.get("exclusiveMinimum"))
        high = schema.get("maximum", schema.get("exclusiveMaximum"))
        if low is None:
            low = 0 if high is None else high - 100
        if high is None:
            high = low + 100
        if "exclusiveMinimum" in schema:
            low = min(low + 1, (low + high) / 2)
        if "exclusiveMaximum" in schema:
            high = max(high - 1, (low + high) / 2)
        return float(low), float(high)

    def _word(self) -> str:
        return self._rng.choice(_WORDS)
