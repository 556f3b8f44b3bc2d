// Flags of `lockstep sasrec recommend`. Links no torch. Threads: plain values.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "runner/base/result.h"
#include "runner/config/run_config.h"
#include "runner/config/workload_flags.h"
#include "runner/models/row_format_flags.h"

namespace lockstep {

struct RecommendOptions {
  std::string user;   // a user's id in the data set
  std::string users;  // path of a file with one user's id on each line; neither given: all users
  int64_t topk = 10;
  bool exclude_seen = false;
  RowFormat format = RowFormat::kJsonLines;
};

WorkloadTask recommend_task();

// WorkloadFlags::flags_of_weight_file: reads flags from a file name in the guide's form, for example
// SASRec.epoch=20.lr=0.001.layer=2.head=1.hidden=50.maxlen=200.pth.
Result<std::map<std::string, std::string>> flags_of_sasrec_weights(FileSystem& fs, const RunConfig& given);

}  // namespace lockstep
