#include "operator/train/coordinator_announcer.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace lockstep::train {
namespace {

// Delays: none, 0.2 s, 0.4 s … 30 s.
constexpr size_t kLevels = 10;
static_assert(kResendInitial * (1 << (kLevels - 3)) < kResendMax &&
              kResendInitial * (1 << (kLevels - 2)) >= kResendMax);

size_t level_of(int failures) { return std::min(static_cast<size_t>(failures), kLevels - 1); }

std::chrono::milliseconds delay_after(int failures) {
  if (failures == 0) return std::chrono::milliseconds(0);
  return std::min(kResendInitial * (1 << (level_of(failures) - 1)), kResendMax);
}

}  // namespace

struct CoordinatorAnnouncer::Impl {
  // One agent, by its pod's UID.
  struct Agent {
    std::string ip;
    std::string acknowledged;  // the last address that it has accepted
    int failures = 0;          // in a row
    bool warned = false;       // a warning was logged that it does not answer
    bool is_sending = false;   // a thread is sending it the address now
    bool is_listed = true;  // false: announce() does not name it any more. It is kept only until that thread is done,
                            // so that an agent never gets two requests at a time
    std::optional<Clock::time_point> due;  // set: it stands in `waiting`, at the level of its failures
  };
  struct Job {
    CoordinatorNews news;
    std::map<std::string, Agent> agents;
  };
  struct Turn {
    Clock::time_point due;
    api::ObjectKey job;
    std::string pod_uid;
    auto operator<=>(const Turn&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy's own 0
  };

  explicit Impl(Options given) : options(std::move(given)) {}

  // ---- with the lock held ----

  void take_off(const api::ObjectKey& key, const std::string& uid, Agent& agent) {
    if (!agent.due) return;
    waiting[level_of(agent.failures)].erase({*agent.due, key, uid});
    agent.due.reset();
  }

  void schedule(const api::ObjectKey& key, const std::string& uid, Agent& agent) {
    agent.due = Clock::now() + delay_after(agent.failures);
    waiting[level_of(agent.failures)].insert({*agent.due, key, uid});
    changed.notify_one();
  }

  // The agent has another IP, or is to get another address: it is tried at once, however often it failed before.
  void begin_anew(const api::ObjectKey& key, const std::string& uid, Agent& agent) {
    take_off(key, uid, agent);
    agent.failures = 0;
    agent.warned = false;
    if (!agent.is_sending) schedule(key, uid, agent);
  }

  void drop(const api::ObjectKey& key, Job& job) {
    for (auto& [uid, agent] : job.agents) take_off(key, uid, agent);
  }

  void set_news(const api::ObjectKey& key, Job& job, CoordinatorNews news) {
    const bool is_elsewhere = job.news.address != news.address;
    std::map<std::string, Agent> before = std::exchange(job.agents, {});
    for (const CoordinatorNews::Pod& pod : news.pods) {
      auto known = before.extract(pod.uid);
      Agent& agent = known.empty() ? job.agents[pod.uid] : job.agents.insert(std::move(known)).position->second;
      const bool is_new = agent.ip != pod.ip || !agent.is_listed;
      if (is_new) agent.acknowledged.clear();
      agent.ip = pod.ip;
      agent.is_listed = true;
      if (is_new || (is_elsewhere && agent.acknowledged != news.address)) {
        begin_anew(key, pod.uid, agent);
      } else if (agent.acknowledged == news.address) {
        take_off(key, pod.uid, agent);  // it knows this address already
      }
    }
    for (auto& [uid, agent] : before) {
      take_off(key, uid, agent);
      agent.is_listed = false;
      if (agent.is_sending) job.agents.emplace(uid, std::move(agent));
    }
    job.news = std::move(news);
  }

  // Of the agents that are due, the first among those with the fewest failures.
  std::optional<Turn> next_turn() {
    const Clock::time_point now = Clock::now();
    for (std::set<Turn>& level : waiting) {
      if (level.empty() || level.begin()->due > now) continue;
      return level.extract(level.begin()).value();
    }
    return std::nullopt;
  }

  std::optional<Clock::time_point> next_due() const {
    std::optional<Clock::time_point> next;
    for (const std::set<Turn>& level : waiting) {
      if (!level.empty() && (!next || level.begin()->due < *next)) next = level.begin()->due;
    }
    return next;
  }

