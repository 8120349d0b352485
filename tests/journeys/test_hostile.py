"""Faults and hostile input through the command line: no foreign code, no false success."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from journeys.command import Command, Said
from report_runs import audit_run

MODEL = "zoo:cifar10-plain-small"
DATA = ("sample:cifar10", "--limit", "40", "--device", "cpu", "--quiet")
ARMED = """
import os, pathlib, shutil, signal, sys
import torch
from counterlens import load

class Net(torch.nn.Module):
    input_size = (32, 32)

    def __init__(self):
        super().__init__()
        self.inner = load("zoo:cifar10-plain-small", device="cpu")
        self.classes = list(self.inner.classes)

    def forward(self, x):
        if os.path.exists("armed") and os.path.exists("out/run.json"):
            act = pathlib.Path("armed").read_text()
            os.remove("armed")
            exec(act)
        return self.inner(x)

make = Net
"""
"""A model that does what the file `armed` says, once, when a run is under way."""


def one_line(said: Said, code: int, *words: str) -> str:
    """The one line with which a command ended; no traceback, no claim of a defect."""
    assert said.code == code, said.err
    assert "Traceback" not in said.err and "defect" not in said.err, said.err
    line = said.lines[-1]
    assert all(word in line for word in words), said.err
    return line


def audit_armed(counterlens: Command, act: str) -> Said:
    Path("armed.py").write_text(ARMED)
    Path("armed").write_text(act)
    return counterlens("audit", "armed.py:make", *DATA, "--anyway", "--out", "out")


def resumable(folder: Path) -> bool:
    """Whether --resume would go on with it: the same command and settings, and no other file."""
    from counterlens.runs import Run

    settings = Run.open(folder).manifest["settings"]
    Run.create(folder, "audit", settings, resume=True).finish()
    return True


@pytest.fixture
def theirs(counterlens: Command) -> Path:
    """Somebody else's run, of simulated answers; a test may tamper with it."""
    return audit_run(counterlens.at / "theirs").folder


