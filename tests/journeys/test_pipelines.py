"""Pipelines as their user runs them: a repository with a gate, the composite action, pytest.

Oracles: exit codes of a real bash, JUnit read by the standard library's parser and, where it is
installed, by junitparser; the action's own steps out of action.yml, run as a composite runner does.
"""

import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "release-gate"
REGRESSED = '''
import counterlens as cl


def make():
    """A regression: the model was pruned too far."""
    classifier = cl.load("zoo:cifar10-plain-small", device="cpu")
    for weight in classifier.net.parameters():
        if weight.ndim == 4:
            small = weight.abs().flatten().kthvalue(int(0.85 * weight.numel()))[0]
            weight.data[weight.abs() < small] = 0
    classifier.name = "pruned"
    return classifier
'''


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A PATH with `counterlens` on it, and the files that GitHub gives a step."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, module in (("counterlens", "-m counterlens"), ("python", "")):
        script = commands / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        script.chmod(0o755)
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return {
        **os.environ,
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": paths,
        "COUNTERLENS_PROGRESS": "off",
        "GITHUB_ACTIONS": "true",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
    }


def repository(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLE, tmp_path / "repository"))


def gate_steps(folder: Path) -> list[str]:
    """The script steps of the workflow but for the installation."""
    text = (folder / ".github/workflows/release-gate.yml").read_text()
    steps = yaml.safe_load(text)["jobs"]["audit"]["steps"]
    return [step["run"] for step in steps if "run" in step and step["name"] != "Install"]


def cases(file: Path) -> dict[str, str]:
    """Result of every test case of a JUnit file by its name."""
    root = ET.parse(file).getroot()
    found = {
        case.attrib["name"]: next((c.tag for c in case if c.tag != "system-out"), "passed")
        for case in root.iter("testcase")
    }
    assert int(root.attrib["tests"]) == len(found)
    assert int(root.attrib["failures"]) == list(found.values()).count("failure")
    return found


