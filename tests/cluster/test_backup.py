"""docs/operations.md, Backup: what a TrainJob that is made again with its status goes on with."""
import json

from fake_kubelet import Exit
from train_jobs import Jobs


def test_a_job_that_is_restored_with_its_status_goes_on_with_its_attempts_and_counts(api, kubelet, operator, tmp_path):
    first = operator()
    jobs = Jobs(api)
    jobs.create(nodes=2)
    jobs.wait_for_condition("PodsReady")
    kubelet.exit(api.namespace, "job-1-0", Exit(1))
    jobs.wait_for_pods("job-0-0", "job-1-1")
    jobs.wait_for_condition("PodsReady")
    saved = jobs.get()
    first.kill()
    jobs.delete()
    jobs.wait_for(lambda: jobs.pods() == {}, "end of the pods")

    for field in ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"):
        saved["metadata"].pop(field)
    backup = tmp_path / "job.json"
    backup.write_text(json.dumps(saved), encoding="utf-8")
    api.kubectl("create", "-f", backup)
    api.kubectl("replace", "--subresource=status", "-f", backup)
    operator()
    jobs.wait_for_condition("PodsReady", "False")
    jobs.wait_for_condition("PodsReady")
    assert jobs.live_pods() == ["job-0-1", "job-1-2"], jobs.status()
    assert [one["reason"] for one in jobs.status()["recentFailures"]][:1] == \
        [one["reason"] for one in saved["status"]["recentFailures"]][:1]
    assert jobs.status()["restarts"]["total"] >= saved["status"]["restarts"]["total"], jobs.status()
