"""Measure how the package is built: modules, import chains, long functions, old words.

    .venv/bin/python tools/measure.py [FOLDER] [--json]

FOLDER is the package, by default src/counterlens. Only the standard library is needed, and nothing
of the package is imported. Without --json a table is printed, then the names behind the counts.

What is counted:
    modules             .py files
    folders             .py files directly in a folder
    longest_chain       longest path of imports at module level; modules that import each other in a
                        circle count as one step. An import inside a function does not count.
    long_functions      lines from `def` (decorators left out) to the last line
    wide_functions      parameters, `self` and `cls` left out, *args and **kwargs counted; left out,
                        too, is an options record (…Options, …Settings, Preprocess), and functions
                        under @triton.jit: a GPU kernel takes pointers and sizes, never a record
    duplicated          runs of at least 6 equal lines of code (spaces, comments, docstrings and
                        imports left out) that occur more than once; the lines are those of all
                        occurrences but the first
    old_words           whole words in identifiers cut at underscores and capitals, names of Python
                        itself such as FileNotFoundError left out; apart from them whole words in
                        docstrings and other texts, but for those in PLAIN
    homonymous_types    classes and type aliases defined under one name in several modules; a name
                        that begins with an underscore counts only where another module imports it
"""

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

OLD_WORDS = (
    "told", "made", "found", "asked", "said", "kept", "aside", "say", "teller", "telling", "heat",
    "warmth", "thing", "look", "wish", "player", "reader", "worries", "board", "twin", "still",
    "bare", "further", "kin", "ahead", "showing", "meet", "together",
)  # fmt: skip
PLAIN = {
    "made", "found", "kept", "said", "say", "asked", "look", "together", "further", "still",
    "reader", "aside",
}  # fmt: skip
"""Words that count in names alone: in a sentence they are plain English verbs and adverbs (what a
person said, images that look alike, a network trained further, pictures set aside) or a key of
stored runs. All others count in sentences, too."""
FIELD = re.compile(r"\bheat maps?\b|\bheat-?map\b|\bwrite-ahead\b")
"""Terms of the field that hold one of these words."""
PYTHONS = {
    "NotFound",
    "reader",
    "DictReader",
    "FileNotFoundError",
    "ModuleNotFoundError",
    "PackageNotFoundError",
}
"""Names of the standard library and of HTTP that hold one of these words."""
RECORD = re.compile(r"\b\w*(Options|Settings|Preprocess)\b")
"""Types of parameters that hold options."""
LINES, PARAMETERS = (50, 60), (7, 8)
BLOCK = 6
Function = ast.FunctionDef | ast.AsyncFunctionDef


def measure(package: Path) -> dict[str, Any]:
    """All figures of a package folder."""
    sources = {
        path.relative_to(package).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(package.rglob("*.py"))
        if "__pycache__" not in path.parts
    }
    trees = {path: ast.parse(text) for path, text in sources.items()}
    folders = Counter(Path(path).parent.as_posix() for path in sources)
    functions = [
        (f"{path}:{node.name}", node)
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, Function)
    ]
    chain = longest_chain(imports(trees, package.name))
    lengths = [(length(node), name) for name, node in functions]
    widths = [(parameters(node), name) for name, node in functions if not _kernel(node)]
    names, texts = old_words(trees.values())
    blocks = duplicated({path: code_lines(text) for path, text in sources.items()})
    homonyms = homonymous_types(trees)
    return {
        "modules": len(sources),
        "lines": sum(len(text.splitlines()) for text in sources.values()),
        "most_files_in_a_folder": max(folders.values(), default=0),
        "folders": dict(folders.most_common()),
        "longest_chain": len(chain),
        "chain": chain,
        "functions": len(functions),
        **{f"functions_over_{n}_lines": sum(x > n for x, _ in lengths) for n in LINES},
        **{f"functions_over_{n}_parameters": sum(x > n for x, _ in widths) for n in PARAMETERS},
        "long_functions": _over(lengths, LINES[0]),
        "wide_functions": _over(widths, PARAMETERS[0]),
        "duplicated_blocks": len(blocks),
        "duplicated_lines": sum(block["lines"] * (len(block["at"]) - 1) for block in blocks),
        "duplicates": blocks,
        "old_words_in_names": sum(names.values()),
        "old_words_in_texts": sum(texts.values()),
        "names": dict(names.most_common()),
        "texts": dict(texts.most_common()),
        "homonymous_classes": len(homonymous_types(trees, aliases=False)),
        "homonymous_types": len(homonyms),
        "homonyms": homonyms,
    }


def _over(rows: Sequence[tuple[int, str]], limit: int) -> dict[str, int]:
    return {name: count for count, name in sorted(rows, key=lambda r: (-r[0], r[1]))
            if count > limit}  # fmt: skip


