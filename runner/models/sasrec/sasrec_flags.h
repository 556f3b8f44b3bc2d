// Flags of SASRec and TiSASRec. Links no torch. Threads: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runner/config/run_config.h"
#include "runner/config/workload_flags.h"

namespace lockstep {

enum class SasrecForm { kPostNorm, kPreNorm, kOriginal };

enum class SequenceVariant { kSasrec, kTisasrec };

// The unit of TiSASRec's times. kUser: each user's smallest time between two events.
enum class TimeUnit { kUser, kSecond, kMinute, kHour, kDay };

// How dropout acts on TiSASRec's time tables: on the tables themselves, once for a batch (kTable), or on each pair of
// positions as in the paper (kPairwise), which keeps a row of the table in memory for each pair.
enum class TimeDropout { kTable, kPairwise };

// Flags that only --variant tisasrec has, with the guide's names.
struct TisasrecOptions {
  int64_t time_span = 256;  // in time_unit; longer intervals are clipped to this
  TimeUnit time_unit = TimeUnit::kUser;
  TimeDropout time_dropout = TimeDropout::kTable;
  bool no_time = false;  // use positions only
  bool no_mhc = true;    // plain residual connections
  int64_t mhc_expansion_rate = 4;
  double mhc_init_gate = 0.01;
  int64_t mhc_sinkhorn_iter = 20;
  bool mhc_no_amp = false;
};

struct SasrecOptions {
  std::string dataset;  // NAME or PATH, required
  std::string data_dir = "./data";
  SequenceVariant variant = SequenceVariant::kSasrec;
  bool norm_first = false;
  bool original = false;
  int64_t maxlen = 200;
  int64_t hidden_units = 50;
  int64_t num_blocks = 2;
  int64_t num_heads = 1;
  double dropout_rate = 0.2;
  std::optional<double> l2_emb;      // unset: 0, for TiSASRec 5e-5
  std::optional<int64_t> min_count;  // unset: 5 with ratings or times, none for `user item`
  double max_bad_lines = 0.01;       // fraction of lines that may be malformed
  int64_t eval_users = 10000;        // at most; 0 = all
  int64_t eval_negatives = 100;
  bool full_ranking = true;
  TisasrecOptions tisasrec;

  [[nodiscard]] SasrecForm form() const {
    if (original) return SasrecForm::kOriginal;
    return norm_first ? SasrecForm::kPreNorm : SasrecForm::kPostNorm;
  }
};

WorkloadFlags sasrec_flags();

}  // namespace lockstep
