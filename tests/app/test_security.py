"""What must be refused: each attack, made as an attacker would make it.

The oracle is what came back: a status, the bytes of a file, or a page parsed by html.parser.
"""

import io
import json
import os
import subprocess
import sys
import zipfile
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlencode

import pytest

from app.visitor import PORT, visit
from counterlens.app import security
from counterlens.runs import Run
from report_runs import audit_run, picture

SCRIPT = '"><script>alert(1)</script><img src=x onerror=alert(1)>'
PAGES = ("/", "/ask", "/run", "/images", "/compare", "/thumb", "/file", "/job", "/static/app.css")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    audit_run(root / "first")
    return root


@pytest.fixture
def here(app, runs):
    return app(runs)


@pytest.mark.parametrize("path", PAGES)
def test_without_the_token_nothing_is_shown(runs, path):
    stranger = visit(runs, welcome=False)
    answer = stranger.get(path)
    assert answer.status_code == 403
    assert "first" not in answer.text and str(runs) not in answer.text
    stranger.client.cookies.set(stranger.secrets.cookie, "0" * 64)
    assert stranger.get(path).status_code == 403
    assert stranger.get(path, token="guessed").status_code == 403


def test_the_token_in_the_address_becomes_a_cookie_that_scripts_cannot_read(runs):
    stranger = visit(runs, welcome=False)
    answer = stranger.client.get(
        f"/?token={stranger.secrets.token}&words=a", follow_redirects=False
    )
    assert (answer.status_code, answer.headers["location"]) == (303, "/?words=a")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie
    assert stranger.secrets.token not in cookie  # the address in a history opens nothing elsewhere
    assert stranger.get("/").status_code == 200


def test_a_token_does_not_lead_to_another_site(runs):
    stranger = visit(runs, welcome=False)
    target = f"//evil.example/x?token={stranger.secrets.token}"
    answer = stranger.client.get(f"http://127.0.0.1:{PORT}{target}", follow_redirects=False)
    assert not answer.headers["location"].startswith(("//", "http"))


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8017", "127.0.0.1:1", ""])
def test_a_name_that_was_rebound_to_this_machine_is_refused(here, host):
    answer = here.client.get("/", headers={"host": host})
    assert answer.status_code == 421


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": f"https://127.0.0.1:{PORT}"},
        {"origin": "http://127.0.0.1:9999"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_a_post_from_another_site_is_refused(here, headers):
    answer = here.client.post(f"/ask?form={here.secrets.form}", headers=headers)
    assert answer.status_code == 403 and "another site" in answer.text
    assert not here.folders.state.exists()


@pytest.mark.parametrize("form", ["", "wrong", "0" * 64])
def test_a_post_without_the_key_of_the_forms_is_refused(here, form):
    assert here.post("/ask", form=form).status_code == 403
    assert here.client.post("/ask").status_code == 403


def test_only_get_and_post_are_taken(here):
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        answer = here.client.request(method, "/", params={"form": here.secrets.form})
        assert answer.status_code == 405, method


def test_every_answer_carries_a_strict_policy(here):
    for path in ("/", "/ask", "/none", "/static/app.js"):
        headers = here.get(path).headers
        rules = dict(
            part.strip().partition(" ")[::2]
            for part in headers["content-security-policy"].split(";")
        )
        assert rules["default-src"] == "'none'" and rules["script-src"] == "'self'"
        assert rules["frame-ancestors"] == "'none'" and rules["base-uri"] == "'none'"
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"


def test_a_report_of_a_run_runs_no_script(here, runs):
    run = audit_run(runs / "hostile-report")
    (run.folder / "report.html").write_text("<script>fetch('/')</script>", encoding="utf-8")
    answer = here.get("/report", run="hostile-report")
    policy = answer.headers["content-security-policy"]
    assert "sandbox" in policy and "allow" not in policy and "script" not in policy


SECRET = b"\x89PNG\r\n\x1a\n secret"


@pytest.fixture
def secret(runs: Path) -> Path:
    path = runs.parent / "secret.png"
    path.write_bytes(SECRET)
    return path


@pytest.mark.parametrize(
    "path",
    [
        "../../secret.png",
        "images/../../../secret.png",
        "/etc/passwd",
        "images/%2e%2e/%2e%2e/%2e%2e/secret.png",
        "..\\..\\secret.png",
        "images/\0",
        "run.json",
        "",
        ".",
    ],
)
def test_paths_that_leave_a_run_are_refused(here, secret, path):
    for address in ("/file", "/thumb"):
        answer = here.get(address, run="first", path=path)
        assert answer.status_code in (400, 404)
        assert SECRET not in answer.content
    answer = here.get("/file", run="first", path=str(secret))
    assert answer.status_code == 404 and SECRET not in answer.content


@pytest.mark.parametrize(
    "name", ["..", "../first", "first/../..", "/etc", ".", "", ".counterlens-app", "a\0b", "~"]
)
def test_names_that_leave_the_folder_of_runs_are_refused(here, name):
    for address in ("/run", "/images", "/report"):
        assert here.get(address, run=name).status_code == 404, address


def test_links_that_lead_outside_are_refused(here, runs, secret, tmp_path):
    outside = audit_run(tmp_path / "outside")
    (runs / "linked").symlink_to(outside.folder)
    (runs / "first" / "images" / "link.png").symlink_to(secret)
    (runs / "first" / "images" / "folder").symlink_to(tmp_path)
    assert here.get("/run", run="linked").status_code == 404
    assert "linked" not in here.get("/").text
    for path in ("images/link.png", "images/folder/outside/run.json"):
        answer = here.get("/file", run="first", path=path)
        assert answer.status_code == 404 and SECRET not in answer.content
    (runs / "linked").unlink()


def test_nothing_but_pictures_is_served(here, runs):
    page = b"<html><script>alert(1)</script>"
    (runs / "first" / "images" / "page.png").write_bytes(page)
    (runs / "first" / "images" / "drawing.svg").write_bytes(b"<svg onload='alert(1)'/>")
    for name in ("page.png", "drawing.svg"):
        answer = here.get("/file", run="first", path=f"images/{name}")
        assert answer.status_code == 404 and b"alert" not in answer.content
        assert here.get("/thumb", run="first", path=f"images/{name}").status_code == 400
    os.mkfifo(runs / "first" / "images" / "pipe.png")
    assert here.get("/file", run="first", path="images/pipe.png").status_code == 404


def test_a_run_cannot_make_the_app_open_pictures_elsewhere(here, runs, tmp_path):
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "a.png").write_bytes(picture(1))
    run = audit_run(runs / "pointing", finish=False)
    manifest = run.manifest
    manifest["settings"]["data"] = str(tmp_path / "private")
    (run.folder / "run.json").write_text(json.dumps(manifest), encoding="utf-8")
    answer = here.get("/picture", run="pointing", set="private", id="a.png")
    assert answer.status_code == 404 and "outside the folders" in answer.text
    sent = {"run": "pointing", "set": "private", "id": "a.png", "model": "zoo:cifar10-plain-small"}
    answer = here.post("/ask", data={**sent, "method": "cam", "norm": "l2"})
    assert answer.status_code == 400 and "outside the folders" in answer.text
    allowed = visit(runs, pictures=(tmp_path / "private",))
    with allowed.client:
        good = allowed.get("/picture", run="pointing", set="private", id="a.png")
        bad = allowed.get("/picture", run="pointing", set="private", id="../secret.png")
    assert (good.status_code, good.headers["content-type"]) == (200, "image/png")
    assert bad.status_code == 404


