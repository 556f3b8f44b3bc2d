#include "operator/kube/token_source.h"

#include <algorithm>

#include "operator/kube/small_file.h"
#include "runner/base/mutex.h"

namespace lockstep::kube {

bool is_one_word(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

TokenSource::TokenSource(Options options) : options_(std::move(options)), token_(options_.token) {}

Result<std::string> TokenSource::read() const {
  TRY_ASSIGN(std::string text, read_small_file(options_.file));
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) text.pop_back();
  if (text.empty() || !is_one_word(text)) {
    return invalid(options_.file, "holds no bearer token; expected one line of printable text");
  }
  return text;
}

Result<std::string> TokenSource::token() {
  const MutexLock lock(mutex_);
  if (options_.file.empty()) return token_;
  const Clock::time_point now = options_.now();
  const Clock::duration age = now - read_at_;
  const bool due = !read_once_ || age >= kTokenReadEvery || (refused_ && age >= kTokenReadAfterRefusal);
  if (!due) return token_;
  Result<std::string> fresh = read();
  if (!fresh.ok()) {
    // In the middle of a rotation the file may be gone for a moment: what we have is still good.
    if (token_.empty()) return fresh.error().with_context("the bearer token");
    read_at_ = now;
    return token_;
  }
  read_once_ = true;
  refused_ = false;
  read_at_ = now;
  token_ = *fresh;
  return token_;
}

void TokenSource::refuse() {
  const MutexLock lock(mutex_);
  refused_ = true;
}

}  // namespace lockstep::kube
