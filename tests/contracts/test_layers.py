"""Import contracts against import-linter and the syntax trees of the files themselves."""

import ast
import contextlib
import io
import os
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "counterlens"
# Each of these libraries is known to one place of the package.
PLACES = {
    "PIL": "images",
    "accelerate": "fit",
    "diffusers": "generators",
    "importlinter": "",
    "jinja2": "report",
    "matplotlib": "explanations",
    "pydicom": "dicom",
    "ray": "scale",
    "tifffile": "dicom",
    "typer": "cli",
}


def test_the_layers_hold() -> None:
    from importlinter.cli import lint_imports

    told = io.StringIO()
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
            failed = lint_imports(no_cache=True, verbose=False)
    finally:
        os.chdir(before)
    assert failed == 0, told.getvalue()


@cache
def imported(path: Path) -> set[str]:
    """Top-level names of all modules a file imports, lazily or not."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize(("library", "place"), PLACES.items())
def test_a_library_is_known_to_one_place(library: str, place: str) -> None:
    users = {
        path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for path in PACKAGE.rglob("*.py")
        if library in imported(path)
    }
    assert users <= ({place} if place else set())


def test_imports_are_absolute() -> None:
    relative = [
        str(path.relative_to(ROOT))
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert relative == []


def test_every_folder_of_code_is_a_package() -> None:
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert [str(f.relative_to(ROOT)) for f in folders if not (f / "__init__.py").exists()] == []
