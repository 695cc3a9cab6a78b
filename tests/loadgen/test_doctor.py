import json

import pytest

from loadgen import doctor
from loadgen.doctor import Finding, as_data, examine, render, state_of

FIT = [
    doctor._cores(4),
    doctor._files(1024, 1_000_000),
    doctor._clock(40, "tsc"),
    doctor._stamps([1_500] * 100),
    doctor._lag([0.0002] * 100),
    doctor._priority(True),
]
UNFIT = [
    doctor._cores(1),
    doctor._files(256, 1024),
    doctor._clock(4_000_000, "jiffies"),
    doctor._stamps(None),
    doctor._stamps([900_000] * 100),
    doctor._lag([0.0002] * 95 + [0.05] * 5),
    doctor._priority(False),
]


@pytest.mark.parametrize("finding", FIT, ids=lambda finding: finding.what)
def test_nothing_to_do_on_a_fit_machine(finding):
    assert (finding.state, finding.advice) == ("ok", "")


@pytest.mark.parametrize("finding", UNFIT, ids=lambda finding: finding.what)
def test_what_is_poor_says_what_to_do(finding):
    assert finding.state == "poor"
    assert finding.advice


def test_this_machine_is_looked_at():
    findings = examine()
    assert len({finding.what for finding in findings}) == len(findings) == 8
    said = as_data(findings)
    assert json.loads(json.dumps(said))["state"] == state_of(findings)
    assert all(finding.found in render(findings) for finding in findings)


def test_a_kernel_that_stamps_nothing_is_found_out(monkeypatch):
    monkeypatch.setattr(doctor, "_stamp_error_ns", lambda *_: None)
    assert doctor._stamp_errors_ns() is None


def test_advice_stands_below_its_finding():
    assert render([Finding("a", "ok", "fine"), Finding("bcd", "poor", "less", "do this")]) == (
        "ok    a    fine\npoor  bcd  less\n           → do this\n"
    )
