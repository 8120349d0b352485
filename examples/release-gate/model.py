"""The model that this repository releases."""

import counterlens as cl


def make() -> cl.Classifier:
    """The classifier, as the audit and the product load it."""
    return cl.load("zoo:cifar10-plain-small", device="cpu")
