"""The repository against its own rules: names, sizes of files, nothing of one machine."""

import ast
import importlib
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import counterlens

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "counterlens"
TEXT = {".py", ".md", ".toml", ".yaml", ".yml", ".json", ".jsonl", ".lock", ".in", ".txt", ".bib"}
TEXT |= {".cff", ".html", ".css", ".js", ".cfg", ".ini", ".sh", ""}
# Put together here so that this file does not find itself.
FOREIGN = {
    "a path of one machine": r"(?<![\w.])/(?:work|root|home|Users)/[a-z]",
    "a Windows home": r"C:\\+Users",
    "an index address": r"--(?:extra-)?index" + r"-url[ =]\S+",
    "a package host": r"files\.python" + r"hosted\.org|art" + r"ifactory|\bne" + r"xus\.",
    "an inner host": r"https?://[\w.-]+\.(?:inter" + r"nal|corp|lan)\b",
    "a bare address": r"https?://(?!127\.0\.0\.1|0\.0\.0\.0)\d+\.\d+\.\d+\.\d+",
}


def tracked() -> list[Path]:
    """Files of the repository; of the tree where there is no git."""
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listing.returncode == 0 and listing.stdout:
        return [
            path for name in listing.stdout.split("\0") if name and (path := ROOT / name).is_file()
        ]
    folders = ("src", "docs", "examples", "tests", "tools", "benchmarks")
    return [
        p
        for f in folders
        for p in (ROOT / f).rglob("*")
        if p.is_file() and "__pycache__" not in p.parts
    ]


def test_nothing_of_one_machine_is_in_the_repository() -> None:
    found = []
    for path in tracked():
        if path.suffix not in TEXT or path.stat().st_size > 5_000_000:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        found += [
            f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, hit.start()) + 1}: {what}: {hit[0]}"
            for what, pattern in FOREIGN.items()
            for hit in re.finditer(pattern, text)
        ]
    assert found == []


def test_every_import_of_the_package_is_tracked() -> None:
    """An ignore rule must not hide code: `runs/` once hid the package of that name."""
    names = {path for path in tracked() if path.is_relative_to(PACKAGE)}
    ignored = subprocess.run(
        ["git", "ls-files", "-z", "--others", "--ignored", "--exclude-standard", "src"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    hidden = [n for n in ignored.stdout.split("\0") if n.endswith(".py")]
    assert hidden == []
    assert names


def test_no_file_is_too_long_to_read() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in PACKAGE.rglob("*.py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 450
    }
    assert long == {}


def _is_record(node: ast.ClassDef) -> bool:
    """Whether a class is a record of options: fields alone, no behaviour to inherit."""
    decorated = any(isinstance(d, ast.Name) and d.id == "record" for d in node.decorator_list)
    return decorated and all(isinstance(part, ast.AnnAssign | ast.Expr) for part in node.body)


def test_no_class_is_deeper_than_one_base() -> None:
    deep = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
        and len(node.bases) > 1
        and not _is_record(node)  # records of options are joined from shared groups: ADR 14
    ]
    assert deep == []


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in PACKAGE.rglob("*.py")
        if path.read_text(encoding="utf-8").strip()
        and not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert silent == []


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert counterlens.__version__ == project["version"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {project['version']}\n" in citation
    assert f"## {project['version']}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_public_names_are_a_list_and_each_resolves() -> None:
    names = counterlens.__all__
    assert sorted(names) == sorted(set(names))
    assert set(names) <= set(dir(counterlens))
    for name in names:
        assert getattr(counterlens, name) is not None
    public = {n for n in dir(counterlens) if not n.startswith("_")}
    modules = {p.stem for p in PACKAGE.iterdir()}
    assert public - modules <= set(names)


def test_an_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        importlib.import_module("counterlens").nothing_of_the_kind  # noqa: B018
