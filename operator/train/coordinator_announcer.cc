#include "operator/train/coordinator_announcer.h"

#include <algorithm>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "operator/train/due_queue.h"
#include "runner/base/mutex.h"

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
  };
  struct Job {
    CoordinatorNews news;
    std::map<std::string, Agent> agents;
  };
  struct AgentKey {
    api::ObjectKey job;
    std::string pod_uid;
    auto operator<=>(const AgentKey&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy's own 0
  };

  explicit Impl(Options given) : options(std::move(given)) {}

  void schedule(const AgentKey& key, const Agent& agent) REQUIRES(mutex) {
    waiting.set(key, level_of(agent.failures), Clock::now() + delay_after(agent.failures));
  }

  // The agent has another IP, or is to get another address: it is tried at once, however often it failed before.
  void begin_anew(const AgentKey& key, Agent& agent) REQUIRES(mutex) {
    agent.failures = 0;
    agent.warned = false;
    if (!agent.is_sending) schedule(key, agent);
  }

  void set_news(const api::ObjectKey& key, Job& job, CoordinatorNews news) REQUIRES(mutex) {
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
        begin_anew({key, pod.uid}, agent);
      } else if (agent.acknowledged == news.address) {
        waiting.erase({key, pod.uid});  // it knows this address already
      }
    }
    for (auto& [uid, agent] : before) {
      waiting.erase({key, uid});
      agent.is_listed = false;
      if (agent.is_sending) job.agents.emplace(uid, std::move(agent));
    }
    job.news = std::move(news);
  }

  // ---- the threads ----

  void work() {
    MutexLock lock(mutex);
    while (const std::optional<AgentKey> key = waiting.wait_for_turn(lock)) {
      const Request request = begin(*key);
      lock.unlock();
      const Status sent = options.send(request.ip, request.port, request.token, request.address);
      lock.lock();
      end(*key, request, sent);
    }
  }

  Agent* find(const AgentKey& key) REQUIRES(mutex) {
    const auto job = jobs.find(key.job);
    if (job == jobs.end()) return nullptr;
    const auto agent = job->second.agents.find(key.pod_uid);
    return agent == job->second.agents.end() ? nullptr : &agent->second;
  }

  struct Request {
    std::string ip;
    int port;
    std::string token;
    std::string address;
  };
  Request begin(const AgentKey& key) REQUIRES(mutex) {
    Agent& agent = *find(key);  // an agent in `waiting` is in `jobs`
    agent.is_sending = true;
    const CoordinatorNews& news = jobs.at(key.job).news;
    return {.ip = agent.ip, .port = news.port, .token = news.token, .address = news.address};
  }

  void end(const AgentKey& key, const Request& request, const Status& sent) REQUIRES(mutex) {
    Agent* const agent = find(key);
    if (agent == nullptr || !agent->is_sending) return;  // forgotten meanwhile
    agent->is_sending = false;
    if (!agent->is_listed) {
      jobs.at(key.job).agents.erase(key.pod_uid);
      return;
    }
    const CoordinatorNews& news = jobs.at(key.job).news;
    if (agent->ip != request.ip) return schedule(key, *agent);
    if (sent.ok()) {
      agent->acknowledged = request.address;
      agent->failures = 0;
      options.logger.debug("sent an agent the address of pod 0",
                           {{"job", api::to_string(key.job)}, {"ip", request.ip}, {"address", request.address}});
    } else if (request.address == news.address) {
      ++agent->failures;
      warn_once(key, *agent, sent.error());
    }
    if (agent->acknowledged != news.address) schedule(key, *agent);
  }

  void warn_once(const AgentKey& key, Agent& agent, const Error& error) {
    if (agent.failures < kFailuresBeforeWarning || agent.warned) return;
    agent.warned = true;
    options.logger.warning(
        "an agent cannot be sent the address of pod 0; it looks it up by name, which may take longer",
        {{"job", api::to_string(key.job)}, {"ip", agent.ip}, {"error", error.message}});
  }

  const Options options;
  Mutex mutex;
  std::map<api::ObjectKey, Job> jobs GUARDED_BY(mutex);
  DueQueue<AgentKey, kLevels> waiting GUARDED_BY(mutex);  // agents that do not have the address, by failures in a row

  std::vector<std::thread> threads;
};

CoordinatorAnnouncer::CoordinatorAnnouncer(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {
  for (int i = 0; i < impl_->options.threads; ++i) impl_->threads.emplace_back([this] { impl_->work(); });
}

CoordinatorAnnouncer::~CoordinatorAnnouncer() {
  {
    const MutexLock lock(impl_->mutex);
    impl_->waiting.shut_down();
  }
  for (std::thread& thread : impl_->threads) thread.join();
}

void CoordinatorAnnouncer::announce(const api::ObjectKey& job, CoordinatorNews news) {
  const MutexLock lock(impl_->mutex);
  const auto at = impl_->jobs.find(job);
  if (at == impl_->jobs.end() && news.pods.empty()) return;
  Impl::Job& known = at == impl_->jobs.end() ? impl_->jobs[job] : at->second;
  if (known.news != news) impl_->set_news(job, known, std::move(news));
}

void CoordinatorAnnouncer::forget(const api::ObjectKey& job) {
  const MutexLock lock(impl_->mutex);
  const auto at = impl_->jobs.find(job);
  if (at == impl_->jobs.end()) return;
  for (const auto& [uid, agent] : at->second.agents) impl_->waiting.erase({job, uid});
  impl_->jobs.erase(at);
}

}  // namespace lockstep::train
