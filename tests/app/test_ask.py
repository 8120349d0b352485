"""Questions asked in the browser: the same command, byte for byte, and what happens when it ends.

Oracles: the command line itself; files on disk; the system's list of processes.
"""

import base64
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from app.visitor import visit
from counterlens.app.jobs import Jobs
from counterlens.data import open_set
from counterlens.images import decode, png_bytes
from counterlens.runs import Run
from journeys.command import Command
from report_runs import audit_run

ASK = {"model": "zoo:cifar10-plain-small", "method": "pixel", "norm": "l2", "target": "cat"}


def finished(here: Any, name: str, patience: float = 120) -> dict[str, Any]:
    """The state of a job once it has ended."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        facts = here.get("/job.json", name=name).json()
        if facts["state"] not in ("waiting", "running"):
            return facts
        time.sleep(0.1)
    raise AssertionError(f"{name} did not end: {facts}")


def name_of(answer: Any) -> str:
    return str(answer.url.params["name"])


def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Put a short script in the place of the command; the real one loads torch for seconds."""
    package = tmp_path / "fake" / "counterlens"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))


def test_what_a_method_does_not_take_is_refused(app):
    here = app()
    for field, value, words in (
        ("radius", "0.5", "A radius"), ("steps", "5", "A number of steps"),
        ("norm", "linf", "A norm"),
        ("judge", "zoo:cifar10-ratio-small", "A further model"),
    ):  # fmt: skip
        sent = {**ASK, "method": "cam", "sample": "cifar10", "number": "1", field: value}
        answer = here.post("/ask", data=sent)
        assert answer.status_code == 400, field
        assert f"{words} has no effect with the method cam" in answer.text
    assert here.jobs_started() == 0


def ask(here: Any, **more: str) -> Any:
    answer = here.post("/ask", data={**ASK, "sample": "cifar10", "number": "12", **more})
    assert answer.status_code == 200, answer.text[-800:]
    return answer


def test_the_browser_and_the_command_line_give_the_same_bytes(app, tmp_path, monkeypatch, capsys):
    photo = png_bytes(open_set("sample:cifar10").read(12))
    here = app()
    sent = {**ASK, "radius": "0.5, 1.5", "steps": "6", "judge": "zoo:cifar10-ratio-small"}
    answer = here.post("/ask", data=sent, files={"upload": ("my cat!.png", photo, "image/png")})
    assert answer.url.path == "/job", answer.text[-800:]
    facts = finished(here, name_of(answer))
    assert facts["state"] == "finished" and facts["share"] == 1, facts
    upload = next((here.folders.state / "uploads").iterdir())
    assert upload.read_bytes() == photo and upload.name.endswith("-my_cat.png")
    mine = Run.open(next(path.parent for path in here.folders.root.glob("*/run.json")))

    command = Command(monkeypatch, capsys, tmp_path)
    out = tmp_path / "typed" / mine.folder.name
    typed = command(
        "explain", "zoo:cifar10-plain-small", str(upload), "--target", "cat", "--radius", "0.5",
        "--radius", "1.5", "--steps", "6", "--with", "zoo:cifar10-ratio-small", "--out", str(out),
    )  # fmt: skip
    assert typed.code == 0, typed.err
    files = [
        sorted(str(p.relative_to(f)) for p in f.rglob("*") if p.is_file())
        for f in (out, mine.folder)
    ]
    assert files[0] == files[1]
    live = json.loads(next((here.folders.state / "jobs").glob("*/live.json")).read_text())
    assert [row["name"] for row in live["rows"]] == ["cat, l2 0.5", "cat, l2 1.5"]
    assert all(0 <= row["confidence"] <= 1 for row in live["rows"]) and live["more"] == 0
    last = decode(base64.b64decode(live["rows"][1]["image"].partition(",")[2]), name="live")
    assert last.shape == (32, 32, 3) and (last != decode(photo, name="photo")).any()
    compared = 0
    for name in files[0]:
        if name not in ("run.json", "report.html", "DONE"):  # they hold times
            assert (out / name).read_bytes() == (mine.folder / name).read_bytes(), name
            compared += 1
    assert compared >= 8 and "result.json" in files[0]
    page = here.get("/run", run=mine.folder.name).text
    assert "How the change grows" in page and page.count("<meter") == 3
    assert "Open the run" in here.get("/job", name=name_of(answer)).text


def test_a_mistake_of_a_run_is_asked_about_by_its_place_in_the_set(app, tmp_path, monkeypatch):
    fake(tmp_path, monkeypatch, "import sys; print(sys.argv)")
    audit_run(tmp_path / "runs" / "first")
    here = app()
    answer = here.post(
        "/ask", data={**ASK, "run": "first", "set": "cifar10", "id": "cifar10-test/3"}
    )
    job = here.get("/job", name=name_of(answer)).text
    assert "sample:cifar10#cifar10-test/3" in job and "--target=cat" in job
    path = Run.open(tmp_path / "runs" / "first").table("gallery")[0]["image"]
    answer = here.post("/ask", data={**ASK, "run": "first", "path": path})
    assert str(tmp_path / "runs" / "first" / path) in here.get("/job", name=name_of(answer)).text


