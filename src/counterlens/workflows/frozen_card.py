"""The README of a frozen set: its card in words and tables."""

from collections.abc import Mapping, Sequence
from typing import Any

_KINDS = {
    "adversarial": "Photographs of known classes that the filters get wrong, mined as ImageNet-A "
    "was. Judge a model by its answers over the classes of the card alone.",
    "ood": "Images of none of the card's classes to which the filters give high confidence, mined "
    "as ImageNet-O was. Judge a model by AUPR, unknown positive, its softmax over the card's "
    "classes alone.",
}


def readme(card: Mapping[str, Any]) -> str:
    """A frozen set's card as Markdown."""
    review = card["review"]
    parts = [
        f"# {card['name']}",
        _KINDS[card["kind"]],
        f"{card['images']} images of {len(card['labels'])} classes. {card['protocol'].capitalize()}"
        " take part in the softmax.",
        f"**Review**: {review['told']}." + _outcomes(review),
        "## Funnel",
        _table(
            ("stage", "rule", "before", "kept"),
            [[row["stage"], row["rule"], row["before"], row["kept"]] for row in card["funnel"]],
        ),
    ]
    if card["set_aside"]:
        rows = [[row["why"], row["images"]] for row in card["set_aside"]]
        parts += ["Set aside:", _table(("why", "files"), rows)]
    filters = [[row["model"], row["weights_hash"]] for row in card["filters"]]
    parts += ["## Filters", _table(("model", "SHA-256 of the weights"), filters)]
    if card["numbers"]:
        parts += ["## Measured", _numbers(card["numbers"])]
    if card["held_out"]:
        parts += ["## Held-out models", _held_out(card)]
    for name, counts in (("Licences", card["licences"]), ("Sources", card["sources"])):
        rows = [[text, count] for text, count in counts.items()]
        parts += [f"## {name}", _table((name.lower()[:-1], "images"), rows)]
    parts.append(
        "## Files\n\n`images.jsonl` has a line per image with its source, licence and checksum; "
        "`sha256sum -c checksums.sha256` checks every file."
    )
    return "\n\n".join(parts) + "\n"


def _outcomes(review: Mapping[str, Any]) -> str:
    counts = review.get("outcomes", {})
    told = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
    return f" Of the shortlist: {told}." if told else ""


def _numbers(numbers: Mapping[str, Mapping[str, Any]]) -> str:
    rows = []
    for key, n in numbers.items():
        if n["value"] is None:
            rows.append([key, "–", "–", n["n"], f"{n['reason']}; {n['protocol']}"])
            continue
        ends = "–" if n["low"] is None else f"{n['low']:.4f} … {n['high']:.4f}"
        rows.append([key, f"{n['value']:.4f}", ends, n["n"], n["protocol"]])
    return _table(("number", "value", "95 % interval", "n", "protocol"), rows)


def _held_out(card: Mapping[str, Any]) -> str:
    rows = [
        [
            row["model"],
            f"same family as the filter {row['family_of_filter']}"
            if row["family_of_filter"]
            else "of another family than every filter",
            row["weights_hash"][:16],
        ]
        for row in card["held_out"]
    ]
    return _table(("model", "relation", "weights"), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        lines.append("| " + " | ".join(str(c).replace("|", "\\|") for c in row) + " |")
    return "\n".join(lines)
