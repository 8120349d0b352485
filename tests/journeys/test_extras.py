"""Extras isolated: without one, its use gives one line that names it, and nothing else breaks.

Oracle: a process in which Python finds none of the libraries (extras_absent.py), as in an
environment of the base packages alone. The same script was run in such an environment.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from counterlens.zoo.distributions import HELD
from journeys import extras_absent

pytestmark = pytest.mark.slow  # a process that imports everything
ROOT = Path(__file__).parents[2]


def answers(folder: Path, *options: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(extras_absent.__file__)), "--hide", *options],
        cwd=folder, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_without_an_extra_its_use_gives_one_line_that_names_it(tmp_path: Path) -> None:
    absent = answers(tmp_path)["absent"]
    assert len(absent) == len(extras_absent.USES) + 3
    for use, found in absent.items():
        *_, last = found["lines"]
        assert found["code"] == 2, (use, found)
        assert found["names"] in last, (use, found)
        assert sum("Traceback" in line for line in found["lines"]) == 0
    named = {found["names"] for found in absent.values()}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = extras["optional-dependencies"]
    libraries = {k: v for k, v in extras.items() if k not in ("dev", *HELD)}
    assert {f"counterlens[{name}]" for name in libraries} <= named
    written = {re.split(r"[>=\[]", line)[0] for v in libraries.values() for line in v}
    assert written == set(extras_absent.MODULES)  # each library of an extra was hidden


def test_without_any_extra_the_rest_works(tmp_path: Path) -> None:
    base = answers(tmp_path, "--base")["base"]
    assert len(base) == 7
    assert {name: found["code"] for name, found in base.items()} == dict.fromkeys(base, 0), base