  // ---- the threads ----

  void work() {
    std::unique_lock lock(mutex);
    while (!ending) {
      if (const std::optional<Turn> turn = next_turn()) {
        send(*turn, lock);
      } else if (const std::optional<Clock::time_point> due = next_due()) {
        changed.wait_until(lock, *due);
      } else {
        changed.wait(lock);
      }
    }
  }

  Agent* find(const api::ObjectKey& key, const std::string& uid) {
    const auto job = jobs.find(key);
    if (job == jobs.end()) return nullptr;
    const auto agent = job->second.agents.find(uid);
    return agent == job->second.agents.end() ? nullptr : &agent->second;
  }

  void send(const Turn& turn, std::unique_lock<std::mutex>& lock) {
    Agent& before = *find(turn.job, turn.pod_uid);  // an agent that has a turn is in `jobs`
    before.due.reset();
    before.is_sending = true;
    const std::string ip = before.ip;
    const std::string address = jobs.at(turn.job).news.address;
    const std::string token = jobs.at(turn.job).news.token;
    lock.unlock();
    const Status sent = options.send(ip, token, address);
    lock.lock();
    Agent* const agent = find(turn.job, turn.pod_uid);
    if (agent == nullptr || !agent->is_sending) return;  // forgotten meanwhile
    agent->is_sending = false;
    if (!agent->is_listed) {
      jobs.at(turn.job).agents.erase(turn.pod_uid);
      return;
    }
    note(turn, *agent, {.ip = ip, .address = address, .sent = sent});
  }

  struct Outcome {
    const std::string& ip;
    const std::string& address;
    const Status& sent;
  };
  void note(const Turn& turn, Agent& agent, const Outcome& outcome) {
    const CoordinatorNews& news = jobs.at(turn.job).news;
    if (agent.ip != outcome.ip) return schedule(turn.job, turn.pod_uid, agent);
    if (outcome.sent.ok()) {
      agent.acknowledged = outcome.address;
      agent.failures = 0;
      options.logger.debug("sent an agent the address of pod 0",
                           {{"job", api::to_string(turn.job)}, {"ip", outcome.ip}, {"address", outcome.address}});
    } else if (outcome.address == news.address) {
      ++agent.failures;
      warn_once(turn, agent, outcome.sent.error());
    }
    if (agent.acknowledged != news.address) schedule(turn.job, turn.pod_uid, agent);
  }

  void warn_once(const Turn& turn, Agent& agent, const Error& error) {
    if (agent.failures < kFailuresBeforeWarning || agent.warned) return;
    agent.warned = true;
    options.logger.warning(
        "an agent cannot be sent the address of pod 0; it looks it up by name, which may take longer",
        {{"job", api::to_string(turn.job)}, {"ip", agent.ip}, {"error", error.message}});
  }

  const Options options;
  std::mutex mutex;
  std::condition_variable changed;
  // State below is protected by mutex.
  bool ending = false;
  std::map<api::ObjectKey, Job> jobs;
  std::array<std::set<Turn>, kLevels> waiting;  // by failures in a row

  std::vector<std::thread> threads;
};

CoordinatorAnnouncer::CoordinatorAnnouncer(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {
  for (int i = 0; i < impl_->options.threads; ++i) impl_->threads.emplace_back([this] { impl_->work(); });
}

CoordinatorAnnouncer::~CoordinatorAnnouncer() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->ending = true;
  }
  impl_->changed.notify_all();
  for (std::thread& thread : impl_->threads) thread.join();
}

void CoordinatorAnnouncer::announce(const api::ObjectKey& job, CoordinatorNews news) {
  const std::lock_guard lock(impl_->mutex);
  const auto at = impl_->jobs.find(job);
  if (at == impl_->jobs.end() && news.pods.empty()) return;
  Impl::Job& known = at == impl_->jobs.end() ? impl_->jobs[job] : at->second;
  if (known.news != news) impl_->set_news(job, known, std::move(news));
}

void CoordinatorAnnouncer::forget(const api::ObjectKey& job) {
  const std::lock_guard lock(impl_->mutex);
  const auto at = impl_->jobs.find(job);
  if (at == impl_->jobs.end()) return;
  impl_->drop(job, at->second);
  impl_->jobs.erase(at);
}

}  // namespace lockstep::train
