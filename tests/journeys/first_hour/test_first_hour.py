"""The first hour of a new user: each step by the command line alone, with what is seen.

The whole of what was printed is written to the file that COUNTERLENS_TRANSCRIPT names, so that it
can be read. What is asserted of every step: the expected exit code, no traceback, no FAIL of the
doctor about a right model, and a run whose page exists. The pictures and models
are described in `furnish.py`.
"""

import importlib.util
import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from counterlens.runs import Run
from journeys.command import Command, Said
from journeys.first_hour.furnish import furnish
from journeys.first_hour.steps import OWN, STEPS, Step

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("hour")
    furnish(at)
    _pool(at)
    return at


def _pool(at: Path) -> None:
    """A pool of other pictures of the sample, in folders by class."""
    import numpy as np
    from PIL import Image

    from counterlens.data import open_set

    images = open_set("sample:cifar10")
    for k, name in enumerate(images.classes):
        (at / "pool" / name).mkdir(parents=True)
        for place, row in enumerate(np.flatnonzero(images.labels == k)[50:80]):
            Image.fromarray(images.read(int(row))).save(at / "pool" / name / f"{place}.png")


@pytest.fixture(scope="module")
def transcript() -> Iterator[list[str]]:
    lines = ["# The first hour, as it is seen", ""]
    yield lines
    if path := os.environ.get("COUNTERLENS_TRANSCRIPT"):
        Path(path).write_text("\n".join(lines), encoding="utf-8")


def typed(command: Command, step: Step, transcript: list[str]) -> Said:
    said = command(*shlex.split(step.line))
    screen = (said.err + said.out).strip().replace(str(command.at), "~")
    transcript += [f"## {step.title}", "", "```", f"$ counterlens {step.line}".rstrip(), screen]
    transcript += [f"(exit code {said.code})" if said.code else "", "```", ""]
    return said


def verdicts(at: Path) -> None:
    """Two people accept everything on the shortlist; both are simulated."""
    ids = [row["id"] for row in Run.open(at / "mined").table("shortlist")]
    rows = [
        {"item": item, "reviewer": f"simulated-{name}", "verdict": "accept"}
        for name in ("ann", "bob")
        for item in ids
    ]
    (at / "verdicts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("step", STEPS, ids=[step.title for step in STEPS])
def test_no_step_fails_or_puzzles(
    step: Step,
    folder: Path,
    transcript: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if step.needs and importlib.util.find_spec(step.needs) is None:
        pytest.skip(f"needs {step.needs}")
    if "--take" in step.line:
        verdicts(folder)
    said = typed(Command(monkeypatch, capsys, folder), step, transcript)
    screen = said.err + said.out
    assert said.code == step.code, screen
    assert "Traceback" not in screen
    assert "doctor, fail" not in screen
    assert "FAIL" not in screen or not step.line.startswith("doctor ")
    for text in step.seen:
        assert text in screen
    words = shlex.split(step.line)
    if "--out" in words and "freeze" not in words:
        run = folder / words[words.index("--out") + 1]
        assert (run / "DONE").exists()
        assert "mined" in run.name or (run / "report.html").exists()


def test_objects_in_python(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same network as an object, on arrays: the number that its file gave on the folder."""
    import numpy as np

    import counterlens as cl

    monkeypatch.chdir(folder)
    images = cl.open_set("photos")
    arrays = np.stack([images.read(i) for i in range(len(images))])
    net = cl.load(OWN)
    labels = np.array([net.classes.index(images.classes[k]) for k in images.labels])
    result = cl.audit(net, (arrays, labels), out=folder / "objects", quiet=True)
    stored = json.loads((folder / "own" / "result.json").read_text())["numbers"]
    assert result.numbers["accuracy.top1"].value == stored["accuracy.top1"]["value"]
    explained = cl.explain(net, arrays[0], target="cat", steps=10, out=folder / "asked", quiet=True)
    assert explained.report.exists()
