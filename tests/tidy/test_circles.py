"""No file imports another that imports it back, directly or by a detour."""

import tomllib
from pathlib import Path

import pytest

from tests.tidy.import_graph import circles, drawn, python_graph, rust_graph

REPOSITORY = Path(__file__).parents[2]
MEMBERS = sorted(
    file.parent.relative_to(REPOSITORY).as_posix()
    for file in REPOSITORY.glob("*/**/pyproject.toml")
    if (file.parent / "src").exists()
)
CRATES: list[str] = sorted(
    tomllib.loads((REPOSITORY / "Cargo.toml").read_text())["workspace"]["members"]
)


@pytest.mark.parametrize("member", MEMBERS)
def test_no_python_file_is_in_a_circle_of_imports(member: str) -> None:
    graph = python_graph(REPOSITORY / member / "src")
    assert graph
    assert [drawn(circle, REPOSITORY / member) for circle in circles(graph)] == []


@pytest.mark.parametrize("crate", CRATES)
def test_no_rust_file_is_in_a_circle_of_imports(crate: str) -> None:
    graph = rust_graph(REPOSITORY / crate / "src")
    assert graph
    assert [drawn(circle, REPOSITORY / crate) for circle in circles(graph)] == []


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_a_circle_is_drawn_from_a_file_back_to_itself(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "p/__init__.py": "from p.a import A",
            "p/a.py": "import os\nfrom p.b import B",
            "p/b.py": "def f():\n    from p import c",
            "p/c.py": "from .a import A",
        },
    )
    (circle,) = circles(python_graph(root))
    assert sorted(drawn(circle, root).split(" -> ")[1:]) == ["p/a.py", "p/b.py", "p/c.py"]
    assert circle[0] == circle[-1]


def test_every_circle_is_found_and_a_tree_has_none(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "p/__init__.py": "",
            "p/a.py": "from p import b, c",
            "p/b.py": "import p.a",
            "p/c.py": "from p.a import x",
            "p/d.py": "from p.a import x",
        },
    )
    assert len(circles(python_graph(root))) == 2
    (root / "p/b.py").write_text("")
    (root / "p/c.py").write_text("'''from p.a import x'''")
    assert circles(python_graph(root)) == []


@pytest.mark.parametrize(
    "uses",
    [
        "use crate::a::A;",
        "use crate::{c::C, a::{self, A as Other}};",
        "use super::a::*;",
        "pub fn f() -> crate::a::A { crate::a::A }",
        "use crate::Facade;",
    ],
)
def test_rust_imports_are_found_however_they_are_written(tmp_path: Path, uses: str) -> None:
    root = write(
        tmp_path,
        {
            "lib.rs": "mod a; mod b; mod c; pub use a::A as Facade;",
            "a/mod.rs": "mod deep; pub struct A;",
            "a/deep.rs": "use super::super::b::{B, f};",
            "b.rs": uses,
            "c.rs": "",
        },
    )
    assert (root / "a/mod.rs") in rust_graph(root)[root / "b.rs"]
    assert rust_graph(root)[root / "a/deep.rs"] == {root / "b.rs"}
    assert rust_graph(root)[root / "lib.rs"] == set()


@pytest.mark.parametrize(
    "code",
    [
        "//! See [`crate::a::A`].\n/* crate::a::A */",
        'pub fn f(c: char) -> bool { c == \'"\' && g("crate::a::A", r#"crate::a"#) }',
        "#[cfg(test)]\nmod tests {\n    use crate::a::A;\n    fn f() { {} }\n}",
        "#[cfg(all(test, not(loom)))]\nmod tests;",
        "pub fn f<'a>(x: &'a str) -> std::fmt::Result { kvatlas_wire::a::A; Ok(()) }",
    ],
)
def test_comments_strings_tests_and_other_crates_tie_nothing(tmp_path: Path, code: str) -> None:
    files = {"lib.rs": "mod a; mod b;", "a.rs": "use crate::b::f;", "b.rs": code}
    root = write(tmp_path, files)
    assert rust_graph(root)[root / "b.rs"] == set()
    assert circles(rust_graph(root)) == []


def test_a_parent_is_tied_to_a_child_whose_names_it_uses(tmp_path: Path) -> None:
    files = {
        "lib.rs": "mod a;",
        "a.rs": "mod child; pub use child::Child; pub struct A;",
        "a/child.rs": "use super::A; pub struct Child;",
    }
    root = write(tmp_path, files)
    assert circles(rust_graph(root)) == []
    (root / "a.rs").write_text("mod child; pub use child::Child; pub struct A(Child);")
    assert [drawn(circle, root) for circle in circles(rust_graph(root))] in (
        [["a.rs -> a/child.rs -> a.rs"][0]],
        [["a/child.rs -> a.rs -> a/child.rs"][0]],
    )
