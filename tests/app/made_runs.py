"""Runs for the tests of the app, written as the commands write them; pictures are made up."""

from pathlib import Path

from counterlens.runs import Run
from report_runs import CLASSES, picture

COUNT = 60


def shortlist(root: Path, count: int = COUNT, kind: str = "adversarial") -> Run:
    """A curation of made-up pictures, written as `curate` writes it."""
    run = Run.create(root / "mined", "curate adversarial", {"pool": "made up"})
    run.note(kind=kind, data_fingerprint="f00d")
    rows = []
    for i in range(count):
        path = run.path("images", f"{i:05d}.png")
        path.write_bytes(picture(i))
        rows.append(
            {
                "id": f"cat/{i:05d}.png", "label": "cat", "answer": f"secret-{i}", "rank": i + 1,
                "confidence": 0.9, "image": f"images/{path.name}", "sha256": "0", "width": 32,
                "height": 32, "suggested": ["texture"],
            }
        )  # fmt: skip
    run.write_table("shortlist", rows)
    run.finish()
    return run


def quality_run(root: Path, model: str = "zoo:cifar10-plain-small") -> Run:
    """An evaluation of two methods on six pictures, written as `explain evaluate` writes it."""
    run = Run.create(root / "quality", "evaluate", {"model": model})
    rows = []
    for i in range(6):
        for k, name in enumerate(("original", "dvce", "diffusion")):
            path = run.path("images", f"{name}/{i}.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(picture(10 * i + k))
        sides = ["dvce", "diffusion"][:: 1 if i % 2 else -1]
        rows.append(
            {
                "id": f"cifar10/{i:05d}", "target": CLASSES[i % 3],
                "original": f"images/original/{i}.png",
                "left": f"images/{sides[0]}/{i}.png", "right": f"images/{sides[1]}/{i}.png",
                "left_method": sides[0], "right_method": sides[1],
            }
        )  # fmt: skip
    run.write_table("study", rows)
    run.finish()
    return run


def repair_run(folder: Path, verdict: str) -> Run:
    """A receipt as `repair` writes one."""
    run = Run.create(folder, "repair", {"model": "zoo:cifar10-plain-small"})
    run.write_table(
        "verdict", [{"verdict": verdict, "why": f"why {verdict}", "placebo": "placebo"}]
    )
    change = {"before": 0.5, "after": 0.6, "change": 0.1, "low": 0.02, "high": 0.18}
    counts = {"n": 40, "gained": 6, "lost": 2, "p_worse_holm": 1.0, "worse": False}
    run.write_table("receipt", [{"kind": "all", "name": "all images", **change, **counts}])
    shares = {
        f"{name}{end}": value
        for name in ("accuracy", "worst")
        for end, value in (("_low", 0.4), ("_high", 0.6))
    } | {"accuracy": 0.5, "worst_group": 0.5, "choose_worst": 0.5, "worst": "cat", "seconds": 0.1}
    heads = (("as it is", "model", False), ("dfr", "remedy", True))
    run.write_table("tried", [{"name": n, "kind": k, "picked": p, **shares} for n, k, p in heads])
    above = {"above": 0.1, "low": 0.02, "high": 0.18}
    run.write_table("placebos", [{"placebo": "plain refit", "key": "groups.worst", **above}])
    run.finish()
    return run