ASK = {"model": "zoo:cifar10-plain-small", "method": "cam", "norm": "l2"}


def test_an_upload_beyond_the_limit_is_refused(here, monkeypatch):
    monkeypatch.setattr(security, "MOST_UPLOAD", 1 << 20)
    big = ("big.png", picture(1) + b"\0" * (2 << 20), "image/png")
    answer = here.post("/ask", data=ASK, files={"upload": big})
    assert answer.status_code == 413 and "More than 1 MB" in answer.text

    def stream():  # no length is announced
        for _ in range(40):
            yield b"\0" * (64 << 10)

    kind = {"content-type": "multipart/form-data; boundary=x"}
    assert here.post("/ask", content=stream(), headers=kind).status_code in (400, 413)
    uploads = here.folders.state / "uploads"
    assert not uploads.exists() or not list(uploads.iterdir())


def zipped() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("a.png", picture(1))
    return out.getvalue()


def bomb() -> bytes:
    """A PNG whose header promises 60,000 × 60,000 pixels."""
    data = bytearray(picture(1))
    data[16:24] = (60_000).to_bytes(4, "big") * 2
    return bytes(data)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("cut.png", picture(1)[:200]),
        ("empty.png", b""),
        ("text.png", b"<script>alert(1)</script>"),
        ("zip.png", zipped()),
        ("bomb.png", bomb()),
        ("drawing.svg", b"<svg xmlns='http://www.w3.org/2000/svg'/>"),
        ("python.py", b"import os"),
    ],
)
def test_an_upload_that_is_no_whole_picture_is_refused_in_one_line(here, name, data):
    answer = here.post("/ask", data=ASK, files={"upload": (name, data, "image/png")})
    assert answer.status_code == 400
    assert name in answer.text and "Traceback" not in answer.text
    uploads = here.folders.state / "uploads"
    assert not uploads.exists() or not list(uploads.iterdir())
    assert here.jobs_started() == 0


