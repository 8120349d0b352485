"""The equation index: which function computes which equation of which paper.

    tools/equations.py              write docs/equations.md
    tools/equations.py KEY          print the equations of one paper, with file and line
    tools/equations.py --verify     fail if a tag is malformed, its key is not in docs/papers.bib,
                                    the index is stale, or a paper page names an untagged function

A tag is a line of a docstring, `Equation: KEY LOCATOR   FORMULA`: the key of the paper, where in
the paper it stands, at least two spaces, the formula. Deeper indented lines continue the formula.
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_TAG = re.compile(r"^(?P<indent>\s*)Equation:\s*(?P<rest>.*)$")
_FORM = re.compile(r"^(?P<key>[A-Za-z][\w-]*)\s+(?P<where>\S.*?)\s{2,}(?P<formula>\S.*)$")
_ENTRY = re.compile(r"^@\w+\{\s*([^,\s]+)\s*,", re.MULTILINE)
_TITLE = re.compile(r"^\s*title\s*=\s*\{(.*)\},?\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Tag:
    """One equation and the function that computes it."""

    key: str
    where: str
    formula: str
    name: str
    path: str
    line: int


class Malformed(ValueError):
    """A tag that cannot be read."""


def scan(root: Path = ROOT) -> list[Tag]:
    """All tags of the package, by paper, then by file."""
    tags = [tag for path in sorted((root / "src").rglob("*.py")) for tag in _file_tags(path, root)]
    return sorted(tags, key=lambda tag: (tag.key, tag.path, tag.line, tag.where))


def _file_tags(path: Path, root: Path) -> Iterator[Tag]:
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    short = path.relative_to(root).as_posix()
    for name, node in _documented(tree):
        first = getattr(node, "lineno", 1)
        for text in _tag_texts(ast.get_docstring(node, clean=True) or ""):
            found = _FORM.match(text)
            if not found:
                raise Malformed(
                    f"{short}:{first}: {name or 'module'}: cannot read {text!r}, "
                    "expected: Equation: KEY LOCATOR   FORMULA (two spaces before the formula)"
                )
            formula = " ".join(found["formula"].split())
            yield Tag(found["key"], found["where"], formula, name or path.stem, short, first)


def _documented(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """The module, its classes and functions, methods as Class.method."""
    yield "", tree
    stack: list[tuple[str, ast.AST]] = [("", tree)]
    while stack:
        prefix, parent = stack.pop()
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                yield prefix + node.name, node
                stack.append((f"{prefix}{node.name}.", node))


def _tag_texts(docstring: str) -> Iterator[str]:
    lines = docstring.splitlines()
    for i, line in enumerate(lines):
        tag = _TAG.match(line)
        if not tag:
            continue
        text = tag["rest"]
        for more in lines[i + 1 :]:
            deeper = len(more) - len(more.lstrip()) > len(tag["indent"])
            if not more.strip() or not deeper:
                break
            text += " " + more.strip()
        yield text


def bibliography(root: Path = ROOT) -> dict[str, str]:
    """Keys and titles of docs/papers.bib; a key given twice is an error."""
    text = (root / "docs" / "papers.bib").read_text(encoding="utf-8")
    out: dict[str, str] = {}
    for part in re.split(r"(?m)^(?=@)", text):
        entry, title = _ENTRY.match(part), _TITLE.search(part)
        if not entry:
            continue
        if entry[1] in out:
            raise Malformed(f"docs/papers.bib has {entry[1]} twice")
        out[entry[1]] = (
            re.sub(r"[{}]", "", title[1]).replace("``", "“").replace("''", "”") if title else ""
        )
    return out


def index(tags: Sequence[Tag], titles: dict[str, str]) -> str:
    """docs/equations.md. It names no lines, so that it is stale only when a tag changes."""
    out = [
        "# Equations",
        "",
        "Written by `tools/equations.py` from the `Equation:` tags of the docstrings. Do not edit.",
        "`make equation KEY=guo2017` prints one paper with line numbers.",
    ]
    for key in dict.fromkeys(tag.key for tag in tags):
        out += [
            "",
            f"## {key}",
            "",
            titles.get(key, ""),
            "",
            "| where | equation | function |",
            "|---|---|---|",
        ]
        for tag in (t for t in tags if t.key == key):
            formula = tag.formula.replace("|", "\\|")
            link = f"[`{tag.name}`](../{tag.path})"
            out.append(f"| {tag.where} | {formula} | {link} |")
    return "\n".join(out) + "\n"


def page_faults(tags: Sequence[Tag], root: Path = ROOT) -> list[str]:
    """Functions that a paper page lists although they carry no tag of that paper."""
    faults = []
    for page in sorted((root / "docs" / "papers").glob("*.md")):
        tagged = {
            name for t in tags if t.key == page.stem for name in (t.name, t.name.split(".")[-1])
        }
        column = None
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            if not line.startswith("|"):
                column = None
                continue
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            if column is None:
                heads = [cell.lower() for cell in cells]
                column = heads.index("function") if "function" in heads else -1
            elif column >= 0 and column < len(cells):
                for name in re.findall(r"`([\w.]+)`", cells[column]):
                    if name not in tagged and name.split(".")[-1] not in tagged:
                        faults.append(
                            f"docs/papers/{page.name}:{number}: {name} has no tag of {page.stem}"
                        )
    return faults


def verify(root: Path = ROOT) -> list[str]:
    """Everything that is wrong with the index, one line each."""
    try:
        tags, titles = scan(root), bibliography(root)
    except Malformed as error:
        return [str(error)]
    faults = [
        f"{t.path}:{t.line}: {t.name}: {t.key} is not in docs/papers.bib"
        for t in tags
        if t.key not in titles
    ]
    written = root / "docs" / "equations.md"
    if not written.exists() or written.read_text(encoding="utf-8") != index(tags, titles):
        faults.append("docs/equations.md is stale: run tools/equations.py")
    return faults + page_faults(tags, root)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write, print or verify the index."""
    parser = argparse.ArgumentParser(description="The equation index.")
    parser.add_argument("key", nargs="?", help="print the equations of this paper")
    parser.add_argument(
        "--write", type=Path, default=ROOT / "docs" / "equations.md", help="where the index goes"
    )
    parser.add_argument("--verify", action="store_true", help="check tags, index and paper pages")
    chosen = parser.parse_args(arguments)
    if chosen.verify:
        faults = verify()
        print("\n".join(faults) or "equations: every tag is in order", file=sys.stderr)
        return 1 if faults else 0
    try:
        tags, titles = scan(), bibliography()
    except Malformed as error:
        print(error, file=sys.stderr)
        return 1
    if chosen.key is None:
        chosen.write.write_text(index(tags, titles), encoding="utf-8")
        print(f"{chosen.write.name}: {len(tags)} equations", file=sys.stderr)
        return 0
    found = [tag for tag in tags if tag.key == chosen.key]
    if not found:
        keys = ", ".join(sorted({tag.key for tag in tags}))
        print(f"no equation of {chosen.key!r}; papers with equations: {keys}", file=sys.stderr)
        return 1
    wide = max(len(tag.where) for tag in found)
    for tag in found:
        print(
            f"{tag.key}  {tag.where:{wide}}  {tag.formula}\n    {tag.name}  {tag.path}:{tag.line}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
