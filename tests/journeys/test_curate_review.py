"""From a shortlist to a frozen set: simulated reviewers, a browser, sha256sum, torchvision."""

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torchvision.datasets import ImageFolder

from counterlens.data import open_set
from counterlens.images import write_png
from counterlens.review import Store, store_path
from counterlens.runs import Run
from counterlens.workflows.audit.network_facts import family
from counterlens.workflows.curate.review import draw, parse
from counterlens.workflows.curate.run import adversarial, ood
from counterlens.workflows.curate.transfer import partners
from curate_pools import factory, make_pool, noisy


@pytest.fixture
def mined(tmp_path) -> Run:
    pool = make_pool(tmp_path / "pool", honest=6, lying=4)
    return adversarial([str(pool)], filters=[factory(tmp_path)], out=tmp_path / "mined", quiet=True)


@pytest.fixture
def answer(counterlens, monkeypatch) -> Callable[..., object]:
    """`curate review` with lines typed by a simulated reviewer."""

    def typed(run: Run, who: str, lines: str, *more: str):
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        return counterlens("curate", "review", str(run.folder), "--reviewer", who, "--json", *more)

    return typed


def test_two_reviewers_disagree_and_a_third_settles_it(counterlens, answer, mined, tmp_path):
    said = answer(mined, "ann", "a\n" * 10 + "r blurred #background\nu\n")
    assert said.code == 0, said.err
    answer(mined, "bob", "a\n" * 9 + "r\nr\na\n")
    said = answer(mined, "eve", "a settled\nr\n", "--adjudicate")
    found = json.loads(said.out)
    assert found["outcomes"] == {"accept": 10, "reject": 2}
    assert found["agreement"]["review.ann-bob.cohen"]["n"] == 12
    store = Store.open(store_path(mined.folder))
    assert len(store.history()) == 26
    assert next(v for v in store.history() if v.reason).tags == ("background",)
    assert not list(mined.folder.glob("*.sqlite"))  # the run itself is never changed

    said = counterlens("curate", "freeze", str(mined.folder), "--out", "set", "--least", "2", "-q")
    assert said.code == 0, said.err
    card = json.loads((counterlens.at / "set" / "card.json").read_text(encoding="utf-8"))
    assert card["images"] == 10 and card["review"]["outcomes"] == {"accept": 10, "reject": 2}
    assert card["review"]["reviewers"] == ["ann", "bob"]
    assert card["review"]["adjudicators"] == ["eve"]
    assert card["review"]["accepted"] == {
        "by_all_reviewers": 9, "by_adjudicator": 1, "by_adjudicator_though_rejected": 1,
    }  # fmt: skip
    assert "rejected by none" not in json.dumps(card)
    assert "review.fleiss" in card["numbers"]


def test_a_review_goes_on_where_it_stopped_and_can_go_back(answer, mined):
    answer(mined, "ann", "a\nr\nq\n")
    store = Store.open(store_path(mined.folder))
    assert len(store.pending("ann")) == 10
    answer(mined, "ann", "what\ns\nb\nu\nq\n")
    first = store.items()[2]
    assert [v.verdict for v in store.latest() if v.item == first] == ["unsure"]
    assert len(store.pending("ann")) == 9


@pytest.fixture
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("Chromium absent: install it or set CHROMIUM to its path")
    with playwright.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


def saved(page: Any, path: Path) -> Path:
    with page.expect_download() as download:
        page.locator("#save").click()
    download.value.save_as(path)
    return path


def test_verdicts_of_a_page_come_back(counterlens, mined, tmp_path, browser):
    sheet = tmp_path / "sheet.html"
    said = counterlens("curate", "review", str(mined.folder), "--sheet", str(sheet), "-q")
    assert said.code == 0, said.err
    page = browser.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(sheet.as_uri())
    assert page.locator("article").count() == 12
    assert page.locator("main").evaluate("e => e.inert")  # nobody judges without a name
    page.locator("#reviewer").fill("Zoë")
    page.locator("article").first.focus()
    page.keyboard.press("a")
    page.keyboard.press("r")
    page.locator("article").nth(2).get_by_label("unsure").check()
    page.locator("article").nth(2).get_by_label("texture").check()
    page.locator("article").nth(2).locator(".reason").fill("“odd”")
    page.locator("article").nth(2).locator(".reason").blur()
    assert page.locator("#count").text_content() == "3 of 12 judged"
    verdicts = saved(page, tmp_path / "v.jsonl")
    assert [u for u in asked if not u.startswith(("file:", "data:", "blob:"))] == []
    said = counterlens("curate", "review", str(mined.folder), "--take", str(verdicts))
    assert said.code == 0, said.err
    last = {v.item: v for v in Store.open(store_path(mined.folder)).latest()}
    ids = [row["id"] for row in mined.table("shortlist")]
    assert [last[i].verdict for i in ids[:3]] == ["accept", "reject", "unsure"]
    assert last[ids[2]].reason == "“odd”" and last[ids[2]].tags == ("texture",)
    assert {v.reviewer for v in last.values()} == {"Zoë"} and len(last) == 3


