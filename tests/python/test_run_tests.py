"""scripts/run_tests: whatever skips is told with its reason."""
import importlib.machinery
import importlib.util

import pytest

from programs import ROOT

GTEST = """<testsuites><testsuite name="Tls">
<testcase name="over_ipv6" classname="Tls"><skipped message="/x/tests/tls_test.cc:134&#x0A;no IPv6 on this machine"/></testcase>
<testcase name="over_ipv4" classname="Tls"/></testsuite></testsuites>"""
PYTEST = """<testsuites><testsuite name="pytest"><testcase name="test_a"><skipped type="pytest.skip" message="needs root"/>
</testcase><testcase name="test_b"><skipped type="pytest.skip" message="needs root"/></testcase></testsuite></testsuites>"""


@pytest.fixture
def run_tests():
    """The script as a module."""
    loader = importlib.machinery.SourceFileLoader("run_tests", str(ROOT / "scripts/run_tests"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("run_tests", loader))
    loader.exec_module(module)
    return module


def test_skips_are_found_in_the_reports_of_both_runners(run_tests, tmp_path):
    (tmp_path / "tls_test.xml").write_text(GTEST, encoding="utf-8")
    (tmp_path / "python.test_hosts.xml").write_text(PYTEST, encoding="utf-8")
    (tmp_path / "died_test.xml").write_text(GTEST[:60], encoding="utf-8")
    assert run_tests.skips(tmp_path) == {
        ("tls_test", "no IPv6 on this machine"): ["over_ipv6"],
        ("python.test_hosts", "needs root"): ["test_a", "test_b"],
        ("died_test", "its report is cut off: it died"): ["?"]}


CTEST = """\
      Start  3: agent_test
 1/4 Test  #3: agent_test .......................***Failed    0.51 sec
[ RUN      ] ControlSocket.opens
a long log
/x/control_socket_test.cc:12: Failure
Value of: 1
  Actual: 1
Expected: 2
another long log
[  FAILED  ] ControlSocket.opens (3 ms)

      Start  1: lint.tidy
 2/4 Test  #2: lint.files .......................   Passed    0.01 sec
 3/4 Test  #1: lint.tidy ........................***Failed   90.00 sec
== x.cc
/x/x.cc:3:1: error: function 'x' has no brace
 4/4 Test  #4: lint.silent ......................***Timeout   1.00 sec
nothing that tells
but this
50% tests passed, 3 tests failed out of 4
"""


def test_a_failed_entry_shows_why_and_its_whole_output_comes_later(run_tests):
    outputs = {}
    shown = list(run_tests.shortened(CTEST.splitlines(keepends=True), outputs))
    hidden = ["[ RUN      ] ControlSocket.opens\n", "a long log\n", "another long log\n", "\n", "== x.cc\n"]
    expected = [line for line in CTEST.splitlines(keepends=True) if line not in hidden]
    assert shown == [*expected[:-1], None, expected[-1]]
    assert outputs["agent_test"][1] == "a long log\n" and len(outputs["agent_test"]) == 9
    assert outputs["lint.silent"] == ["nothing that tells\n", "but this\n"]


def test_no_more_is_shown_than_a_screen_holds(run_tests):
    assert len(run_tests.telling([f"E   {n}\n" for n in range(1000)])) == run_tests.LINES_MAX
