"""Somebody else's curation and recipes: nothing is copied from outside, nothing runs unasked."""

import hashlib
from pathlib import Path

import pytest

from counterlens.data import open_set
from counterlens.errors import InputError
from counterlens.runs import Run, write_json
from counterlens.workflows.curate.freeze import freeze
from counterlens.workflows.curate.frozen_files import folder_name
from counterlens.workflows.curate.held_out import known_images
from counterlens.workflows.curate.review import review
from counterlens.workflows.train import recipes
from report_runs import picture


def curation(at: Path, *, filters: tuple[str, ...] = (), **change: object) -> Path:
    """A finished curation of one picture, but for what is changed in its row."""
    settings = {"filters": list(filters), "pool": ["pool"], "inside": "", "alias": [], "seed": 0}
    run = Run.create(at, "curate adversarial", {**settings, "limit": None})
    run.note(kind="adversarial", filters=[], protocol="p", data_fingerprint="f", versions={})
    data = picture(0)
    run.path("images", "1.png").write_bytes(data)
    row = {"id": "1", "label": "cat", "answer": "dog", "confidence": 0.9, "width": 32, "height": 32}
    row |= {"image": "images/1.png", "sha256": hashlib.sha256(data).hexdigest()}
    row |= {"source": "s", "licence": "l", "author": "a", "set": "pool", "rank": 1, "row": 0}
    run.write_table("shortlist", [{**row, **change}])
    write_json(run.path("tables", "classes.json"), {"classes": ["cat", "dog"], "told": "two"})
    run.finish()
    return at


def test_a_whole_curation_freezes(tmp_path: Path) -> None:
    card = freeze(curation(tmp_path / "run"), out=tmp_path / "set", unreviewed=True, quiet=True)
    assert card["images"] == 1


@pytest.mark.parametrize("how", ["dots", "absolute", "link"])
def test_no_file_from_outside_is_frozen_or_shown(tmp_path: Path, how: str) -> None:
    """Its hash is right and it is a picture: only the place is wrong."""
    secret = tmp_path / "private.png"
    secret.write_bytes(picture(1))
    name = {"dots": "../private.png", "absolute": str(secret), "link": "images/link.png"}[how]
    digest = hashlib.sha256(secret.read_bytes()).hexdigest()
    run = curation(tmp_path / "run", image=name, sha256=digest)
    if how == "link":
        (run / name).symlink_to(secret)
    with pytest.raises(InputError, match="outside"):
        freeze(run, out=tmp_path / "set", unreviewed=True, quiet=True)
    with pytest.raises(InputError, match="outside"):
        review(run, sheet=tmp_path / "sheet.html", reviewer="ann", quiet=True)
    assert not (tmp_path / "set").exists() and not (tmp_path / "sheet.html").exists()


@pytest.mark.parametrize(
    "change",
    [{"image": None}, {"image": "a\0b"}, {"label": 3}, {"id": ["1"]}, {"confidence": "high"}],
    ids=str,
)
def test_a_malformed_row_is_one_line(tmp_path: Path, change: dict[str, object]) -> None:
    run = curation(tmp_path / "run", **change)
    for command in (
        lambda: freeze(run, out=tmp_path / "set", unreviewed=True, quiet=True),
        lambda: review(run, status=True, quiet=True),
    ):
        with pytest.raises(InputError) as caught:
            command()
        assert "\n" not in str(caught.value) and str(run) in str(caught.value)


def test_the_filters_of_a_run_are_not_run_unasked(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "evil.py").write_text(f"from pathlib import Path\nPath({str(ran)!r}).touch()\n")
    run = curation(tmp_path / "run", filters=(f"{tmp_path}/evil.py:f",))
    with pytest.raises(InputError, match=r"evil\.py:f.*trust_remote_code=True"):
        freeze(
            run, out=tmp_path / "set", unreviewed=True, quiet=True,
            held_out=["zoo:cifar10-plain-small"],
        )  # fmt: skip
    assert not ran.exists()


def test_a_label_of_120_cjk_characters_is_a_folder(tmp_path: Path) -> None:
    for name in {folder_name("猫" * 120), folder_name("猫" * 119 + "犬")}:
        (tmp_path / name).mkdir()
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    "text", ["base: [a, b]\n", "base: {a: 1}\n", "[" * 5000, "a: \0\n", "- 1\n", "x: !!python/x\n"]
)
def test_a_malformed_recipe_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(InputError) as caught:
        recipes.load(str(tmp_path / "r.yaml"))
    assert "\n" not in str(caught.value)
    for odd in ("a\0b.yaml", "gone.yaml", "x" * 20):
        with pytest.raises(InputError):
            recipes.load(odd)


def test_only_the_known_images_of_the_mining_are_opened_for_the_transfer_check(
    tmp_path: Path,
) -> None:
    """A run folder from someone else names any set; its fingerprint has to be the recorded one."""
    run = Run.open(curation(tmp_path / "run"))
    for recorded in (None, "another set's"):
        run.note(inside_fingerprint=recorded)
        with pytest.raises(InputError, match="is not the set of known images"):
            known_images(run, "sample:cifar10")
    run.note(inside_fingerprint=open_set("sample:cifar10").fingerprint)
    assert len(known_images(run, "sample:cifar10")) > 0
