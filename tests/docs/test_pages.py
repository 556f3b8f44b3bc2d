"""What the documents say is true: links lead somewhere, flags exist, messages are printed, jobs are accepted, and the
reference is the CRD's."""
import re
import subprocess
import sys

import pytest

from pages import ROOT, blocks, code_spans, headings, links, name_of, page_commands, pages
from programs import bin_folder, program

READ_ALONE = [ROOT / "runner/README.md", ROOT / "operator/README.md"]
HELPS = [words.split() for words in (
    "lockstep", "lockstep launch", "lockstep run sasrec", "lockstep sasrec recommend",
    "lockstep run gpt2rec", "lockstep gpt2rec recommend", "lockstep run jit", "lockstep jit sample", "lockstep run protein", "lockstep protein score", "lockstep protein design", "lockstep run -f", "lockstep ckpt", "lockstep ckpt ls", "lockstep ckpt verify",
    "lockstep ckpt export", "lockstep ckpt prune", "lockstep workloads", "lockstep chaos", "lockstep chaos kill-rank",
    "lockstep chaos stop-rank", "lockstep chaos kill-agent", "lockstep validate",
    "lockstep render", "lockstep doctor", "lockstep bench scaling", "lockstep-operator", "kubectl-lockstep")]
OURS = re.compile(r"^(lockstep|lockstep-worker|lockstep-operator|kubectl lockstep)\b")
# Torchrun's, shown beside ours; podman's, helm's, Kubernetes' and ProteinMPNN's; those of examples/plugin.
THEIRS = {"text", "prompt", "bytes", "no_python", "use_env", "rdzv_backend", "rdzv_endpoint", "timestamp", "api_versions",
          "take_ownership", "runtime_config", "previous_checkpoint", "pssm_jsonl", "conditional_probs_only",
          "unconditional_probs_only", "ca_only"}


# --- links


@pytest.mark.parametrize("page", [*pages(), *READ_ALONE], ids=name_of)
def test_links_lead_somewhere(page):
    wrong = []
    for target in links(page):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        place = (page.parent / path).resolve() if path else page
        if not place.exists() or (anchor and anchor not in headings(place)):
            wrong.append(target)
    assert not wrong


def test_every_page_is_linked_from_the_readme():
    linked = {(ROOT / target.partition("#")[0]).resolve() for target in links(ROOT / "README.md")}
    assert [name_of(page) for page in pages()[1:] if page not in linked] == []


MEASURED = re.compile(r"<!-- measured.*?-->\n.*?\n.*?\n(.*?)<!-- /measured -->", re.S)


@pytest.mark.parametrize("page, least", [(ROOT / "README.md", 12), (ROOT / "docs/performance.md", 16)],
                         ids=["README", "performance"])
def test_figures_are_those_of_the_benchmarks(page, least):
    rows = "\n".join(MEASURED.findall(page.read_text(encoding="utf-8")))
    figures = re.findall(r"\| (\d[\d.]*)", rows)
    measured = set(re.findall(r"\d+(?:\.\d+)?", (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")))
    known = measured | {one.rstrip("0").rstrip(".") for one in measured if "." in one}
    assert len(figures) >= least and [one for one in figures if one not in known] == []


# --- flags


@pytest.fixture(scope="session")
def known_flags():
    """Of our programs, with underscores."""
    texts = [subprocess.run([program(bin_folder() / words[0]), *words[1:], "--help"], capture_output=True, text=True,
                            check=False) for words in HELPS]
    found = {flag for done in texts for flag in re.findall(r"--([a-z][\w-]*)", done.stdout + done.stderr)}
    assert len(found) > 80
    return {flag.replace("-", "_") for flag in found} | THEIRS


def is_known(flag, known):
    plain = flag.replace("-", "_")
    return plain in known or plain.removeprefix("no_") in known


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_flags_exist(page, known_flags):
    ours = [text for text in [*page_commands(page), *code_spans(page)] if OURS.match(text) or text.startswith("--")]
    named = {flag for text in ours for flag in re.findall(r"(?:^|[\s\[(|])--([a-z][\w-]*)", text)}
    assert [flag for flag in sorted(named) if not is_known(flag, known_flags)] == []


# --- messages


def printed():
    """All that the sources could print, comments left out, with string literals that follow each other joined."""
    folders = ("runner", "operator", "manifests/base", "cmake")
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*"))
             if path.suffix in (".cc", ".h", ".yaml", ".cmake", ".in")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    return re.sub(r"\"\s*\n\s*\"", "", re.sub(r"(^|\s)//.*", "", text))


def quoted_messages(page):
    """The first cells of a page's tables: messages between backticks. `…`, capitals and numbers stand for what
    varies. A message of another program's has its name after it: (NCCL)."""
    for row in re.findall(r"^\|(.+?)\|", page.read_text(encoding="utf-8").replace("\\|", "¦"), re.M):
        if re.search(r"\((NCCL|kubectl|kube-scheduler|kubelet|Helm)\)\s*$", row):
            continue
        yield from re.findall(r"`([^`]+)`", row)


def test_the_messages_of_the_troubleshooting_page_are_ours():
    sources = printed()
    wrong = []
    for message in quoted_messages(ROOT / "docs/troubleshooting.md"):
        parts = [part.strip(" .:'") for part in re.split(r"…|\b[A-Z]\b|\bPATH\b|\bN\b|\d+", message)]
        told = [part for part in parts if len(part) > 3]
        if not told or not all(part in sources for part in told):
            wrong.append(message)
    assert not wrong


def test_the_five_lines_are_those_of_the_examples():
    (diff,) = blocks(ROOT / "docs/keep-state.md", "diff")
    for sign, name, count in (("+", "nano_gpt_keeps_state.py", 5), ("-", "nano_gpt.py", 3)):
        source = (ROOT / "examples/python" / name).read_text(encoding="utf-8")
        lines = [line[1:] for line in diff.splitlines() if line.startswith(sign)]
        assert len(lines) == count
        assert [line for line in lines if not all(part in source for part in line.split("…"))] == []


# --- TrainJobs and the reference


@pytest.mark.parametrize("script", ["trainjob_reference.py", "worker_protocol.py"])
def test_what_is_made_from_the_crd_and_the_headers_is_up_to_date(script):
    done = subprocess.run([sys.executable, ROOT / "scripts" / script, "--check"], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", [page for page in pages() if blocks(page, "yaml")], ids=name_of)
def test_jobs_are_accepted(page, cluster):
    for text in blocks(page, "yaml"):
        if re.search(r"^kind: ", text, re.M):
            cluster.kubectl("apply", "--dry-run=server", "-f", "-", stdin=text, namespace="default")
