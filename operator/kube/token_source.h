// TokenSource: the bearer token of a kubeconfig or a service account. A token in a file is rotated by the kubelet, long
// before the old one ends; it is read again once a minute, and when the server has refused it.
// Threads: safe from all threads.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include "runner/base/mutex.h"
#include "runner/base/result.h"

namespace lockstep::kube {

inline constexpr std::chrono::seconds kTokenReadEvery{60};
inline constexpr std::chrono::seconds kTokenReadAfterRefusal{1};  // at least this long between two reads

// Can the text be sent as a token? Only printable ASCII without blanks can; the empty text can, too.
bool is_one_word(std::string_view text);

class TokenSource {
 public:
  using Clock = std::chrono::steady_clock;
  struct Options {
    std::string token;  // used when there is no file, or while the file cannot be read
    std::string file;
    std::function<Clock::time_point()> now = Clock::now;
  };
  explicit TokenSource(Options options);

  // The token to send. The error of read_small_file when the file has never been readable, kInvalid when it holds no
  // token.
  Result<std::string> token();
  // The server answered 401: look at the file again before the next request.
  void refuse();

 private:
  Result<std::string> read() const;

  const Options options_;
  Mutex mutex_;
  std::string token_ GUARDED_BY(mutex_);
  bool read_once_ GUARDED_BY(mutex_) = false;
  bool refused_ GUARDED_BY(mutex_) = false;
  Clock::time_point read_at_ GUARDED_BY(mutex_){};
};

}  // namespace lockstep::kube
