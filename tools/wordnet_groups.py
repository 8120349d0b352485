"""Write the WordNet group of each ImageNet class into imagenet.tsv, from WordNet 3.0's data.noun.

    python tools/wordnet_groups.py WORDNET/dict/data.noun

The group of a class is its highest WordNet ancestor with at most 20 of the thousand classes below
it, three steps or more below the root and not "natural object", which says nothing of a class;
the 118 breeds of dog are one group. A class alone in its group has none.
"""

import sys
from collections import Counter
from pathlib import Path

from counterlens.label_spaces import imagenet

TABLE = Path(__file__).parents[1] / "src/counterlens/label_spaces/imagenet.tsv"
LARGEST = 20
LEAST_DEPTH = 3
DOG, ENTITY, NATURAL_OBJECT = "02084071", "00001740", "00019128"


def nouns(path: Path) -> dict[str, tuple[str, list[str]]]:
    """First lemma and hypernyms of every noun synset, by its offset."""
    found = {}
    for line in path.read_text(encoding="latin-1").splitlines():
        if line.startswith("  "):  # the licence at the top
            continue
        cells = line.split(" | ")[0].split()
        at = 4 + 2 * int(cells[3], 16)
        pointers = [cells[at + 1 + 4 * k : at + 5 + 4 * k] for k in range(int(cells[at]))]
        above = [
            offset for sign, offset, kind, _ in pointers if sign in ("@", "@i") and kind == "n"
        ]
        found[cells[0]] = (cells[4].replace("_", " "), above)
    return found


def ancestors(offset: str, known: dict[str, tuple[str, list[str]]]) -> dict[str, int]:
    """The synset and all above it, with the number of steps up."""
    steps = {offset: 0}
    queue = [offset]
    for one in queue:
        for above in known[one][1]:
            if above not in steps:
                steps[above] = steps[one] + 1
                queue.append(above)
    return steps


def main(path: Path) -> None:
    known = nouns(path)
    above = {s.wnid: ancestors(s.wnid[1:], known) for s in imagenet()}
    below = Counter(offset for steps in above.values() for offset in steps)
    group = {}
    for wnid, steps in above.items():
        small = [
            offset
            for offset in steps
            if below[offset] <= LARGEST
            and ancestors(offset, known)[ENTITY] >= LEAST_DEPTH
            and offset != NATURAL_OBJECT
        ]
        widest = max(small, key=lambda o: (below[o], -steps[o]))
        group[wnid] = DOG if DOG in steps else widest
    members = Counter(group.values())
    names = Counter(known[offset][0] for offset in members)
    lines = []
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        cells = line.split("\t")[:6]
        offset = group[cells[0]]
        name = known[offset][0]
        text = name if names[name] == 1 else f"{name} n{offset}"
        lines.append("\t".join([*cells, text if members[offset] > 1 else "-"]))
    TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
