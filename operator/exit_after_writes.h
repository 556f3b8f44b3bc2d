// ExitAfterWrites: a transport that ends the process, as SIGKILL would, after the answer to the n-th write.
//
// For the tests of what the operator leaves behind when it dies at any point (lockstep-operator --exit_after_writes N).
// Counted are changes to objects; Events and Leases, which other threads write, are not.
// Threads: safe from all threads.
#pragma once

#include <memory>

#include "operator/kube/http_transport.h"
#include "runner/base/mutex.h"

namespace lockstep {

inline constexpr int kExitAfterWritesCode = 9;

class ExitAfterWrites : public kube::HttpTransport {
 public:
  ExitAfterWrites(std::shared_ptr<kube::HttpTransport> inner, int writes) : inner_(std::move(inner)), writes_(writes) {}

  Result<kube::HttpResponse> send(const kube::HttpRequest& request) override;
  std::vector<Result<kube::HttpResponse>> send_all(std::span<const kube::HttpRequest> requests, size_t in_flight_max,
                                                   const std::stop_token& stop) override;
  Result<kube::HttpResponse> stream(const kube::HttpRequest& request,
                                    const std::function<bool(std::string_view)>& on_bytes,
                                    const std::stop_token& stop) override {
    return inner_->stream(request, on_bytes, stop);
  }
  void shut_down() override { inner_->shut_down(); }

  [[nodiscard]] int answered() const;

 private:
  std::shared_ptr<kube::HttpTransport> inner_;
  mutable Mutex mutex_;  // held while a counted write is under way: the n-th is the last
  int writes_ GUARDED_BY(mutex_);
  int answered_ GUARDED_BY(mutex_) = 0;
};

}  // namespace lockstep
