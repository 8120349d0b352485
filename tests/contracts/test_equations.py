"""The equation index against the tags in the code, and the tool against small made-up packages."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("equations", ROOT / "tools" / "equations.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["equations"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


equations = tool()


def test_the_index_of_this_repository_is_in_order() -> None:
    assert equations.verify() == []


def test_the_index_is_not_empty() -> None:
    keys = {tag.key for tag in equations.scan()}
    assert {"guo2017", "ratio2020"} <= keys


BIB = "@article{guo2017,\n  title = {On {Calibration}},\n}\n"
CODE = '''
"""Module."""


def ece(x):
    """Error.

    Equation: guo2017 (3)   ECE = Σ a
        + b
    More words.
    """


class Thing:
    """Record."""

    def area(self):
        """Area.

        Equation: guo2017 §4 Fig. 2   |a| · b
        """
'''


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "docs" / "papers").mkdir(parents=True)
    (tmp_path / "docs" / "papers.bib").write_text(BIB)
    (tmp_path / "src" / "a.py").write_text(CODE)
    return tmp_path


def write_index(root: Path) -> None:
    text = equations.index(equations.scan(root), equations.bibliography(root))
    (root / "docs" / "equations.md").write_text(text)


def test_tags_are_read_with_place_formula_and_name(package: Path) -> None:
    found = [(t.key, t.where, t.formula, t.name, t.line) for t in equations.scan(package)]
    assert found == [
        ("guo2017", "(3)", "ECE = Σ a + b", "ece", 5),
        ("guo2017", "§4 Fig. 2", "|a| · b", "Thing.area", 17),
    ]


def test_an_index_in_order_has_no_faults(package: Path) -> None:
    write_index(package)
    assert equations.verify(package) == []
    text = (package / "docs" / "equations.md").read_text()
    assert "On Calibration" in text
    assert "\\|a\\| · b" in text


def test_a_moved_function_does_not_make_the_index_stale(package: Path) -> None:
    write_index(package)
    path = package / "src" / "a.py"
    path.write_text("\n\n" + path.read_text())
    assert equations.verify(package) == []


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("guo2017 (3)", "guo2018 (3)", "guo2018 is not in docs/papers.bib"),
        ("guo2017 (3)   ECE", "guo2017 ECE", "cannot read"),
        ("ECE = Σ a", "ECE = Σ c", "stale"),
        ("Equation: guo2017 (3)   ECE = Σ a", "Nothing", "stale"),
    ],
)
def test_each_fault_is_found(package: Path, old: str, new: str, fault: str) -> None:
    write_index(package)
    path = package / "src" / "a.py"
    path.write_text(path.read_text().replace(old, new))
    assert any(fault in line for line in equations.verify(package))


def test_a_paper_page_that_lists_an_untagged_function_is_found(package: Path) -> None:
    write_index(package)
    page = package / "docs" / "papers" / "guo2017.md"
    rows = "| equation | function |\n|---|---|\n| (3) | `ece` |\n| (4) | `Thing.area` |\n"
    page.write_text(rows)
    assert equations.verify(package) == []
    page.write_text(rows + "| (5) | `gone` |\n\n| other |\n|---|\n| `free` |\n")
    assert equations.verify(package) == ["docs/papers/guo2017.md:5: gone has no tag of guo2017"]


def test_a_key_given_twice_is_found(package: Path) -> None:
    (package / "docs" / "papers.bib").write_text(BIB + BIB)
    assert equations.verify(package) == ["docs/papers.bib has guo2017 twice"]
