"""The ImageNet-A protocol under attack on a GPU, end to end: predictions, robust accuracy, worst
case of unknown images and confidence over radius.

Needs torch, torchvision and a CUDA device, neither pytest nor the libraries of the command line:
`PYTHONPATH=src python tests/workflows/audit/test_protocol_gpu.py [DEVICE]`.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from counterlens.data import write_pack
from counterlens.label_spaces import imagenet_names, members
from counterlens.workflows.audit.run import audit

try:
    import pytest
except ImportError:  # run as a script
    pass
else:
    pytestmark = [
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    ]

MODEL = """
import torch, torchvision
from counterlens import Classifier, Preprocess
from counterlens.label_spaces import imagenet_names


def make():
    net = torchvision.models.resnet18()
    net.load_state_dict(torch.load(__file__.replace("net.py", "net.pt"), weights_only=True))
    names = imagenet_names()
    return Classifier(net.eval(), names, preprocess=Preprocess((64, 64)), name="resnet18")
"""


def write_model(folder: Path, pictures: np.ndarray) -> np.ndarray:
    """A ResNet-18 with random weights whose answers differ; its answers among the 200 classes."""
    import torchvision

    torch.manual_seed(0)
    net = torchvision.models.resnet18()
    x = torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 255
    with torch.no_grad():
        for _ in range(20):
            net.train()(x)  # batch norms get the statistics of the pictures
        net.eval().fc.bias -= net(x).mean(0)
        columns = [group[0] for group in members("imagenet-a").values()]
        labels = net(x)[:, columns].argmax(1).numpy()
    torch.save(net.state_dict(), folder / "net.pt")
    (folder / "net.py").write_text(MODEL, encoding="utf-8")
    return labels


def attacked(folder: Path, device: str, points: int = 64) -> dict[str, object]:
    """Audit such a model on its own answers; every number of the run."""
    rng = np.random.default_rng(0)
    small = rng.integers(0, 256, (points, 8, 8, 3), dtype=np.uint8)
    pictures = np.repeat(np.repeat(small, 8, 1), 8, 2)
    labels = write_model(folder, pictures)
    wnids = tuple(members("imagenet-a"))
    for name, space in (("known", "imagenet-a"), ("unknown", "imagenet-o")):
        classes = wnids if name == "known" else tuple(members(space))
        shown = list(pictures if name == "known" else pictures[::-1, :, ::-1])
        write_pack(folder / f"{name}.npz", shown, labels, classes, space=np.array(space))
    run = audit(
        [f"{folder}/net.py:make"],
        f"pack:{folder}/known.npz",
        ood=[f"pack:{folder}/unknown.npz"],
        attack=["linf:1/255"],
        ood_attack="linf:1/255",
        radius_curve="linf:1/255",
        attack_points=32,
        device=device,
        anyway=True,  # nobody trained it
        out=folder / "run",
    )
    print({"device": run.manifest["device"], "matched": run.manifest["matched"]})
    return dict(run.numbers)


def check(folder: Path, device: str) -> None:
    """The numbers that need the attack under the protocol are there and make sense."""
    assert len(imagenet_names()) == 1000
    numbers = attacked(folder, device)
    for key in ("accuracy.top1", "robust.linf-1_255.accuracy", "ood.unknown.worst_auroc"):
        print(key, numbers[key])
        assert numbers[key].value is not None  # type: ignore[attr-defined]
    robust, clean = numbers["robust.linf-1_255.accuracy"], numbers["accuracy.top1"]
    assert "200 of the model's 1000" in clean.protocol  # type: ignore[attr-defined]
    assert robust.value < clean.value  # type: ignore[attr-defined]


def test_imagenet_a_is_attacked_on_a_gpu(tmp_path: Path) -> None:
    check(tmp_path, "cuda")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        check(Path(made), sys.argv[1] if len(sys.argv) > 1 else "cuda")
    print("ok")
