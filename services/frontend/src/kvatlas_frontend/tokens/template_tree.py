"""A chat template's syntax tree, for the native renderer.

Jinja2 stays the only parser of templates: what it makes of white space and operators is what counts.
"""

import json
from collections.abc import Sequence
from typing import Any, cast

from jinja2 import nodes
from jinja2.idtracking import VAR_LOAD_UNDEFINED, symbols_for_node


def template_tree(template: nodes.Template) -> bytes:
    """The tree as JSON: a node is `{type: {field: value, …}}`.

    `unset` are the names that Jinja2 lets begin as undefined, because the template sets them before it
    reads them: a variable of that name which the caller passes has no effect.

    Raises:
        ValueError: the template holds a constant that JSON has not.
    """
    symbols = symbols_for_node(template)
    unset = [
        name
        for name, ident in symbols.refs.items()
        if symbols.loads[ident][0] == VAR_LOAD_UNDEFINED
    ]
    tree = {"body": _plain(template.body), "unset": unset}
    return json.dumps(tree, allow_nan=False).encode()


def _plain(value: object) -> object:
    if isinstance(value, nodes.Node):
        fields: dict[str, Any] = {name: _plain(field) for name, field in value.iter_fields()}
        return {type(value).__name__: fields}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in cast("Sequence[object]", value)]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError(f"a template with a constant of type {type(value).__name__}")
