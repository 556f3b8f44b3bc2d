// Several candidates over one Lease, with clocks that do not agree, requests that are slow, lost or answered late, and
// processes that stand still for longer than the lease lives, in simulated time.
//
// What must hold: never do two of them think that they lead; when the faults end there is a leader within a minute.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>

#include "operator/control/leader.h"

namespace lockstep::control {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Microseconds = std::chrono::microseconds;

const api::ObjectKey kLease{"ns", "lock"};

// The Lease with optimistic concurrency.
class ModelLease {
 public:
  LeaderEvent read() const { return LeaseRead{lease_}; }
  LeaderEvent create(Json lease) {
    if (!lease_.is_null()) return LeaseWriteFailed{{ErrorCode::kExists, "already exists"}};
    return store(std::move(lease));
  }
  LeaderEvent update(Json lease) {
    if (lease_.is_null()) return LeaseWriteFailed{{ErrorCode::kNotFound, "not found"}};
    if (lease["metadata"]["resourceVersion"] != lease_["metadata"]["resourceVersion"]) {
      return LeaseWriteFailed{{ErrorCode::kConflict, "the object has been modified"}};
    }
    return store(std::move(lease));
  }

 private:
  LeaderEvent store(Json lease) {
    lease["metadata"]["resourceVersion"] = std::to_string(++version_);
    lease_ = std::move(lease);
    return LeaseWritten{lease_};
  }
  Json lease_;
  int version_ = 0;
};

struct Candidate {
  std::string name;
  Clock::duration clock_offset{};  // of its steady clock
  Microseconds wall_offset{};
  double clock_rate = 1.0;
  std::unique_ptr<LeaderState> state;
  Clock::time_point timer = Clock::time_point::max();  // of its own clock
  Clock::time_point still_until;                       // true time: it does not run before
  // A request under way: when the server does it and when the answer is there, in true time.
  std::optional<LeaderOutput> request;
  Clock::time_point served_at;
  std::optional<LeaderEvent> answer;
  Clock::time_point answered_at;
  bool answer_lost = false;
  bool request_lost = false;
};

class Election {
 public:
  Election(unsigned seed, int candidates) : dice_(seed), candidates_(static_cast<size_t>(candidates)) {
    for (Candidate& candidate : candidates_) {
      candidate.clock_offset = seconds(dice_() % 100'000);
      candidate.wall_offset = seconds(static_cast<int>(dice_() % 7200) - 3600);
      candidate.clock_rate = 0.95 + static_cast<double>(dice_() % 100) / 1000.0;
      begin(candidate);
    }
  }

  void run() {
    while (now_ < Clock::time_point(std::chrono::hours(2))) {
      move();
      if (testing::Test::HasFatalFailure()) return;
    }
    const Clock::time_point quiet_since = now_;
    faults_ = false;
    for (Candidate& candidate : candidates_) candidate.still_until = now_;
    // The slowest request under way, and then a minute.
    while (now_ - quiet_since < seconds(40 + 60)) move();
    EXPECT_TRUE(leader().has_value()) << "there is a leader";
    EXPECT_GT(leaderships_, 5) << "the faults moved the leadership about";
  }

 private:
  bool one_in(unsigned n) { return dice_() % n == 0; }

  void begin(Candidate& candidate) {
    LeaderOptions options;
    candidate.name = "p" + std::to_string(++processes_);
    options.identity = candidate.name;
    options.lease = kLease;
    candidate.state =
        std::make_unique<LeaderState>(options, [this] { return static_cast<double>(dice_() % 1000) / 1000.0; });
    if (candidate.request) orphaned_requests_.emplace_back(candidate.served_at, *std::exchange(candidate.request, {}));
    candidate.answer.reset();
    send(candidate, ElectionStarted{});
  }

  void serve_the_dead() {
    for (const auto& [at, request] : orphaned_requests_) {
      if (now_ < at) continue;
      if (const auto* create = std::get_if<CreateLease>(&request)) lease_.create(create->lease);
      if (const auto* update = std::get_if<UpdateLease>(&request)) lease_.update(update->lease);
    }
    std::erase_if(orphaned_requests_, [this](const auto& request) { return now_ >= request.first; });
  }

  Clock::time_point own_time(const Candidate& candidate) const {
    const std::chrono::duration<double> passed = now_.time_since_epoch();
    return Clock::time_point(candidate.clock_offset +
                             std::chrono::duration_cast<Clock::duration>(passed * candidate.clock_rate));
  }

  // What LeaderElector::is_leader answers.
  bool thinks_it_leads(const Candidate& candidate) const {
    return candidate.state->leading && own_time(candidate) < candidate.state->leading_until;
  }

  std::optional<std::string> leader() const {
    for (const Candidate& candidate : candidates_) {
      if (thinks_it_leads(candidate)) return candidate.name;
    }
    return std::nullopt;
  }

  void move() {
    now_ += milliseconds(50);
    serve_the_dead();
    for (Candidate& candidate : candidates_) {
      serve(candidate);
      if (faults_ && one_in(1500)) candidate.still_until = now_ + milliseconds(dice_() % 45'000);
      if (now_ < candidate.still_until) continue;
      if (faults_ && one_in(8000)) {  // killed, and started again as another process
        begin(candidate);
        continue;
      }
      if (faults_ && one_in(8000)) {
        send(candidate, ElectionStopRequested{});
        continue;
      }
      if (candidate.answer && now_ >= candidate.answered_at) {
        const LeaderEvent answer = *std::exchange(candidate.answer, std::nullopt);
        send(candidate, answer);
      } else if (own_time(candidate) >= candidate.timer) {
        send(candidate, LeaderTimer{});
      }
      if (candidate.state->finished) begin(candidate);
    }
    look();
  }

  // The server does what is due, whether the candidate runs or not.
  void serve(Candidate& candidate) {
    if (!candidate.request || now_ < candidate.served_at) return;
    const LeaderOutput request = *std::exchange(candidate.request, std::nullopt);
    const bool reads = std::holds_alternative<ReadLease>(request);
    LeaderEvent lost = LeaseWriteFailed{{ErrorCode::kUnavailable, "timed out"}};
    if (reads) lost = LeaseReadFailed{{ErrorCode::kUnavailable, "timed out"}};
    if (candidate.request_lost) {
      candidate.answer = lost;
      return;
    }
    LeaderEvent answer = lease_.read();
    if (const auto* create = std::get_if<CreateLease>(&request)) answer = lease_.create(create->lease);
    if (const auto* update = std::get_if<UpdateLease>(&request)) answer = lease_.update(update->lease);
    candidate.answer = candidate.answer_lost ? lost : answer;
  }

  void send(Candidate& candidate, const LeaderEvent& event) {
    const Clock::time_point own = own_time(candidate);
    const Microseconds wall = std::chrono::duration_cast<Microseconds>(now_.time_since_epoch()) + candidate.wall_offset;
    candidate.timer = Clock::time_point::max();
    for (const LeaderOutput& output : step(*candidate.state, event, {own, wall})) {
      if (const auto* wait = std::get_if<WaitUntil>(&output)) candidate.timer = wait->at;
      if (std::holds_alternative<ReadLease>(output) || std::holds_alternative<CreateLease>(output) ||
          std::holds_alternative<UpdateLease>(output)) {
        ask(candidate, output);
      }
      if (std::holds_alternative<BeginLeading>(output)) ++leaderships_;
    }
  }

  void ask(Candidate& candidate, const LeaderOutput& request) {
    candidate.request = request;
    // Mostly quick, sometimes slow, seldom slower than any deadline.
    const unsigned slowest_ms = !faults_ ? 100 : one_in(20) ? 20'000 : one_in(5) ? 3000 : 100;
    candidate.served_at = now_ + milliseconds(dice_() % slowest_ms);
    candidate.answered_at = candidate.served_at + milliseconds(dice_() % slowest_ms);
    candidate.request_lost = faults_ && one_in(15);
    candidate.answer_lost = faults_ && one_in(15);
  }

  void look() {
    std::optional<std::string> leading;
    for (const Candidate& candidate : candidates_) {
      if (!thinks_it_leads(candidate)) continue;
      ASSERT_FALSE(leading.has_value()) << *leading << " and " << candidate.name << " lead at "
                                        << std::chrono::duration<double>(now_.time_since_epoch()).count() << " s";
      leading = candidate.name;
    }
  }

  std::mt19937 dice_;
  Clock::time_point now_;
  ModelLease lease_;
  std::vector<Candidate> candidates_;
  std::vector<std::pair<Clock::time_point, LeaderOutput>> orphaned_requests_;  // requests on their way
  bool faults_ = true;
  int processes_ = 0;
  int leaderships_ = 0;
};

TEST(LeaderSimulation, there_are_never_two_leaders_and_always_one_again) {
  for (unsigned seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Election(seed, 2 + static_cast<int>(seed % 3)).run();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace lockstep::control
