// What lies in a run's folder beside its checkpoints (checkpoint_layout.h), and is shown on the agent's page. Pure.
//
//   metrics.jsonl                a line per logged step and per evaluation; rank 0 writes it (telemetry/metrics_log.h)
//   metrics.jsonl.1, .2, …       what it was before it grew too large, oldest first
//   recoveries.jsonl             a line per start and per recovery; node 0's agent writes it (agent/run_history.h)
//   outputs/step-00000120/NAME   pictures and texts that the workload made at step 120; rank 0 writes them
//
// Threads: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

inline constexpr const char* kMetricsFile = "metrics.jsonl";
inline constexpr const char* kRecoveriesFile = "recoveries.jsonl";
inline constexpr const char* kOutputsFolder = "outputs";

// A larger output is not served; it can be opened in the folder.
inline constexpr uint64_t kOutputBytesMax = uint64_t{4} << 20;
inline constexpr size_t kOutputNameMax = 100;  // bytes

// A picture or a text that a workload made.
struct OutputFile {
  int64_t step = 0;  // steps done when it was made
  std::string name;  // "samples.png"
  bool operator==(const OutputFile&) const = default;
};

// Letters, digits, '.', '_' and '-', no '.' in front, and one of the endings below: such a name needs no escapes in an
// address, and stays in its folder.
bool is_output_name(std::string_view name);
// The content type of .png, .svg, .txt and .md; null for every other ending.
const char* output_content_type(std::string_view name);

// "outputs/step-00000120/samples.png", below the run's folder.
std::string output_path(const OutputFile& output);
// nullopt for any other path.
std::optional<OutputFile> parse_output_path(std::string_view path);

}  // namespace lockstep