def test_two_people_at_one_browser_never_see_each_others_verdicts(
    counterlens, mined, tmp_path, browser
):
    """Simulated reviewers in one browser profile: one page for all, and a page for each."""
    for name in ("", "ann", "bob"):
        given = ["--reviewer", name] if name else []
        sheet = str(tmp_path / f"sheet{name}.html")
        said = counterlens("curate", "review", str(mined.folder), "--sheet", sheet, *given, "-q")
        assert said.code == 0, said.err
    context = browser.new_context()
    page = context.new_page()
    page.goto((tmp_path / "sheetann.html").as_uri())
    for _ in range(3):
        page.locator("article:not([data-verdict=accept])").first.focus()
        page.keyboard.press("a")
    page.goto((tmp_path / "sheetbob.html").as_uri())
    assert page.locator("#count").text_content() == "0 of 12 judged"
    assert page.locator("input:checked").count() == 0
    page.locator("article").first.focus()
    page.keyboard.press("r")
    lines = saved(page, tmp_path / "bob.jsonl").read_text("utf-8").splitlines()
    assert [(row["reviewer"], row["verdict"]) for row in map(json.loads, lines)] == [
        ("bob", "reject")
    ]
    page.goto((tmp_path / "sheet.html").as_uri())  # the page on which a name is typed
    seen = {}
    for name in ("ann", "bob", "eve", "ann"):
        page.locator("#reviewer").fill(name)
        seen[name] = page.locator("#count").text_content()
    assert seen == {name: f"{n} of 12 judged" for name, n in (("ann", 3), ("bob", 1), ("eve", 0))}
    page.reload()
    page.locator("#reviewer").fill("ann")
    assert page.locator("article[data-verdict=accept]").count() == 3
    context.close()


def test_an_adjudicators_page_holds_only_what_is_contested(counterlens, answer, mined, tmp_path):
    sheet = tmp_path / "sheet.html"
    page = ["curate", "review", str(mined.folder), "--sheet", str(sheet), "--adjudicate"]
    answer(mined, "ann", "a\n" * 10 + "r blurred\na\n")
    answer(mined, "bob", "a\n" * 12)
    said = counterlens(*page, "--reviewer", "eve")
    assert said.code == 0, said.err
    text = sheet.read_text(encoding="utf-8")
    contested = mined.table("shortlist")[10]["id"]
    assert re.findall(r'data-item="([^"]*)"', text) == [contested]
    assert "ann: reject blurred" in text and 'const role = "adjudicator"' in text
    for who, expected in (("Ann", "cannot adjudicate"), ("", "--reviewer NAME")):
        said = counterlens(*page, "--reviewer", who)
        assert said.code == 2 and expected in said.lines[-1]
    verdict = {"item": contested, "reviewer": "eve", "verdict": "accept", "role": "adjudicator"}
    (tmp_path / "eve.jsonl").write_text(json.dumps(verdict), encoding="utf-8")
    said = counterlens("curate", "review", str(mined.folder), "--take", str(tmp_path / "eve.jsonl"))
    assert "12 accept" in said.err and "next: counterlens curate freeze" in said.err
    said = counterlens(*page, "--reviewer", "eve")
    assert said.code == 2 and "no image is contested" in said.lines[-1]


