"""What a frozen set says of its images: licences, review, metadata, held-out models.

The oracles are the pool's own tables, the verdicts as SQLite holds them, and Pillow. All reviewers
here are simulated, and named so.
"""

import csv
import json
import random
import sqlite3
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from counterlens.data import open_set
from counterlens.errors import InputError
from counterlens.review import store_path
from counterlens.runs import Run
from counterlens.workflows.curate.freeze import freeze
from counterlens.workflows.curate.run import adversarial
from curate_pools import factory, make_pool

GPS = 0x8825


def photographs(root: Path, seed: int) -> list[Path]:
    """A pool as JPEG files that carry an artist and a place in their EXIF."""
    made = []
    for path in sorted(make_pool(root, honest=2, lying=4, seed=seed).rglob("*.png")):
        exif = Image.Exif()
        exif[0x013B] = f"Artist of {path.stem}"
        exif.get_ifd(GPS)[1] = "N"
        exif.get_ifd(GPS)[2] = (52.0, 31.0, 0.0)
        with Image.open(path) as picture:
            picture.save(path.with_suffix(".jpg"), quality=95, exif=exif)
        path.unlink()
        made.append(path.with_suffix(".jpg"))
    return made


def mixed_pool(root: Path) -> tuple[list[str], dict[str, dict[str, str]]]:
    """Three sets of three licences; returns their specs and the facts of each image by id."""
    truth: dict[str, dict[str, str]] = {}
    first = photographs(root / "first", 1)
    with (root / "first.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["path", "label", "licence", "author", "source"])
        for k, path in enumerate(first):
            facts = ("CC BY-NC 4.0", f"Person {k}", f"https://a.example/{k}")
            name = path.relative_to(root).as_posix()
            table.writerow([name, path.parent.name, *facts])
            truth[f"first/{name}"] = dict(zip(("licence", "author", "source"), facts, strict=True))
    lines = []
    for k, path in enumerate(photographs(root / "second", 2)):
        name = path.relative_to(root).as_posix()
        row = {"path": name, "label": path.parent.name, "license": "CC BY 2.0", "url": f"u{k}"}
        lines.append(json.dumps(row))
        artist = f"Artist of {path.stem}"
        truth[f"second/{name}"] = {"licence": "CC BY 2.0", "author": artist, "source": f"u{k}"}
    (root / "second.jsonl").write_text("\n".join(lines), encoding="utf-8")
    for path in photographs(root / "third", 3):
        facts = {"licence": "CC0", "author": f"Artist of {path.stem}", "source": "third"}
        truth[f"third/{path.relative_to(root / 'third').as_posix()}"] = facts
    return [str(root / "first.csv"), str(root / "second.jsonl"), str(root / "third")], truth


def take(counterlens, run: Run, path: Path, rows: list[dict[str, str]]):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return counterlens("curate", "review", str(run.folder), "--take", str(path), "-q")


def simulate_review(counterlens, run: Run, folder: Path) -> None:
    """Two simulated reviewers judge everything, a third person settles what they differ on."""
    ids = [row["id"] for row in run.table("shortlist")]
    draw = random.Random(5)
    words: dict[str, list[str]] = {}
    for name in ("simulated-ann", "simulated-bob"):
        verdicts = [draw.choices(("accept", "reject", "unsure"), (6, 2, 1))[0] for _ in ids]
        rows = [
            {"item": item, "reviewer": name, "verdict": word}
            for item, word in zip(ids, verdicts, strict=True)
        ]
        assert take(counterlens, run, folder / f"{name}.jsonl", rows).code == 0
        for item, word in zip(ids, verdicts, strict=True):
            words.setdefault(item, []).append(word)
    rows = [
        {"item": item, "reviewer": "simulated-eve", "role": "adjudicator", "verdict": word}
        for item, said in words.items()
        if len(set(said)) > 1 or set(said) == {"unsure"}
        for word in draw.choices(("accept", "reject"), (2, 1))
    ]
    assert len(rows) > 3
    assert take(counterlens, run, folder / "eve.jsonl", rows).code == 0


def verdicts_in(run: Run) -> dict[str, dict[str, dict[str, str]]]:
    """By image and role, the verdict of each person, as the database itself has it."""
    base = sqlite3.connect(store_path(run.folder))
    found: dict[str, dict[str, dict[str, str]]] = {}
    for item, name, role, word in base.execute(
        "SELECT item, reviewer, role, verdict FROM verdicts ORDER BY number"
    ):
        found.setdefault(item, {"reviewer": {}, "adjudicator": {}})[role][name] = word
    base.close()
    return found


def expected_outcome(said: dict[str, dict[str, str]]) -> str:
    if said["adjudicator"]:
        return next(iter(said["adjudicator"].values()))
    return next(iter(said["reviewer"].values()))


def test_card_and_files_agree_with_the_store_image_by_image(counterlens, tmp_path) -> None:
    """Three licences, two simulated reviewers, one simulated adjudicator."""
    specs, truth = mixed_pool(tmp_path / "pool")
    run = adversarial(
        specs, filters=[factory(tmp_path)], licence="CC0", out=tmp_path / "mined", quiet=True
    )
    simulate_review(counterlens, run, tmp_path)
    said = counterlens("curate", "freeze", str(run.folder), "--out", "set", "--least", "2", "-q")
    assert said.code == 0, said.err
    made = counterlens.at / "set"
    rows = [json.loads(line) for line in (made / "images.jsonl").read_text("utf-8").splitlines()]
    store = verdicts_in(run)
    accepted = {item for item, said in store.items() if expected_outcome(said) == "accept"}
    assert {row["id"] for row in rows} == accepted and len(rows) == len(accepted)

    for row in rows:
        facts, said = truth[row["id"]], store[row["id"]]
        assert {key: row[key] for key in facts} == facts
        for word, key in (("accept", "accepted_by"), ("reject", "rejected_by"), ("unsure",) * 2):
            assert row[key] == sorted(n for n, given in said["reviewer"].items() if given == word)
        assert row["adjudicated_by"] == sorted(said["adjudicator"])
        assert not set(row["adjudicated_by"]) & set(said["reviewer"])
        mined_from = tmp_path / "pool" / row["id"].removeprefix(f"{row['set']}/")
        mined_from = mined_from if mined_from.exists() else tmp_path / "pool" / row["id"]
        with Image.open(mined_from) as theirs, Image.open(made / row["file"]) as ours:
            assert np.array_equal(np.array(theirs), np.array(ours))
            assert theirs.getexif().get_ifd(GPS) and not dict(ours.getexif())

    card = json.loads((made / "card.json").read_text(encoding="utf-8"))
    for fact in ("licence", "author", "source"):
        assert card[f"{fact}s"] == dict(Counter(row[fact] for row in rows))
    assert set(card["licences"]) == {"CC BY-NC 4.0", "CC BY 2.0", "CC0"}
    review = card["review"]
    assert review["reviewers"] == ["simulated-ann", "simulated-bob"]
    assert review["adjudicators"] == ["simulated-eve"]
    assert review["outcomes"] == dict(Counter(map(expected_outcome, store.values())))
    settled = [item for item in accepted if store[item]["adjudicator"]]
    against = [item for item in settled if "reject" in store[item]["reviewer"].values()]
    assert review["accepted"] == {
        "by_all_reviewers": len(accepted) - len(settled),
        "by_adjudicator": len(settled),
        "by_adjudicator_though_rejected": len(against),
    }
    text = (made / "README.md").read_text(encoding="utf-8")
    assert f"{len(settled)} were accepted by an adjudicator (simulated-eve)" in text
    again = open_set(str(made))  # a frozen set is a pool like any other
    assert again.extra["licence"].tolist() == [row["licence"] for row in rows]


def test_an_adjudicator_is_nobody_who_reviewed_the_image(counterlens, tmp_path) -> None:
    pool = make_pool(tmp_path / "pool", honest=2, lying=2)
    run = adversarial([str(pool)], filters=[factory(tmp_path)], out=tmp_path / "run", quiet=True)
    item = run.table("shortlist")[0]["id"]
    row = {"item": item, "reviewer": "simulated-ann", "verdict": "reject"}
    assert take(counterlens, run, tmp_path / "a.jsonl", [row]).code == 0
    turned = {**row, "reviewer": "Simulated-Ann ", "verdict": "accept", "role": "adjudicator"}
    said = take(counterlens, run, tmp_path / "b.jsonl", [turned])
    assert said.code == 2 and "both reviewer and adjudicator" in said.lines[-1]
    assert list(verdicts_in(run)[item]["adjudicator"]) == []


def test_freezing_all_of_a_reviewed_run_does_not_deny_the_review(counterlens, tmp_path) -> None:
    pool = make_pool(tmp_path / "pool", honest=2, lying=2)
    run = adversarial([str(pool)], filters=[factory(tmp_path)], out=tmp_path / "run", quiet=True)
    ids = [row["id"] for row in run.table("shortlist")]
    verdict = {"reviewer": "simulated-ann", "verdict": "reject"}
    take(counterlens, run, tmp_path / "a.jsonl", [{"item": i, **verdict} for i in ids[:4]])
    card = freeze(run.folder, out=tmp_path / "set", unreviewed=True, quiet=True)
    assert card["images"] == 6 and card["review"]["reviewed"] is False
    assert card["review"]["outcomes"] == {"reject": 4, "pending": 2}
    text = (tmp_path / "set" / "README.md").read_text(encoding="utf-8")
    assert "no person has looked" not in text and "without regard to the review" in text
    rows = (tmp_path / "set" / "images.jsonl").read_text("utf-8").splitlines()
    assert sum(json.loads(row)["rejected_by"] == ["simulated-ann"] for row in rows) == 4


def test_metadata_stays_where_it_is_asked_for(tmp_path) -> None:
    photographs(tmp_path / "pool", 4)
    run = adversarial(
        [str(tmp_path / "pool")], filters=[factory(tmp_path)], out=tmp_path / "run", quiet=True
    )
    card = freeze(run.folder, out=tmp_path / "set", unreviewed=True, keep_metadata=True, quiet=True)
    assert card["metadata"] == "kept"
    for line in (tmp_path / "set" / "images.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        assert row["sha256"] == row["source_sha256"] and row["author"].startswith("Artist of")
        with Image.open(tmp_path / "set" / row["file"]) as frozen:
            assert frozen.getexif().get_ifd(GPS)


COPY = """
import torch
from counterlens.models import load


class Wrapped(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner.half()

    def forward(self, x):
        return self.inner.float()(x)


def copied():
    model = load("zoo:cifar10-plain-small", device="cpu")
    model.net = Wrapped(model.net)
    return model


def probed():
    model = load("zoo:cifar10-plain-small", device="cpu")
    torch.nn.init.normal_([m for m in model.modules() if isinstance(m, torch.nn.Linear)][-1].weight)
    return model
"""


@pytest.fixture(scope="module")
def natural(tmp_path_factory) -> Path:
    """Images of the shipped sample that a shipped network gets wrong."""
    out = tmp_path_factory.mktemp("natural") / "run"
    adversarial(
        ["sample:cifar10"], filters=["zoo:cifar10-plain-small"], limit=100, confidence=1.0,
        tags=0, bits=-1, device="cpu", out=out, quiet=True,
    )  # fmt: skip
    return out


def test_a_filter_under_another_name_is_not_held_out(natural, tmp_path) -> None:
    """By its folder, and wrapped in half precision by a file: the weights are the filter's."""
    from counterlens import zoo

    spec = "zoo:cifar10-plain-small"
    (tmp_path / "copy.py").write_text(COPY, encoding="utf-8")
    folder = Path(zoo.__file__).parent / "weights" / "cifar10-plain-small"
    given = {"unreviewed": True, "device": "cpu", "quiet": True}
    for other in (spec, str(folder), f"{tmp_path}/copy.py:copied"):
        with pytest.raises(InputError, match="which was a filter: it is not held out"):
            freeze(natural, out=tmp_path / "x", held_out=[other], **given)
    probed = f"{tmp_path}/copy.py:probed"
    card = freeze(natural, out=tmp_path / "set", held_out=[probed], **given)
    assert 0.9 < card["held_out"][0]["shared_weights"] < 1
    assert card["held_out"][0]["shares_weights_with"] == spec


def test_logits_of_a_held_out_model_are_made_once(natural, tmp_path, monkeypatch) -> None:
    from counterlens.workflows.curate import transfer

    calls = []
    predict = transfer.predict
    monkeypatch.setattr(
        transfer, "predict", lambda *a, **k: calls.append(len(a[1])) or predict(*a, **k)
    )
    held = ["zoo:cifar10-ratio-small"]
    given = {"unreviewed": True, "device": "cpu", "quiet": True}
    cards = [freeze(natural, out=tmp_path / n, held_out=held, **given) for n in ("a", "b")]
    assert calls == [100]
    assert cards[0]["numbers"] == cards[1]["numbers"]
    assert cards[0]["held_out"][0]["shared_weights"] == 0
    assert list(natural.with_name("run.held-out").rglob("part-*"))


def test_a_pool_without_classes_is_one_clear_error(counterlens, tmp_path) -> None:
    for path in photographs(tmp_path / "pool", 1):
        path.rename(tmp_path / "pool" / f"{path.parent.name}-{path.name}")
    for folder in (tmp_path / "pool").iterdir():
        if folder.is_dir():
            folder.rmdir()
    for command in (["adversarial", "--filter"], ["triage", "--model"], ["classes", "--model"]):
        said = counterlens(
            "curate", command[0], str(tmp_path / "pool"), command[1], factory(tmp_path),
            *(["--classes", "all"] if command[0] != "classes" else []),
        )  # fmt: skip
        assert said.code == 2 and len(said.lines) == 1, said.err
        assert "no class of any of them" in said.lines[0] and "cat/1.jpg" in said.lines[0]


def test_an_empty_shortlist_says_which_stage_took_the_last_image(counterlens, tmp_path) -> None:
    pool = make_pool(tmp_path / "pool", honest=4, lying=0)
    mine = ["curate", "adversarial", str(pool), "--filter", factory(tmp_path), "--out", "run"]
    said = counterlens(*mine)
    assert said.code == 0
    assert "'wrong in the usual view' dropped the last 12" in said.err
    assert "--classes all" in said.err and "the 3 classes of mean that the pool shows" in said.err


def test_each_command_names_the_next(counterlens, tmp_path) -> None:
    pool = make_pool(tmp_path / "pool", honest=4, lying=2)
    model = factory(tmp_path)
    said = counterlens("curate", "adversarial", str(pool), "--filter", model, "--out", "run")
    assert "next: counterlens curate review run --reviewer NAME" in said.err
    said = counterlens("curate", "review", "run", "--status")
    assert "next: counterlens curate review run --reviewer NAME (6 images" in said.err
    said = counterlens("curate", "freeze", "run", "--out", "set", "--unreviewed")
    assert "next: counterlens audit MODEL set" in said.err
    said = counterlens("curate", "triage", str(pool), "--model", model, "--out", "triage")
    assert "next: look at" in said.err
    said = counterlens("curate", "adversarial", str(pool), "--filter", model, "--egregious")
    assert said.code == 2 and "groups of ImageNet's classes" in said.lines[-1]
