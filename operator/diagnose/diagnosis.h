// Diagnosis: facts → what happened, to whom, and what to do. Pure.
#pragma once

#include <string>
#include <vector>

#include "operator/diagnose/ending.h"
#include "operator/diagnose/facts.h"

namespace lockstep::diagnose {

struct TimelineEntry {
  api::UnixSeconds time = 0;
  std::string text;  // a sentence
  bool is_bad = false;
};

struct PodRow {
  int node_rank = 0;
  std::string name;   // "": there is none
  std::string node;   // "": it has none yet
  std::string state;  // "ready", "ended with 137 (OutOfMemory)", …
  bool is_well = false;
};

struct Diagnosis {
  bool is_well = false;                 // complete, suspended by its user, or making progress without a problem
  std::string verdict;                  // one sentence
  std::vector<std::string> details;     // figures and the program's own words, a line each
  std::vector<TimelineEntry> timeline;  // oldest first
  std::vector<PodRow> pods;             // by node rank
  std::string log_pod;                  // whose last lines these are; "" for none
  std::vector<std::string> log;
  std::vector<Advice> advice;
  std::vector<std::string> notes;  // what could not be read
};

Diagnosis diagnose(const Facts& facts);

}  // namespace lockstep::diagnose
