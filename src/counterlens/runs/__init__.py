"""Runs: the folders that workflows write and that reports, comparisons and the app read.

Nothing in here knows torch, so a report can be rendered or a gate checked without it.
"""

from counterlens.runs.files import append_line, atomic, read_json, write_json, write_text
from counterlens.runs.gates import Gate, GateResult, check_gates, parse_gate
from counterlens.runs.kept import Kept, keep_logits, kept_logits
from counterlens.runs.number import Number, key_part
from counterlens.runs.run import Run, discard_unstarted, latest, new_folder

__all__ = [
    "Gate",
    "GateResult",
    "Kept",
    "Number",
    "Run",
    "append_line",
    "atomic",
    "check_gates",
    "discard_unstarted",
    "keep_logits",
    "kept_logits",
    "key_part",
    "latest",
    "new_folder",
    "parse_gate",
    "read_json",
    "write_json",
    "write_text",
]
