"""Every example in a docstring runs, or, where it costs minutes, fits the signature it calls."""

import ast
import doctest
import inspect
from importlib import import_module
from pathlib import Path

import pytest

import counterlens

PACKAGE = Path(counterlens.__file__).parent
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
SPACES = ("cgn", "curate", "reproduce")


def modules() -> list[str]:
    """Modules with examples in them, without importing any."""
    names = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if ">>> " in path.read_text(encoding="utf-8"):
            parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
            names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


def public() -> dict[str, object]:
    """Everything that `import counterlens as cl` gives, `curate.ood` among it."""
    found = {name: getattr(counterlens, name) for name in counterlens.__all__}
    spaces = {name: found.pop(name) for name in (*SPACES, "zoo")}
    for space in SPACES:
        module = spaces[space]
        found |= {f"{space}.{name}": getattr(module, name) for name in module.__all__}  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("name", modules())
def test_the_examples_of_a_module_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # runs/ of examples
    module = import_module(name)
    failed, _ = doctest.testmod(module, optionflags=FLAGS)
    assert not failed, capsys.readouterr().out


def test_every_public_name_is_documented() -> None:
    for name, value in public().items():
        assert inspect.getdoc(value), name
    contents = counterlens.__doc__ or ""
    missing = [name for name in counterlens.__all__ if name not in contents]
    assert not missing


def examples_of(function: object) -> list[str]:
    """The statements of the examples in a docstring."""
    return [
        one.source for one in doctest.DocTestParser().get_examples(inspect.getdoc(function) or "")
    ]


@pytest.mark.parametrize("name", [name for name, one in public().items() if callable(one)])
def test_examples_call_functions_with_parameters_that_they_have(name: str) -> None:
    function = public()[name]
    calls = [
        node
        for text in examples_of(function)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).split("cl.")[-1] in (name, name.split(".")[-1])
    ]
    for call in calls:
        places = [None] * len(call.args)
        inspect.signature(function).bind_partial(
            *places, **{str(k.arg): None for k in call.keywords}
        )  # type: ignore[arg-type]