def length(node: Function) -> int:
    """Lines of a function."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def parameters(node: Function) -> int:
    """Parameters of a function; `self`, `cls` and one record of options left out."""
    given = node.args
    plain = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    names = [a.arg for a in (*plain, given.vararg, given.kwarg) if a is not None]
    record = any(a.annotation and RECORD.search(ast.unparse(a.annotation)) for a in plain)
    return len(names) - (names[:1] in (["self"], ["cls"])) - record


def _kernel(node: Function) -> bool:
    return any("triton.jit" in ast.unparse(one) for one in node.decorator_list)


# --------------------------------------------------------------------------------------- imports


def imports(trees: Mapping[str, ast.Module], root: str) -> dict[str, set[str]]:
    """Module → modules of the package that it imports when it is itself imported."""
    names = {_module(path, root): path for path in trees}
    found: dict[str, set[str]] = {}
    for name, path in names.items():
        package = name if path.endswith("__init__.py") else name.rpartition(".")[0]
        found[name] = {
            target
            for node in _module_level(trees[path])
            for target in _targets(node, package, names)
            if target != name
        }
    return found


def _module(path: str, root: str) -> str:
    parts = [root, *path.removesuffix(".py").split("/")]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _module_level(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes outside functions and outside `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from _module_level(node)


def _targets(node: ast.AST, package: str, names: Mapping[str, str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            parts = package.split(".")
            base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
        for alias in node.names:
            if f"{base}.{alias.name}" in names:
                yield f"{base}.{alias.name}"
            elif base in names:
                yield base


def longest_chain(graph: Mapping[str, set[str]]) -> list[str]:
    """The longest path of imports; a circle is one step, named by its members."""
    group = {name: members for members in _circles(graph) for name in members}
    best: dict[tuple[str, ...], list[str]] = {}

    def walk(members: tuple[str, ...]) -> list[str]:
        if members not in best:
            after = {group[t] for name in members for t in graph[name]} - {members}
            tails = sorted((walk(one) for one in after), key=lambda t: (-len(t), t))
            best[members] = [" = ".join(members), *(tails[0] if tails else [])]
        return best[members]

    chains = [walk(members) for members in set(group.values())]
    return min(chains, key=lambda chain: (-len(chain), chain), default=[])


def _circles(graph: Mapping[str, set[str]]) -> list[tuple[str, ...]]:
    """Strongly connected modules, by Kosaraju's two passes."""
    order: list[str] = []
    seen: set[str] = set()

    def visit(name: str, edges: Mapping[str, set[str]], into: list[str]) -> None:
        if name in seen:
            return
        seen.add(name)
        for other in sorted(edges.get(name, ())):
            visit(other, edges, into)
        into.append(name)

    for name in sorted(graph):
        visit(name, graph, order)
    back: dict[str, set[str]] = defaultdict(set)
    for name, targets in graph.items():
        for target in targets:
            back[target].add(name)
    seen.clear()
    found = []
    for name in reversed(order):
        members: list[str] = []
        visit(name, back, members)
        if members:
            found.append(tuple(sorted(members)))
    return found


# ------------------------------------------------------------------------------------ duplicates


