"""The stub is the native module's documentation, so it must say what the module is."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvatlas_native
from kvatlas_native import _native

STUB = ast.parse((Path(kvatlas_native.__file__).parent / "_native.pyi").read_text())

Function = ast.FunctionDef


def parameters(function: Function) -> list[tuple[str, bool]]:
    """Name of each parameter, and whether it is keyword-only."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    return [(a.arg, False) for a in positional] + [(a.arg, True) for a in arguments.kwonlyargs]


def compiled_parameters(function: object) -> list[tuple[str, bool]]:
    signature = inspect.signature(function)  # pyright: ignore[reportArgumentType] - it is callable
    return [
        (name, parameter.kind is inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in signature.parameters.items()
    ]


def classes() -> Iterator[ast.ClassDef]:
    return (node for node in STUB.body if isinstance(node, ast.ClassDef))


def methods(node: ast.ClassDef) -> list[Function]:
    return [
        child
        for child in node.body
        if isinstance(child, Function) and not child.decorator_list and child.name != "__init__"
    ]


def public_names(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def test_the_stub_the_module_and_the_package_name_the_same() -> None:
    named = {node.name for node in STUB.body if isinstance(node, (ast.ClassDef, Function))}
    assert named == public_names(_native)
    assert named == set(kvatlas_native.__all__)


@pytest.mark.parametrize("node", list(classes()), ids=lambda node: node.name)
def test_a_class_has_the_members_of_its_stub(node: ast.ClassDef) -> None:
    named: set[str] = set()
    for child in node.body:
        if isinstance(child, Function):
            named.add(child.name)
        elif isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
            named.add(child.target.id)
    inherited = public_names(Exception) if node.bases else set[str]()
    compiled = public_names(getattr(_native, node.name)) - inherited
    assert {name for name in named if not name.startswith("_")} == compiled


@pytest.mark.parametrize(
    ("owner", "function"),
    [
        pytest.param(owner, function, id=f"{owner}.{function.name}")
        for owner, function in (
            *(("", node) for node in STUB.body if isinstance(node, Function)),
            *((node.name, method) for node in classes() for method in methods(node)),
        )
    ],
)
def test_a_function_takes_the_parameters_of_its_stub(owner: str, function: Function) -> None:
    home = getattr(_native, owner) if owner else _native
    assert compiled_parameters(getattr(home, function.name)) == parameters(function)


@pytest.mark.parametrize("node", [n for n in classes() if not n.bases], ids=lambda node: node.name)
def test_a_class_is_made_with_the_parameters_of_its_stub(node: ast.ClassDef) -> None:
    made = [c for c in node.body if isinstance(c, Function) and c.name == "__init__"]
    if not made:
        with pytest.raises(TypeError, match=r"cannot create|No constructor"):
            getattr(_native, node.name)()
        return
    assert compiled_parameters(getattr(_native, node.name)) == parameters(made[0])[1:]
