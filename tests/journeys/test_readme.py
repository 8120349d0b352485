"""The README: every command printed in it runs as printed, and its lines of Python.

The light test stops each command where it would import torch: a mistyped one ends before, with
exit code 2. The slow test runs them in a folder with the files that the README speaks of.
"""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from journeys.command import Command
from journeys.first_hour.furnish import furnish

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
WAITS = "counterlens app runs"
"""Waits for its user; tests/journeys/test_app_browser.py starts it."""
CHILD = """
import contextlib, io, json, shlex, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise SystemExit("torch")

sys.meta_path.insert(0, Blocked())
from counterlens.cli import main
ends = {}
for line in json.load(sys.stdin):
    sys.argv = shlex.split(line)
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main()
        except SystemExit:
            ends[line] = said.getvalue()
print(json.dumps(ends))
"""


def commands() -> list[str]:
    lines = re.findall(r"^    (counterlens .*)$", TEXT, re.MULTILINE)
    return [re.sub(r"\s+# .*", "", line).strip() for line in lines]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("readme")
    furnish(at, all_models=False)
    (at / "own.py").rename(at / "my_model.py")
    return at


def test_every_command_is_understood(folder: Path) -> None:
    lines = [line for line in commands() if line != WAITS]
    assert len(lines) >= 12
    done = subprocess.run(
        [sys.executable, "-c", CHILD], input=json.dumps(lines), cwd=folder,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    ends = json.loads(done.stdout)
    assert list(ends) == lines
    wrong = {line: said for line, said in ends.items() if "sys.exit('torch')" not in said}
    assert not wrong, wrong


@pytest.mark.slow
@pytest.mark.parametrize("line", [line for line in commands() if line != WAITS])
def test_every_command_runs_as_printed(
    line: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = Command(monkeypatch, capsys, folder)(*shlex.split(line)[1:])
    assert said.code in ((0, 4) if " repair " in line else (0,)), said.err  # 4: not shown to help
    assert (folder / said.last).is_dir()


def test_the_lines_of_python_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import counterlens as cl

    monkeypatch.chdir(folder)
    whole = cl.load("zoo:cifar10-plain-small")
    hand = {
        "net": whole.net,
        "names": whole.classes,
        "mean": torch.as_tensor(whole.mean).flatten().tolist(),
        "std": torch.as_tensor(whole.std).flatten().tolist(),
    }
    (block,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len([line for line in block.splitlines() if line]) <= 6
    exec(compile(block, "README.md", "exec"), hand)
    assert "0.9" in capsys.readouterr().out or hand["result"].numbers["accuracy.top1"].value > 0.8
    assert hand["result"].report.exists()


def test_every_page_and_picture_it_names_is_there() -> None:
    names = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert len(names) > 20
    assert [name for name in names if not (ROOT / name).exists()] == []
