"""Accuracy and calibration of a shipped classifier, in Python.

Run: python examples/accuracy.py
"""

import counterlens
from counterlens.predictions import predict

classifier = counterlens.load("zoo:cifar10-plain-small")
images = counterlens.open_set("sample:cifar10", limit=100)
predictions = predict(classifier, images, progress=False)
numbers = counterlens.classification_numbers(predictions.logits, predictions.labels)
for key in ("accuracy.top1", "calibration.ece", "selective.aurra"):
    number = numbers[key]
    print(f"{key:18} {number.value:.4f} [{number.low:.4f}, {number.high:.4f}] n = {number.n}")
