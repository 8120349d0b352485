"""A network trained in ten lines on a DataLoader, audited, compared and explained.

Run: python examples/notebook_style.py
"""

from pathlib import Path
from tempfile import mkdtemp

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import counterlens as cl

torch.manual_seed(0)
out = Path(mkdtemp())
photos = cl.open_set("sample:cifar10-calibration", limit=200)
pixels = torch.stack([torch.from_numpy(photos[i][0]) for i in range(len(photos))])
train = TensorDataset(pixels.permute(0, 3, 1, 2) / 255, torch.from_numpy(photos.labels))
loader = DataLoader(train, batch_size=50, shuffle=True)

net = nn.Sequential(
    nn.Conv2d(3, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
    nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
    nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, 10),
)  # fmt: skip
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
for _ in range(6):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net((x - 0.5) / 0.25), y).backward()
        optimizer.step()

model = cl.Classifier(
    net, classes=photos.classes, mean=[0.5] * 3, std=[0.25] * 3, size=32, name="mine"
)
data = cl.open_set("sample:cifar10", limit=100)  # or any torch Dataset, DataLoader, arrays
mine = cl.audit(model, data, ood={"noise": "noise:uniform"}, out=out / "mine", quiet=True)
seen = cl.audit(model, loader, out=out / "seen", quiet=True)
for name, run in (("unseen", mine), ("trained on", seen)):
    top = run.numbers["accuracy.top1"]
    print(f"accuracy, {name}: {top.value:.3f} [{top.low:.3f}, {top.high:.3f}] n = {top.n}")

both = cl.compare(mine, seen, out=out / "both")
print(f"compared: {both.manifest['model']}")

result = cl.explain(model, data[3], target="cat", radius=1, steps=20, out=out / "cat", quiet=True)
print(f"an image turned to a cat: {result.run.folder / 'report.html'}")