def code_lines(text: str) -> list[tuple[int, str]]:
    """Lines of code with their numbers: no spaces, comments, docstrings or imports."""
    skipped = {
        n
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for n in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines: dict[int, list[str]] = defaultdict(list)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT and token.string.strip():
            lines[token.start[0]].append(token.string)
    return [(n, " ".join(words)) for n, words in sorted(lines.items()) if n not in skipped]


def duplicated(files: Mapping[str, Sequence[tuple[int, str]]]) -> list[dict[str, Any]]:
    """Runs of at least BLOCK equal lines, longest first; no line belongs to two of them."""
    places: dict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    for path, lines in files.items():
        for i in range(len(lines) - BLOCK + 1):
            window = tuple(text for _, text in lines[i : i + BLOCK])
            if sum(any(c.isalnum() for c in text) for text in window) >= BLOCK // 2:
                places[window].append((path, i))
    used: set[tuple[str, int]] = set()
    found = []
    for path, lines in files.items():
        for i in range(len(lines) - BLOCK + 1):
            window = tuple(text for _, text in lines[i : i + BLOCK])
            here = [p for p in places.get(window, []) if not _taken(used, p)]
            if len(here) < 2 or (path, i) not in here:
                continue
            size = _extent(files, here, used)
            here = _apart(here, size)
            if len(here) < 2:
                continue
            used.update((p, start + k) for p, start in here for k in range(size))
            at = [f"{p}:{files[p][start][0]}" for p, start in here]
            found.append({"lines": size, "at": at})
    return sorted(found, key=lambda block: (-block["lines"], block["at"]))


def _taken(used: set[tuple[str, int]], place: tuple[str, int]) -> bool:
    path, start = place
    return any((path, start + k) in used for k in range(BLOCK))


def _extent(
    files: Mapping[str, Sequence[tuple[int, str]]],
    here: Sequence[tuple[str, int]],
    used: set[tuple[str, int]],
) -> int:
    """How many lines from these places on are equal in all of them and free."""
    size = BLOCK
    while not any((path, start + size) in used for path, start in here):
        following = {
            files[path][start + size][1] if start + size < len(files[path]) else None
            for path, start in here
        }
        if len(following) > 1 or None in following:
            return size
        size += 1
    return size


def _apart(here: Sequence[tuple[str, int]], size: int) -> list[tuple[str, int]]:
    """Places that do not overlap."""
    chosen: list[tuple[str, int]] = []
    for path, start in here:
        if not any(p == path and abs(s - start) < size for p, s in chosen):
            chosen.append((path, start))
    return chosen


# ----------------------------------------------------------------------------------------- words


def old_words(trees: Iterable[ast.Module]) -> tuple[Counter[str], Counter[str]]:
    """Uses of the old words: in identifiers, and in docstrings and other texts."""
    wanted = set(OLD_WORDS)
    names: Counter[str] = Counter()
    texts: Counter[str] = Counter()
    for tree in trees:
        for node in ast.walk(tree):
            for identifier in _identifiers(node):
                names.update(w for w in words_of_name(identifier) if w in wanted)
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                words = re.findall(r"[a-z]+", FIELD.sub(" ", node.value.lower()))
                texts.update(w for w in words if w in wanted - PLAIN)
    return names, texts


def _identifiers(node: ast.AST) -> Iterator[str]:
    for part in ("id", "attr", "arg", "name", "asname", "module"):
        value = getattr(node, part, None)
        if isinstance(value, str) and value not in PYTHONS:
            yield value
    if isinstance(node, ast.Global | ast.Nonlocal):
        yield from node.names


def words_of_name(name: str) -> list[str]:
    """An identifier cut at dots, underscores and capitals.

    >>> words_of_name("_kept_logits.FoundBall")
    ['kept', 'logits', 'found', 'ball']
    """
    return [w.lower() for w in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


def homonymous_types(
    trees: Mapping[str, ast.Module], *, aliases: bool = True
) -> dict[str, list[str]]:
    """Type names that several modules define, with these modules."""
    found: dict[str, set[str]] = defaultdict(set)
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    imported = {
        one.name for node in nodes if isinstance(node, ast.ImportFrom) for one in node.names
    }
    for path, tree in trees.items():
        names = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        if aliases:
            names += [name for node in tree.body for name in _aliases(node)]
        for name in names:
            if not name.startswith("_") or name in imported:
                found[name].add(path)
    return {name: sorted(at) for name, at in sorted(found.items()) if len(at) > 1}


def _aliases(node: ast.stmt) -> list[str]:
    """Names of a statement such as `Scores = Float[Tensor, "n"]`; a TypeVar is none."""
    if not isinstance(node, ast.Assign) or not isinstance(
        node.value, ast.Subscript | ast.BinOp | ast.Name | ast.Attribute
    ):
        return []
    names = [target.id for target in node.targets if isinstance(target, ast.Name)]
    return [name for name in names if re.fullmatch(r"_?[A-Z]\w*[a-z]\w*", name)]


# ------------------------------------------------------------------------------------------ main


def table(figures: Mapping[str, Any]) -> str:
    """The figures as text: counts first, then what is behind them."""
    lines = [
        f"{key.replace('_', ' '):28} {value:>8,}"
        for key, value in figures.items()
        if isinstance(value, int)
    ]
    for key, value in figures.items():
        if isinstance(value, dict | list):
            lines += ["", f"## {key.replace('_', ' ')} ({len(value)})"]
            lines += [_row(key, one, value) for one in value]
    return "\n".join(lines)


def _row(key: str, one: Any, value: Any) -> str:
    if key == "duplicates":
        return f"{one['lines']:>6}  {', '.join(one['at'])}"
    if key == "homonyms":
        return f"{one:24} {', '.join(value[one])}"
    return f"{value[one]:>6,}  {one}" if isinstance(value, dict) else f"        {one}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Path(__file__).parents[1] / "src" / "counterlens"
    parser.add_argument("package", type=Path, nargs="?", default=default)
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    given = parser.parse_args(arguments)
    if not given.package.is_dir():
        parser.error(f"{given.package} is no folder")
    figures = measure(given.package)
    print(json.dumps(figures, indent=1) if given.json else table(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
