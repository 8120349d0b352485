"""Fifty mistyped commands: what each is answered, and in how many seconds.

Each runs in a process of its own, in a folder with `photos/` and one run, as a user would type it.
An answer is right when it ends with exit code 2 and holds the text beside the command: the right
suggestion, or the choices. Wall seconds depend on what else the machine does; CPU seconds are
those of the process. What only an opened set or the user's own model can tell (picture 99999 of a
set, a class of one's own network) is answered later and is not among them.

Run: .venv/bin/python benchmarks/mistyped.py
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

OUT = Path(__file__).parent / "results" / "mistyped.json"
PLAIN, DATA = "zoo:cifar10-plain-small", "sample:cifar10"
AUDIT, PICTURE = f"audit {PLAIN} {DATA}", f"{PLAIN} {DATA}#3"
CASES: dict[str, str] = {
    f"audt {PLAIN} {DATA}": "'audit'",
    f"doktor {PLAIN}": "'doctor'",
    f"explane {PICTURE}": "'explain'",
    "trian cifar10-plain-small --data photos": "'train'",
    "reproduse table ratio-table1": "'reproduce'",
    f"audit zoo:cifar10-plian {DATA}": "zoo:cifar10-plain-small?",
    f"audit zoo:cifar10plain {DATA}": "zoo:cifar10-plain-small?",
    f"audit cifar10-plain-small {DATA}": "zoo:cifar10-plain-small?",
    f"audit tim:resnet18 {DATA}": "timm?",
    f"audit resnet18 {DATA}": "timm:resnet18",
    f"audit zoo: {DATA}": "zoo:NAME",
    f"audit weights.pth {DATA}": "timm:NAME@weights.pth",
    f"audit mine.py {DATA}": "mine.py:FACTORY",
    f"audit mine.py:make {DATA}": "mine.py does not exist",
    f"audit {PLAIN} sampel:cifar10": "sample:cifar10?",
    f"audit {PLAIN} sample:cifr10": "sample:cifar10?",
    f"audit {PLAIN} cifar10": "sample:cifar10?",
    f"audit {PLAIN} photo/": "photos?",
    f"audit {PLAIN} nosie:uniform": "noise:uniform?",
    f"audit {PLAIN}": "MODEL... DATA",
    f"{AUDIT} --atack l2:0.5": "--attack",
    f"{AUDIT} --attack l3:0.5": "l2:0.5",
    f"{AUDIT} --attack l2": "l2:0.5",
    f"{AUDIT} --attack linf:8": "linf:8/255?",
    f"{AUDIT} --attack-version standrad": "standard?",
    f"{AUDIT} --budget tenminutes": "10m",
    f"{AUDIT} --require acc>=0.9": "accuracy.top1",
    f"{AUDIT} --require accuracy.top1=0.9": "accuracy.top1>=0.9",
    f"{AUDIT} --ood noise:unifrom": "noise:uniform?",
    f"{AUDIT} --ood textures": "sample:textures?",
    f"{AUDIT} --limit ten": "--limit",
    f"{AUDIT} --device gpu": "cuda",
    f"{AUDIT} --corruptions fogg": "fog?",
    f"{AUDIT} --ood noise:uniform --ood-score energie": "energy?",
    f"doctor {PLAIN} sample:cifar-10": "sample:cifar10?",
    "compare runs/frist runs/first": "runs/first?",
    "report runs/frist": "runs/first?",
    "zoo cifar10-plain-smal": "zoo:cifar10-plain-small?",
    f"explain {PLAIN} photos/caat.png --target dog": "photos/cat.png?",
    f"explain {PICTURE} --target dogg": "dog",
    f"explain {PICTURE} --method difusion": "'diffusion'",
    f"explain kam {PICTURE}": "'cam'",
    f"explain {PLAIN}": "SPEC#ID",
    "train cifar10-plian-small --data photos": "cifar10-plain-small",
    "train cifar10-plain-small --data photos --set epohcs=3": "epochs?",
    "train finetune --data photos --set start=zoo:cifar10-plian": "zoo:cifar10-plain-small?",
    "reproduce ratio-table1": "reproduce table ratio-table1?",
    "reproduce figure ratio-figure3": "'ratio-figure13'",
    "curate adversarial photos --filter zoo:cifar10-plian": "zoo:cifar10-plain-small?",
    f"disagree {PLAIN} zoo:cifar10-ratio-small --class kat": "cat",
}
"""Command → what its answer must hold."""


def furnish(folder: Path) -> None:
    """A folder as a user has it: pictures by class, and a run."""
    (folder / "photos").mkdir()
    (folder / "photos" / "cat.png").touch()
    (folder / "runs" / "first").mkdir(parents=True)
    (folder / "runs" / "first" / "run.json").write_text("{}")


def answer(command: str, folder: Path) -> dict[str, object]:
    """How one command ended, what it said, and its seconds."""
    line = [sys.executable, "-m", "counterlens", *shlex.split(command.replace(">", "\\>"))]
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as said:
        child = subprocess.Popen(line, cwd=folder, stdout=said, stderr=said)
        _, status, used = os.wait4(child.pid, 0)
        wall = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        text = said.read()
    right = child.returncode == 2 and CASES[command] in text
    cpu = used.ru_utime + used.ru_stime
    return {"command": command, "right": right, "wall": round(wall, 2), "cpu": round(cpu, 2)}


def main() -> None:
    """Print and store one row per command."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        furnish(folder)
        answer(next(iter(CASES)), folder)  # compiled modules are written once
        rows = [answer(command, folder) for command in CASES]
    found = {
        "commands": len(rows),
        "right": sum(bool(row["right"]) for row in rows),
        "slowest_wall": max(float(str(row["wall"])) for row in rows),
        "slowest_cpu": max(float(str(row["cpu"])) for row in rows),
        "rows": rows,
    }
    OUT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
