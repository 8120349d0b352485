"""Seconds to the first output and longest silence of every command.

Each command runs in a process of its own with both streams into one pipe; the moments at which
something arrives are noted. A silence is the time between two of them, from the start to the end.
Standard error is no terminal here, so lines of progress come every 1.5 s in the first minute of a
command, every 10 s up to the tenth, every minute after: silences longer than 2 s inside a longer
command are those of a log, and on a terminal the same line is rewritten every 1.5 s.
`load` is the machine's load average at the start, per core: wall seconds grow with it.

Run: .venv/bin/python benchmarks/first_output.py [WORDS of the commands wanted]
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

OUT = Path(__file__).parent / "results" / "first_output.json"
PLAIN, ROBUST, DATA = "zoo:cifar10-plain-small", "zoo:cifar10-ratio-small", "sample:cifar10"
COMMANDS = (
    "",
    "--help",
    "zoo",
    "zoo cifar10-plain-small",
    "reproduce",
    f"doctor {PLAIN} {DATA}",
    f"audit {PLAIN} {DATA} --limit 200 --out first",
    f"audit {ROBUST} {DATA} --limit 200 --out second",
    f"audit {PLAIN} {DATA} --limit 100 --attack l2:0.5 --attack-version fast --attack-points 8",
    "compare first second --out both",
    "report first",
    "evidence first",
    "export first model-card",
    f"explain {PLAIN} {DATA}#3 --target dog",
    f"explain cam {PLAIN} {DATA}#3",
    f"explain colour {PLAIN} {DATA}#3",
    f"explain frame {PLAIN} {DATA}#3",
    f"explain diffusion {PLAIN} {DATA}#3 --target ship --updates 2",
    "explain first --worst 1 --steps 20",
    f"neurons {PLAIN} --unit 3",
    f"disagree {PLAIN} {ROBUST} --class cat --count 1 --updates 1 --sampling-steps 4",
    f"curate adversarial {DATA} --filter {ROBUST} --limit 200 --shortlist 8 --out mined",
    "curate review mined --status",
    "cgn show zoo:wildlife-mnist-cgn",
    f"train finetune --data {DATA} --set epochs=1 --set held_out=0.9",
    "reproduce table ratio-table1",
)


def listen(line: list[str], folder: Path) -> dict[str, float | int]:
    """When output of one command arrived: the first, and the longest silence."""
    environment = {k: v for k, v in os.environ.items() if k != "COUNTERLENS_PROGRESS"}
    start = time.perf_counter()
    child = subprocess.Popen(
        line, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert child.stdout is not None
    moments = [0.0]
    while os.read(child.stdout.fileno(), 65536):
        moments.append(time.perf_counter() - start)
    code = child.wait()
    moments.append(time.perf_counter() - start)
    early = [m for m in moments if m <= 60]
    return {
        "code": code,
        "first": round(moments[1], 2),
        "silence": round(_longest(moments), 2),
        "silence_first_minute": round(_longest(early), 2),
        "seconds": round(moments[-1], 1),
    }


def _longest(moments: list[float]) -> float:
    return max((b - a for a, b in pairwise(moments)), default=0.0)


def main() -> None:
    """Print a row per command; store them where all ran."""
    wanted = sys.argv[1:]
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for command in COMMANDS:
            if wanted and not any(word in command for word in wanted):
                continue
            load = os.getloadavg()[0] / (os.cpu_count() or 1)
            line = [sys.executable, "-m", "counterlens", *shlex.split(command)]
            rows.append({"command": command, "load": round(load, 1), **listen(line, Path(name))})
            print(json.dumps(rows[-1]), flush=True)
    if not wanted:
        found = {
            "commands": len(rows),
            "slowest_first": max(row["first"] for row in rows),
            "longest_silence_first_minute": max(row["silence_first_minute"] for row in rows),
            "rows": rows,
        }
        OUT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
