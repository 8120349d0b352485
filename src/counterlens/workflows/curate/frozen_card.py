"""The README of a frozen set: its card in words and tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from counterlens.data.provenance import COLUMNS

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
        f"**Review**: {review['summary']}.",
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
    for fact in COLUMNS:
        rows = [[text, count] for text, count in card[f"{fact}s"].items()]
        parts += [f"## {fact.capitalize()}s", _table((fact, "images"), rows)]
    parts += ["## Files", _files(card)]
    return _header(card) + "\n\n".join(parts) + "\n"


def _header(card: Mapping[str, Any]) -> str:
    """Which files are the data, as `datasets.load_dataset(FOLDER)` reads it from a README.

    Tar files of several types of picture are a configuration each: their columns differ.
    """
    types = sorted(card["file_types"])
    if card["format"] == "folder":
        files = {"default": "images/**"}
    elif len(types) == 1:
        files = {"default": "shards/*.tar"}
    else:
        files = {kind: f"shards/{kind}-*.tar" for kind in types}
    lines = [
        f"- config_name: {name}\n  data_files:\n  - split: test\n    path: {path}\n"
        for name, path in files.items()
    ]
    return f"---\nconfigs:\n{''.join(lines)}---\n\n"


def _files(card: Mapping[str, Any]) -> str:
    metadata = {
        "removed": "EXIF, GPS and other metadata were removed from the files; `sha256` is of the "
        "file here, `source_sha256` of the file in the pool.",
        "kept": "The files are those of the pool, with their EXIF and GPS data.",
    }[card["metadata"]]
    return (
        "`images.jsonl` has a line per image with its licence, author, source, review and "
        f"checksum; `sha256sum -c checksums.sha256` checks every file. {metadata} "
        "`datasets.load_dataset(FOLDER)` opens the set; tar files of several types of picture are "
        "a configuration each, named after the type."
    )


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
            _shared(row),
            row["weights_hash"][:16],
        ]
        for row in card["held_out"]
    ]
    return _table(("model", "relation", "shared weights", "weights"), rows)


def _shared(row: Mapping[str, Any]) -> str:
    share, other = row["shared_weights"], row["shares_weights_with"]
    return f"{share:.1%} with {other}" if other else "none"


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        lines.append("| " + " | ".join(str(c).replace("|", "\\|") for c in row) + " |")
    return "\n".join(lines)
