"""The table of all options, from their records.

.venv/bin/python tools/options.py --write docs/reference/options.md
.venv/bin/python tools/options.py --verify
"""

import argparse
import sys
import typing
from collections.abc import Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import Any

from counterlens.cli import app
from counterlens.cli.commands import records
from counterlens.workflows._shared.options import options_of

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "options.md"
HEAD = """# Options

Written by `make docs` from the records in the code. *Kept* says whether `run.json` keeps the option
and `--resume` compares it.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for command, kind in records(app).items():
        rows = [_row(kind, name) for name in options_of(kind)]
        if rows:
            head = "| flag | Python | type | default | kept | meaning |\n|---|---|---|---|---|---|"
            parts.append("\n".join([f"## {command}", "", head, *rows, ""]))
    return "\n".join(parts)


def _row(kind: type[Any], name: str) -> str:
    one = options_of(kind)[name]
    facts = one.metadata
    annotation = typing.get_type_hints(kind)[name]
    words = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    words = words.replace("pathlib.", "").replace(" | None", "").replace("|", "\\|")
    default = "required" if one.default is MISSING else repr(one.default)
    default = "" if one.default is None or one.default == () else f"`{default}`"
    flag = (facts["flag"] or f"--{name.replace('_', '-')}").split("/")[0]
    unit = "" if annotation is bool else f" {facts['unit'] or name.upper()}"
    keyword = "" if facts["scope"] == "command" else f"`{name}`"
    kept = "yes" if facts["scope"] in ("settings", "objects") else "no"
    text = facts["help"].replace("|", "\\|")
    return f"| `{flag}{unit}` | {keyword} | {words} | {default} | {kept} | {text} |"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--verify", action="store_true")
    given = parser.parse_args(arguments)
    if given.write:
        given.write.write_text(page(), encoding="utf-8")
    if given.verify and PAGE.read_text(encoding="utf-8") != page():
        print("docs/reference/options.md is out of date: run make docs.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
