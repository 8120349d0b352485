"""Mistyped commands are answered with what was meant, without torch.

The oracle of speed is that torch, which takes seconds to import, cannot be imported at all: one
child process answers all commands with its import blocked. `benchmarks/mistyped.py` has the
seconds.
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CHILD = """
import contextlib, io, json, runpy, shlex, sys
from pathlib import Path

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "torchvision", "timm"):
            raise RuntimeError(f"{name} was imported")

sys.meta_path.insert(0, Blocked())
bench = runpy.run_path(sys.argv[1])
bench["furnish"](Path.cwd())
from counterlens.cli import main
rows = []
for command, expected in bench["CASES"].items():
    sys.argv = ["counterlens", *shlex.split(command.replace(">", "\\\\>"))]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main()
        except SystemExit as end:
            code = end.code
    rows.append([command, expected, code, said.getvalue()])
print(json.dumps(rows))
"""


def test_fifty_mistyped_commands_get_the_right_suggestion_without_torch(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(ROOT / "benchmarks" / "mistyped.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    rows = json.loads(done.stdout)
    assert len(rows) == 50
    wrong = [row for row in rows if row[2] != 2 or row[1] not in row[3]]
    assert not wrong, "\n".join(f"{row[0]} wants {row[1]}: {row[3]}" for row in wrong)
    one_line = [row[3].strip().splitlines() for row in rows if row[3].startswith("error:")]
    assert all(len(lines) == 1 for lines in one_line)
    assert not (tmp_path / "runs" / "first" / "result.json").exists()
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["first"]  # no run was begun
