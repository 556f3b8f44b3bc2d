// A transport without a network: answers come from a list, requests are kept.
#pragma once

#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "operator/kube/http_transport.h"

namespace lockstep::kube {

class ScriptedTransport final : public HttpTransport {
 public:
  // The answers, in the order of the requests; a stream gets its `pieces`.
  struct Step {
    Result<HttpResponse> answer;
    std::vector<std::string> pieces = {};
  };
  void then(Result<HttpResponse> answer, std::vector<std::string> pieces = {}) {
    steps_.push_back({std::move(answer), std::move(pieces)});
  }
  void then(int status, const std::string& body, const std::map<std::string, std::string>& headers = {}) {
    HttpResponse answer;
    answer.status = status;
    answer.body = body;
    answer.headers = headers;
    then(answer);
  }

  Result<HttpResponse> send(const HttpRequest& request) override { return next(request).answer; }
  std::vector<Result<HttpResponse>> send_all(std::span<const HttpRequest> requests, size_t in_flight_max,
                                             const std::stop_token& /*stop*/) override {
    rounds.push_back({requests.size(), in_flight_max});
    std::vector<Result<HttpResponse>> answers;
    for (const HttpRequest& request : requests) answers.push_back(next(request).answer);
    return answers;
  }
  Result<HttpResponse> stream(const HttpRequest& request, const std::function<bool(std::string_view)>& on_bytes,
                              const std::stop_token& stop) override {
    const Step step = next(request);
    for (const std::string& piece : step.pieces) {
      if (stop.stop_requested()) return Error{ErrorCode::kCancelled, "stopped"};
      if (!on_bytes(piece)) break;
    }
    if (stop.stop_requested()) return Error{ErrorCode::kCancelled, "stopped"};
    return step.answer;
  }
  void shut_down() override {}

  [[nodiscard]] bool exhausted() const { return steps_.empty(); }

  struct Round {
    size_t requests;
    size_t in_flight_max;
    bool operator==(const Round&) const = default;
  };
  std::vector<HttpRequest> requests;
  std::vector<Round> rounds;  // of send_all

 private:
  Step next(const HttpRequest& request) {
    requests.push_back(request);
    if (steps_.empty()) return {Error{ErrorCode::kInvalid, "the script has no more answers"}};
    Step step = std::move(steps_.front());
    steps_.pop_front();
    return step;
  }
  std::deque<Step> steps_;
};

}  // namespace lockstep::kube
