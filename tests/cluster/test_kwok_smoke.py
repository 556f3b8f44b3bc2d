"""Many jobs at once run through to their end. The figures are printed, and judged by a person: tests/bench/
bench_operator.py has more of them."""
from control_plane import ControlPlane
from many_jobs import PODS_PER_KWOK_NODE, run_through

JOBS, NODES = 50, 4


def test_many_jobs_run_through(capsys):
    with ControlPlane(kwok_nodes=2 * JOBS * NODES // PODS_PER_KWOK_NODE + 1) as plane:
        plane.apply_base()
        figures = run_through(plane, JOBS, NODES, timeout=240)
    with capsys.disabled():
        print(f"\n{figures}")
    assert figures.pods == JOBS * NODES
