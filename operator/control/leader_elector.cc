#include "operator/control/leader_elector.h"

#include <time.h>  // NOLINT(modernize-deprecated-headers): clock_gettime is POSIX

#include <atomic>
#include <deque>
#include <thread>
#include <utility>

#include "runner/base/check.h"
#include "runner/base/mutex.h"

namespace lockstep::control {

Clock::time_point boot_time_now() {
  timespec time{};
  LOCKSTEP_CHECK(clock_gettime(CLOCK_BOOTTIME, &time) == 0, "Linux has CLOCK_BOOTTIME");
  return Clock::time_point(std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec));
}

std::chrono::microseconds wall_time_now() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch());
}

struct LeaderElector::Impl {
  Impl(kube::Client& kube_client, Options elector_options)
      : client(kube_client),
        options(std::move(elector_options)),
        logger(options.logger.with({{"lease", to_string(options.election.lease)}})),
        state(options.election, options.random) {}

  kube::Client& client;
  const Options options;
  const Logger logger;

  LeaderState state;                       // of the deciding thread alone
  std::optional<Clock::time_point> timer;  // likewise
  std::atomic<Clock::duration> leading_until{Clock::duration::min()};

  Mutex mutex;
  ConditionVariable changed;
  std::deque<LeaderEvent> events GUARDED_BY(mutex);
  std::optional<LeaderOutput> request GUARDED_BY(mutex);  // for the asking thread

  std::jthread asking;
  std::jthread deciding;  // the last members: they end before the others go

  // ---- the deciding thread ----

  void decide() {
    carry_out(ElectionStarted{});
    while (!state.finished) carry_out(next_event());
  }

  LeaderEvent next_event() {
    MutexLock lock(mutex);
    const auto something_came = [this]() REQUIRES(mutex) { return !events.empty(); };
    if (timer) {
      changed.wait_for(lock, *timer - options.now(), something_came);
    } else {
      changed.wait(lock, something_came);
    }
    if (events.empty()) return LeaderTimer{};
    LeaderEvent event = std::move(events.front());
    events.pop_front();
    return event;
  }

  void carry_out(const LeaderEvent& event) {
    std::vector<LeaderOutput> outputs = step(state, event, {options.now(), options.wall()});
    // Before the callbacks: on_stopped finds is_leader false, on_started finds it true.
    leading_until = state.leading ? state.leading_until.time_since_epoch() : Clock::duration::min();
    timer.reset();
    for (LeaderOutput& output : outputs) {
      std::visit([this](auto& wanted) { carry_out_one(wanted); }, output);
    }
  }

  void ask(LeaderOutput wanted) {
    {
      const MutexLock lock(mutex);
      LOCKSTEP_CHECK(!request, "one request at a time");
      request = std::move(wanted);
    }
    changed.notify_all();
  }
  void carry_out_one(ReadLease& read) { ask(read); }
  void carry_out_one(CreateLease& create) { ask(std::move(create)); }
  void carry_out_one(UpdateLease& update) { ask(std::move(update)); }

  void carry_out_one(const WaitUntil& wait) { timer = wait.at; }
  void carry_out_one(const BeginLeading&) {
    logger.info("this process leads");
    if (options.on_started) options.on_started();
  }
  void carry_out_one(const EndLeading& end) {
    logger.info("this process no longer leads", {{"why", end.why}});
    if (options.on_stopped) options.on_stopped(end.why);
  }
  void carry_out_one(const LeaderSeen& seen) {
    logger.info("the lease's holder changed", {{"holder", seen.identity}});
    if (options.on_new_leader) options.on_new_leader(seen.identity);
  }
  void carry_out_one(const ElectionProblem& problem) { logger.warning(problem.line); }
  void carry_out_one(const ElectionFinished&) {}

  // ---- the asking thread ----

  void answer_requests(const std::stop_token& stop) {
    while (true) {
      MutexLock lock(mutex);
      if (!changed.wait(lock, stop, [this]() REQUIRES(mutex) { return request.has_value(); })) return;
      const LeaderOutput wanted = *std::exchange(request, std::nullopt);
      lock.unlock();
      LeaderEvent event = answer(wanted);
      lock.lock();
      events.push_back(std::move(event));
      changed.notify_all();
    }
  }

  LeaderEvent answer(const LeaderOutput& wanted) {
    if (std::holds_alternative<ReadLease>(wanted)) {
      Result<Json> lease = client.get(kube::kLeases, options.election.lease);
      if (lease.ok()) return LeaseRead{std::move(*lease)};
      if (lease.error().code == ErrorCode::kNotFound) return LeaseRead{Json()};
      return LeaseReadFailed{lease.error()};
    }
    const auto* create = std::get_if<CreateLease>(&wanted);
    Result<Json> lease = create != nullptr ? client.create(kube::kLeases, create->lease)
                                           : client.update(kube::kLeases, std::get<UpdateLease>(wanted).lease);
    if (lease.ok()) return LeaseWritten{std::move(*lease)};
    return LeaseWriteFailed{lease.error()};
  }
};

LeaderElector::LeaderElector(kube::Client& client, Options options)
    : impl_(std::make_unique<Impl>(client, std::move(options))) {
  LOCKSTEP_CHECK(is_valid(impl_->options.election), "an election has names, and times in their order");
}

LeaderElector::~LeaderElector() { stop_and_join(); }

void LeaderElector::start() {
  LOCKSTEP_CHECK(!impl_->state.started && !impl_->deciding.joinable(), "an election starts once");
  impl_->asking = std::jthread([impl = impl_.get()](const std::stop_token& stop) { impl->answer_requests(stop); });
  impl_->deciding = std::jthread([impl = impl_.get()] { impl->decide(); });
}

void LeaderElector::stop_and_join() {
  if (!impl_->deciding.joinable()) return;
  {
    const MutexLock lock(impl_->mutex);
    impl_->events.emplace_back(ElectionStopRequested{});
  }
  impl_->changed.notify_all();
  impl_->deciding.join();
  impl_->asking.request_stop();
  impl_->asking.join();
}

bool LeaderElector::is_leader() const { return impl_->options.now() < Clock::time_point(impl_->leading_until.load()); }

}  // namespace lockstep::control
