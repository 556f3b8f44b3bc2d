"""One run: how far it is, whether it learns, where its time goes, what broke."""
from panels import (GREEN, ORANGE, RED, board, board_link, counted, falling, gauge, graph, label_variable, largest,
                    marks, query, rising, stat, within_an_hour)

UID = "lockstep-training-run"
SELECTOR = 'job=~"$job", instance=~"$instance", namespace=~"$namespace", trainjob=~"$trainjob"'
VARIABLES = [
    label_variable("job", "Job", "lockstep_agent_workers"),
    label_variable("namespace", "Namespace", 'lockstep_agent_workers{job=~"$job"}', all_value=".*"),
    label_variable("trainjob", "TrainJob", 'lockstep_agent_workers{job=~"$job", namespace=~"$namespace"}', multi=False),
    label_variable("instance", "Instance",
                   'lockstep_agent_workers{job=~"$job", namespace=~"$namespace", trainjob=~"$trainjob"}'),
]

OVERVIEW = [
    gauge("Progress", "Share of the target steps that is done.", "percentunit",
          'max(lockstep_progress_ratio{<selector>, rank="0"})'),
    stat("Step", "Optimizer step of the run, counted over restarts.", "locale",
         'max(lockstep_step{<selector>, rank="0"})'),
    stat("Time left", "Estimated time until the run ends.", "dtdurations",
         'max(lockstep_estimated_remaining_seconds{<selector>, rank="0"})', decimals=0),
    stat("Since the last step", "Much more than the time of a step: the run hangs, is being repaired or evaluates. The "
         "alert TrainingStalled comes at ten minutes at the earliest.", "dtdurations",
         "time() - max(lockstep_last_step_timestamp_seconds{<selector>})", decimals=0,
         thresholds=rising((120, ORANGE), (600, RED))),
    stat("Loss", "Loss of the last logged step.", "none",
         'max(lockstep_loss{<selector>, rank="0", split="train"})', decimals=4),
    stat("Throughput", "Samples trained on per second by all ranks together.", "cps",
         'max(lockstep_throughput_samples_per_second{<selector>, rank="0"})'),
    gauge("Goodput", "Share of the wall clock since the start of the job that was work. The alert GoodputLow looks at "
          "the last hour.", "percentunit", "max(lockstep_goodput_ratio{<selector>})",
          thresholds=falling((0.7, ORANGE), (0.9, GREEN))),
    stat("Ranks", "Ranks in the group. It may be less than asked for while an agent is away.", "locale",
         "max(lockstep_world_size{<selector>})"),
]

LEARNING = [
    graph("Loss", "Loss of the last logged step. A gap is a loss that is not a number: the alert LossNotFinite.",
          "none",
          [query('max by (split) (lockstep_loss{<selector>, rank="0"})', "{{split}}")], width=12),
    graph("Evaluation", "Figures of the last evaluation, over all ranks.", "none",
          [query('max by (metric) (lockstep_evaluation_value{<selector>, rank="0"})', "{{metric}}")], width=12),
    graph("Steps", "The run's step, and the step at which it ends.", "locale",
          [query('max(lockstep_step{<selector>, rank="0"})', "step"),
           query('max(lockstep_target_steps{<selector>, rank="0"})', "target")], width=6),
    graph("Gradient norm", "Global norm of the reduced gradient before clipping.", "none",
          [query('max(lockstep_gradient_norm{<selector>, rank="0"})', "gradient norm")], width=6),
    graph("Learning rate", "Learning rate of the last logged step.", "sci",
          [query('max(lockstep_learning_rate{<selector>, rank="0"})', "learning rate")], width=6),
    graph("Skipped steps", "Steps per second whose update was skipped on all ranks, because a gradient or the loss was "
          "not finite. Now and then is usual with fp16.", "cps",
          [query('sum by (reason) (rate(lockstep_skipped_steps_total{<selector>, rank="0"}[$__rate_interval]))',
                 "{{reason}}")], width=6, thresholds=rising((0.01, ORANGE))),
]

