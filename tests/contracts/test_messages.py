"""Errors of the library say what to change in Python.

Flags are made of keywords in one place, `workflows._shared.options.in_flags`.

Oracle: the syntax tree of every module outside the command line.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import counterlens

ROOT = Path(counterlens.__file__).parent
FLAG = re.compile(r"(?<![\w-])--[a-z]")
COMMAND = re.compile(r"counterlens [a-z].*")  # a whole command may be quoted
TYPED = ("cli", "app", "review", "__main__.py")  # spoken to from a shell or a browser alone


def messages() -> Iterator[tuple[str, str]]:
    """Place and text of every error that is raised."""
    for path in sorted(ROOT.rglob("*.py")):
        place = path.relative_to(ROOT)
        if place.parts[0] in TYPED:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                yield f"{place}:{node.lineno}", _text(node.exc)


def _text(call: ast.Call) -> str:
    parts = [
        part.value
        for part in ast.walk(call)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]
    return "".join(parts)


def test_errors_of_the_library_name_no_flag() -> None:
    texts = dict(messages())
    assert len(texts) > 500
    flagged = {place: text for place, text in texts.items() if FLAG.search(COMMAND.sub("", text))}
    assert not flagged, flagged
