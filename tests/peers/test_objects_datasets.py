"""The Hugging Face datasets library itself: features, class names, pixels."""

import numpy as np
import pytest
from PIL import Image

from counterlens import as_image_set

datasets = pytest.importorskip("datasets")


def test_a_dataset_of_the_library_is_read_by_its_features() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 6, 6, 3), dtype=np.uint8)
    features = datasets.Features(
        {"img": datasets.Image(), "label": datasets.ClassLabel(names=["ant", "bee"])}
    )
    rows = {"img": [Image.fromarray(one) for one in pixels], "label": [0, 1, 1, 0, 1]}
    table = datasets.Dataset.from_dict(rows, features=features)
    found = as_image_set(table)
    assert found.classes == ("ant", "bee")
    assert found.labels.tolist() == rows["label"]
    assert [found.read(i).tolist() for i in range(5)] == pixels.tolist()
    assert found.fingerprint == as_image_set(table).fingerprint