def tamper(run: Path, **settings: str) -> None:
    manifest = json.loads((run / "run.json").read_text())
    manifest["settings"] |= settings
    (run / "run.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("form", ["{}", "best={}"])
def test_explaining_a_run_does_not_run_its_code_unasked(
    counterlens: Command, theirs: Path, form: str
) -> None:
    (theirs / "evil.py").write_text(
        "import pathlib\npathlib.Path('ran').touch()\ndef f(): raise RuntimeError('it ran')\n"
    )
    tamper(theirs, model=form.format(f"{theirs}/evil.py:f"))
    said = counterlens("explain", str(theirs), "--worst", "1", "--method", "cam")
    one_line(said, 2, "evil.py:f", "run.json", "--trust-remote-code")
    assert not Path("ran").exists() and not (theirs / "explained").exists()
    said = counterlens(
        "explain", str(theirs), "--worst", "1", "--method", "cam", "--trust-remote-code"
    )
    one_line(said, 2, "it ran")
    assert Path("ran").exists()


def test_explaining_a_run_shows_no_pictures_it_was_not_made_of(
    counterlens: Command, theirs: Path
) -> None:
    """The ids are in the run, and the private folder has pictures of these names."""
    from PIL import Image

    facts = json.loads((theirs / "logits" / "cifar10.json").read_text())
    for name in ("cat", "dog"):
        (Path("cifar10") / name).mkdir(parents=True)
        Image.new("RGB", (32, 32), "red").save(Path("cifar10") / name / "1.png")
    facts["ids"] = ["cat/1.png"] * len(facts["ids"])
    (theirs / "logits" / "cifar10.json").write_text(json.dumps(facts))
    tamper(theirs, data=str(Path("cifar10").resolve()))
    said = counterlens("explain", str(theirs), "--worst", "1", "--method", "cam")
    one_line(said, 2, "is not the data", "fingerprint")
    assert not (theirs / "explained").exists()


@pytest.mark.parametrize(
    "text", ["import sys\nsys.exit(0)\n", "import sys\ndef make():\n    sys.exit(0)\n"]
)
def test_a_factory_that_exits_is_no_success(counterlens: Command, text: str) -> None:
    Path("ends.py").write_text(text)
    said = counterlens("audit", "ends.py:make", *DATA)
    one_line(said, 2, "ends.py", "line", "sys.exit(0)")
    assert said.out == ""


def test_a_network_that_exits_while_it_is_measured_is_no_success(counterlens: Command) -> None:
    said = audit_armed(counterlens, "sys.exit(0)")
    one_line(said, 2, "sys.exit(0)")
    assert said.out == "" and not Path("out/DONE").exists()


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_says_what_is_kept_and_how_to_go_on(
    counterlens: Command, name: str, code: int
) -> None:
    """A real signal to this very process, in the middle of an audit."""
    before = signal.getsignal(signal.SIGTERM)
    given = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    try:
        said = audit_armed(counterlens, f"os.kill(os.getpid(), signal.{name})")
    finally:
        signal.signal(signal.SIGINT, given)
    one_line(said, code, "the work so far is in out", "--out out --resume")
    assert signal.getsignal(signal.SIGTERM) == before
    assert resumable(Path("out"))


@contextmanager
def small_files(size: int) -> Iterator[None]:
    """Inside, this process can write no file larger than so many bytes, as on a full disk."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_one_line_and_the_run_is_resumed(counterlens: Command) -> None:
    Path("armed.py").write_text(ARMED)
    with small_files(6000):
        said = counterlens("audit", "armed.py:make", *DATA, "--anyway", "--out", "out")
    one_line(said, 2, "disk is full", "out/", "--resume")
    assert Path("out/run.json").exists() and not list(Path("out").rglob("*.part"))
    assert resumable(Path("out"))


def test_a_real_disk_that_is_full(tmp_path: Path) -> None:
    """A file system of 64 KiB; where none may be mounted, the test before this one stands alone."""
    from counterlens.errors import DiskFull
    from counterlens.runs import Run, atomic

    disk = tmp_path / "disk"
    disk.mkdir()
    if os.system(f"mount -t tmpfs -o size=64k none {disk} 2>/dev/null") != 0:
        pytest.skip("this process may not mount a file system")
    try:
        run = Run.create(disk / "out", "audit", {})
        with pytest.raises(DiskFull, match="disk is full"):
            run.write_table("big", [{"text": "x" * 100_000}])
        import torch

        with (
            pytest.raises(DiskFull, match="disk is full"),
            atomic(run.path("state", "a.pt")) as part,
        ):
            torch.save(torch.zeros(100_000), part)
        Run.create(disk / "out", "audit", {}, resume=True).write_table("small", [{"text": "x"}])
        run.finish()
    finally:
        os.system(f"umount {disk}")


def test_a_run_folder_that_is_removed_is_one_line(counterlens: Command) -> None:
    said = audit_armed(counterlens, "shutil.rmtree('out')")
    one_line(said, 2, "out", "was removed")
    assert not Path("out").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="FIFOs are of POSIX systems")
def test_a_fifo_among_pictures_is_not_waited_for(counterlens: Command) -> None:
    Path("data/cat").mkdir(parents=True)
    os.mkfifo("data/cat/1.png")
    one_line(counterlens("audit", MODEL, "data"), 2, "data/cat/1.png", "FIFO")


@pytest.mark.parametrize("spec", ["x" * 5000, "~nobody-here/model", "[" * 3000])
def test_specs_that_no_file_system_takes(counterlens: Command, spec: str) -> None:
    one_line(counterlens("audit", spec, "sample:cifar10"), 2, "error:")
    one_line(counterlens("audit", MODEL, spec), 2, "error:")
    one_line(counterlens("report", spec), 2, "error:")


def test_usage_and_help_end_as_before(counterlens: Command) -> None:
    assert counterlens("--help").code == 0
    assert counterlens("audit", "--no-such-option").code == 2
    assert counterlens("audit", MODEL).code == 2
    assert counterlens("no-such-command").code == 2
    assert counterlens("--version").code == 0