def test_a_frozen_folder_is_an_imagefolder_with_true_checksums(counterlens, mined):
    said = counterlens("curate", "freeze", str(mined.folder), "--out", "set", "--unreviewed")
    assert said.code == 0, said.err
    made = counterlens.at / "set"
    theirs = ImageFolder(str(made / "images"))
    assert theirs.classes == ["blue", "green", "red"] and len(theirs) == 12
    subprocess.run(["sha256sum", "--quiet", "-c", "checksums.sha256"], cwd=made, check=True)
    listed = [json.loads(line) for line in (made / "images.jsonl").read_text("utf-8").splitlines()]
    for row in listed:
        data = (made / row["file"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == row["sha256"]
        assert row["licence"] == "not stated" and row["source"] == "pool"
    text = (made / "README.md").read_text(encoding="utf-8")
    assert "no person has looked at these images" in text
    assert "| wrong in all crops |" in text


def test_tar_files_hold_the_same_pictures_and_open_as_a_set(counterlens, mined):
    for form, out in (("folder", "a"), ("webdataset", "b")):
        said = counterlens(
            "curate", "freeze", str(mined.folder), "--out", out, "--format", form, "--unreviewed"
        )
        assert said.code == 0, said.err
    one, two = (open_set(str(counterlens.at / name)) for name in ("a", "b"))
    assert list(one.ids) == list(two.ids) and one.labels.tolist() == two.labels.tolist()
    assert one.classes == two.classes == ("red", "green", "blue")
    for i in range(12):
        assert np.array_equal(one.read(i), two.read(i))
    with tarfile.open(counterlens.at / "b" / "shards" / "png-000000.tar") as tar:
        names = tar.getnames()
        assert len(names) == 36 and names[:3] == ["000000.png", "000000.json", "000000.cls"]
        numbers = [int(tar.extractfile(name).read()) for name in names if name.endswith(".cls")]
        facts = [json.load(tar.extractfile(name)) for name in names if name.endswith(".json")]
    assert numbers == two.labels.tolist()
    assert [row["label"] for row in facts] == [two.classes[k] for k in numbers]


def test_an_audit_of_a_frozen_set_counts_over_its_classes_alone(counterlens, mined, tmp_path):
    """A model with a fourth class that it always prefers is judged over the three of the card."""
    counterlens("curate", "freeze", str(mined.folder), "--out", "set", "--unreviewed", "-q")
    (tmp_path / "four.py").write_text(
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        "import torch\nfrom counterlens.classifier import Classifier\n"
        "from curate_pools import CornerColour, Preprocess\n"
        "class Four(CornerColour):\n"
        "    def forward(self, x):\n"
        "        z = super().forward(x)\n"
        "        return torch.cat([z, z.max(1, keepdim=True).values + 1], 1)\n"
        "def make():\n"
        "    names = ('red', 'green', 'blue', 'all')\n"
        "    return Classifier(Four(), names, preprocess=Preprocess((16, 16)))\n",
        encoding="utf-8",
    )
    said = counterlens(
        "audit",
        f"{tmp_path}/four.py:make",
        str(counterlens.at / "set"),
        "--out",
        "audit",
        "--anyway",
        "-q",
    )
    assert said.code == 0, said.err
    run = Run.open(counterlens.at / "audit")
    assert "3 of the model's 4 classes" in run.numbers["accuracy.top1"].protocol
    assert run.numbers["accuracy.top1_all"].value == 0
    assert len(run.table("per_class")) == 3


def test_a_filter_is_told_to_be_one_when_it_is_audited_on_its_set(counterlens, mined, tmp_path):
    counterlens("curate", "freeze", str(mined.folder), "--out", "set", "--unreviewed", "-q")
    said = counterlens(
        "audit", factory(tmp_path), str(counterlens.at / "set"), "--out", "audit", "--anyway", "-q"
    )
    assert said.code == 0, said.err
    run = Run.open(counterlens.at / "audit")
    assert run.manifest["about"]["filter"] is True
    assert "low by construction" in (run.folder / "report.html").read_text("utf-8")


def test_the_transfer_check_pairs_images_of_one_class(counterlens, mined, tmp_path):
    """By the mean colour every lie fools; by the corner too: the fall is known exactly."""
    said = counterlens(
        "curate",
        "freeze",
        str(mined.folder),
        "--out",
        "set",
        "--unreviewed",
        "--json",
        "-q",
        "--held-out",
        f"{tmp_path}/colours.py:corner",
        "--trust-remote-code",
    )
    assert said.code == 0, said.err
    numbers = json.loads(said.out)["numbers"]
    key = "transfer.colours.py-corner"
    assert numbers[f"{key}.pool"]["value"] == pytest.approx(18 / 30)
    assert numbers[f"{key}.set"]["value"] == 0
    fall = numbers[f"{key}.fall"]
    assert fall["n"] == 12 and fall["low"] < fall["value"] < 0
    assert fall["value"] == pytest.approx(-numbers[f"{key}.matched"]["value"])
    said = counterlens(
        "curate",
        "freeze",
        str(mined.folder),
        "--out",
        "x",
        "--unreviewed",
        "--held-out",
        factory(tmp_path),
        "--trust-remote-code",
    )
    assert said.code == 2 and "was a filter" in said.err


def test_the_transfer_of_strangers_is_measured_by_aupr(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(12):  # umbrellas of a colour fool by it, others are grey
        colour = noisy("red" if i < 8 else "green", rng)
        grey = np.repeat(colour.mean(2, keepdims=True).astype(np.uint8), 3, 2)
        write_png(tmp_path / "pool" / "umbrella" / f"{i}.png", colour if i % 2 else grey)
    known = make_pool(tmp_path / "known", honest=8, lying=0, seed=3)
    run = ood(
        [str(tmp_path / "pool")], filters=[factory(tmp_path)], inside=str(known),
        confidence=0.6, cosine=0, out=tmp_path / "run", quiet=True,
    )  # fmt: skip
    from counterlens.workflows.curate.freeze import freeze

    corner = f"{tmp_path}/colours.py:corner"
    card = freeze(
        run.folder, out=tmp_path / "set", held_out=[corner], unreviewed=True, quiet=True,
        trust_remote_code=True,
    )  # fmt: skip
    assert card["images"] == 6
    before, after = (
        card["numbers"][f"transfer.colours.py-corner.aupr_{w}"] for w in ("pool", "set")
    )
    assert before["n"] == 12 and after["n"] == 6
    assert after["value"] < before["value"]  # mining leaves what is hard to tell
    opened = open_set(str(tmp_path / "set"))
    assert opened.space == "unknown-to-subset" and set(opened.labels.tolist()) == {-1}


def test_partners_are_other_images_of_the_class():
    labels = np.array([0, 0, 0, 1, 2, 2])
    found = partners(labels, np.array([0, 3, 4]), seed=1)
    assert found[0] in (1, 2) and found[1] == -1 and found[2] == 5


def test_families_are_told_by_name_or_by_a_card():
    built = {"architecture": {"kind": "resnet18", "widths": [4]}}
    assert family("a/model", built) == "resnet" != family("a/model")
    assert family("timm:resnet18") == family("torchvision:resnet50@f.pth") == "resnet"
    assert family("timm:tf_efficientnet_lite0") != family("timm:tf_efficientnet_b0")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["freeze", "RUN", "--out", "set"], "nobody has reviewed"),
        (
            ["freeze", "RUN", "--out", "set", "--format", "zip"],
            "--format is 'zip', expected one of folder, webdataset",
        ),
        (["freeze", "nowhere", "--out", "set"], "is not a run folder"),
        (["review", "RUN"], "--reviewer NAME"),
        (["review", "RUN", "--take", "absent.jsonl"], "does not exist"),
    ],
)
def test_what_cannot_be_done_is_one_clear_line(counterlens, mined, arguments, expected):
    said = counterlens("curate", *(str(mined.folder) if a == "RUN" else a for a in arguments))
    assert said.code == 2 and len(said.lines) == 1
    assert expected in said.lines[0]


def test_a_changed_picture_is_not_frozen(counterlens, mined):
    picture = mined.folder / mined.table("shortlist")[0]["image"]
    picture.write_bytes(picture.read_bytes() + b"x")
    said = counterlens("curate", "freeze", str(mined.folder), "--out", "set", "--unreviewed")
    assert said.code == 2 and "is not what it was" in said.err
    assert not (counterlens.at / "set" / "card.json").exists()


def test_pictures_are_drawn_in_half_blocks(tmp_path):
    pixels = np.zeros((4, 4, 3), np.uint8)
    pixels[:2] = (255, 0, 0)
    write_png(tmp_path / "a.png", pixels)
    upper, lower = draw(tmp_path / "a.png", side=4).split("\n")
    assert upper.count("▀") == 4 and "38;2;255;0;0m" in upper and "38;2;0;0;0m" in lower
    assert parse("x", "a", "ann") is None
