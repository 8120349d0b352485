"""Curation through the command line: pools whose funnel is known by construction."""

import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from counterlens.data.sources.pools import open_part
from counterlens.images import png_bytes, write_png
from counterlens.runs import Run
from curate_pools import COLOURS, factory, make_pool, noisy


def funnel(run: Run) -> dict[str, int]:
    return {row["stage"]: row["kept"] for row in run.table("funnel")}


def test_lies_are_mined_and_the_run_says_how(counterlens, tmp_path) -> None:
    pool = make_pool(tmp_path / "pool", honest=6, lying=4)
    said = counterlens(
        "curate",
        "adversarial",
        str(pool),
        "--filter",
        factory(tmp_path),
        "--out",
        "run",
        "--confusion",
        "3",
        "--shortlist",
        "7",
        "--licence",
        "CC0",
        "-q",
    )
    assert said.code == 0, said.err
    run = Run.open(counterlens.at / said.last)
    steps = funnel(run)
    assert steps["pool"] == steps["readable"] == 30
    assert steps["wrong in the usual view"] == steps["wrong in all crops"] == 12
    assert steps["confusion cap"] == 9 and steps["shortlist"] == 7
    rows = run.table("shortlist")
    assert all("lying" in row["id"] and row["label"] != row["answer"] for row in rows)
    order = [row["true_confidence"] for row in rows]
    assert order == sorted(order) and max(order) <= 0.15
    for row in rows:
        assert (run.folder / row["image"]).read_bytes() == (pool / row["id"]).read_bytes()
        assert row["licence"] == "CC0" and row["source"] == "pool"
    assert run.manifest["filters"][0]["weights_hash"]
    assert "Funnel" in (run.folder / "report.html").read_text(encoding="utf-8")


def test_a_killed_pass_goes_on_where_it_stopped(tmp_path, monkeypatch) -> None:
    from counterlens.filters import opinions
    from counterlens.workflows.curate.run import adversarial

    pool, model = make_pool(tmp_path / "pool"), factory(tmp_path)
    whole = adversarial([str(pool)], filters=[model], out=tmp_path / "a", shard=4, quiet=True)
    called = []
    real = opinions.Judge.__call__

    def counted(self, start, stop):
        called.append(start)
        if len(called) == 4:
            raise KeyboardInterrupt
        return real(self, start, stop)

    monkeypatch.setattr(opinions.Judge, "__call__", counted)
    with pytest.raises(KeyboardInterrupt):
        adversarial([str(pool)], filters=[model], out=tmp_path / "b", shard=4, quiet=True)
    again = adversarial(
        [str(pool)], filters=[model], out=tmp_path / "b", shard=4, quiet=True, resume=True
    )
    assert called == [0, 4, 8, 12, 12, 16, 20, 24, 28]  # nothing twice but the one that fell
    assert again.table("shortlist") == whole.table("shortlist")
    assert again.table("fate") == whole.table("fate")


def test_without_pyarrow_the_tables_are_numpy_files_and_say_the_same(tmp_path, monkeypatch) -> None:
    from counterlens.workflows.curate import sharded
    from counterlens.workflows.curate.run import adversarial

    pool, model = make_pool(tmp_path / "pool"), factory(tmp_path)
    (pool / "red" / "broken.png").write_bytes(b"no picture")  # its reason is a text column
    whole = adversarial([str(pool)], filters=[model], out=tmp_path / "a", shard=4, quiet=True)
    monkeypatch.setattr(sharded, "_has_arrow", lambda: False)
    bare = adversarial([str(pool)], filters=[model], out=tmp_path / "b", shard=4, quiet=True)
    ends = {
        run: {p.suffix for p in (tmp_path / run / "tables" / "opinions").iterdir()} for run in "ab"
    }
    assert ends == {"a": {".parquet"}, "b": {".npz"}}
    for table in ("shortlist", "fate", "funnel", "aside_counts"):
        assert bare.table(table) == whole.table(table)


