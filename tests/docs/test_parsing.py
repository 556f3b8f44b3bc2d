"""That the documents are read as a person reads them: what is a command, what a pattern of not-run.txt is for."""
import pytest

from pages import NotRun, commands, headings, links, page_commands
from shell import Shell


@pytest.mark.parametrize("text, found", [
    ("make demo    # builds\n", ["make demo"]),
    ("# only a comment\n\n", []),
    ("echo '# no comment' a#b\n", ["echo '# no comment' a#b"]),
    ("run a \\\n  --b 1\nrun c\n", ["run a --b 1", "run c"]),
    ("apply <<'END'\na: 1\n\n# of the file\nEND\nget\n", ["apply <<'END'\na: 1\n\n# of the file\nEND", "get"]),
])
def test_a_block_is_its_commands(text, found):
    assert commands(text) == found


def test_a_here_document_without_an_end_is_told():
    with pytest.raises(AssertionError, match="without an end"):
        commands("cat <<END\nx\n")


def test_blocks_of_shell_and_python_are_taken_in_order_and_no_others(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A `b` page\n\n[x](y.md#z)\n\n```sh\none\n```\n```yaml\nno: 1\n```\n"
                    "```python\nprint(2)\n```\n```sh\nthree\n```\n", encoding="utf-8")
    assert page_commands(page) == ["one", "python3 - <<'END'\nprint(2)\nEND", "three"]
    assert (headings(page), links(page)) == (["a-b-page"], ["y.md#z"])


def test_a_pattern_is_literal_but_for_its_stars(tmp_path):
    path = tmp_path / "not-run.txt"
    path.write_text("# a comment\n\nmake bench* — an hour\ncp [a] ? — a registry\n", encoding="utf-8")
    rules = NotRun(path)
    assert rules.reason("make bench-operator") == "an hour"
    assert rules.reason("cp [a] ?") == "a registry"
    assert rules.reason("cp a b") is None and rules.reason("make benchmark x") == "an hour"
    assert rules.stale(["make bench"]) == ["cp [a] ?"]
    path.write_text("make bench - no dash\n", encoding="utf-8")
    with pytest.raises(AssertionError, match="PATTERN — REASON"):
        NotRun(path)


def test_a_shell_keeps_what_its_commands_set_and_ends_what_they_left(tmp_path):
    with Shell(tmp_path, {"PATH": "/usr/bin:/bin"}) as shell:
        assert shell.run("x=1; mkdir f; cd f", 10) == (0, "")
        assert shell.run("echo $x; pwd", 10) == (0, f"1\n{tmp_path}/f\n")
        assert shell.run("false", 10)[0] == 1
        assert shell.run("cat <<END\ntext\nEND", 10) == (0, "text\n")
        shell.run("tail -f /dev/null &", 10)
        assert len(shell.session()) == 2
    assert shell.session() == []


def test_a_command_that_does_not_end_is_an_error(tmp_path):
    with Shell(tmp_path, {"PATH": "/usr/bin:/bin"}) as shell:
        with pytest.raises(AssertionError, match="has not ended after 1 s"):
            shell.run("cat /dev/zero >/dev/null", 1)
