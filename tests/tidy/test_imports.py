"""The directions of imports are those of docs/architecture.md; a shortcut fails here."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tidy.import_graph import circles

REPOSITORY = Path(__file__).parents[2]

# The members of ours that a Python member may import. Read it as the architecture's table.
ALLOWED: dict[str, set[str]] = {
    "libs/native": set(),
    "libs/wire": set(),
    "libs/chassis": set(),
    "libs/cli": set(),
    "libs/hashing": {"native"},
    "libs/events": {"native", "wire"},
    "libs/client": {"hashing", "native", "wire"},
    "libs/engines": {"native"},
    "libs/mocker": {"chassis", "hashing"},
    "libs/testing": {"events"},
    "libs/verify": {"chassis", "wire"},
    "services/indexer": {"chassis", "events", "hashing", "native", "wire"},
    "services/publisher": {"chassis", "engines", "events", "hashing", "native", "wire"},
    "services/frontend": {"chassis", "client", "hashing", "native", "wire"},
}

# The crates of ours that a crate may depend on; its tests may use more.
CRATES: dict[str, set[str]] = {
    "libs/types/rust": set(),
    "libs/hashing/rust": set(),
    "libs/pages/rust": set(),
    "libs/wire/rust": set(),
    "libs/events/rust": {"types"},
    "libs/index/rust": {"hashing", "pages", "types"},
    "libs/index/baselines": {"hashing", "index"},
    "libs/engines/rust": {"hashing", "types"},
    "libs/mirror/rust": {"engines", "hashing", "pages", "types"},
    "libs/cell/rust": {"events", "index", "wire"},
    "libs/client/rust": {"wire"},
    "libs/proxy/rust": set(),
    "libs/prompts/rust": {"hashing"},
    "libs/native/rust": {
        "cell",
        "client",
        "engines",
        "events",
        "hashing",
        "index",
        "mirror",
        "pages",
        "prompts",
        "proxy",
        "wire",
    },
    "loadtest/rust": {"baselines", "hashing", "index", "wire"},
    "tests/simulation": {
        "cell",
        "engines",
        "events",
        "hashing",
        "index",
        "mirror",
        "pages",
        "wire",
    },
}

MEMBERS = sorted(name for name in ALLOWED if (REPOSITORY / name / "pyproject.toml").exists())
CRATES_HERE = sorted(name for name in CRATES if (REPOSITORY / name / "Cargo.toml").exists())

# Where generated protobuf code may be touched: codecs, and the servers that implement a service.
GENERATED_CODE_USERS = {"codec.py", "rpc.py"}


def sources(member: str) -> list[Path]:
    return [
        file
        for file in sorted((REPOSITORY / member / "src").rglob("*.py"))
        if "kvatlas_wire/v1" not in file.as_posix()
    ]


def imported_modules(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module


def test_the_table_names_every_member() -> None:
    members = {
        file.parent.relative_to(REPOSITORY).as_posix()
        for folder in ("libs", "services")
        for file in (REPOSITORY / folder).glob("*/pyproject.toml")
    }
    assert sorted(members - set(ALLOWED)) == []


@pytest.mark.parametrize("member", MEMBERS)
def test_a_member_imports_only_what_the_table_allows(member: str) -> None:
    own = member.split("/")[1]
    wrong = [
        f"{file.relative_to(REPOSITORY)}: {module}"
        for file in sources(member)
        for module in imported_modules(file)
        if module.startswith("kvatlas_")
        and module.split(".")[0].removeprefix("kvatlas_") not in ALLOWED[member] | {own}
    ]
    assert wrong == []


@pytest.mark.parametrize("member", MEMBERS)
def test_a_member_declares_what_it_imports(member: str) -> None:
    own = member.split("/")[1]
    used = {
        module.split(".")[0].replace("_", "-")
        for file in sources(member)
        for module in imported_modules(file)
        if module.startswith("kvatlas_")
    } - {f"kvatlas-{own}"}
    declared = (REPOSITORY / member / "pyproject.toml").read_text()
    assert [name for name in sorted(used) if f'"{name}' not in declared] == []


def test_generated_code_is_touched_only_where_messages_are_coded() -> None:
    wrong = [
        str(file.relative_to(REPOSITORY))
        for member in MEMBERS
        if member != "libs/wire"
        for file in sources(member)
        if file.name not in GENERATED_CODE_USERS
        and any(module.startswith("kvatlas_wire.v1") for module in imported_modules(file))
    ]
    assert wrong == []


def manifest(crate: str) -> dict[str, Any]:
    return tomllib.loads((REPOSITORY / crate / "Cargo.toml").read_text())


def test_the_table_names_every_crate() -> None:
    members: list[str] = manifest(".")["workspace"]["members"]
    assert sorted(set(members) - set(CRATES)) == []


@pytest.mark.parametrize("crate", CRATES_HERE)
def test_a_crate_depends_only_on_what_the_table_allows(crate: str) -> None:
    document = manifest(crate)
    tables = [document, *document.get("target", {}).values()]
    used = {
        name.removeprefix("kvatlas-")
        for table in tables
        for kind in ("dependencies", "build-dependencies")
        for name in table.get(kind, {})
        if name.startswith("kvatlas-")
    }
    assert sorted(used - CRATES[crate]) == []


def test_no_path_through_the_tables_leads_back_to_its_start() -> None:
    names = {crate: manifest(crate)["package"]["name"] for crate in CRATES_HERE}
    crates = {names[crate].removeprefix("kvatlas-"): CRATES[crate] for crate in names}
    members = {member.split("/")[1]: allowed for member, allowed in ALLOWED.items()}
    for table in (crates, members):
        graph = {Path(name): {Path(other) for other in used} for name, used in table.items()}
        assert circles(graph) == []


def test_pyo3_is_known_to_the_native_crate_alone() -> None:
    users = [
        file.parent.relative_to(REPOSITORY).as_posix()
        for file in REPOSITORY.glob("*/*/rust/Cargo.toml")
        if "pyo3" in file.read_text()
    ]
    assert users == ["libs/native/rust"]


@pytest.mark.parametrize(
    "crate", ["types", "hashing", "pages", "index", "events", "engines", "mirror"]
)
def test_pure_crates_know_no_network_no_protobuf_and_no_clock(crate: str) -> None:
    folder = REPOSITORY / "libs" / crate / "rust"
    dependencies = (folder / "Cargo.toml").read_text().split("[dev-dependencies]")[0]
    for name in ("tonic", "prost", "tokio", "kvatlas-wire"):
        assert name not in dependencies
    for file in (folder / "src").rglob("*.rs"):
        shipped = file.read_text().split("#[cfg(test)]")[0]
        for word in ("std::net", "std::fs", "SystemTime", "Instant::now"):
            assert word not in shipped, f"{file.relative_to(REPOSITORY)}: {word}"