@pytest.mark.parametrize("body", [b"", b"--x\r\nbroken", b"--x--", b"a=b&" * 1000])
def test_a_malformed_form_is_refused(here, body):
    kind = {"content-type": "multipart/form-data; boundary=x"}
    assert here.post("/ask", content=body, headers=kind).status_code == 400
    assert here.jobs_started() == 0


def test_more_files_than_are_taken_are_refused(here):
    files = [("upload", (f"{i}.png", picture(i), "image/png")) for i in range(12)]
    assert here.post("/ask", data=ASK, files=files).status_code == 400
    assert here.jobs_started() == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", "my_model.py:make"),
        ("model", "/etc/passwd"),
        ("model", "zoo:x@/etc/passwd"),
        ("model", "--trust-remote-code"),
        ("model", "zoo:a b"),
        ("method", "--out"),
        ("norm", "--evil"),
        ("radius", "1; rm -rf x"),
        ("steps", "-1"),
        ("seed", "x"),
        ("judge", "evil.py:make"),
    ],
)
def test_a_form_cannot_name_code_files_or_options(here, field, value):
    sent = {**ASK, "sample": "cifar10", "number": "1", field: value}
    answer = here.post("/ask", data=sent)
    assert answer.status_code == 400 and here.jobs_started() == 0


class Tags(HTMLParser):
    """Every tag of a page, with its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def inert(text: str) -> bool:
    """Whether a page has no script but the app's own files, and no event attribute."""
    tags = Tags()
    tags.feed(text)
    scripts = [attrs for tag, attrs in tags.found if tag == "script"]
    events = [a for _, attrs in tags.found for a in attrs if a.startswith("on")]
    own = all((s.get("src") or "").startswith("/static/") for s in scripts)
    return own and not events and not any(attrs.get("src") == "x" for _, attrs in tags.found)


def test_script_in_names_of_classes_files_and_runs_is_inert(app, tmp_path):
    root = tmp_path / "runs"
    run = audit_run(root / "<b onclick=alert(1)>run", model=f"zoo:{SCRIPT}", finish=False)
    rows = [dict(row, **{"class": SCRIPT + str(k)}) for k, row in enumerate(run.table("per_class"))]
    run.write_table("per_class", rows)
    gallery = [dict(row, id=SCRIPT, label=SCRIPT, predicted=SCRIPT) for row in run.table("gallery")]
    run.write_table("gallery", gallery)
    run.finish()
    here = app(root)
    name = run.folder.name
    pages = [
        here.get("/", words=SCRIPT),
        here.get("/run", run=name),
        here.get("/images", run=name, label=SCRIPT, low=SCRIPT),
        here.get("/ask", run=name, target=SCRIPT, id=SCRIPT, set=SCRIPT, model=SCRIPT),
        here.get(f"/{SCRIPT}"),
        here.get("/run", run=SCRIPT),
        here.post("/ask", data={**ASK, "target": SCRIPT, "sample": SCRIPT}),
    ]
    for answer in pages:
        assert inert(answer.text), answer.request.url
    assert sum("&lt;script&gt;" in answer.text for answer in pages) >= 5


def test_the_check_for_scripts_finds_one():
    assert not inert(f"<p>{SCRIPT}")
    assert not inert("<p onclick='x'>") and inert("<script src='/static/app.js'></script>")


def test_read_only_refuses_every_change_and_writes_nothing(app, runs):
    here = app(runs, read_only=True)
    before = sorted(runs.rglob("*"))
    answer = here.post("/ask", data={**ASK, "sample": "cifar10", "number": "1"})
    assert answer.status_code == 403 and "read-only" in answer.text
    assert here.get("/thumb", run="first", path=thumb_of(runs)).status_code == 200
    for path in ("/", "/ask"):
        assert '<form method="post"' not in here.get(path).text
    assert sorted(runs.rglob("*")) == before


def thumb_of(runs: Path) -> str:
    return str(Run.open(runs / "first").table("gallery")[0]["image"])


def test_the_server_listens_on_this_machine_alone(runs, tmp_path):
    """Oracle: the system's table of listening sockets."""
    process = subprocess.Popen(
        [sys.executable, "-m", "counterlens", "app", str(runs), "--port", "0", "--no-browser"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline()
        port = int(address.rpartition(":")[2].partition("/")[0])
        lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
        local = [line.split()[1] for line in lines if line.split()[3] == "0A"]
        mine = [one for one in local if one.endswith(f":{port:04X}")]
        assert mine == [f"0100007F:{port:04X}"]
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


def test_a_query_is_one_text_however_it_is_spelled(here):
    """A second form key or run in the address opens nothing."""
    query = urlencode([("form", "wrong"), ("form", "0" * 64)])
    assert here.client.post(f"/ask?{query}").status_code == 403
