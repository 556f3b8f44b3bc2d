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
