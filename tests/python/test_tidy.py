"""scripts/tidy.py: what it has clang-tidy look at."""
import os
import subprocess
import sys

import pytest

from programs import ROOT

sys.path.append(str(ROOT / "scripts"))

from tidy import changed, changed_since_origin, has_mutexes  # noqa: E402

NOW = 1_800_000_000  # seconds since 1970
HOUR = 3600


@pytest.fixture
def commit(tmp_path):
    """commit(name, time): a repository's next commit, which makes or changes this file."""
    def git(*words, **environment):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *words], cwd=tmp_path, check=True,
                       capture_output=True, env={**os.environ, **environment})
    git("init")

    def make(name, time):
        with open(tmp_path / name, "a", encoding="utf-8") as file:
            file.write(f"{time}\n")
        git("add", name)
        git("commit", "-m", name, GIT_AUTHOR_DATE=f"{time} +0000", GIT_COMMITTER_DATE=f"{time} +0000")
    return make


def test_what_changed_is_what_was_otherwise_a_day_before_the_newest_commit(commit, tmp_path):
    for name, age in (("old.cc", 50), ("committed.cc", 49), ("edited.cc", 48), ("committed.cc", 23), ("new.cc", 0)):
        commit(name, NOW - age * HOUR)
    for name in ("edited.cc", "unknown.cc"):
        (tmp_path / name).write_text("else", encoding="utf-8")
    assert changed(tmp_path) == {tmp_path / name for name in ("committed.cc", "edited.cc", "new.cc", "unknown.cc")}


def test_what_differs_from_the_origin_is_known_where_there_is_one(commit, tmp_path):
    commit("merged.cc", NOW)
    assert changed_since_origin(tmp_path) == set()
    subprocess.run(["git", "update-ref", "refs/remotes/origin/HEAD", "HEAD"], cwd=tmp_path, check=True)
    commit("new.cc", NOW)
    (tmp_path / "unknown.cc").write_text("else", encoding="utf-8")
    assert changed_since_origin(tmp_path) == {tmp_path / "new.cc", tmp_path / "unknown.cc"}


def test_without_a_commit_of_that_day_all_is_looked_at(commit, tmp_path):
    assert changed(tmp_path) is None
    commit("new.cc", NOW)
    assert changed(tmp_path) is None


def test_a_source_has_mutexes_when_it_or_its_header_does(tmp_path):
    (tmp_path / "a.h").write_text('#pragma once\n#include "runner/base/mutex.h"\n', encoding="utf-8")
    for name, text, expected in (("a.cc", '#include "a.h"\n', True), ("b.cc", '#include "b.h"\n#include "a.h"\n', False),
                                 ("c.cc", '#include <mutex>\n#include "runner/base/mutex.h"\n', True)):
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert has_mutexes(tmp_path, tmp_path / name) == expected, name
