"""The one idea: raise an objective inside a ball. Here: what makes a robust model see a cat?

Run: python examples/raise_an_objective.py
"""

import torch

import counterlens
from counterlens.images import prepare
from counterlens.objectives import log_confidence

classifier = counterlens.load("zoo:cifar10-ratio-small", device="cpu")
images = counterlens.open_set("sample:cifar10", limit=4)
pixels = [prepare(images.read(i), classifier.preprocess) for i in range(len(images))]
x = torch.stack([torch.from_numpy(p) for p in pixels]).float() / 255
cat = torch.full((len(x),), classifier.classes.index("cat"))

found = counterlens.apgd(log_confidence(classifier, cat), x, counterlens.Ball("l2", 1.5), steps=20)
for before, after in zip(found.start.exp().tolist(), found.scores.exp().tolist(), strict=True):
    print(f"confidence in cat: {before:.3f} → {after:.3f}")
