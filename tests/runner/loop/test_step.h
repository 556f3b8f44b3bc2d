// A training step on the CPU, with default parts for what a test does not care about.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "runner/dist/device_stream.h"
#include "runner/dist/grad_reducer.h"
#include "runner/dist/process_group.h"
#include "runner/kernels/commit_gate.h"
#include "runner/loop/train_step.h"
#include "runner/loop/upload.h"

namespace lockstep {

struct TestStepOptions {
  const TrainingOptions& training;
  Workload& workload;
  TrainingState& state;
  ProcessGroup& group;
  BatchSource& source;  // of the training split
  int64_t steps;
  int64_t fetch_threads = 2;
  Precision precision = Precision::kFp32;
  PhaseClock::Now now = std::chrono::steady_clock::now;
  std::function<void()> on_last_gradient = {};  // of each step, see GradReducer
};

// What the options name outlives it.
struct TestStep {
  explicit TestStep(const TestStepOptions& options)
      : clock(Phase::kStartup, TimePoint{}, options.now),
        reducer(options.state.reduced(), options.group, options.on_last_gradient),
        queue(options.workload, options.fetch_threads, at::kCPU),
        upload(options.workload, at::kCPU),
        rank{.config = config,
             .workload = options.workload,
             .fs = fs,
             .clock = clock,
             .stream = *stream,
             .precision = {.precision = options.precision}},
        step({.rank = rank,
              .training = options.training,
              .state = options.state,
              .group = options.group,
              .reducer = reducer,
              .source = options.source,
              .queue = queue,
              .upload = upload,
              .gate = gate,
              .steps = {.end = options.steps, .total = options.steps}}) {}

  PhaseClock clock;
  CommitGate gate{at::kCPU};
  std::unique_ptr<DeviceStream> stream = make_device_stream(at::kCPU);
  GradReducer reducer;
  BatchQueue queue;
  Upload upload;
  RunConfig config;
  PosixFileSystem fs;
  RankContext rank;
  TrainStep step;
};

}  // namespace lockstep
