"""The review pages of the app on 20,000 images: how long people wait, whether verdicts are lost.

Claim: with 20,000 images and no thumbnail made before, 95 % of 200 requests each take at most
300 ms for the first page (page, facts of the first images, the first large picture), 100 ms for
the next image and 50 ms for a verdict that is on disk. Two reviewers who write 2,000 verdicts each
at once, while the server is killed twice (SIGKILL), lose none, double none and swap none.

The images are files of their own, 1,000 different pictures in all: those of sample:cifar10 enlarged
to 320 × 320, each with its own brightness and shift, as JPEG. The answers of the filter are made
up. The reviewers are simulated: a client that, as the page does, keeps each verdict until it is
acknowledged and sends it again otherwise. The next image is measured twice: as the page has it,
which fetches three images ahead, and with nothing fetched ahead, facts and picture together. The
server and its clients share the cores.

    python benchmarks/bench_review_app.py [--images 20000] [--requests 200] [--verdicts 2000]
"""

import argparse
import http.client
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import numpy as np

from counterlens.data import open_set
from counterlens.images import jpeg_bytes, resize
from counterlens.review import Store, store_path
from counterlens.runs import Run, write_json

RESULTS = Path(__file__).parent / "results" / "review_app.json"
NAME = "pool"
KEEP = f"/review/verdicts.json?run={NAME}"