RANKINGS = [
    graph("NDCG", "Of a recommender: how far up in its rankings the held-out items stand. 1 is the best.", "none",
          [query('max by (metric) (lockstep_evaluation_value{<selector>, rank="0", metric=~".*_ndcg@.*"})',
                 "{{metric}}")], width=12, minimum=0, maximum=1),
    graph("Hits, recall, precision", "Of a recommender, in its first places: users with a held-out item, held-out items "
          "found, places that hold one.", "percentunit",
          [query('max by (metric) (lockstep_evaluation_value{<selector>, rank="0", '
                 'metric=~".*_(hr|recall|precision)@.*"})', "{{metric}}")], width=12, minimum=0, maximum=1),
]

PROTEINS = [
    graph("Perplexity", "Of a protein model on the structures that are held out: 20 is guessing.", "none",
          [query('max by (metric) (lockstep_evaluation_value{<selector>, rank="0", metric=~".*_perplexity"})',
                 "{{metric}}")], width=12),
    graph("Recovery", "Share of the held-out amino acids that a protein model guesses right.", "percentunit",
          [query('max by (metric) (lockstep_evaluation_value{<selector>, rank="0", metric=~".*_recovery"})',
                 "{{metric}}")], width=12, minimum=0, maximum=1),
]

IMAGES = [
    graph("Training and validation loss", "In training since the evaluation before, and, for models that compute one, on what is "
          "held out. For an image model it is the squared error of the velocity, which begins at 2.97 times the mean square of "
          "the pixels.", "none",
          [query('max by (metric) (lockstep_evaluation_value{<selector>, rank="0", metric=~"train_loss|valid_loss"})',
                 "{{metric}}")], width=24, minimum=0),
]

THROUGHPUT = [
    graph("Samples per second", "Of all ranks together, as the run logs it.", "cps",
          [query('max(lockstep_throughput_samples_per_second{<selector>, rank="0"})', "samples/s")]),
    graph("Steps per second", "Optimizer steps that rank 0 commits.", "cps",
          [query('sum(rate(lockstep_steps_total{<selector>, rank="0"}[$__rate_interval]))', "steps/s")]),
    graph("Time of a step", "Quantiles over all ranks. p95 and p99 far above the median mean stragglers, late data, or "
          "checkpoints that hold up the loop.", "s",
          [query(f"histogram_quantile({share}, sum by (le) "
                 "(rate(lockstep_step_duration_seconds_bucket{<selector>}[$__rate_interval])))", f"p{share * 100:.0f}")
           for share in (0.5, 0.95, 0.99)]),
    graph("Model FLOP/s", "Floating-point operations of the model per second, all ranks together.", "flops",
          [query('max(lockstep_model_flops_per_second{<selector>, rank="0"})', "model FLOP/s")], width=12),
    graph("MFU", "Model FLOP/s over the devices' dense peak. Only on devices whose peak is known.", "percentunit",
          [query('max(lockstep_mfu_ratio{<selector>, rank="0"})', "MFU")], width=12, minimum=0, maximum=1),
]

PHASES = [
    graph("Where the ranks' time goes", "Share of each phase, over all ranks. grad_sync is what is left of the "
          "reduction after backward; device is the host's wait for its GPU; waiting is for peers or an assignment.",
          "percentunit",
          [query("sum by (phase) (rate(lockstep_phase_seconds_total{<selector>}[$__rate_interval])) / ignoring (phase) "
                 "group_left () sum(rate(lockstep_phase_seconds_total{<selector>}[$__rate_interval]))", "{{phase}}")],
          width=12, stacked=True, minimum=0, maximum=1),
    graph("Waiting for data, by rank", "Share of the time in which a rank waited for its next batch: the ten ranks with "
          "most. The alert DataStarved comes at 0.2 of all ranks together.", "percentunit",
          [query(largest('sum by (rank) '
                         '(rate(lockstep_phase_seconds_total{<selector>, phase="data_wait"}[$__rate_interval]))'),
                 "rank {{rank}}")], width=6, thresholds=rising((0.2, RED)), minimum=0),
    graph("Start-up", "Time from the start of the process of rank 0, by part of the start-up. The alert NoFirstStep "
          "comes after half an hour.", "s",
          [query('max by (phase) (lockstep_startup_seconds{<selector>, rank="0"})', "{{phase}}")], width=6),
]

