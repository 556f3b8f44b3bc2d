"""All TrainJobs of a cluster: how many are in which state, what breaks, how fast it is repaired, what each run does."""
from panels import (GREEN, ORANGE, RED, board, board_link, counted, falling, gauge, graph, label_variable, query,
                    rising, select, stat, table, within_an_hour)
from training_run import UID as TRAINING_RUN

UID = "lockstep-fleet"
SELECTOR = 'job=~"$job", instance=~"$instance"'
# Metrics of runs have the label namespace; those of the operator have that of its own namespace.
RUNS = '<selector>, namespace=~"$namespace"'
RANK_0 = 'rank="0"'
SERIES = '{__name__=~"lockstep_trainjobs|lockstep_agent_workers"}'
SERIES_OF_JOB = '{__name__=~"lockstep_trainjobs|lockstep_agent_workers", job=~"$job"}'
VARIABLES = [
    label_variable("job", "Job", SERIES),
    label_variable("namespace", "Namespace", 'lockstep_agent_workers{job=~"$job"}', all_value=".*"),
    label_variable("instance", "Instance", SERIES_OF_JOB),
]


def per_run(name, *more):
    return f"max by (namespace, trainjob) ({select(name, RUNS, *more)})"


def quantiles(buckets):
    return [query(f"histogram_quantile({share}, sum by (le) ({counted(buckets)}))", name)
            for share, name in ((0.5, "median"), (0.95, "p95"))]


JOBS = [
    stat("TrainJobs", "All that the operator sees, ended ones included.", "locale",
         "sum(lockstep_trainjobs{<selector>})"),
    stat("Running", "TrainJobs that train.", "locale", 'sum(lockstep_trainjobs{<selector>, phase="Running"})'),
    stat("Recovering", "TrainJobs that lost something and do not train yet.", "locale",
         'sum(lockstep_trainjobs{<selector>, phase="Recovering"})', thresholds=rising((1, ORANGE))),
    stat("Waiting", "Pending or starting: for quota, nodes, images, data. Those that wait in a queue are "
         "Suspended.", "locale",
         'sum(lockstep_trainjobs{<selector>, phase=~"Pending|Starting"})'),
    stat("Failed", "TrainJobs that failed and are still there.", "locale",
         'sum(lockstep_trainjobs{<selector>, phase="Failed"})', thresholds=rising((1, RED))),
    stat("Ranks that train", "In the groups of all runs that are scraped.", "locale",
         f"sum({per_run('lockstep_world_size')})"),
    stat("Samples per second", "Of all runs that are scraped.", "cps",
         f"sum({per_run('lockstep_throughput_samples_per_second', RANK_0)})"),
    gauge("Goodput", "Share of the runs' wall clock that was work, each run counted as much as any other.",
          "percentunit", f"avg({per_run('lockstep_goodput_ratio')})",
          thresholds=falling((0.7, ORANGE), (0.9, GREEN))),
    graph("TrainJobs by phase", "Ended ones stay until they are deleted or their TTL is over. The alert TrainJobNotRunning "
          "comes when one is Pending, Starting or Recovering for 15 minutes.", "locale",
          [query("sum by (phase) (lockstep_trainjobs{<selector>})", "{{phase}}")], width=24, stacked=True, minimum=0,
          decimals=0),
]

FAILURES = [
    graph("TrainJobs that ended, by reason", "Within the last hour: complete, or the reason of their condition Failed. "
          "The alert TrainJobFailed comes with each of these.", "locale",
          [query(f"sum by (reason) ({within_an_hour('lockstep_trainjob_failures_total{<selector>}')})", "{{reason}}"),
           query(f"sum ({within_an_hour('lockstep_trainjob_completions_total{<selector>}')})", "complete")],
          width=6, thresholds=rising((1, RED)), minimum=0, decimals=0),
    graph("Pods and gangs started again, by reason", "By the operator, within the last hour: exit codes by their "
          "meaning, and what Kubernetes did to the pod. The alert PodRestartsHigh comes above twenty.", "locale",
          [query(f"sum by (reason) ({within_an_hour('lockstep_trainjob_restarts_total{<selector>}')})", "{{reason}}")],
          width=6, minimum=0, thresholds=rising((20, ORANGE)), decimals=0),
    graph("Pods and gangs started again, by TrainJob", "Within the last hour, the ten that it happened to most. pod: one "
          "rank's pod was replaced. gang: all were.", "locale",
          [query("topk(10, sum by (trainjob_namespace, trainjob, scope) "
                 f"({within_an_hour('lockstep_trainjob_restarts_total{<selector>}')}) > 0)",
                 "{{trainjob_namespace}}/{{trainjob}}: {{scope}}")], width=6, minimum=0, decimals=0),
    graph("Workers started again, by reason", "Within the last hour, by the agents inside the pods of the runs that are "
          "scraped: failures that no pod was replaced for.", "locale",
          [query(f"sum by (reason) ({within_an_hour(select('lockstep_restarts_total', RUNS))})", "{{reason}}")], width=6,
          minimum=0, decimals=0),
]

