"""A Markdown snippet with the numbers of an audit, for a model card."""

from counterlens.report.kit.parts import digits
from counterlens.runs import Run
from counterlens.runs.keys import meaning, model_words, show_interval, show_number, verdict

_SKIP = ("ece_common", "rms_paper", "top1_all")


def model_card(run: Run) -> str:
    """Numbers with interval, n and protocol as a Markdown table, less what must not be quoted."""
    manifest = run.manifest
    model = manifest.get("model") or manifest["settings"].get("model") or run.folder.name
    data = manifest.get("data") or manifest["settings"].get("data") or "?"
    version = manifest["versions"].get("counterlens", "")
    day = str(manifest.get("started", ""))[:10]
    lines = [
        "## Evaluation",
        "",
        f"`{model_words(str(model))}` on `{data}`, audited with counterlens {version} ({day}).",
        "",
        "| measure | value | 95 % interval | n | protocol |",
        "|---|---:|---:|---:|---|",
    ]
    left = 0
    for key, number in run.numbers.items():
        m = meaning(key)
        if m.metric in _SKIP or number.value is None:
            continue
        if verdict(number) == "do not quote":
            left += 1
            continue
        value = show_number(number, m.unit, digits=digits(key))
        interval = show_interval(number, m.unit, digits=digits(key)) or "–"
        protocol = number.protocol.replace("|", "\\|")
        if number.bound:
            protocol = f"{number.bound} bound, {number.reason}; {protocol}"
        lines.append(f"| {m.label} | {value} | {interval} | {number.n:,} | {protocol} |")
    if left:
        lines += [
            "",
            f"{left} attack result(s) are left out: their attacks were not to be trusted.",
        ]
    return "\n".join(lines).replace("\u202f", " ") + "\n"