STRAGGLERS = [
    graph("Own work per step, by rank", "Forward, backward and optimizer; waiting for others is not in it. The ten ranks "
          "with most: one above the others holds all of them up.", "s",
          [query(largest('sum by (rank) (rate(lockstep_phase_seconds_total{<selector>, '
                         'phase=~"forward|backward|optimizer"}[$__rate_interval])) / sum by (rank) '
                         "(rate(lockstep_steps_total{<selector>}[$__rate_interval]))"),
                 "rank {{rank}}")]),
    graph("Lag of the slowest rank", "Work per step of the slowest rank above the median of all, as a share of the "
          "step. The alert Straggler comes at 0.2. No data: none stands out.", "percentunit",
          [query('max(lockstep_straggler_lag_seconds{<selector>}) / (sum(rate(lockstep_step_duration_seconds_sum'
                 '{<selector>, rank="0"}[$__rate_interval])) / sum(rate(lockstep_step_duration_seconds_count'
                 '{<selector>, rank="0"}[$__rate_interval])))', "lag")], width=5, thresholds=rising((0.2, RED))),
    graph("Slowest rank", "Its number. No data: none stands out.", "none",
          [query("max(lockstep_slowest_rank{<selector>})", "rank")], width=5, minimum=0, decimals=0),
    graph("Time since a rank's last sign of progress", "The agents see it without the ranks' help; the ten ranks that "
          "are silent longest. The alert RankSilent comes at two minutes.", "s",
          [query(largest("max by (rank) (lockstep_rank_unchanged_seconds{<selector>})"), "rank {{rank}}")], width=6,
          thresholds=rising((120, RED))),
]

CHECKPOINTS = [
    stat("Age of the newest checkpoint", "What a loss of all pods would cost, at most. The alert CheckpointTooOld "
         "comes at three times the run's own interval, and half an hour at the earliest.", "dtdurations",
         "time() - max(lockstep_checkpoint_last_success_timestamp_seconds{<selector>})", width=4, height=8, decimals=0,
         thresholds=rising((1800, ORANGE), (7200, RED))),
    stat("Step of the newest checkpoint", "Where a run that is started again goes on.", "locale",
         "max(lockstep_checkpoint_last_step{<selector>})", width=4, height=8),
    graph("Time of a checkpoint", "Mean of each part: stage holds up the loop, write does not, restore is at a start.",
          "s",
          [query(f"sum by (phase) ({counted('lockstep_checkpoint_duration_seconds_sum{<selector>}')}) / sum by (phase) "
                 f"({counted('lockstep_checkpoint_duration_seconds_count{<selector>}')})", "{{phase}}")], width=6),
    graph("Size of a checkpoint", "The newest complete one.", "bytes",
          [query("max(lockstep_checkpoint_bytes{<selector>})", "size")], width=5),
    graph("Failed checkpoints", "Checkpoints that could not be written within the last hour. The first one brings the "
          "alert CheckpointFailing.", "locale",
          [query(f"sum by (reason) ({within_an_hour('lockstep_checkpoint_failures_total{<selector>}')})", "{{reason}}")],
          width=5, thresholds=rising((1, RED)), minimum=0, decimals=0),
]

