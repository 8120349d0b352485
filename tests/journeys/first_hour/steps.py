"""The hour: what is typed, in order, and what must be seen."""

from dataclasses import dataclass

OWN = "own.py:make"


@dataclass(frozen=True)
class Step:
    """One command of the hour.

    Args:
        title: what the user wants.
        line: what is typed, without `counterlens`; {chosen} is the run that was mined.
        code: the exit code.
        seen: texts that must be on the screen.
        needs: a package without which the step is left out.
    """

    title: str
    line: str
    code: int = 0
    seen: tuple[str, ...] = ()
    needs: str = ""


STEPS = (
    Step("What is this?", "", seen=("Three commands to start with",)),
    Step("What is shipped?", "zoo", seen=("zoo:cifar10-plain-small",)),
    Step("My own CNN: wrapped right?", f"doctor {OWN} photos", seen=("ok",)),
    Step("My own CNN: how good?", f"audit {OWN} photos --out own", seen=("report.html",)),
    Step("A typing mistake", f"audit {OWN} photo", code=2, seen=("did you mean photos?",)),
    Step("A binary model of one logit", "audit binary.py:make pets --out binary"),
    Step("Grey pictures", "doctor grey.py:make digits"),
    Step("Grey pictures: how good?", "audit grey.py:make digits --out grey"),
    Step(
        "An ImageNet classifier on a folder of ten classes",
        "audit timm:resnet18@resnet18.pth things --out imagenet --anyway",
    ),
    Step("TorchScript", "audit torchscript:own.ts photos --out script"),
    Step("ONNX", "audit onnx:own.onnx photos --out onnx", needs="onnx2torch"),
    Step(
        "A folder of the transformers library",
        "audit hf:transformer photos --out transformer-run --anyway",
        needs="transformers",
    ),
    Step("A release gate", f'audit {OWN} photos --out gated --require "accuracy.top1>=0.99"', 1),
    Step("By place", f"audit {OWN} photos.csv --groups place --out places"),
    Step("Robust?", f"audit {OWN} photos --attack l2:0.5 --attack-version fast --attack-points 4 "
         "--out attacked"),
    Step("A new version", "audit zoo:cifar10-ratio-small photos --out new"),
    Step(
        "Two versions, with a gate",
        'compare own new --out both --require "flips.negative.high<=0.9"',
    ),
    Step(
        "What would make this dog a cat?",
        f"explain {OWN} photos/dog/0.png --target cat --steps 20 --out why",
        seen=("cat",),
    ),
    Step("Where does it look?", f"explain cam {OWN} photos/dog/0.png --out look"),
    Step("Its surest mistakes", "explain attacked --worst 1 --steps 10 --trust-remote-code"),
    Step("Mine what it gets wrong", "curate adversarial pool --filter zoo:cifar10-ratio-small "
         "--shortlist 8 --out mined --licence CC0 --source samples"),
    Step("Review", "curate review mined --take verdicts.jsonl"),
    Step("Freeze", "curate freeze mined --out hard"),
    Step("Audit the frozen set", f"audit {OWN} hard --out hard-run"),
    Step("What would a repair take?",
         f"repair {OWN} --fix fix.csv --check check.csv --groups column:place --plan"),
    Step("Train it further", f"train finetune --data photos --set start={OWN} --set epochs=1 "
         "--out tuned"),
)  # fmt: skip
