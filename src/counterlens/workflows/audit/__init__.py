"""Audit: measure a classifier on a set of images.

`run` loads the model and the images, lets the doctor examine the wrapping, predicts once over each
set and turns the logits into numbers. `protocol` decides which classes count, `robustness` attacks
a subset, `radius` draws confidence against radius, `gallery` keeps the images to look at.
"""