@dataclass
class Server:
    """The app as a child process, which can be killed and started again on its port."""

    runs: Path
    port: int = 0
    token: str = ""
    process: "subprocess.Popen[str] | None" = None

    def start(self) -> None:
        """Start and read the address."""
        words = [sys.executable, "-m", "counterlens", "app", str(self.runs), "--no-browser"]
        self.process = subprocess.Popen(
            [*words, "--port", str(self.port)],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        address = self.process.stdout.readline().strip()
        self.port = int(address.rpartition(":")[2].partition("/")[0])
        self.token = address.partition("token=")[2]

    def kill(self) -> None:
        """End it at once, whatever it is doing."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()


@dataclass
class Client:
    """One browser: a connection that is kept open, a cookie, the key of the forms."""

    server: Server
    connection: "http.client.HTTPConnection | None" = None
    cookie: str = ""
    key: str = ""

    def open(self) -> None:
        """Open the address with the token, as a person does after a start."""
        self.connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        self.connection.request("GET", f"/reviews?token={self.server.token}")
        answer = self.connection.getresponse()
        answer.read()
        self.cookie = answer.getheader("Set-Cookie", "").partition(";")[0]
        page = self.get("/reviews").decode()
        self.key = page.partition('name="form-key" content="')[2].partition('"')[0]

    def get(self, address: str, /, **query: object) -> bytes:
        """The body of a page that must be there."""
        return self.ask("GET", address + (f"?{urlencode(query)}" if query else ""))

    def post(self, path: str, rows: list[dict[str, object]]) -> bytes:
        """Send verdicts."""
        return self.ask("POST", path, json.dumps(rows).encode())

    def ask(self, method: str, address: str, body: bytes | None = None) -> bytes:
        """One request."""
        assert self.connection is not None
        head = {"Cookie": self.cookie, "X-Form-Key": self.key, "Content-Type": "application/json"}
        self.connection.request(method, address, body, head)
        answer = self.connection.getresponse()
        data = answer.read()
        if answer.status != 200:
            raise ConnectionError(f"{answer.status} {data[:200]!r}")
        return data


def make_run(root: Path, count: int) -> None:
    """A finished curation with a shortlist of so many pictures."""
    sample, rng = open_set("sample:cifar10"), np.random.default_rng(0)
    run = Run.create(root / NAME, "curate adversarial", {"pool": "enlarged"})
    run.note(kind="adversarial", data_fingerprint="benchmark")
    folder = run.path("images", "shortlist/x").parent
    folder.mkdir(parents=True, exist_ok=True)
    rows, pictures = [], []
    for i in range(count):
        if i < len(sample):
            pixels = resize(sample.read(i), (336, 336), "bicubic").astype(np.int16)
            top, left = rng.integers(0, 17, 2)
            pixels = pixels[top : top + 320, left : left + 320] + rng.integers(-25, 26)
            pictures.append(jpeg_bytes(pixels.clip(0, 255).astype(np.uint8), quality=90))
        (folder / f"{i:05d}.jpg").write_bytes(pictures[i % len(sample)])
        label = sample.classes[int(sample.labels[i % len(sample)])]
        rows.append(
            {
                "rank": i + 1, "id": f"{label}/{i:05d}.jpg", "label": label, "answer": "frog",
                "confidence": 0.5, "width": 320, "height": 320, "sha256": "0",
                "image": f"images/shortlist/{i:05d}.jpg",
            }
        )  # fmt: skip
    run.write_table("shortlist", rows)
    run.finish()


def timed(work: Callable[[], object]) -> float:
    """Milliseconds that a call takes."""
    start = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - start)


def waits(server: Server, runs: Path, requests: int) -> dict[str, dict[str, float]]:
    """What a reviewer waits for, each on pictures that nobody has looked at."""
    client = Client(server)
    client.open()
    wanted = {"run": NAME, "reviewer": "ann", "role": "reviewer"}
    client.get("/review", **wanted)  # makes the store
    client.get("/thumb", run=NAME, path="images/shortlist/00000.jpg", side=64)
    rng, first, following, hurried, verdict = random.Random(0), [], [], [], []
    total = json.loads(client.get("/review/places.json", run=NAME, reviewer="ann"))

    def first_page(at: int) -> None:
        client.get("/review", **wanted)
        rows = json.loads(client.get("/review/items.json", **wanted, after=at, most=20))
        client.ask("GET", rows[0]["large"])

    places = rng.sample(range(len(total) // 2, len(total) - 30), 2 * requests)
    for at in places[:requests]:
        first.append(timed(lambda at=at: first_page(at)))

    def next_image(at: int) -> None:
        rows = json.loads(client.get("/review/items.json", **wanted, after=at, most=1))
        client.ask("GET", rows[0]["large"])

    for at in places[requests:]:
        hurried.append(timed(lambda at=at: next_image(at)))
    queue: list[dict[str, str]] = []
    after = -1
    for k in range(requests):
        if len(queue) < 8:
            rows = json.loads(client.get("/review/items.json", **wanted, after=after, most=20))
            after = rows[-1]["place"]
            queue += rows
        one = queue.pop(0)
        following.append(timed(lambda one=one: client.ask("GET", one["large"])))
        for ahead in queue[:3]:
            client.ask("GET", ahead["large"])
        row = {
            "item": one["id"], "reviewer": "ann", "role": "reviewer", "mark": uuid.uuid4().hex,
            "verdict": ("accept", "reject", "unsure")[k % 3], "tags": [], "reason": "",
        }  # fmt: skip
        verdict.append(timed(lambda row=row: client.post(KEEP, [row])))
    assert len(Store.open(store_path(runs / NAME)).history()) == requests
    return {
        "first page": summary(first, 300),
        "next image, prefetched": summary(following, 100),
        "next image, nothing prefetched": summary(hurried, 100),
        "verdict on disk": summary(verdict, 50),
    }


def summary(times: list[float], limit: float) -> dict[str, float]:
    """Quantiles in milliseconds beside the limit."""
    low, high = np.quantile(times, [0.5, 0.95]).tolist()
    facts = {"n": len(times), "p50_ms": round(low, 1), "p95_ms": round(high, 1)}
    return {**facts, "max_ms": round(max(times), 1), "limit_p95_ms": limit}


def write_all(
    server: Server, name: str, count: int, sent: dict[str, str], halt: threading.Event
) -> None:
    """A reviewer who gives a verdict on each image, keeping each until it is acknowledged."""
    client, rng = Client(server), random.Random(name)
    waiting: list[dict[str, object]] = []
    given = 0
    queue: list[dict[str, str]] = []
    after = -1
    while given < count or waiting:
        try:
            if client.connection is None:
                client.open()
            if not queue and given < count:
                query = {"run": NAME, "reviewer": name, "after": after, "most": 100, "judged": 1}
                queue = json.loads(client.get("/review/items.json", **query))
                after = queue[-1]["place"]
            if given < count:
                one = queue.pop(0)
                word = rng.choice(("accept", "reject", "unsure"))
                sent[one["id"]] = word
                waiting.append(
                    {
                        "item": one["id"], "reviewer": name, "role": "reviewer", "verdict": word,
                        "mark": uuid.uuid4().hex, "tags": [], "reason": "",
                    }
                )  # fmt: skip
                given += 1
            kept = json.loads(client.post(KEEP, waiting[:20]))["kept"]
            waiting = [row for row in waiting if row["mark"] not in kept]
        except (OSError, http.client.HTTPException):
            client.connection = None
            if halt.wait(0.1):
                return


def killed(server: Server, runs: Path, count: int) -> dict[str, object]:
    """Two reviewers at once, the server killed twice on the way."""
    store = Store.open(store_path(runs / NAME))
    before = len(store.history())
    sent: dict[str, dict[str, str]] = {"bob": {}, "eve": {}}
    halt = threading.Event()
    people = [
        threading.Thread(target=write_all, args=(server, name, count, said, halt))
        for name, said in sent.items()
    ]
    for one in people:
        one.start()
    kills = 0
    for share in (0.3, 0.7):
        while sum(map(len, sent.values())) < share * 2 * count and any(
            p.is_alive() for p in people
        ):
            time.sleep(0.01)
        server.kill()
        kills += 1
        time.sleep(0.3)
        server.start()
    for one in people:
        one.join(600)
    halt.set()
    history = store.history()
    found = {name: {v.item: v.verdict for v in history if v.reviewer == name} for name in sent}
    rows = Counter((v.item, v.reviewer) for v in history)
    return {
        "verdicts_sent": sum(map(len, sent.values())),
        "verdicts_kept": len(history) - before,
        "kills": kills,
        "lost": sum(item not in found[n] for n, said in sent.items() for item in said),
        "doubled": sum(n - 1 for n in rows.values()),
        "wrong": sum(
            found[n].get(i) not in (None, w) for n, s in sent.items() for i, w in s.items()
        ),
        "by_others": sum(v.reviewer not in ("ann", *sent) for v in history),
    }


def main() -> int:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--verdicts", type=int, default=2_000)
    parser.add_argument(
        "--keep", type=Path, help="Where the images are made, and left for another time."
    )
    given = parser.parse_args()
    root = given.keep or Path(tempfile.mkdtemp())
    if not (root / NAME / "DONE").exists():
        print(f"making {given.images:,} images", flush=True)
        make_run(root, given.images)
    for left in (root / ".counterlens-app", store_path(root / NAME)):
        shutil.rmtree(left, ignore_errors=True)
    for left in root.glob("*.sqlite*"):
        left.unlink()
    server = Server(root)
    server.start()
    try:
        time.sleep(8)  # the processes that read pictures have started
        found = waits(server, root, given.requests)
        crash = killed(server, root, given.verdicts)
    finally:
        server.kill()
    facts = {
        "images": given.images,
        "cores": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "load_average": round(os.getloadavg()[0], 1),
        "waits": found,
        "kills": crash,
    }
    print(json.dumps(facts, indent=1))
    if (given.images, given.requests, given.verdicts) == (20_000, 200, 2_000):
        write_json(RESULTS, facts)
    if not given.keep:
        shutil.rmtree(root)
    slow = [n for n, row in found.items() if row["p95_ms"] > row["limit_p95_ms"]]
    broken = [k for k in ("lost", "doubled", "wrong", "by_others") if crash[k]]
    print(
        "slow: " + (", ".join(slow) or "nothing") + "; broken: " + (", ".join(broken) or "nothing")
    )
    return 1 if slow or broken else 0


if __name__ == "__main__":
    sys.exit(main())