def test_strangers_that_fool_are_mined(counterlens, tmp_path) -> None:
    rng = np.random.default_rng(0)
    for name in ("Reds", "umbrella"):  # Reds is the class red by another spelling
        for i in range(5):
            write_png(tmp_path / "pool" / name / f"{i}.png", noisy("red", rng))
    for i in range(5):
        grey = np.full((16, 16, 3), 128, np.uint8)
        grey[: i + 2] = rng.integers(100, 150, (i + 2, 16, 1))
        write_png(tmp_path / "pool" / "fog" / f"{i}.png", grey)
    known = make_pool(tmp_path / "known", honest=6, lying=0, seed=1)
    leaked = (tmp_path / "pool" / "umbrella" / "3.png").read_bytes()
    (known / "red" / "leak.png").write_bytes(leaked)
    said = counterlens(
        "curate",
        "ood",
        str(tmp_path / "pool"),
        "--filter",
        factory(tmp_path),
        "--out",
        "run",
        "--inside",
        str(known),
        "--confidence",
        "0.8",
        "--cosine",
        "0",
        "-q",
    )
    assert said.code == 0, said.err
    run = Run.open(counterlens.at / said.last)
    assert list(funnel(run).values())[-5:] == [10, 5, 5, 4, 4]
    rows = run.table("shortlist")
    assert {row["label"] for row in rows} == {"umbrella"}
    assert "umbrella/3.png" not in {row["id"] for row in rows}
    assert run.numbers["screen.low_level_auroc"].reason  # four images are too few: said


def bomb() -> bytes:
    """A PNG of 300 million pixels in a few bytes: a header that promises them."""
    header = struct.pack(">IIBBBBB", 20000, 15000, 8, 2, 0, 0, 0)

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    rows = zlib.compress(b"\0" * 60001 * 4)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    )


def spoil(pool: Path) -> dict[str, int]:
    """Put into a pool everything that people's disks hold; say how often each reason is due."""
    rng = np.random.default_rng(1)
    for i in range(5):
        data = png_bytes(noisy("red", rng))
        (pool / "red" / f"cut{i}.png").write_bytes(data[: len(data) // 2])
    (pool / "red" / "empty.jpg").write_bytes(b"")
    (pool / "green" / "bomb.png").write_bytes(bomb())
    (pool / "green" / "page.jpg").write_text("<html>not found</html>", encoding="utf-8")
    (pool / "green" / "notes.txt").write_text("mine", encoding="utf-8")
    write_png(pool / "blue" / "tiny.png", noisy("blue", rng, 3))
    (pool / "blue" / "loop").symlink_to(pool / "blue")
    (pool / "blue" / "gone.png").symlink_to(pool / "nowhere.png")
    os.mkfifo(pool / "blue" / "pipe.png")
    write_png(pool / "blue" / "猫 🐈 ‮نص.png", noisy("green", rng))
    (pool / "blue" / os.fsdecode(b"latin\xe9.png")).write_bytes(png_bytes(noisy("green", rng)))
    write_png(pool / "umbrella" / "a.png", noisy("green", rng))
    write_png(pool / "loose.png", noisy("green", rng))
    return {
        "no whole picture": 6,
        "empty file": 1,
        "too many pixels": 1,
        "no picture by its name": 1,
        "shorter side below 8 pixels": 1,
        "a link back to a folder above it": 1,
        "cannot be read (No such file or directory)": 1,
        "no plain file": 1,
        "beside the class folders": 1,
    }


def test_a_spoilt_pool_is_curated_and_everything_set_aside_is_counted(
    counterlens, tmp_path
) -> None:
    pool = make_pool(tmp_path / "pool", honest=20, lying=12)
    due = spoil(pool)
    said = counterlens(
        "curate",
        "adversarial",
        str(pool),
        "--filter",
        factory(tmp_path),
        "--out",
        "run",
        "-q",
        "--confusion",
        "99",
    )
    assert said.code == 0, said.err
    run = Run.open(counterlens.at / said.last)
    assert {row["why"]: row["images"] for row in run.table("aside_counts")} == due
    steps = funnel(run)
    assert steps["pool"] == 96 + 3 + sum(due.values())  # three more are whole pictures
    assert steps["readable"] == 99 and steps["known class"] == 98
    ids = {row["id"] for row in run.table("shortlist")}
    assert {"blue/猫 🐈 ‮نص.png", "blue/latin\\xe9.png"} <= ids
    assert len(ids) == 3 * 12 + 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can take the rights of another away")
def test_folders_nobody_may_list_are_set_aside(tmp_path) -> None:
    """As a user without rights: root may list everything."""
    pool = make_pool(tmp_path / "pool", honest=2, lying=2)
    shut = pool / "red" / "shut"
    write_png(shut / "a.png", noisy("red", np.random.default_rng(2)))
    shut.chmod(0)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o755)
    aside: list[tuple[str, str]] = []
    os.seteuid(65534)
    try:
        part = open_part(str(pool), aside)
    finally:
        os.seteuid(0)
    assert len(part) == 12
    assert aside == [("red/shut", "folder cannot be listed (Permission denied)")]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--per", "image"], "per is 'image', expected one of crop, mean"),
        (["--on", "mars"], "--on is 'mars', expected here, ray"),
        (["--classes", "nothing.txt"], "expected pool, all, a space"),
        (["--alias", "car"], "expected NAME=CLASS"),
        (["--alias", "car=red"], "which no set of the pool has"),
        (["--confidence", "0"], "expected a share"),
    ],
)
def test_bad_options_are_one_clear_line(counterlens, tmp_path, arguments, expected) -> None:
    pool = make_pool(tmp_path / "pool", honest=1, lying=1)
    said = counterlens(
        "curate", "adversarial", str(pool), "--filter", factory(tmp_path), "-q", *arguments
    )
    assert said.code == 2 and len(said.lines) == 1
    assert expected in said.lines[0]


