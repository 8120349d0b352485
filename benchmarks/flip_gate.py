"""How often the gate `flips.negative.high<=0.02` catches a release with 2 % seeded regressions.

Simulated answers of two releases on the same 2,000 images, no images or networks: the old release
is right on 90 %, re-training flips 0.5 % of the images each way at random; a regressed release
turns a further 2 % of the images from right to wrong. The gate is the one that `compare --require`
checks, on the numbers that `compare` gives. Also the coverage of the interval of the negative rate.

Run: .venv/bin/python benchmarks/flip_gate.py
"""

import json
from pathlib import Path

import numpy as np

from counterlens.runs import check_gates, parse_gate
from counterlens.workflows.compare.flips import flip_rate, flips

IMAGES, REPEATS, ACCURACY, CHURN, SEEDED = 2000, 1000, 0.9, 0.005, 0.02
RULE = "flips.negative.high<=0.02"
OUT = Path(__file__).parent / "results" / "flip_gate.json"


def release(rng: np.random.Generator, seeded: float) -> tuple[bool, bool]:
    """Whether the gate stops a release, and whether the interval holds the true rate."""
    kind = rng.choice(4, size=IMAGES, p=[ACCURACY - CHURN - seeded, CHURN + seeded, CHURN,
                                         1 - ACCURACY - CHURN])  # fmt: skip
    before, after = kind < 2, (kind == 0) | (kind == 2)
    number = flip_rate(flips(before, after)["negative"], "negative", "simulated images")
    passed = check_gates([parse_gate(RULE)], {"flips.negative": number})[0].passed
    assert number.low is not None
    assert number.high is not None
    return not passed, number.low <= CHURN + seeded <= number.high


def main() -> None:
    """Print and store the counts."""
    rng = np.random.default_rng(0)
    found: dict[str, object] = {"images": IMAGES, "repeats": REPEATS, "rule": RULE}
    for name, seeded in (("regressed", SEEDED), ("harmless", 0.0)):
        stopped, held = np.array([release(rng, seeded) for _ in range(REPEATS)]).mean(0)
        found[name] = {"true_rate": CHURN + seeded, "stopped": stopped, "coverage": held}
    OUT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