RELIABILITY = [
    graph("Where the job's time goes", "Share of the wall clock by kind and cause: work, waiting (for the start, data, "
          "a checkpoint, a repair), and steps done a second time.", "percentunit",
          [query("sum by (kind, cause) (rate(lockstep_goodput_seconds_total{<selector>}[$__rate_interval])) / "
                 "ignoring (kind, cause) group_left () "
                 "sum(rate(lockstep_goodput_seconds_total{<selector>}[$__rate_interval]))", "{{kind}} {{cause}}")],
          width=12, stacked=True, minimum=0, maximum=1),
    graph("Recoveries", "Breaks of the group after which training went on, by cause, within the last hour. The alert "
          "RestartLoop comes at five.", "locale",
          [query(f"sum by (cause) ({within_an_hour('lockstep_recoveries_total{<selector>}')})", "{{cause}}")],
          width=6, minimum=0, thresholds=rising((5, ORANGE)), decimals=0),
    graph("Time of a recovery", "Mean of each part, over all recoveries of the job.", "s",
          [query(f"sum by (part) ({counted('lockstep_recovery_duration_seconds_sum{<selector>}')}) / sum by (part) "
                 f"({counted('lockstep_recovery_duration_seconds_count{<selector>}')})", "{{part}}")], width=6,
          thresholds=rising((60, ORANGE))),
    graph("Workers started again", "Within the last hour, by level of restart (process, pod, gang) and reason of their end; "
          "and how often a level gave up, so that the next one restarted or the job ended.", "locale",
          [query(f"sum by (rung, reason) ({within_an_hour('lockstep_restarts_total{<selector>}')})",
                 "{{rung}}: {{reason}}"),
           query(f"sum by (rung, reason) ({within_an_hour('lockstep_gave_up_total{<selector>}')})",
                 "{{rung}} gave up: {{reason}}")],
          width=6, minimum=0, thresholds=rising((5, ORANGE)), decimals=0),
    graph("Steps done again", "Steps that were done a second time within the last hour because the group broke.",
          "locale", [query(f"sum({within_an_hour('lockstep_redone_steps_total{<selector>}')})", "steps")], width=6,
          minimum=0, decimals=0),
    graph("Size of the group", "Agents (one in each pod) and ranks in the group, and worker processes of the agents that are "
          "scraped. A step down in the ranks: an agent is away. The alert RankMissing looks at it.", "locale",
          [query("max(lockstep_world_size{<selector>})", "ranks"), query("max(lockstep_nodes{<selector>})", "agents"),
           query("sum(lockstep_agent_workers{<selector>})", "processes")], width=6, minimum=0, decimals=0),
    graph("Generation", "Groups formed so far: each break, join and leave makes a new one.", "locale",
          [query("max(lockstep_generation{<selector>})", "generation")], width=6, minimum=0, decimals=0),
]

MEMORY = [
    graph("Resident memory, by rank", "Of the worker processes: the ten largest.", "bytes",
          [query(largest("max by (rank) (process_resident_memory_bytes{<selector>, rank!=\"\"})"), "rank {{rank}}")]),
    graph("Device memory, by rank", "Allocated by tensors now, and the most that ever was: of each, the five "
          "ranks with most.", "bytes",
          [query(largest(f'max by (rank) (lockstep_device_memory_bytes{{<selector>, kind="{kind}"}})', 5),
                 f"rank {{{{rank}}}} {kind}") for kind in ("allocated", "peak")]),
    graph("Peak of the device memory", "The most that tensors took, over the device's capacity, of the ten ranks with "
          "most. The alert DeviceMemoryNearFull comes at 0.95.", "percentunit",
          [query(largest('max by (rank) (lockstep_device_memory_bytes{<selector>, kind="peak"}) / '
                         'max by (rank) (lockstep_device_memory_bytes{<selector>, kind="capacity"})'),
                 "rank {{rank}}")],
          thresholds=rising((0.95, RED)), minimum=0, maximum=1),
]


def make():
    return board(
        UID, "Lockstep / Training run", "One TrainJob, or one local run: progress, learning, time, checkpoints, "
        "failures, memory.", VARIABLES,
        [("Run", OVERVIEW), ("Learning", LEARNING), ("Rankings", RANKINGS), ("Proteins", PROTEINS), ("Images", IMAGES), ("Throughput", THROUGHPUT),
         ("Phases", PHASES), ("Stragglers", STRAGGLERS), ("Checkpoints", CHECKPOINTS), ("Failures and goodput", RELIABILITY),
         ("Memory", MEMORY)],
        SELECTOR, [board_link("Fleet", "lockstep-fleet"), board_link("Operator", "lockstep-operator")],
        annotations=[marks("A new group", "changes(lockstep_generation{<selector>}[$__rate_interval]) > 0", SELECTOR)])