SLOW = """
import os, sys, time
print("counterfactuals, pictures, 0 of 1 (40%), step 40 of 100, 3 s, about 5 s left",
      file=sys.stderr, flush=True)
child = os.fork()
time.sleep(60)
"""


LIVE = """
import json, os, pathlib, sys, time
(pathlib.Path(os.environ["COUNTERLENS_LIVE"]) / "live.json").write_text(json.dumps(
    {"rows": [{"name": "cat, l2 1", "confidence": 0.25, "image": "data:image/png;base64,"}]}))
print("searching, step 3 of 30, 4 s", file=sys.stderr, flush=True)
time.sleep(60)
"""


def test_the_images_of_a_search_are_told_while_it_runs(app, tmp_path, monkeypatch):
    fake(tmp_path, monkeypatch, LIVE)
    here = app()
    name = name_of(ask(here))
    assert started(here, name)["live"]["rows"][0]["confidence"] == 0.25
    (here.folders.state / "jobs" / name / "live.json").write_text("{torn")
    assert here.get("/job.json", name=name).json()["live"] == {}
    here.post("/job/cancel", params={"name": name})
    assert finished(here, name)["live"] == {}


def started(here: Any, name: str) -> dict[str, Any]:
    """The state of a job once it has printed how far it is."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        facts = here.get("/job.json", name=name).json()
        if facts["share"]:
            return facts
        time.sleep(0.05)
    raise AssertionError(facts)


def alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def ended(group: int) -> bool:
    """Whether no process of a group is left, once the system has had time to bury them."""
    end = time.monotonic() + 10
    while alive(group) and time.monotonic() < end:
        time.sleep(0.05)
    return not alive(group)


def test_progress_survives_a_reload_and_cancel_ends_every_process(app, tmp_path, monkeypatch):
    fake(tmp_path, monkeypatch, SLOW)
    here = app()
    name = name_of(ask(here))
    facts = started(here, name)
    assert (facts["state"], facts["share"], facts["left"]) == ("running", 0.4, "5 s")
    assert 'value="0.400"' in here.get("/job", name=name).text
    assert name in here.get("/ask").text
    second = name_of(ask(here))
    assert here.get("/job.json", name=second).json()["state"] == "waiting"
    group = int((here.folders.state / "jobs" / name / "pid").read_text())
    assert alive(group)
    for one in (second, name):
        here.post("/job/cancel", params={"name": one})
        assert finished(here, one)["state"] == "cancelled"
    assert ended(group)


def test_an_app_that_ends_takes_its_processes_with_it(tmp_path, monkeypatch):
    fake(tmp_path, monkeypatch, SLOW)
    here = visit(tmp_path / "runs")
    with here.client:
        name = name_of(ask(here))
        started(here, name)
        group = int((here.folders.state / "jobs" / name / "pid").read_text())
    assert ended(group)
    again = visit(tmp_path / "runs")
    with again.client:  # the next app knows what became of it
        assert again.get("/job.json", name=name).json()["state"] == "failed"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import sys; print('error: zoo:x is not shipped.', file=sys.stderr); sys.exit(2)",
         "zoo:x is not shipped."),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "signal 9"),
        ("raise ValueError('a fault')", "ValueError: a fault"),
        ("import sys; sys.exit(70)", "exit code 70"),
    ],
)  # fmt: skip
def test_a_child_that_dies_says_why(app, tmp_path, monkeypatch, code, words):
    fake(tmp_path, monkeypatch, code)
    here = app()
    name = name_of(ask(here))
    facts = finished(here, name)
    assert facts["state"] == "failed" and words in facts["error"]
    page = here.get("/job", name=name).text
    assert "This did not work" in page and "Ask again" in page


def test_a_missing_model_is_named(app):
    here = app()
    facts = finished(here, name_of(ask(here, model="zoo:cifar10-none")))
    assert facts["state"] == "failed" and "zoo:cifar10-none is not shipped" in facts["error"]


def test_a_job_whose_app_was_killed_goes_on_and_is_found_again(app, tmp_path, monkeypatch):
    fake(tmp_path, monkeypatch, "import time; time.sleep(60)")
    here = app()
    name = name_of(ask(here))
    job = here.folders.state / "jobs" / name
    end = time.monotonic() + 20
    while not (job / "pid").exists() and time.monotonic() < end:
        time.sleep(0.02)
    other = Jobs(here.folders.state / "jobs")  # knows only what is on disk
    assert other.status(other.get(name))["state"] == "running"
    os.killpg(int((job / "pid").read_text()), signal.SIGKILL)
    assert finished(here, name)["state"] == "failed"
    assert other.status(other.get(name))["state"] == "failed"


@pytest.mark.parametrize("name", ["", "..", "../jobs", "20260101T000000-aaaaaaaa", "x/../y"])
def test_jobs_that_do_not_exist_are_refused(app, name):
    here = app()
    assert here.get("/job", name=name).status_code == 400
    assert here.get("/job.json", name=name).status_code == 400
    assert here.post("/job/cancel", params={"name": name}).status_code == 400


def test_the_child_is_this_python(app, tmp_path, monkeypatch):
    fake(tmp_path, monkeypatch, "import sys; print(sys.executable)")
    here = app()
    name = name_of(ask(here))
    finished(here, name)
    told = (here.folders.state / "jobs" / name / "stdout").read_text().strip()
    assert told == sys.executable
