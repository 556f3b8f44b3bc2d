// A diagnosis as one screen of text; jobs as a table. Pure.
#pragma once

#include <string>
#include <vector>

#include "operator/diagnose/diagnosis.h"

namespace lockstep::diagnose {

struct ScreenOptions {
  size_t width = 100;  // columns; lines of prose are wrapped there, commands never
  bool colours = false;
  api::UnixSeconds now = 0;
};

// The verdict comes first. What would fill more than a screen (a hundred pods, a long history) is cut, and the text
// says how much is missing.
std::string to_screen(const Diagnosis& diagnosis, const ScreenOptions& options);

// Of TrainJobs as the API server has them: what `kubectl lockstep status` prints.
std::string jobs_table(const std::vector<Json>& jobs, bool with_namespace, api::UnixSeconds now);

// Columns as wide as their widest cell; the last is not padded. The first row is the heading.
std::string table_text(const std::vector<std::vector<std::string>>& rows, const std::string& indent);

}  // namespace lockstep::diagnose
