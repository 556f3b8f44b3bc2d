"""The operator: who leads, how reconciling goes, how long its queue is, what the API server answers."""
from panels import (GREEN, ORANGE, RED, board, board_link, falling, graph, label_variable, query, rising, select,
                    stat)

UID = "lockstep-operator"
SELECTOR = 'job=~"$job", instance=~"$instance"'
VARIABLES = [
    label_variable("job", "Job", "lockstep_trainjobs"),
    label_variable("instance", "Instance", 'lockstep_trainjobs{job=~"$job"}'),
]
# These names are every controller's: with "All" chosen, theirs would be taken as well.
OURS = 'and on (job, instance) lockstep_trainjobs{<selector>, phase="Running"}'
CONTROLLER = '<selector>, controller="trainjob"'
QUEUE = '<selector>, name="trainjob"'
PER_REPLICA = "{{instance}}"


def rate(name, selector="<selector>"):
    return f"rate({select(name, selector)}[$__rate_interval])"


def quantiles(buckets, selector):
    return [query(f"histogram_quantile({share}, sum by (le) ({rate(buckets, selector)}))", name)
            for share, name in ((0.5, "median"), (0.99, "p99"))]


STATE = [
    stat("Replicas", "Operators that are scraped. None: the alert OperatorDown.", "locale",
         'count(lockstep_trainjobs{<selector>, phase="Running"})', width=4, thresholds=falling((1, GREEN))),
    stat("Leaders", "Replicas that hold the Lease: one, when more than one replica may run. None: the alert "
         "OperatorNoLeader.", "locale",
         'sum(leader_election_master_status{<selector>, name="lockstep-operator"})', width=4,
         thresholds=falling((1, GREEN), (2, RED))),
    stat("Reconciles per second", "Of all replicas; only the leader reconciles.", "ops",
         f"sum({rate('controller_runtime_reconcile_total', CONTROLLER)})", width=4),
    stat("Share that failed", "Reconciles that ended with an error. The alert ReconcileErrors comes at 0.1.",
         "percentunit",
         f"sum({rate('controller_runtime_reconcile_errors_total', CONTROLLER)}) / "
         f"(sum({rate('controller_runtime_reconcile_total', CONTROLLER)}) > 0) "
         f"or 0 * sum({rate('controller_runtime_reconcile_total', CONTROLLER)})", width=4,
         thresholds=rising((0.02, ORANGE), (0.1, RED))),
    stat("Waiting TrainJobs", "Depth of the queue. More than a few for long: too few workers, or a slow API server.",
         "locale", f"sum({select('workqueue_depth', QUEUE)})", width=4, thresholds=rising((50, ORANGE), (500, RED))),
    stat("Time since the start", "Of the replica that was started last.", "dtdurations",
         f"time() - max(process_start_time_seconds{{<selector>}} {OURS})", width=4, decimals=0),
]

RECONCILE = [
    graph("Reconciles, by result", "requeue_after: the operator will look again at a time of its choosing.", "ops",
          [query(f"sum by (result) ({rate('controller_runtime_reconcile_total', CONTROLLER)})", "{{result}}")]),
    graph("Time of a reconcile", "From the queue's hand-out until its end, requests to the API server included.", "s",
          quantiles("controller_runtime_reconcile_time_seconds_bucket", CONTROLLER),
          thresholds=rising((5, ORANGE), (30, RED))),
    graph("Errors and exceptions", "Both are tried again with a growing delay; the operator's log has the messages.",
          "ops",
          [query(f"sum({rate('controller_runtime_reconcile_errors_total', CONTROLLER)})", "errors"),
           query(f"sum({rate('controller_runtime_reconcile_panics_total', CONTROLLER)})", "exceptions")],
          thresholds=rising((0.1, RED)), minimum=0),
    graph("Busy workers", "Reconciles at this moment, and as many as there may be at once.", "locale",
          [query(f"sum({select('controller_runtime_active_workers', CONTROLLER)})", "busy"),
           query(f"max({select('controller_runtime_max_concurrent_reconciles', CONTROLLER)})", "limit")], width=12,
          minimum=0, decimals=0),
    graph("Longest reconcile at this moment", "The alert ReconcileStuck comes at five minutes.", "s",
          [query(f"max by (instance) ({select('workqueue_longest_running_processor_seconds', QUEUE)})", PER_REPLICA)],
          width=12, thresholds=rising((300, RED)), minimum=0),
]

WORK_QUEUE = [
    graph("Depth", "TrainJobs that wait for a worker.", "locale",
          [query(f"sum by (instance) ({select('workqueue_depth', QUEUE)})", PER_REPLICA)],
          thresholds=rising((500, RED)), minimum=0, decimals=0),
    graph("Time in the queue", "The alert QueueLatencyHigh comes at ten seconds (p99).", "s",
          quantiles("workqueue_queue_duration_seconds_bucket", QUEUE), thresholds=rising((10, RED))),
    graph("Adds and retries", "Retries are those that failed and come again.", "ops",
          [query(f"sum({rate('workqueue_adds_total', QUEUE)})", "adds"),
           query(f"sum({rate('workqueue_retries_total', QUEUE)})", "retries")], minimum=0),
]

REQUESTS = [
    graph("Requests, by answer", "HTTP status of the API server's answers; <error>: there was none. The alert "
          "ApiRequestsFailing comes when a tenth is 429, 5xx or none.", "reqps",
          [query(f"sum by (code) ({rate('rest_client_requests_total')} {OURS})", "{{code}}")]),
    graph("Requests, by method", "GET is also a list or the beginning of a watch.", "reqps",
          [query(f"sum by (method) ({rate('rest_client_requests_total')} {OURS})", "{{method}}")]),
    graph("Time of a request (p99)", "By verb; of a watch until it begins.", "s",
          [query("histogram_quantile(0.99, sum by (le, verb) "
                 f"({rate('rest_client_request_duration_seconds_bucket')} {OURS}))", "{{verb}}")],
          thresholds=rising((1, ORANGE), (5, RED))),
]

PROCESS = [
    graph("Resident memory", "Caches hold the fields that are used of TrainJobs, their pods and nodes.", "bytes",
          [query(f"process_resident_memory_bytes{{<selector>}} {OURS}", PER_REPLICA)]),
    graph("CPU", "Cores in use.", "none",
          [query(f"{rate('process_cpu_seconds_total')} {OURS}", PER_REPLICA)], minimum=0),
    graph("Open files", "Connections to the API server and to agents.", "locale",
          [query(f"process_open_fds{{<selector>}} {OURS}", PER_REPLICA)], minimum=0),
]


def make():
    return board(
        UID, "Lockstep / Operator", "Leadership, reconciling, the queue, requests to the API server, the process.",
        VARIABLES,
        [("State", STATE), ("Reconciling", RECONCILE), ("Queue", WORK_QUEUE), ("API server", REQUESTS),
         ("Process", PROCESS)],
        SELECTOR, [board_link("Fleet", "lockstep-fleet"), board_link("Training run", "lockstep-training-run")])
