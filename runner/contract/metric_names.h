// Metric names: every Prometheus metric of the runner once, with help, type and labels.
//
// Role: the one list that the worker (telemetry/metrics), the agent (/metrics), docs/metrics.md, dashboards and rules
// share. tests/python/test_metrics_lint.py holds docs/metrics.md to it, in the same order, and what
// tests/tools/metrics_text.cc prints; it reads this file: a comment at the margin begins a section, and its first word,
// Agent, Operator or Package, says who exports what follows (another word: the worker). Base units; counters end in
// _total. Labels: every metric of a worker also carries `rank`. `labels` names the others, comma-separated, "" for
// none. Threads: constants.
#pragma once

#include <string_view>

namespace lockstep {

enum class MetricType { kCounter, kGauge, kHistogram };

struct MetricName {
  std::string_view name;
  MetricType type;
  std::string_view labels;
  std::string_view help;
};

namespace metric {

// Progress.
inline constexpr MetricName kSteps{"lockstep_steps_total", MetricType::kCounter, "",
                                   "Optimizer steps done by this process, skipped ones included."};
inline constexpr MetricName kSamples{"lockstep_samples_total", MetricType::kCounter, "",
                                     "Samples trained on by all ranks together while this process ran."};
inline constexpr MetricName kStep{"lockstep_step", MetricType::kGauge, "",
                                  "Optimizer step of the run, counted over restarts."};
inline constexpr MetricName kEpoch{"lockstep_epoch", MetricType::kGauge, "", "Epochs trained so far, with fraction."};
inline constexpr MetricName kTargetSteps{"lockstep_target_steps", MetricType::kGauge, "",
                                         "Step at which the run ends."};
inline constexpr MetricName kProgress{"lockstep_progress_ratio", MetricType::kGauge, "",
                                      "Share of the target steps that is done, 0 to 1."};
inline constexpr MetricName kEstimatedRemaining{"lockstep_estimated_remaining_seconds", MetricType::kGauge, "",
                                                "Estimated time until the run ends."};
inline constexpr MetricName kLastStepTimestamp{"lockstep_last_step_timestamp_seconds", MetricType::kGauge, "",
                                               "Unix time at which the last step was done."};
inline constexpr MetricName kStartTimestamp{"lockstep_start_timestamp_seconds", MetricType::kGauge, "",
                                            "Unix time at which this process started."};

// Speed.
inline constexpr MetricName kStepDuration{"lockstep_step_duration_seconds", MetricType::kHistogram, "",
                                          "Wall clock of one optimizer step."};
inline constexpr MetricName kPhaseSeconds{
    "lockstep_phase_seconds_total", MetricType::kCounter, "phase",
    "Wall clock spent in each phase; the phases add up to the wall clock of this process."};
inline constexpr MetricName kSamplesPerSecond{"lockstep_throughput_samples_per_second", MetricType::kGauge, "",
                                              "Samples trained on per second by all ranks together."};
inline constexpr MetricName kModelFlops{"lockstep_model_flops_per_second", MetricType::kGauge, "",
                                        "Floating-point operations of the model per second, all ranks together."};
inline constexpr MetricName kPeakFlops{"lockstep_peak_flops_per_second", MetricType::kGauge, "",
                                       "Dense peak of all ranks' devices together; absent when the device is unknown."};
inline constexpr MetricName kMfu{"lockstep_mfu_ratio", MetricType::kGauge, "",
                                 "Model FLOP/s over peak FLOP/s; absent when the device is unknown."};

// Numerics.
inline constexpr MetricName kLoss{"lockstep_loss", MetricType::kGauge, "split", "Loss of the last logged step."};
inline constexpr MetricName kGradientNorm{"lockstep_gradient_norm", MetricType::kGauge, "",
                                          "Global norm of the reduced gradient before clipping, last logged step."};
inline constexpr MetricName kLearningRate{"lockstep_learning_rate", MetricType::kGauge, "",
                                          "Learning rate of the last logged step."};
inline constexpr MetricName kLossScale{"lockstep_loss_scale", MetricType::kGauge, "",
                                       "Dynamic loss scale; absent unless the precision is fp16."};
inline constexpr MetricName kSkippedSteps{"lockstep_skipped_steps_total", MetricType::kCounter, "reason",
                                          "Steps whose update was skipped on all ranks."};
inline constexpr MetricName kEvaluations{"lockstep_evaluations_total", MetricType::kCounter, "",
                                         "Evaluations done by this process."};
inline constexpr MetricName kEvaluationValue{"lockstep_evaluation_value", MetricType::kGauge, "metric",
                                             "Figures of the last evaluation, over all ranks."};

// Memory.
inline constexpr MetricName kDeviceMemory{"lockstep_device_memory_bytes", MetricType::kGauge, "kind",
                                          "Device memory of this rank as its allocator and driver count it."};
inline constexpr MetricName kResidentMemory{"process_resident_memory_bytes", MetricType::kGauge, "",
                                            "Resident memory of the process."};

// Checkpoints.
inline constexpr MetricName kCheckpointDuration{
    "lockstep_checkpoint_duration_seconds", MetricType::kHistogram, "phase",
    "Time of one checkpoint: stage (the loop waits), write (a thread writes and syncs), restore (reading it back)."};
inline constexpr MetricName kCheckpointBytes{"lockstep_checkpoint_bytes", MetricType::kGauge, "",
                                             "Size of the newest complete checkpoint."};
inline constexpr MetricName kCheckpointLastSuccess{"lockstep_checkpoint_last_success_timestamp_seconds",
                                                   MetricType::kGauge, "",
                                                   "Unix time at which the newest complete checkpoint was done."};
inline constexpr MetricName kCheckpointLastStep{"lockstep_checkpoint_last_step", MetricType::kGauge, "",
                                                "Step of the newest complete checkpoint."};
inline constexpr MetricName kCheckpointFailures{"lockstep_checkpoint_failures_total", MetricType::kCounter, "reason",
                                                "Checkpoints that could not be written."};

// Start-up.
inline constexpr MetricName kStartup{"lockstep_startup_seconds", MetricType::kGauge, "phase",
                                     "Time from the start of the process, by part of the start-up."};
inline constexpr MetricName kRendezvousDuration{"lockstep_rendezvous_duration_seconds", MetricType::kHistogram, "",
                                                "Time to form one process group."};

// Package: a rank of a program with the Python package `lockstep`.
inline constexpr MetricName kAbandonedBytes{"lockstep_abandoned_bytes", MetricType::kGauge, "",
                                            "Memory of collectives that have not ended since their group did."};

// Agent: its own node.
inline constexpr MetricName kRestarts{
    "lockstep_restarts_total", MetricType::kCounter, "rung,reason",
    "Workers that this agent restarted, by level of restart and by the reason of their end."};
inline constexpr MetricName kWorkersAlive{"lockstep_agent_workers", MetricType::kGauge, "",
                                          "Worker processes of this agent that are alive."};
inline constexpr MetricName kBuildInfo{"lockstep_build_info", MetricType::kGauge, "version",
                                       "Always 1; the labels name the build of the agent."};

// Agent of node 0: the whole job.
inline constexpr MetricName kGeneration{"lockstep_generation", MetricType::kGauge, "",
                                        "Lower half of the group's generation: groups formed by this coordinator."};
inline constexpr MetricName kNodes{"lockstep_nodes", MetricType::kGauge, "", "Nodes in the group."};
inline constexpr MetricName kWorldSize{"lockstep_world_size", MetricType::kGauge, "", "Ranks in the group."};
inline constexpr MetricName kGaveUp{"lockstep_gave_up_total", MetricType::kCounter, "rung,reason",
                                    "Times that a level of restart did not restart, so that the next level did or the "
                                    "job ended, by the reason of the last end. Failures that end node 0's own agent "
                                    "are not counted: they are in its log and exit message."};
inline constexpr MetricName kGoodputSeconds{
    "lockstep_goodput_seconds_total", MetricType::kCounter, "kind,cause",
    "Wall clock of the job by kind (work, waiting, redone) and cause; all together are the time since its start."};
inline constexpr MetricName kGoodputRatio{"lockstep_goodput_ratio", MetricType::kGauge, "",
                                          "Share of the wall clock that was work, 0 to 1."};
inline constexpr MetricName kRecoveries{"lockstep_recoveries_total", MetricType::kCounter, "cause",
                                        "Breaks of the group after which training went on, by cause."};
inline constexpr MetricName kRecoveryDuration{
    "lockstep_recovery_duration_seconds", MetricType::kHistogram, "part",
    "Time of one recovery: detect (from the last sign of life), respawn (until all wait), form (the group), sync (the "
    "state), total (until the next commit)."};
inline constexpr MetricName kRedoneSteps{"lockstep_redone_steps_total", MetricType::kCounter, "",
                                         "Steps done a second time because the group broke."};
inline constexpr MetricName kSlowestRank{"lockstep_slowest_rank", MetricType::kGauge, "",
                                         "Rank with the most work of its own per step; absent when none stands out."};
inline constexpr MetricName kStragglerLag{"lockstep_straggler_lag_seconds", MetricType::kGauge, "",
                                          "Work per step of the slowest rank above the median of all."};
inline constexpr MetricName kRankUnchanged{"lockstep_rank_unchanged_seconds", MetricType::kGauge, "rank",
                                           "Time since the rank's last sign of progress."};

// Operator. A TrainJob's namespace is called trainjob_namespace, because a scrape sets namespace to the operator's own.
inline constexpr MetricName kTrainJobs{"lockstep_trainjobs", MetricType::kGauge, "phase",
                                       "TrainJobs that this operator sees, by phase."};
inline constexpr MetricName kTrainJobInfo{
    "lockstep_trainjob_info", MetricType::kGauge, "trainjob_namespace,trainjob,phase,reason",
    "1 for each TrainJob that is there, with its phase and, when it failed, the reason of its condition Failed."};
inline constexpr MetricName kTrainJobTimeToPodsReady{
    "lockstep_trainjob_time_to_pods_ready_seconds", MetricType::kHistogram, "",
    "From the start of a run (creation or resume of the TrainJob) until all its pods were ready."};
inline constexpr MetricName kTrainJobTimeToFirstStep{
    "lockstep_trainjob_time_to_first_step_seconds", MetricType::kHistogram, "",
    "From the start of a run (creation or resume of the TrainJob) until its first step was committed."};
inline constexpr MetricName kTrainJobRecovery{
    "lockstep_trainjob_recovery_seconds", MetricType::kHistogram, "scope,reason",
    "From the operator's first sight of a lost pod until the run trained again."};
inline constexpr MetricName kTrainJobRestarts{
    "lockstep_trainjob_restarts_total", MetricType::kCounter, "trainjob_namespace,trainjob,scope,reason",
    "Pods and gangs of a TrainJob started again by the operator, by reason of their end; gone with the TrainJob."};
inline constexpr MetricName kTrainJobCompletions{"lockstep_trainjob_completions_total", MetricType::kCounter, "",
                                                 "TrainJobs that completed."};
inline constexpr MetricName kTrainJobFailures{"lockstep_trainjob_failures_total", MetricType::kCounter, "reason",
                                              "TrainJobs that failed, by the reason of their condition Failed."};

}  // namespace metric

}  // namespace lockstep
