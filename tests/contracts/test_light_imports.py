"""What is loaded when: the oracle is sys.modules of a fresh interpreter."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import counterlens

HEAVY = ("torch", "torchvision", "timm", "numpy", "scipy", "sklearn", "PIL", "matplotlib", "jinja2")
WITHOUT_TORCH = ("torch", "torchvision", "timm", "sklearn", "PIL", "matplotlib")


def loaded(code: str, names: tuple[str, ...]) -> set[str]:
    """Which of the names are in sys.modules after the code ran in a new interpreter."""
    tail = (
        "\nimport sys\n"
        f"sys.stderr.write('LOADED ' + ' '.join(n for n in {names!r} if n in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code + tail], capture_output=True, text=True, check=True
    )
    return set(done.stderr.rsplit("LOADED ", 1)[1].split())


HELP = """
from counterlens.cli import app
try:
    app({arguments!r}, standalone_mode=True)
except SystemExit as end:
    assert not end.code, end.code
"""


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert loaded("import counterlens", HEAVY) == set()


def commands() -> list[str]:
    from typer.main import get_command

    from counterlens.cli import app

    return sorted(getattr(get_command(app), "commands", {}))


def test_help_of_every_command_loads_nothing_heavy() -> None:
    names = commands()
    assert {"audit", "compare", "doctor", "report"} <= set(names)
    code = "".join(HELP.format(arguments=[*part, "--help"]) for part in ([], *([n] for n in names)))
    assert loaded(code, HEAVY) == set()


@pytest.mark.parametrize(
    "module",
    ["runs", "report", "label_spaces", "zoo", "errors", "workflows.compare", "workflows.report"],
)
def test_reading_runs_needs_no_torch(module: str) -> None:
    assert loaded(f"import counterlens.{module}", WITHOUT_TORCH) == set()


def test_no_public_name_is_hidden_by_a_module_of_the_same_name() -> None:
    """Importing a submodule puts it on the package and would shadow a function of that name."""
    package = Path(counterlens.__file__).parent
    modules = {path.stem for path in package.iterdir() if path.suffix in ("", ".py")}
    for name in modules & set(counterlens.__all__):
        assert inspect.ismodule(getattr(counterlens, name)), name
