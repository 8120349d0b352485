"""Frozen sets open in `webdataset` and `datasets`, with class numbers, licences and sources."""

import gc
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from counterlens.runs import Run
from counterlens.workflows.curate.freeze import freeze
from counterlens.workflows.curate.run import adversarial
from curate_pools import factory, make_pool

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # webdataset leaves its files open
]
datasets = pytest.importorskip("datasets", reason="datasets is not installed")
webdataset = pytest.importorskip("webdataset", reason="webdataset is not installed")
FACTS = ("id", "label", "label_number", "licence", "author", "source", "sha256")


@pytest.fixture(scope="module")
def mined(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A mixed pool: PNG files with facts of their own, JPEG files with none."""
    root = tmp_path_factory.mktemp("exports")
    rows = [
        json.dumps(
            {
                "path": path.relative_to(root).as_posix(),
                "label": path.parent.name,
                "licence": f"CC BY {k % 2 + 3}.0",
                "author": f"Person {k}",
                "source": f"https://a.example/{k}",
            }
        )
        for k, path in enumerate(sorted(make_pool(root / "a", seed=1).rglob("*.png")))
    ]
    (root / "a.jsonl").write_text("\n".join(rows), encoding="utf-8")
    for path in sorted(make_pool(root / "b", seed=2).rglob("*.png")):
        with Image.open(path) as picture:
            picture.save(path.with_suffix(".jpg"), quality=95)
        path.unlink()
    pool = [str(root / "a.jsonl"), str(root / "b")]
    return adversarial(
        pool, filters=[factory(root)], licence="CC0", out=root / "run", tags=3, quiet=True
    )


def frozen(mined: Run, out: Path, form: str) -> dict[str, dict[str, object]]:
    freeze(mined.folder, out=out, form=form, unreviewed=True, quiet=True)
    lines = (out / "images.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert {Path(row["file"]).suffix for row in rows} == {".png", ".jpg"}
    return {row["id"]: row for row in rows}


def stored(out: Path, row: dict[str, object]) -> np.ndarray:
    with Image.open(out / str(row["file"])) as picture:
        return np.array(picture.convert("RGB"))


def test_tar_files_decode_in_webdataset(mined: Run, tmp_path: Path) -> None:
    rows = frozen(mined, tmp_path / "tar", "webdataset")
    folder = frozen(mined, tmp_path / "folder", "folder")
    shards = [str(path) for path in sorted((tmp_path / "tar" / "shards").glob("*.tar"))]
    loaded = webdataset.WebDataset(shards, shardshuffle=False).decode("pil")
    seen = []
    for picture, number, facts in loaded.to_tuple("png;jpg", "cls", "json"):
        row = rows[facts["id"]]
        assert isinstance(number, int) and number == row["label_number"]
        assert {key: facts[key] for key in FACTS} == {key: row[key] for key in FACTS}
        assert np.array_equal(np.array(picture), stored(tmp_path / "folder", folder[facts["id"]]))
        seen.append(facts["id"])
    assert sorted(seen) == sorted(rows)
    del loaded
    gc.collect()  # so that the warning about open files comes while it is ignored


def test_folders_and_tar_files_load_in_datasets(
    mined: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
    rows = frozen(mined, tmp_path / "folder", "folder")
    cache = str(tmp_path / "cache")
    table = datasets.load_dataset(str(tmp_path / "folder"), split="test", cache_dir=cache)
    assert sorted(table["id"]) == sorted(rows)
    for row in table:
        own = rows[row["id"]]
        assert {key: row[key] for key in FACTS} == {key: own[key] for key in FACTS}
        assert np.array_equal(np.array(row["image"]), stored(tmp_path / "folder", own))
    rows = frozen(mined, tmp_path / "tar", "webdataset")
    seen = []
    for kind in ("png", "jpg"):  # several types of picture: a configuration each
        table = datasets.load_dataset(str(tmp_path / "tar"), kind, split="test", cache_dir=cache)
        for row in table:
            own = rows[row["json"]["id"]]
            assert {key: row["json"][key] for key in FACTS} == {key: own[key] for key in FACTS}
            assert row["cls"] == own["label_number"]
            seen.append(row["json"]["id"])
    assert sorted(seen) == sorted(rows)
