#include "runner/contract/messages.h"

#include "runner/contract/message_codec.h"

namespace lockstep {

// ---- the fields of each message, named once for both directions ----
// V is an Encoder (Ref<T> = const T&) or a Decoder (Ref<T> = T&).

template <typename V>
void fields(V& v, typename V::template Ref<Hello> m) {
  v("local_rank", m.local_rank);
  v("pid", m.pid);
  v("terms", m.terms);
  v.optional("protocol", m.protocol);
  v.optional("kind", m.kind);
  v.optional("package", m.package);
}
template <typename V>
void fields(V& v, typename V::template Ref<Outlives> m) {
  v.optional("leaves_together", m.leaves_together);
}
template <typename V>
void fields(V& v, typename V::template Ref<Replace> m) {
  v("generation", m.generation);
  v.text("message", m.message);
}
template <typename V>
void fields(V& v, typename V::template Ref<Progress> m) {
  v("step", m.step);
  v("total_steps", m.total_steps);
  v("epoch", m.epoch);
  v("num_epochs", m.num_epochs);
  v("loss", m.loss);
  v("lr", m.lr);
  v("grad_norm", m.grad_norm);
  v("samples_per_second", m.samples_per_second);
  v("eta_seconds", m.eta_seconds);
  v("data_wait_ratio", m.data_wait_ratio);
  v("device_memory_bytes", m.device_memory_bytes);
  v.optional("steps_per_second", m.steps_per_second);
}
template <typename V>
void fields(V& v, typename V::template Ref<Evaluation> m) {
  v("epoch", m.epoch);
  v("metrics", m.metrics);
}
template <typename V>
void fields(V& v, typename V::template Ref<CheckpointWritten> m) {
  v("step", m.step);
  v("path", m.path);
}
template <typename V>
void fields(V& v, typename V::template Ref<HistogramBucket> m) {
  v("upper_bound", m.upper_bound);
  v("cumulative_count", m.cumulative_count);
}
template <typename V>
void fields(V& v, typename V::template Ref<MetricSample> m) {
  v("labels", m.labels);
  v("value", m.value);
  v("count", m.count);
  v("sum", m.sum);
  v("buckets", m.buckets);
}
template <typename V>
void fields(V& v, typename V::template Ref<MetricFamily> m) {
  v("name", m.name);
  v("help", m.help);
  v("type", m.type);
  v("metrics", m.metrics);
}
template <typename V>
void fields(V& v, typename V::template Ref<Metrics> m) {
  v("families", m.families);
}
template <typename V>
void fields(V& v, typename V::template Ref<Failing> m) {
  v("code", m.code);
  v.text("message", m.message);
  v("rank", m.rank);
  v("step", m.step);
  v("generation", m.generation);
}
template <typename V>
void fields(V&, typename V::template Ref<Done>) {}
template <typename V>
void fields(V& v, typename V::template Ref<Left> m) {
  v("generation", m.generation);
  v.text("cause", m.cause);
  v.text("message", m.message);
  v("step", m.step);
  v.optional("claim", m.claim);
}
template <typename V>
void fields(V& v, typename V::template Ref<Resumed> m) {
  v("generation", m.generation);
  v("step", m.step);
  v("formed_ns", m.formed_ns);
  v("synced_ns", m.synced_ns);
  v("committed_ns", m.committed_ns);
  v("resumed_step", m.resumed_step);
  v("origin", m.origin);
  v.optional("redone_steps", m.redone_steps);
}
template <typename V>
void fields(V& v, typename V::template Ref<Cut> m) {
  v("generation", m.generation);
  v.text("cause", m.cause);
}
template <typename V>
void fields(V& v, typename V::template Ref<LeaveTogether> m) {
  v("generation", m.generation);
  v("leaving_code", m.leaving_code);
}

// ---- names of types and of enumerators ----

template <>
constexpr auto kTypeNames<WorkerMessage> = std::to_array<const char*>({"hello", "store", "progress", "evaluation",
                                                                       "checkpoint", "metrics", "failing", "done",
                                                                       "left", "resumed", "outlives", "replace"});
template <>
constexpr auto kTypeNames<AgentMessage> = std::to_array<const char*>({"assignment", "store_reply", "cut",
                                                                      "leave_together"});

template <>
constexpr std::array<const char*, 3> kEnumNames<MetricType>{"counter", "gauge", "histogram"};

std::string refusal_of(const Hello& hello) {
  if (hello.protocol == kWorkerProtocol) return "";
  constexpr size_t kWordBytesMax = 64;
  const std::string who = hello.kind == kPythonKind ? "its package lockstep " + hello.package.substr(0, kWordBytesMax)
                                                    : "it, a " + hello.kind.substr(0, kWordBytesMax) + ",";
  return who + " speaks protocol " + std::to_string(hello.protocol) + ", and this agent protocol " +
         std::to_string(kWorkerProtocol) + ": install the one that has the agent's version";
}

Assignment assignment_of(int local_rank, const Assignment& first) {
  Assignment its = first;
  its.rank += local_rank;
  its.local_rank = local_rank;
  const auto place = static_cast<size_t>(local_rank);
  its.plans = place < first.plans.size() ? std::vector<Plan>{first.plans[place]} : std::vector<Plan>{};
  return its;
}

std::string encode(const WorkerMessage& message) { return encode_line(message); }
std::string encode(const AgentMessage& message) { return encode_line(message); }

Result<WorkerMessage> decode_worker_message(std::string_view line) { return decode_line<WorkerMessage>(line); }
Result<AgentMessage> decode_agent_message(std::string_view line) { return decode_line<AgentMessage>(line); }

}  // namespace lockstep
