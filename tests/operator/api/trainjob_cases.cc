#include "tests/operator/api/trainjob_cases.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <stdexcept>

#include "operator/api/yaml.h"

namespace lockstep::api {
namespace {

Json read_yaml(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw std::runtime_error(path.string() + " cannot be read");
  auto document = parse_yaml(text.str(), path.filename().string());
  if (!document.ok()) throw std::runtime_error(document.error().message);
  return Json(*document);
}

std::string with_index(std::string text, size_t index) {
  if (const size_t at = text.find("{}"); at != std::string::npos) text.replace(at, 2, std::to_string(index));
  return text;
}

Json with_index(const Json& value, size_t index) {
  if (value.is_string()) return with_index(value.get<std::string>(), index);
  Json copy = value;
  if (copy.is_structured()) {
    for (Json& member : copy) member = with_index(member, index);
  }
  return copy;
}

// Puts what $repeat, $list and $map stand for in their places.
Json expanded(const Json& value) {
  if (!value.is_structured()) return value;
  if (value.is_object() && value.size() == 1) {
    const std::string& name = value.begin().key();
    const Json& arguments = value.front();
    if (name == "$repeat") {
      std::string text;
      for (size_t i = 0; i < arguments.at(1).get<size_t>(); ++i) text += arguments.at(0).get<std::string>();
      return text;
    }
    if (name == "$list") {
      Json list = Json::array();
      for (size_t i = 0; i < arguments.at(1).get<size_t>(); ++i)
        list.push_back(with_index(expanded(arguments.at(0)), i));
      return list;
    }
    if (name == "$map") {
      Json map = Json::object();
      for (size_t i = 0; i < arguments.at(2).get<size_t>(); ++i) {
        map[with_index(arguments.at(0).get<std::string>(), i)] = arguments.at(1);
      }
      return map;
    }
  }
  Json copy = value;
  for (Json& member : copy) member = expanded(member);
  return copy;
}

Json patched(const Json& base, const Json& patch) {
  Json whole = base;
  whole.merge_patch(patch);
  return expanded(whole);
}

void check_names(const Json& object, const std::set<std::string>& known, const std::string& file) {
  for (const auto& [name, value] : object.items()) {
    if (known.count(name) == 0) throw std::runtime_error(file + ": \"" + name + "\" is no part of a case");
  }
}

TrainJobCase read_case(const std::filesystem::path& path, const Json& base) {
  const Json json = read_yaml(path);
  const std::string file = path.filename().string();
  check_names(json, {"job", "stored", "refused"}, file);
  TrainJobCase one;
  one.name = path.stem().string();
  one.job = patched(base, json.at("job"));
  if (json.contains("stored")) one.stored = patched(base, json.at("stored"));
  for (const Json& entry : json.at("refused")) {
    check_names(entry, {"field", "says", "ours", "server"}, file);
    one.refused.push_back({.field = entry.at("field").get<std::string>(),
                           .says = entry.value("says", ""),
                           .ours = entry.value("ours", ""),
                           .server = entry.value("server", "")});
  }
  return one;
}

}  // namespace

std::vector<TrainJobCase> load_trainjob_cases(const std::string& folder_of_tests) {
  const std::filesystem::path folder(folder_of_tests);
  const Json base = read_yaml(folder / "cases_base.yaml");
  std::vector<TrainJobCase> cases;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "cases")) {
    try {
      cases.push_back(read_case(entry.path(), base));
    } catch (const Json::exception& e) {
      throw std::runtime_error(entry.path().string() + ": " + e.what());
    }
  }
  std::sort(cases.begin(), cases.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return cases;
}

Json to_json(const TrainJobCase& one) {
  Json refused = Json::array();
  for (const Refusal& refusal : one.refused) {
    refused.push_back({{"field", refusal.field}, {"says", refusal.says}, {"server", refusal.server}});
  }
  Json json = {{"name", one.name}, {"job", one.job}, {"refused", std::move(refused)}};
  if (one.stored) json["stored"] = *one.stored;
  return json;
}

}  // namespace lockstep::api
