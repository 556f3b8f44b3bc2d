#include "runner/agent/beat_page_mapping.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "runner/base/clock.h"

namespace lockstep {
namespace {

constexpr double kNanosecondsPerSecond = 1e9;
// The rank's memory as well, where the limit for files (ulimit -f), which holds for memfds, allows it. 0: errno says
// why not.
size_t grow(int fd) {
  for (const size_t bytes : {kRankMemoryOffset + kRankMemoryBytes, kRankMemoryOffset}) {
    if (::ftruncate(fd, static_cast<off_t>(bytes)) == 0) return bytes;
    if (errno != EFBIG) break;
  }
  return 0;
}

bool is_busy(Phase phase) {
  switch (phase) {
    case Phase::kDataWait:
    case Phase::kForward:
    case Phase::kBackward:
    case Phase::kOptimizer:
    case Phase::kOther:
      return true;
    case Phase::kStartup:
    case Phase::kGradSync:
    case Phase::kDevice:  // the device may be waiting for a peer
    case Phase::kValidation:
    case Phase::kCheckpointStall:
    case Phase::kWaiting:
      return false;
  }
  return false;
}

}  // namespace

Result<BeatPageMapping> BeatPageMapping::create(const BeatPageMapping* earlier) {
  const int fd = ::memfd_create("lockstep-beats", MFD_CLOEXEC);
  const size_t bytes = fd < 0 ? 0 : grow(fd);
  if (bytes == 0) {
    const std::string why = std::strerror(errno);
    if (fd >= 0) ::close(fd);
    return Error{ErrorCode::kUnavailable, "no memory for a worker's beats: " + why};
  }
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    const std::string why = std::strerror(errno);
    ::close(fd);
    return Error{ErrorCode::kUnavailable, "no memory for a worker's beats: " + why};
  }
  auto* const page = new (memory) BeatPage();
  // Progress counts from now, because the process is about to start. So one that hangs before it touches its page is
  // noticed, too.
  const int64_t now = monotonic_ns();
  page->changed_ns = now;
  if (earlier != nullptr && earlier->bytes_ == bytes) {
    std::memcpy(static_cast<char*>(memory) + kRankMemoryOffset,
                reinterpret_cast<const char*>(earlier->page_) + kRankMemoryOffset, bytes - kRankMemoryOffset);
  }
  return BeatPageMapping(fd, page, bytes, now);
}

BeatPageMapping::~BeatPageMapping() {
  close_fd();
  if (page_ != nullptr) ::munmap(page_, bytes_);
}

BeatPageMapping::BeatPageMapping(BeatPageMapping&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      page_(std::exchange(other.page_, nullptr)),
      bytes_(other.bytes_),
      created_ns_(other.created_ns_) {}

BeatPageMapping& BeatPageMapping::operator=(BeatPageMapping&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(page_, other.page_);
  std::swap(bytes_, other.bytes_);
  std::swap(created_ns_, other.created_ns_);
  return *this;
}

void BeatPageMapping::close_fd() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

void BeatPageMapping::set_activity(Activity activity, Phase phase) {
  page_->activity = activity;
  page_->phase = phase;
  page_->changed_ns = monotonic_ns();
}

BeatSnapshot BeatPageMapping::read() const {
  const BeatPage& page = *page_;
  BeatSnapshot beats;
  beats.generation = page.generation;
  beats.committed_ns = page.committed_ns;
  beats.step = page.step;
  const Activity activity = page.activity;
  const Phase phase = page.phase;
  const bool is_known = static_cast<size_t>(activity) < kActivityCount && static_cast<size_t>(phase) < kPhaseCount;
  beats.activity = static_cast<size_t>(activity) < kActivityCount ? activity : Activity::kLoading;
  beats.phase = static_cast<size_t>(phase) < kPhaseCount ? phase : Phase::kOther;
  beats.changed_ns = is_known ? page.changed_ns.load() : std::max(beats.committed_ns, created_ns_);
  beats.alive_ns = page.alive_ns;
  beats.prepared = page.prepared;
  beats.to_prepare = page.to_prepare;
  for (size_t i = 0; i < kPhaseCount; ++i) beats.phase_ns[i] = page.phase_ns[i];
  return beats;
}

int64_t last_sign_of_life_ns(const BeatSnapshot& beats) { return std::max(beats.changed_ns, beats.alive_ns); }

double busy_seconds(const BeatSnapshot& beats, int64_t now_ns) {
  int64_t busy_ns = 0;
  for (size_t i = 0; i < kPhaseCount; ++i) {
    if (is_busy(static_cast<Phase>(i))) busy_ns += beats.phase_ns[i];
  }
  // A program that uses no package of ours stays in one phase, of which nobody knows what it waits for.
  const bool has_phases = busy_ns > 0;
  if (has_phases && is_busy(beats.phase) && beats.changed_ns > 0)
    busy_ns += std::max<int64_t>(0, now_ns - beats.changed_ns);
  return static_cast<double>(busy_ns) / kNanosecondsPerSecond;
}

WorkerBeat worker_beat(const BeatSnapshot& beats, int local_rank, int64_t now_ns) {
  const int64_t unchanged_ns = beats.changed_ns > 0 ? std::max<int64_t>(0, now_ns - beats.changed_ns) : 0;
  return WorkerBeat{.local_rank = local_rank,
                    .step = beats.step,
                    .activity = beats.activity,
                    .phase = beats.phase,
                    .seconds_unchanged = static_cast<double>(unchanged_ns) / kNanosecondsPerSecond,
                    .busy_seconds = busy_seconds(beats, now_ns),
                    .generation = beats.generation};
}

bool is_in_collective(const BeatSnapshot& beats) { return waits_for_a_peer(beats.phase, beats.activity); }

}  // namespace lockstep
