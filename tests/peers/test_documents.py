"""Exports opened by the programs they are for: Croissant by mlcroissant, a folder by FiftyOne."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from counterlens.data.sources.frozen import SCHEMA
from counterlens.runs import write_json, write_text
from counterlens.workflows.documents.export import export

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def frozen(tmp_path: Path) -> Path:
    """A frozen set as `curate freeze` writes it, of three pictures."""
    from counterlens.images import write_png

    rows = []
    for i, label in enumerate(("cat", "dog", "cat")):
        file = f"images/{label}/{i}.png"
        write_png(tmp_path / "set" / file, np.full((8, 8, 3), 40 * i, np.uint8))
        facts = {"id": f"a/{i}", "label": label, "label_number": int(label == "dog")}
        rows.append(
            {**facts, "licence": "CC0", "sha256": f"{i:064}", "answer": "dog", "file": file}
        )
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    write_text(tmp_path / "set" / "images.jsonl", lines)
    card = {
        "schema": SCHEMA, "kind": "adversarial", "name": "three pictures", "images": 3,
        "format": "folder", "classes": ["cat", "dog"], "labels": {"cat": 2, "dog": 1},
        "review": {"summary": "not reviewed"}, "licences": {"CC0": 3}, "sha256": "0" * 64,
    }  # fmt: skip
    write_json(tmp_path / "set" / "card.json", card)
    return tmp_path / "set"


def test_croissant(frozen: Path) -> None:
    croissant = pytest.importorskip("mlcroissant", reason="mlcroissant is not installed")
    path = export(frozen, "croissant")
    opened = croissant.Dataset(jsonld=str(path))
    assert opened.metadata.name
    rows = list(opened.records("images"))
    labels = [row["images/label"] for row in rows]
    assert [one.decode() if isinstance(one, bytes) else one for one in labels] == [
        "cat", "dog", "cat"
    ]  # fmt: skip
    assert [int(row["images/label_number"]) for row in rows] == [0, 1, 0]


def test_fiftyone(frozen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Needs no database: the importer alone. With one (FIFTYONE_DATABASE_URI) a whole data set."""
    monkeypatch.setenv("FIFTYONE_DO_NOT_TRACK", "true")
    folder = export(frozen, "fiftyone", write_to=tmp_path / "fo")
    pytest.importorskip("fiftyone", reason="fiftyone is not installed")
    import fiftyone
    from fiftyone.utils.data.importers import FiftyOneImageClassificationDatasetImporter

    importer = FiftyOneImageClassificationDatasetImporter(dataset_dir=str(folder))
    with importer:
        samples = sorted((os.path.basename(path), label) for path, _, label in importer)  # noqa: PTH119
    assert [label.label for _, label in samples] == ["cat", "dog", "cat"]
    assert [label["answer"] for _, label in samples] == ["dog"] * 3
    if "FIFTYONE_DATABASE_URI" not in os.environ:
        return
    opened = fiftyone.Dataset.from_dir(
        dataset_dir=str(folder), dataset_type=fiftyone.types.FiftyOneImageClassificationDataset
    )
    assert opened.count_values("ground_truth.label") == {"cat": 2, "dog": 1}
    assert opened.count_values("ground_truth.image") == {f"a/{i}": 1 for i in range(3)}
    opened.delete()
