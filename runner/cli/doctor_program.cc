#include "runner/cli/doctor_program.h"

#include <array>
#include <cstdio>
#include <memory>
#include <optional>

#include "runner/agent/devices.h"
#include "runner/agent/program_command.h"
#include "runner/agent/zygote.h"
#include "runner/base/json.h"
#include "runner/base/plural.h"
#include "runner/cli/launch_command.h"
#include "runner/contract/env_names.h"

namespace lockstep {
namespace {

std::string how_it_starts(const Json& found) {
  const std::string why = text_field(found, {"why_no_fork"});
  if (!why.empty()) return "from the beginning, in each rank: " + why;
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "forked from a zygote, which imports for %.1f s once",
                found["seconds"].get<double>());
  return text.data();
}

std::string level_words(const Json& found) {
  const std::string words = found["level"].get<int>() == 1
                                ? "1: a lost rank costs one new rank, the others keep their state ("
                                : "0: a lost rank costs a start of all ranks (";
  return words + text_field(found, {"why_level"}) + ")";
}

void add_line(std::string& text, const std::string& name, const std::string& value) {
  constexpr size_t kColumn = 13;
  text += name + std::string(kColumn - name.size(), ' ') + value + "\n";
}

std::string text_of(const Json& found) {
  std::string text;
  add_line(text, "program", text_field(found, {"program"}));
  add_line(text, "starts", how_it_starts(found));
  if (found.contains("python")) {
    add_line(text, "interpreter", "Python " + text_field(found, {"python"}) + ", " + text_field(found, {"executable"}));
    const std::string torch = text_field(found, {"torch"});
    const std::string cuda = text_field(found, {"cuda"});
    add_line(
        text, "PyTorch",
        torch.empty() ? "not installed, or not imported" : torch + (cuda.empty() ? ", CPU only" : ", CUDA " + cuda));
    std::vector<std::string> packages;
    for (const auto& name : found["packages"]) packages.push_back(name.get<std::string>());
    add_line(text, "preloaded", plural(found["modules"].get<int64_t>(), "module") + ": " + joined(packages, ", "));
    for (const auto& [name, why] : found["left_out"].items()) {
      add_line(text, "left out", name + ": " + why.get<std::string>());
    }
  }
  add_line(text, "level", level_words(found));
  for (const auto& what : found["to_change"]) add_line(text, "to change", what.get<std::string>());
  add_line(text, "GPUs", dump_line(found["gpus"]));
  return text;
}

}  // namespace

Result<std::string> describe_program(const std::vector<std::string>& words, const Environment& environment,
                                     bool as_json) {
  std::vector<std::string> line{"--"};
  line.insert(line.end(), words.begin(), words.end());
  TRY_ASSIGN(LaunchLine launch, parse_launch_line(line, environment));
  ProgramCommand& command = launch.command;
  TRY_ASSIGN(command.words.front(), find_program(command.words.front(), environment));
  Json found{{"program", joined(words, " ")}};
  const std::optional<PythonCommand> python = python_command(command.words);
  if (!python) {
    found["why_no_fork"] = "only Python with a script or -m and a module can be forked, and this is another command";
    found["level"] = 0;
    found["why_level"] = "the source of such a command is not looked at";
    found["to_change"] = Json::array();
  } else {
    command.environment = environment;
    command.remember_folder = remember_folder(environment);
    TRY_ASSIGN(const Json described, describe_zygote(zygote_command(command, *python, 1)));
    if (described.contains("unreadable")) return invalid(text_field(described, {"unreadable"}));
    for (const auto& [name, value] : described.items()) found[name] = value;
  }
  const auto visible = environment.find(std::string(env::kCudaVisibleDevices));
  const std::unique_ptr<GpuMonitor> gpus =
      GpuMonitor::open(visible == environment.end() ? std::nullopt : std::optional(visible->second));
  found["gpus"] = gpus ? gpus->count() : 0;
  return as_json ? dump_pretty(OrderedJson(found)) : text_of(found);
}

}  // namespace lockstep