RECOVERIES = [
    graph("Recoveries, by cause", "Breaks of a group after which training went on, within the last hour, in the runs that "
          "are scraped.", "locale",
          [query(f"sum by (cause) ({within_an_hour(select('lockstep_recoveries_total', RUNS))})", "{{cause}}")],
          width=6, minimum=0, decimals=0),
    graph("Time of a recovery, as the runs see it", "From the last sign of life of what was lost until the next "
          "committed step.", "s",
          quantiles(select("lockstep_recovery_duration_seconds_bucket", RUNS, 'part="total"')), width=6,
          thresholds=rising((60, ORANGE))),
    graph("Time of a recovery, as the operator sees it", "From the first sight of a lost pod until the run trained "
          "again.", "s",
          quantiles("lockstep_trainjob_recovery_seconds_bucket{<selector>}"), width=6,
          thresholds=rising((300, ORANGE))),
    graph("Steps done again", "Steps that were done a second time because a group broke, within the last hour: the ten "
          "runs with most of them.", "locale",
          [query("topk(10, sum by (namespace, trainjob) "
                 f"({within_an_hour(select('lockstep_redone_steps_total', RUNS))}))",
                 "{{namespace}}/{{trainjob}}")], width=6, minimum=0, decimals=0),
]

STARTS = [
    graph("Until all pods are ready", "From the creation or resume of a TrainJob. Queues, quota, nodes and images "
          "are in it.", "s",
          quantiles("lockstep_trainjob_time_to_pods_ready_seconds_bucket{<selector>}"), width=12,
          thresholds=rising((600, ORANGE))),
    graph("Until the first step", "From the creation or resume of a TrainJob until its first step was committed.", "s",
          quantiles("lockstep_trainjob_time_to_first_step_seconds_bucket{<selector>}"), width=12,
          thresholds=rising((1800, ORANGE))),
]

RUN_COLUMNS = {
    "namespace": ("Namespace", None), "trainjob": ("TrainJob", None), "Value #A": ("Progress", "percentunit"),
    "Value #B": ("Step", "locale"), "Value #C": ("Time left", "dtdurations"), "Value #D": ("Samples/s", "cps"),
    "Value #E": ("Loss", "none"), "Value #F": ("Ranks", "locale"), "Value #G": ("Goodput", "percentunit"),
    "Value #H": ("Recoveries", "locale"),
}
LINK_TO_RUN = {"title": "The run", "targetBlank": False,
               "url": f"/d/{TRAINING_RUN}?var-namespace=${{__data.fields.Namespace}}"
                      "&var-trainjob=${__data.fields.TrainJob}"}
RUN_TABLE = [
    table("Runs", "Those that are scraped at this moment. A row leads to the run's own board.", "none",
          [query(per_run("lockstep_progress_ratio", RANK_0)),
           query(per_run("lockstep_step", RANK_0)),
           query(per_run("lockstep_estimated_remaining_seconds", RANK_0)),
           query(per_run("lockstep_throughput_samples_per_second", RANK_0)),
           query(per_run("lockstep_loss", RANK_0, 'split="train"')),
           query(per_run("lockstep_world_size")),
           query(per_run("lockstep_goodput_ratio")),
           query(f"sum by (namespace, trainjob) ({counted(select('lockstep_recoveries_total', RUNS))})")],
          RUN_COLUMNS, links=[LINK_TO_RUN], height=10),
]


def make():
    return board(
        UID, "Lockstep / Fleet", "All TrainJobs: states, failures by reason, recoveries, starts, a list of the runs.",
        VARIABLES,
        [("TrainJobs", JOBS), ("Failures", FAILURES), ("Recoveries", RECOVERIES), ("Starts", STARTS),
         ("Runs", RUN_TABLE)],
        SELECTOR, [board_link("Training run", TRAINING_RUN), board_link("Operator", "lockstep-operator")],
        time_from="now-24h")
