"""How the package is built, measured on a small made-up tree: figures counted by hand."""

import ast
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("measure", ROOT / "tools" / "measure.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["measure"] = module
    spec.loader.exec_module(module)
    return module


measure = tool()
SHARED = """
    total = 0
    for row in rows:
        if row > 3:
            total += row  {comment}
        total -= 1
    total *= 2
    return total
"""
FILES = {
    "__init__.py": '"""A package."""\n',
    "errors.py": "class Told(Exception):\n    pass\n",
    "base.py": "from pkg.errors import Told\nScores = list[float]\nfound_rows = 3\n",
    "deep/__init__.py": "",
    "deep/one.py": "from .two import f\nfrom .. import base\n\ndef g():\n    return f()\n",
    "deep/two.py": "def f():\n    from pkg.deep import one\n    return one\n",
    "deep/three.py": "import pkg.deep.one\n\nclass Told:\n    '''What was told or untold.'''\n",
    "deep/four.py": "Scores = dict[str, float]\n\ndef first(rows):"
    + SHARED.format(comment="# a comment"),
    "long.py": "def wide(self, a, b, c, d, e, f, g, *h, i=1):\n"
    + "    self.kept = 1\n" * 60
    + "\ndef second(rows):"
    + SHARED.format(comment=""),
}


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict:
    root = tmp_path_factory.mktemp("tree") / "pkg"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return measure.measure(root)


def test_modules_and_folders_are_counted(figures: dict) -> None:
    assert figures["modules"] == 9
    assert figures["folders"] == {"deep": 5, ".": 4}
    assert figures["most_files_in_a_folder"] == 5


def test_the_longest_chain_skips_imports_inside_functions(figures: dict) -> None:
    assert figures["chain"] == ["pkg.deep.three", "pkg.deep.one", "pkg.base", "pkg.errors"]
    assert figures["longest_chain"] == 4


def test_modules_in_a_circle_are_one_step() -> None:
    chain = measure.longest_chain({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"d"}})
    assert chain == ["a = b = c", "d"]


def test_long_and_wide_functions_are_named(figures: dict) -> None:
    assert figures["long_functions"] == {"long.py:wide": 61}
    assert figures["wide_functions"] == {"long.py:wide": 9}
    assert figures["functions_over_60_lines"] == figures["functions_over_8_parameters"] == 1


def test_a_record_of_options_is_no_parameter() -> None:
    (node,) = ast.parse("def f(x, options: Options | None, settings: RunSettings, *rest): ...").body
    assert measure.parameters(node) == 3  # x, rest and the second record


def test_private_types_count_where_another_module_imports_them() -> None:
    alone = {"a.py": ast.parse("_Rows = list[int]"), "b.py": ast.parse("_Rows = list[str]")}
    shared = {**alone, "c.py": ast.parse("from b import _Rows")}
    assert measure.homonymous_types(alone) == {}
    assert measure.homonymous_types(shared) == {"_Rows": ["a.py", "b.py"]}


def test_equal_blocks_are_found_whatever_their_comments(figures: dict) -> None:
    shared = [one for one in figures["duplicates"] if "deep/four.py:4" in one["at"]]
    assert shared == [{"lines": 7, "at": ["deep/four.py:4", "long.py:64"]}]
    inside = [one for one in figures["duplicates"] if one not in shared]
    assert all(at.startswith("long.py:") for one in inside for at in one["at"])


def test_old_words_are_counted_in_names_and_apart_in_texts(figures: dict) -> None:
    assert figures["names"] == {"kept": 60, "told": 3, "found": 1}  # untold is another word
    assert figures["texts"] == {"told": 1}
    assert measure.words_of_name("HTTPKept_madeUp2") == ["http", "kept", "made", "up", "2"]


def test_types_of_one_name_are_found(figures: dict) -> None:
    assert figures["homonyms"] == {
        "Scores": ["base.py", "deep/four.py"],
        "Told": ["deep/three.py", "errors.py"],
    }
    assert figures["homonymous_classes"] == 1


def test_table_and_json_say_the_same(figures: dict, capsys: pytest.CaptureFixture[str]) -> None:
    text = measure.table(figures)
    assert "long.py:wide" in text
    assert json.loads(json.dumps(figures)) == figures
    assert measure.main([str(ROOT / "src" / "counterlens" / "runs"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["modules"] >= 1
