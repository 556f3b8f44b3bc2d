#include "runner/contract/coordination.h"

#include "runner/contract/message_codec.h"

namespace lockstep {

// ---- the fields of each message ----

template <typename V>
void fields(V& v, typename V::template Ref<Greet> m) {
  v("protocol", m.protocol);
  v("job", m.job);
  v("token", m.token);
  v("node_rank", m.node_rank);
  v("attempt", m.attempt);
  v("incarnation", m.incarnation);
  v("host", m.host);
}
template <typename V>
void fields(V& v, typename V::template Ref<BrokenBefore> m) {
  v("seconds", m.seconds);
  v("silent_seconds", m.silent_seconds);
  v("committed_seconds", m.committed_seconds);
  v("generation", m.generation);
  v("step", m.step);
  v("step_in_flight", m.step_in_flight);
}
template <typename V>
void fields(V& v, typename V::template Ref<Join> m) {
  v("nproc", m.nproc);
  v("generation", m.generation);
  v("ready", m.ready);
  v("leaving_code", m.leaving_code);
  v("done", m.done);
  v("broken_before", m.broken_before);
  v("terms", m.terms);
  v.optional("claims", m.claims);
}
template <typename V>
void fields(V& v, typename V::template Ref<NodeReady> m) {
  v("ready", m.ready);
  v("generation", m.generation);
  v("terms", m.terms);
  v.optional("claims", m.claims);
}
template <typename V>
void fields(V& v, typename V::template Ref<Broken> m) {
  v("generation", m.generation);
  v("rank", m.rank);
  v.text("cause", m.cause);
  v.text("message", m.message);
  v("detection_seconds", m.detection_seconds);
  v("exit_code", m.exit_code);
}
template <typename V>
void fields(V& v, typename V::template Ref<WorkerBeat> m) {
  v("local_rank", m.local_rank);
  v("step", m.step);
  v("activity", m.activity);
  v("phase", m.phase);
  v("seconds_unchanged", m.seconds_unchanged);
  v("busy_seconds", m.busy_seconds);
  v("generation", m.generation);
}
template <typename V>
void fields(V& v, typename V::template Ref<Heartbeat> m) {
  v("workers", m.workers);
}
template <typename V>
void fields(V& v, typename V::template Ref<StoreCall> m) {
  v("local_rank", m.local_rank);
  v("request", m.request);
}
template <typename V>
void fields(V& v, typename V::template Ref<Leave> m) {
  v("code", m.code);
}
template <typename V>
void fields(V&, typename V::template Ref<NodeDone>) {}
template <typename V>
void fields(V& v, typename V::template Ref<NodeFailed> m) {
  v("code", m.code);
  v.text("message", m.message);
  v("ends_job", m.ends_job);
}
template <typename V>
void fields(V& v, typename V::template Ref<RestartDecision> m) {
  v("level", m.level);
  v.text("reason", m.reason);
  v.text("line", m.line);
  v("gives_up", m.gives_up);
  v("is_exported", m.is_exported);
}
template <typename V>
void fields(V& v, typename V::template Ref<CheckpointNews> m) {
  v("step", m.step);
}
template <typename V>
void fields(V& v, typename V::template Ref<Welcome> m) {
  v("generation", m.generation);
}
template <typename V>
void fields(V& v, typename V::template Ref<Refused> m) {
  v.text("message", m.message);
  v("retry", m.retry);
}
template <typename V>
void fields(V& v, typename V::template Ref<NodeNumber> m) {
  v("node_rank", m.node_rank);
}
template <typename V>
void fields(V& v, typename V::template Ref<CutGroup> m) {
  v("generation", m.generation);
  v.text("cause", m.cause);
  v.text("message", m.message);
}
template <typename V>
void fields(V& v, typename V::template Ref<Regroup> m) {
  v("generation", m.generation);
  v("leaving", m.leaving);
}
template <typename V>
void fields(V& v, typename V::template Ref<StopJob> m) {
  v("code", m.code);
}
template <typename V>
void fields(V& v, typename V::template Ref<KillWorker> m) {
  v("local_rank", m.local_rank);
  v.text("message", m.message);
}
template <typename V>
void fields(V& v, typename V::template Ref<StoreAnswerTo> m) {
  v("local_rank", m.local_rank);
  v("reply", m.reply);
}
template <typename V>
void fields(V& v, typename V::template Ref<EndJob> m) {
  v("code", m.code);
  v.text("message", m.message);
}
template <typename V>
void fields(V&, typename V::template Ref<CoordinatorBeat>) {}

// ---- names of types and of enumerators ----

template <>
constexpr auto kTypeNames<NodeMessage> = std::to_array<const char*>({"greet", "join", "node_ready", "broken",
                                                                     "heartbeat", "store_call", "leave", "node_done",
                                                                     "node_failed", "restart_decision",
                                                                     "checkpoint_news"});
template <>
constexpr auto kTypeNames<CoordinatorMessage> =
    std::to_array<const char*>({"welcome", "refused", "assignment", "cut_group", "regroup", "stop_job", "kill_worker",
                                "store_answer_to", "end_job", "coordinator_beat", "checkpoint_news", "node_number"});

template <typename E, size_t N>
constexpr std::array<const char*, N> names_of() {
  std::array<const char*, N> names{};
  for (size_t i = 0; i < N; ++i) names[i] = to_string(static_cast<E>(i));
  return names;
}
template <>
constexpr auto kEnumNames<Activity> = names_of<Activity, kActivityCount>();
template <>
constexpr auto kEnumNames<Phase> = names_of<Phase, kPhaseCount>();

std::string encode(const NodeMessage& message) { return encode_line(message); }
std::string encode(const CoordinatorMessage& message) { return encode_line(message); }

std::string encode_values(const std::vector<std::string>& values) {
  Encoder encoder;
  encoder.hex("values", values);
  return dump_line(std::move(encoder).take().at("values"));
}

std::string encode_answer(int local_rank, StoreReply reply, std::string_view encoded_values) {
  reply.values.clear();
  std::string line = encode(CoordinatorMessage(StoreAnswerTo{.local_rank = local_rank, .reply = std::move(reply)}));
  // No other place looks like it: within a text the quotes would be escaped.
  constexpr std::string_view kNoValues = "\"values\":[]";
  const size_t at = line.find(kNoValues) + kNoValues.size() - 2;
  return line.replace(at, 2, encoded_values);
}

Result<NodeMessage> decode_node_message(std::string_view line) { return decode_line<NodeMessage>(line); }
Result<CoordinatorMessage> decode_coordinator_message(std::string_view line) {
  return decode_line<CoordinatorMessage>(line);
}

}  // namespace lockstep
