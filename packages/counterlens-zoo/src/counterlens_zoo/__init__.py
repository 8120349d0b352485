"""Weights and samples of counterlens for CIFAR-10 and MNIST: classifiers, a small generator, an image–text pair, CGNs."""
