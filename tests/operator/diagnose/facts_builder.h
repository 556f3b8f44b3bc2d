// Facts of a job with two pods for tests: of a healthy job, in which a test then changes single fields.
#pragma once

#include <string>

#include "operator/diagnose/facts.h"

namespace lockstep::diagnose {

inline constexpr api::UnixSeconds kNow = 1'795'000'000;

class FactsBuilder {
 public:
  // Two pods that train since 100 s, made 600 s ago.
  FactsBuilder();

  FactsBuilder& spec(const char* json);    // merged into spec
  FactsBuilder& status(const char* json);  // merged into status
  FactsBuilder& metadata(const char* json);
  FactsBuilder& condition(const std::string& type, const std::string& status, const std::string& reason,
                          const std::string& message = "m", api::UnixSeconds age = 100);
  FactsBuilder& no_pods();
  FactsBuilder& pod(int node_rank, int attempt, const char* status);  // in place of the one with this name
  FactsBuilder& ended(int node_rank, int attempt, int code, const std::string& reason, const std::string& message);
  FactsBuilder& failure(const char* json);  // of status.recentFailures; its time 50 s ago
  FactsBuilder& event(const std::string& reason, const std::string& message, bool is_warning, api::UnixSeconds age,
                      const std::string& pod = "");

  Facts facts;
};

}  // namespace lockstep::diagnose
