"""Which file imports which, in Python and in Rust, and the circles in that graph.

A graph maps each file to the files it imports. A module that declares its children (`mod x;`, or a
package's `__init__`) does not import them by that alone. Comments, strings and code under
`#[cfg(test)]` are left out. A name that a Rust module re-exports counts as an import of the file
that defines it, so a crate's façade ties nothing together.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

Graph = dict[Path, set[Path]]


def circles(graph: Graph) -> list[list[Path]]:
    """Circles of imports, each from a file back to itself; every circle left is broken in turn."""
    left = {file: set(imported) for file, imported in graph.items()}
    found: list[list[Path]] = []
    while True:
        try:
            TopologicalSorter(left).prepare()
        except CycleError as error:
            circle: list[Path] = error.args[1][::-1]
            found.append(circle)
            left[circle[0]].discard(circle[1])
        else:
            return found


def drawn(circle: Sequence[Path], root: Path) -> str:
    """A circle as one line: `a.py -> b.py -> a.py`."""
    return " -> ".join(file.relative_to(root).as_posix() for file in circle)


def python_graph(source_root: Path) -> Graph:
    """The imports between the files below a `src` folder."""
    modules = {_module_name(file, source_root): file for file in source_root.rglob("*.py")}
    graph: Graph = {}
    for name, file in modules.items():
        package = name if file.stem == "__init__" else name.rpartition(".")[0]
        imported = (_longest_known(path, modules) for path in _python_imports(file, package))
        graph[file] = {modules[path] for path in imported if path} - {file}
    return graph


def _module_name(file: Path, source_root: Path) -> str:
    parts = file.relative_to(source_root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _python_imports(file: Path, package: str) -> Iterator[str]:
    """Dotted paths, down to the imported name."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = ".".join(parts[: len(parts) + 1 - node.level]) if node.level else ""
            origin = ".".join(part for part in (base, node.module) if part)
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def _longest_known(path: str, modules: dict[str, Path]) -> str:
    while path and path not in modules:
        path = path.rpartition(".")[0]
    return path


RustPath = tuple[str, ...]

# Text that is not code: comments, raw strings, strings, characters (a lifetime is none of these).
_NO_CODE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|r(\#*)".*?"\1|"(?:\\.|[^"\\])*"|'(?:\\[^']+|[^'\\])'""", re.DOTALL
)
_TEST_ONLY = re.compile(r"#\[cfg\((?:all\(|any\()?(?:[^()\]]|not\(loom\))*\btest\b[^\]]*\]")
_CHILD = re.compile(r"\bmod\s+(\w+)\s*;")
_USE = re.compile(r"(\bpub(?:\([^)]*\))?\s+)?\buse\s+([^;]+);")
_INLINE = re.compile(r"\b\w+(?:::\w+)+")


@dataclass
class _RustFile:
    """A module's file, as far as its imports are concerned."""

    path: Path
    module: RustPath
    uses: set[RustPath] = field(default_factory=set[RustPath])
    re_exports: dict[str, RustPath] = field(default_factory=dict[str, RustPath])


def rust_graph(source_root: Path) -> Graph:
    """The imports between the files below a crate's `src` folder."""
    library = source_root / "lib.rs"
    files: dict[RustPath, _RustFile] = {}
    _read_rust(library if library.exists() else source_root / "main.rs", (), files)
    return {
        one.path: {_owner(path, files).path for path in one.uses} - {one.path}
        for one in files.values()
    }


def _read_rust(path: Path, module: RustPath, files: dict[RustPath, _RustFile]) -> None:
    """Read a module's file and those of its children into `files`."""
    code = _without_tests(_NO_CODE.sub(" ", path.read_text()))
    file = files[module] = _RustFile(path, module)
    folder = path.parent if path.stem in ("lib", "main", "mod") else path.with_suffix("")
    children = _CHILD.findall(code)
    for child in children:
        below = next(
            place for place in (folder / f"{child}.rs", folder / child / "mod.rs") if place.exists()
        )
        _read_rust(below, (*module, child), files)
    statements = _USE.sub(" ", code)
    for public, tree in _USE.findall(code):
        for path_used, name in _expanded(tree):
            target = _absolute(path_used, module, children)
            if target is None:
                continue
            if public:
                file.re_exports[name] = target
            if not public or re.search(rf"\b{name}\b", statements):
                file.uses.add(target)
    for inline in _INLINE.findall(statements):
        target = _absolute(tuple(inline.split("::")), module, children)
        if target is not None:
            file.uses.add(target)


def _without_tests(code: str) -> str:
    """The code without the items under `#[cfg(test)]`."""
    while found := _TEST_ONLY.search(code):
        depth, end = 0, found.end()
        for end in range(found.end(), len(code)):
            depth += {"{": 1, "}": -1}.get(code[end], 0)
            if code[end] in ";}" and depth == 0:
                break
        code = code[: found.start()] + code[end + 1 :]
    return code


def _expanded(tree: str, before: RustPath = ()) -> Iterator[tuple[RustPath, str]]:
    """The paths of a `use` tree, each with the name that it brings in."""
    tree = tree.strip()
    head, brace, rest = tree.partition("{")
    path = before + tuple(part.strip() for part in head.split("::") if part.strip())
    if brace:
        for branch in _branches(rest.rpartition("}")[0]):
            yield from _expanded(branch, path)
    elif tree:
        *parents, last = path
        original, _, name = last.partition(" as ")
        if original == "self":
            yield tuple(parents), name.strip() or parents[-1]
        elif original == "*":
            yield tuple(parents), "*"
        else:
            yield (*parents, original.strip()), name.strip() or original


def _branches(text: str) -> Iterator[str]:
    """The parts between a use tree's outer commas."""
    depth = start = 0
    for place, sign in enumerate(text):
        depth += {"{": 1, "}": -1}.get(sign, 0)
        if sign == "," and depth == 0:
            yield text[start:place]
            start = place + 1
    yield text[start:]


def _absolute(path: RustPath, module: RustPath, children: Sequence[str]) -> RustPath | None:
    """A path from the crate's root; None for one that leads out of the crate."""
    if path[0] == "crate":
        return path[1:]
    if path[0] == "self":
        return module + path[1:]
    if path[0] in children:
        return module + path
    if path[0] != "super":
        return None
    while path and path[0] == "super":
        path, module = path[1:], module[:-1]
    return module + path


def _owner(path: RustPath, files: dict[RustPath, _RustFile]) -> _RustFile:
    """The file that defines what a path names; re-exports are followed."""
    depth = 0
    while depth < len(path) and path[: depth + 1] in files:
        depth += 1
    file = files[path[:depth]]
    target = file.re_exports.get(path[depth]) if depth < len(path) else None
    return file if target is None else _owner(target + path[depth + 1 :], files)
