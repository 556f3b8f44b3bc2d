// write_events FOLDER RESUME_STEP LAST_STEP OFFSET: for tests/python/test_tensorboard.py.
// One event file as a run writes it that resumes after RESUME_STEP: at each step up to LAST_STEP, train/loss = OFFSET +
// step / 4 and train/lr = 0.5; at the last step eval/ndcg@10 = OFFSET. Prints the file's path.
#include <cstdlib>
#include <iostream>
#include <string>

#include "runner/telemetry/tensorboard.h"

namespace lockstep {

namespace {

Status write_events(const std::string& folder, int64_t resume_step, int64_t last_step, double offset) {
  constexpr double kStart = 1700000000.0;
  PosixFileSystem fs;
  TRY_ASSIGN(EventWriter writer,
             EventWriter::create(
                 fs, {.folder = folder, .host = "host", .pid = 42, .unix_time = kStart, .resume_step = resume_step}));
  for (int64_t step = resume_step + 1; step <= last_step; ++step) {
    const auto number = static_cast<double>(step);
    TRY(writer.add_scalars(step, kStart + number, {{"train/loss", offset + number / 4}, {"train/lr", 0.5}}));
  }
  TRY(writer.add_scalars(last_step, kStart, {{"eval/ndcg@10", offset}}));
  std::cout << writer.path() << "\n";
  return {};
}

}  // namespace

}  // namespace lockstep

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: write_events FOLDER RESUME_STEP LAST_STEP OFFSET\n";
    return 2;
  }
  const auto status = lockstep::write_events(argv[1], std::atoll(argv[2]), std::atoll(argv[3]), std::atof(argv[4]));
  if (!status.ok()) std::cerr << status.error().message << "\n";
  return status.ok() ? 0 : 1;
}
