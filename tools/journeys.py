"""Walk six journeys and count the files of the package that they enter.

    .venv/bin/python tools/journeys.py OUT [--only NAME...]

Each journey is a row of `tools/golden.py`, so it runs on what is shipped, and it is walked by
Python's profiler. Counted are:

    files       modules in which at least one function is called; imports, and what runs while a
                module is imported (decorators, declared options), do not count
    reversals   pairs of modules in which one calls the other although it lies in a lower layer: a
                reader who follows the calls down must go up again. Layers are those of the import
                contract in pyproject.toml, and the names that modules had before.
    folders     folders in which these files lie

Rows that a journey needs are run before it, without being walked. PYTHONPATH decides which package
is walked; OUT/NAME.json holds the modules in the order in which they are entered.
"""

import argparse
import json
import os
import runpy
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import golden

JOURNEYS = ("doctor", "audit-fast", "compare", "explain-pixel", "explain-diffusion", "train-plain")
LAYERS = (
    ("errors", "version"),
    ("types", "lazy", "progress", "dicom"),
    ("runs", "label_spaces"),
    ("checks", "review"),
    ("objectives", "ball", "classifier", "images", "zoo", "report"),
    ("search", "metrics", "data", "predictions", "predict", "scale"),
    ("generators", "screen"),
    ("models",),
    ("diagnosis", "doctor", "losses", "explanations", "filters", "fit"),
    ("workflows", "recipes"),
    ("cgn", "curate", "reproduce"),
    ("app",),
    ("cli", "testing", "hooks", "__main__"),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


class Walk:
    """The modules of the package in the order in which a call enters them."""

    def __init__(self, package: Path) -> None:
        self.root = f"{package}{os.sep}"
        self.files: dict[str, None] = {}
        self.upward: dict[str, None] = {}
        self.known: dict[Any, str] = {}

    def module(self, frame: FrameType) -> str:
        """The file of a frame below the package; empty for others and for imports."""
        code = frame.f_code
        if code not in self.known:
            inside = code.co_filename.startswith(self.root) and code.co_name != "<module>"
            self.known[code] = code.co_filename.removeprefix(self.root) if inside else ""
        return self.known[code]

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Of the profiler."""
        if event != "call" or not (here := self.module(frame)):
            return
        above = frame.f_back
        while above is not None and not self.module(above):
            above = above.f_back
        caller = "" if above is None else self.module(above)
        pair = f"{caller} -> {here}" if caller and level(caller) < level(here) else ""
        new = here not in self.files or (pair and pair not in self.upward)
        if new and not self.importing(frame):
            self.files.setdefault(here)
            if pair:
                self.upward.setdefault(pair)

    def importing(self, frame: FrameType) -> bool:
        """Whether a module of the package is just being imported: its classes run their bodies."""
        below: FrameType | None = frame
        while below is not None:
            code = below.f_code
            if code.co_name == "<module>" and code.co_filename.startswith(self.root):
                return not code.co_filename.endswith("__main__.py")
            below = below.f_back
        return False


def level(path: str) -> int:
    """The layer of a file; what lies beside all layers is below them."""
    return LEVEL.get(path.partition("/")[0].removesuffix(".py"), -1)


def walk(name: str, out: Path) -> dict[str, Any]:
    """Run a row in this process and count; the result is written to OUT/NAME.json."""
    import counterlens

    one = Walk(Path(counterlens.__file__).parent)
    words = golden.words_of(name)
    sys.argv = list(words)
    threading.setprofile(one)
    sys.setprofile(one)
    try:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if ended.code:
            raise
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    folders = {str(Path(path).parent) for path in one.files}
    facts = {
        "journey": name, "files": len(one.files), "folders": len(folders),
        "reversals": len(one.upward), "entered": list(one.files), "upward": list(one.upward),
    }  # fmt: skip
    (out / f"{name}.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", default=JOURNEYS, metavar="NAME")
    given = parser.parse_args()
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    needed = [other for name in given.only for other in golden.needs(name)]
    if needed and golden.run(out, needed, again=False):
        raise SystemExit("a row that a journey needs did not end well")
    os.chdir(out)
    os.environ.update(golden.ENVIRONMENT)
    golden.make_inputs(Path("inputs"))
    print(f"{'journey':20} {'files':>6} {'folders':>8} {'reversals':>10}")
    for name in given.only:
        if os.fork() == 0:
            facts = walk(name, out)
            print(f"{name:20} {facts['files']:6} {facts['folders']:8} {facts['reversals']:10}")
            sys.stdout.flush()
            os._exit(0)
        os.wait()


if __name__ == "__main__":
    main()
