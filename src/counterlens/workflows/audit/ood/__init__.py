"""Out-of-distribution detection of an audit.

`detection` measures it by the confidence alone, `worst` raises that confidence around unknown
images. `scores` fits and compares several scores, `tables` writes them, `score_attack` raises them.
"""