@pytest.mark.slow  # two audits in shells of their own
def test_the_gate_of_the_example_passes_then_fails_on_a_regression(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    folder = repository(tmp_path)
    (step,) = gate_steps(folder)
    assert yaml.safe_load((folder / ".gitlab-ci.yml").read_text())["release-gate"]["script"] == [
        step
    ]
    good = subprocess.run(["bash", "-e", "-c", step], cwd=folder, env=environment, text=True,
                          capture_output=True)  # fmt: skip
    assert good.returncode == 0, good.stderr
    gates = {k: v for k, v in cases(folder / "gate.xml").items() if ">=" in k or "<=" in k}
    assert gates == {"accuracy.top1.low>=0.8": "passed", "calibration.ece<=0.15": "passed"}
    shutil.rmtree(folder / "gate")

    (folder / "model.py").write_text(REGRESSED)
    bad = subprocess.run(["bash", "-e", "-c", step], cwd=folder, env=environment, text=True,
                         capture_output=True)  # fmt: skip
    assert bad.returncode == 1, bad.stderr
    assert cases(folder / "gate.xml")["accuracy.top1.low>=0.8"] == "failure"
    assert (folder / "gate" / "report.html").stat().st_size > 10_000  # the artefact
    assert "::error title=pruned%3A gate failed::accuracy.top1.low>=0.8" in bad.stderr
    summary = (tmp_path / "summary.md").read_text()
    assert summary.count("### counterlens audit") == 2
    assert "| `accuracy.top1.low>=0.8` | **failed** |" in summary


def test_the_junit_file_opens_in_junitparser(tmp_path: Path) -> None:
    junitparser = pytest.importorskip("junitparser", reason="junitparser is not installed")
    from counterlens.testing import assert_audit

    file = tmp_path / "gates.xml"
    with pytest.raises(AssertionError, match=r"accuracy.top1>=0.999"):
        assert_audit(
            "zoo:cifar10-plain-small", "sample:cifar10", require=["accuracy.top1>=0.999"],
            limit=30, quiet=True, out=tmp_path / "run", junit=file,
        )  # fmt: skip
    (suite,) = junitparser.JUnitXml.fromfile(str(file))
    assert suite.failures == 1
    assert "accuracy.top1" in {one.name for one in suite.properties()}


def step_by_step(inputs: dict[str, str], folder: Path, environment: dict[str, str]) -> int:
    """Run the script steps of action.yml with these inputs, as a composite runner does."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    values = {key: one.get("default", "") for key, one in action["inputs"].items()} | inputs
    for step in action["runs"]["steps"]:
        if "run" not in step or (step["name"] == "Install" and not values["package"]):
            continue
        own = {
            key: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda found: values[found[1]], text)
            for key, text in step["env"].items()
        }
        assert "${{" not in step["run"]  # inputs reach the shell as variables, never as code
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done = subprocess.run(command, cwd=folder, env={**environment, **own})
        if done.returncode:
            return done.returncode
    return 0


@pytest.mark.slow
def test_the_composite_action_runs_gates_line_by_line(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    inputs = {
        "model": "zoo:cifar10-plain-small",
        "data": "sample:cifar10",
        "require": "accuracy.top1>=0.5\ncalibration.ece<=0.0001\n",
        "options": "--limit=40\n--quiet",
        "package": "",
    }
    assert step_by_step(inputs, tmp_path, environment) == 1
    found = cases(tmp_path / "counterlens-run.xml")
    assert found["accuracy.top1>=0.5"] == "passed"
    assert found["calibration.ece<=0.0001"] == "failure"
    assert "report=counterlens-run/report.html" in (tmp_path / "output").read_text()
    assert (tmp_path / "counterlens-run" / "report.html").exists()


@pytest.mark.slow
def test_the_pytest_example_keeps_its_run_and_its_numbers(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    folder = repository(tmp_path)
    installed = {point.name for point in entry_points(group="pytest11")}
    load = [] if "counterlens" in installed else ["-p", "counterlens.testing.plugin"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *load, "--counterlens-runs", "reports",
         "--junitxml", "tests.xml", "-c", os.devnull, "--rootdir", ".", "test_release.py"],
        cwd=folder, env=environment, text=True, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    properties = {
        one.attrib["name"]: one.attrib["value"]
        for one in ET.parse(folder / "tests.xml").getroot().iter("property")
    }
    assert re.fullmatch(r"0\.\d+ \[0\.\d+, \d\.?\d*\], n = 100", properties["accuracy.top1"])
    assert (folder / "reports/test_the_model_may_be_released/audit-1/report.html").exists()


def test_a_doctor_that_refuses_is_a_failure_in_the_junit_file(tmp_path: Path) -> None:
    import torch

    import counterlens as cl

    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 10))
    torch.nn.init.constant_(net[1].weight, float("nan"))
    names = cl.open_set("sample:cifar10").classes
    model = cl.Classifier(net, classes=names, size=8)
    with pytest.raises(cl.CounterlensError, match="doctor refused"):
        cl.audit(
            model, "sample:cifar10", limit=30, quiet=True, device="cpu",
            out=tmp_path / "run", junit=tmp_path / "gates.xml",
        )  # fmt: skip
    assert cases(tmp_path / "gates.xml")["finite outputs"] == "failure"


def test_a_gate_without_a_rule_is_refused(tmp_path: Path) -> None:
    from counterlens.errors import InputError
    from counterlens.testing import assert_audit

    with pytest.raises(InputError, match="could not fail"):
        assert_audit("zoo:cifar10-plain-small", "sample:cifar10", require=[])
    with pytest.raises(InputError, match="expected a file"):
        assert_audit(
            "zoo:cifar10-plain-small", "sample:cifar10", require="accuracy.top1>=0",
            junit=tmp_path,
        )  # fmt: skip
