"""Errors of the library, which name keywords, in the words of the command line."""

import pytest

from counterlens.workflows._shared.options import in_flags
from counterlens.workflows.audit.options import AuditOptions


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ("Give others: ood_fit=SPEC.", "Give others: --ood-fit SPEC."),
        ("Give one, for example attack=['l2:0.5'].", "Give one, for example --attack l2:0.5."),
        ("attack=['l2:1', 'linf:8/255']", "--attack l2:1 --attack linf:8/255"),
        ("Name it: ood=NAME=SPEC, or stop", "Name it: --ood NAME=SPEC, or stop"),
        ("go on with anyway=True.", "go on with --anyway."),
        ("ask for ood_score=msp,energy,odin.", "ask for --ood-score msp,energy,odin."),
        ("ood_fit is 3, expected a set.", "--ood-fit is 3, expected a set."),
        ("limit is 0, expected 1 or more.", "--limit is 0, expected 1 or more."),
        (
            "attack_version is 'x', expected one of a, b.",
            "--attack-version is 'x', expected one of a, b.",
        ),
        ("Classifier(net, size=224) has no limit", "Classifier(net, size=224) has no limit"),
    ],
)
def test_keywords_of_the_command_become_flags(text, typed):
    assert in_flags(text, AuditOptions) == typed
