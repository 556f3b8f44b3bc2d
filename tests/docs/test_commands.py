"""Every command of README.md, docs/*.md and the chart's README: run here, page by page and in order, or named in
docs/not-run.txt with the reason. What only a person would add is added here: a look again at what has just been started,
Ctrl-C, and the end of a training run whose pods nobody runs."""
import re

import pytest

from newcomer import is_known
from pages import ROOT, NotRun, code_spans, name_of, page_commands, pages

NOT_RUN = NotRun()
# What a person would see to first: that the run trains before it is broken; that pods which nobody runs come to an end.
FIRST = (
    (r"lockstep chaos [a-z]", "curl -fs localhost:8080/metrics | grep -q '^lockstep_steps_total{.*} [1-9]'"),
    (r"kubectl wait .*condition=Complete", "(while kubectl annotate pods --all fake.lockstep.dev/exit-after=0s --overwrite; do sleep 1; done) >/dev/null 2>&1 &"))
SECONDS_PER_COMMAND = 300  # commands wait for 120 s themselves
PAGES = [page for page in pages() if any(NOT_RUN.reason(one) is None for one in page_commands(page))]
# Left to `make e2e`: tests/python runs such commands of the models, of plugins and of torchrun, too.
LONG = ("docs/moving-to-lockstep.md", "docs/protein-design.md", "docs/recommend.md", "docs/your-own-model.md", "docs/workloads/")


@pytest.mark.parametrize("page", [
    pytest.param(page, id=name_of(page), marks=[pytest.mark.long] if name_of(page).startswith(LONG) else []) for page in PAGES])
def test_the_commands_work(page, page_shell):
    wanted = [one for one in page_commands(page) if NOT_RUN.reason(one) is None]
    name = re.sub(r"[^a-z0-9]+", "-", name_of(page).lower().removesuffix(".md"))
    shell = page_shell(name, any(re.search(r"\b(kubectl|helm)\b", one) for one in wanted))
    for command in wanted:
        for pattern, before in FIRST:
            if re.match(pattern, command):
                code, output = shell.run(before, SECONDS_PER_COMMAND)
                assert code == 0, f"{name_of(page)}: before $ {command}\n{output[-4000:]}"
        code, output = shell.run(command, SECONDS_PER_COMMAND)
        assert code == 0, f"{name_of(page)}: exit code {code}\n$ {command}\n{output[-4000:]}"


def test_every_line_of_not_run_is_about_a_command():
    every = [command for page in pages() for command in [*page_commands(page), *code_spans(page)]]
    assert not NOT_RUN.stale(every)


def test_make_targets_exist():
    known = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    named = {word for page in pages() for one in page_commands(page)
             for word in re.findall(r"^make ([a-z][a-z0-9-]*)", one)}
    assert named and named <= known


def test_make_newcomer_knows_what_the_readme_says_of_each_command():
    assert [one for one in page_commands(ROOT / "README.md") if not is_known(one)] == []


# Commands within a sentence: those that say all that they need, but for names.
INLINE = re.compile(r"^(kubectl|helm|lockstep (ckpt|validate)) \S+ .*(\s-|\b[A-Z]{2,}\b)")
NAMES = {"NS": "inline-kubectl", "JOB": "sasrec", "NAME": "sasrec", "FILE": "manifests/examples/trainjob.yaml", "FOLDER": "out/"}
REPORTS = ("docs/benchmarks.md", "docs/decisions.md")  # what was done, not what to do
# By program, what is there before.
BEFORE = {
    "helm": ["helm install lockstep charts/lockstep -n lockstep-system"],
    "kubectl": ["kubectl apply -f manifests/examples/trainjob.yaml",
                "kubectl wait tj/sasrec --for=condition=PodsReady --timeout=60s"],
    "lockstep": ["lockstep run sasrec --dataset ratings.inter --train_dir out/ --maxlen 50 --num_epochs 1 --status_port 0"]}


@pytest.mark.parametrize("program", BEFORE)
def test_the_commands_within_sentences_work(page_shell, program):
    found = {one for page in pages() if name_of(page) not in REPORTS for one in code_spans(page)
             if INLINE.match(one) and one.startswith(program) and "…" not in one and NOT_RUN.reason(one) is None}
    assert found
    shell = page_shell(f"inline-{program}", program != "lockstep")
    for command in [*BEFORE[program], *sorted(found)]:
        whole = re.sub(r"\b(" + "|".join(NAMES) + r")\b", lambda name: NAMES[name[0]], command)
        code, output = shell.run(whole, SECONDS_PER_COMMAND)
        assert code == 0, f"exit code {code}\n$ {whole}\n{output[-4000:]}"