def test_a_pool_the_filter_does_not_know_is_refused(counterlens, tmp_path) -> None:
    write_png(tmp_path / "pool" / "umbrella" / "a.png", noisy("red", np.random.default_rng(3)))
    said = counterlens(
        "curate", "adversarial", str(tmp_path / "pool"), "--filter", factory(tmp_path)
    )
    assert said.code == 2 and "the pool shows 0 classes" in said.err
    assert list(COLOURS) == ["red", "green", "blue"]


def test_wrong_labels_are_queued_with_counterfactuals_beside_them(counterlens, tmp_path) -> None:
    pool = make_pool(tmp_path / "pool", honest=8, lying=2)
    said = counterlens(
        "curate",
        "triage",
        str(pool),
        "--model",
        factory(tmp_path),
        "--model",
        factory(tmp_path).replace(":make", ":corner"),
        "--explained",
        "2",
        "--out",
        "run",
        "-q",
    )
    assert said.code == 0, said.err
    run = Run.open(counterlens.at / said.last)
    rows = run.table("suspects")
    assert len(rows) == 6 and all("lying" in row["id"] for row in rows)
    doubts = [row["doubt"] for row in rows]
    assert doubts == sorted(doubts, reverse=True)
    made = run.table("counterfactuals")
    assert len(made) == 4  # towards the label and towards the answer, for two images
    assert all(row["after"] > row["before"] for row in made)
    text = (run.folder / "report.html").read_text(encoding="utf-8")
    assert "Labels to doubt" in text and "What would have to change" in text


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Ray's own, on import and at its end
def test_on_ray_the_same_images_are_chosen(counterlens, tmp_path) -> None:
    pytest.importorskip("ray")
    pool = make_pool(tmp_path / "pool", honest=20, lying=12)
    spoil(pool)
    runs = []
    for on in ("here", "ray"):
        said = counterlens(
            "curate",
            "adversarial",
            str(pool),
            "--filter",
            factory(tmp_path),
            "--out",
            on,
            "--on",
            on,
            "--shard",
            "10",
            "-q",
        )
        assert said.code == 0, said.err
        runs.append(Run.open(counterlens.at / on))
    here, there = runs
    for name in ("shortlist", "fate", "aside", "funnel"):
        assert here.table(name) == there.table(name), name
    parts = [sorted(p.name for p in (r.folder / "tables" / "opinions").iterdir()) for r in runs]
    assert parts[0] == parts[1] and len(parts[0]) == 11
