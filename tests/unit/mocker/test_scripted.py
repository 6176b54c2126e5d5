"""Output that must fit: JSON by a schema."""

import json
from typing import Any

import pytest

from kvatlas_mocker.bodies import ApiError
from kvatlas_mocker.scripted import instance, write_script
from kvatlas_mocker.tokenizer import ByteTokenizer

TREE: dict[str, Any] = {
    "$ref": "#/$defs/Node",
    "$defs": {
        "Node": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "minLength": 3, "maxLength": 4},
                "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
                "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]},
            },
            "required": ["name", "children", "next"],
        }
    },
}


def keys_of(value: Any, depth: int = 0) -> int:  # noqa: ANN401 - any JSON
    assert set(value) == {"name", "children", "next"}
    assert 3 <= len(value["name"]) <= 4
    below = [*value["children"], *([value["next"]] if value["next"] is not None else [])]
    return max((keys_of(each, depth + 1) for each in below), default=depth)


def test_a_schema_that_refers_to_itself_has_a_finite_value() -> None:
    small = {**TREE, "$defs": {"Node": {**TREE["$defs"]["Node"]}}}
    small["$defs"]["Node"]["properties"] = {
        **TREE["$defs"]["Node"]["properties"],
        "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}, "maxItems": 0},
    }
    assert keys_of(instance(small, 1)) > 1


@pytest.mark.parametrize("seed", range(20))
def test_limits_are_kept(seed: int) -> None:
    def one(**schema: Any) -> Any:  # noqa: ANN401 - any JSON
        return instance(schema, seed)

    assert 5 <= one(type="integer", minimum=5, maximum=7) <= 7
    assert 5 < one(type="integer", exclusiveMinimum=5) <= 105
    assert one(type="number", maximum=-3.5) <= -3.5
    assert one(enum=["a", None]) in ("a", None)
    assert one(const={"a": 1}) == {"a": 1}
    assert one(type=["null", "string"]) is None
    assert isinstance(one(type="boolean"), bool)
    assert len(one(type="array", items={"type": "integer"}, minItems=3)) == 3
    assert one(type="array", prefixItems=[{"const": 1}, {"const": 2}]) == [1, 2]
    both = one(
        allOf=[{"type": "object", "properties": {"a": {"const": 1}}}],
        properties={"b": {"const": 2}},
    )
    assert both == {"a": 1, "b": 2}
    assert one(type="string", maxLength=2) == instance({"type": "string", "maxLength": 2}, seed)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "tuple"},
        {"$ref": "#/$defs/Missing"},
        {"$ref": "#"},
        {"type": "array", "items": 5},
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    ],
)
def test_a_schema_without_a_value_is_the_requests_error(schema: dict[str, Any]) -> None:
    with pytest.raises(ApiError):
        instance(schema, 1)


async def test_the_pieces_of_a_script_join_to_its_text() -> None:
    value = {"name": "Zoë", "n": [1, 2.5, None]}
    script = await write_script(ByteTokenizer(), value)
    assert json.loads("".join(script.pieces)) == value
    assert len(script.pieces) == len(script.tokens)
