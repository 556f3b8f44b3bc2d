#include "runner/link/c_api.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "runner/base/clock.h"
#include "runner/link/agent_session.h"
#include "runner/link/group_abort.h"
#include "runner/link/map_beat_page.h"

using lockstep::AgentMessage;
using lockstep::AgentSession;
using lockstep::Result;
using lockstep::WorkerMessage;

struct lockstep_link {
  lockstep_link(int fd, int local_rank, lockstep::BeatPage& beat_page)
      : page(beat_page), session(fd, local_rank, beat_page, [] { return false; }) {}

  lockstep::BeatPage& page;
  AgentSession session;
  std::shared_ptr<lockstep::GroupAbort> abort;  // of the group that is watched
};

namespace {

thread_local std::string last_error;

char* text_of(const std::string& text) { return ::strdup(text.c_str()); }

// A sign of progress. The time since the last one was that of the running phase.
void note_change(lockstep::BeatPage& page, int64_t now) {
  const auto phase = static_cast<size_t>(page.phase.load());
  const int64_t before = page.changed_ns.exchange(now);
  if (before > 0 && phase < lockstep::kPhaseCount) page.phase_ns[phase] += now - before;
}

}  // namespace

int lockstep_abi() { return LOCKSTEP_ABI; }

lockstep_link* lockstep_open(int link_fd, int page_fd, int local_rank) {
  const Result<lockstep::BeatPage*> page = lockstep::map_beat_page(page_fd);
  if (!page.ok()) {
    last_error = page.error().message;
    return nullptr;
  }
  return new lockstep_link(link_fd, local_rank, **page);  // lives as long as the process
}

int lockstep_send(lockstep_link* link, const char* line) {
  const Result<WorkerMessage> message = lockstep::decode_worker_message(line);
  if (!message.ok()) {
    last_error = message.error().message;
    return -1;
  }
  link->session.send(*message);
  return 0;
}

char* lockstep_assignment(lockstep_link* link, int patience_ms) {
  const auto assignment = link->session.await_assignment(std::chrono::milliseconds(patience_ms));
  return assignment ? text_of(encode(AgentMessage(*assignment))) : nullptr;
}

uint64_t lockstep_ask(lockstep_link* link, const char* line) {
  Result<WorkerMessage> message = lockstep::decode_worker_message(line);
  if (!message.ok()) {
    last_error = message.error().message;
    return 0;
  }
  auto* const request = std::get_if<lockstep::StoreRequest>(&*message);
  if (request == nullptr) {
    last_error = "only a message of type \"store\" has a reply";
    return 0;
  }
  const Result<uint64_t> id = link->session.ask(std::move(*request));
  if (!id.ok()) {
    last_error = id.error().message;
    return 0;
  }
  return *id;
}

char* lockstep_reply(lockstep_link* link, uint64_t id, int patience_ms) {
  auto reply = link->session.fetch_reply(id, std::chrono::milliseconds(patience_ms));
  if (!reply) return nullptr;
  if (reply->ok()) return text_of(encode(AgentMessage(std::move(**reply))));
  return text_of(encode(AgentMessage(lockstep::StoreReply{
      .id = id, .status = lockstep::StoreStatus::kStale, .values = {}, .message = reply->error().message})));
}

void lockstep_watch(lockstep_link* link, uint64_t generation) {
  link->abort = std::make_shared<lockstep::GroupAbort>();
  link->session.watch(generation, link->abort);
}

void lockstep_formed(lockstep_link* link) {
  if (!link->abort) return;
  link->abort->group_is_formed();
  if (link->abort->fired()) link->abort->fire();  // sockets that were opened after the cut
}

void lockstep_retire(lockstep_link* link) {
  if (!link->abort) return;
  link->session.stop_watching();
  link->abort->retire();
  link->abort.reset();
}

void lockstep_shut(lockstep_link* link) {
  if (link->abort) link->abort->fire();
}

uint64_t lockstep_cut_generation(lockstep_link* link) { return link->session.cut_generation(); }
char* lockstep_cut_cause(lockstep_link* link) { return text_of(link->session.cut_cause()); }

int lockstep_leave_together(lockstep_link* link, uint64_t generation) {
  return link->session.leave_together(generation).value_or(-1);
}

void lockstep_beat(lockstep_link* link, int activity, int phase) {
  note_change(link->page, lockstep::monotonic_ns());
  link->page.activity.store(static_cast<lockstep::Activity>(activity));
  link->page.phase.store(static_cast<lockstep::Phase>(phase));
}

void lockstep_commit(lockstep_link* link, int64_t step) {
  const int64_t now = lockstep::monotonic_ns();
  link->page.step.store(step);
  link->page.committed_ns.store(now);
  note_change(link->page, now);
}

int64_t lockstep_now_ns() { return lockstep::monotonic_ns(); }
const char* lockstep_error() { return last_error.c_str(); }
void lockstep_free(char* text) { std::free(text); }
