"""Repair: change the last layer of a classifier and prove on other images what it did.

`groups` names and checks the groups, `remedies` fits new heads on features, `receipt` compares
before and after on images that neither fitted nor chose anything, `run` puts them together.
"""
