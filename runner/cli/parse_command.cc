#include "runner/cli/parse_command.h"

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <algorithm>
#include <cstdio>

#include "runner/base/nearest.h"
#include "runner/base/plural.h"

namespace lockstep {

std::optional<int> parse_command(CLI::App& app, const std::vector<std::string>& args, const std::string& hint,
                                 std::ostream& out, std::ostream& err) {
  try {
    app.parse(std::vector<std::string>(args.rbegin(), args.rend()));  // CLI11 expects reverse order
  } catch (const CLI::Success& e) {
    return app.exit(e, out, err);
  } catch (const CLI::ParseError& e) {
    err << app.get_name() << ": " << e.what() << "; " << hint << "\n";
    return code_of(ExitCode::kUsage);
  }
  return std::nullopt;
}

int fail(const Error& error, ExitCode code) {
  std::fprintf(stderr, "lockstep: %s\n", error.message.c_str());
  return code_of(code);
}

std::string subcommand_problem(const std::string& word, const std::vector<std::string>& names) {
  if (std::find(names.begin(), names.end(), word) != names.end()) return "";
  const std::string expected = "expected one of " + joined(names);
  if (word.empty()) return expected + ", found nothing";
  const std::string nearest = nearest_name(word, names);
  return "unknown command \"" + word + "\", " + (nearest.empty() ? expected : "did you mean \"" + nearest + "\"?");
}

}  // namespace lockstep
