#include "runner/config/plugin_line.h"

#include <any>
#include <map>
#include <utility>

#include "runner/config/flag_table_builder.h"

namespace lockstep {
namespace {

using Texts = std::map<std::string, std::string>;

Json describe_flags(const std::vector<Flag>& table, const RunConfig& defaults) {
  Json list = Json::array();
  for (const Flag& flag : table) {
    list.push_back({{"name", flag.name},
                    {"aliases", flag.aliases},
                    {"group", flag.group},
                    {"expects", flag.expects},
                    {"help", flag.help},
                    {"scope", static_cast<int>(flag.scope)},
                    {"is_bool", flag.is_bool},
                    {"words", flag.words},
                    {"is_train_dir", flag.is_train_dir},
                    {"default", flag.get(defaults)}});
  }
  return list;
}

template <typename Adds>
std::vector<Flag> flags_added_by(const Adds& adds) {
  FlagTableBuilder table;
  adds.add_flags(table);
  return table.take();
}

// The defaults that the workload changes, of flags that every workload has.
Json changed_defaults(const RunConfig& defaults) {
  Json changed = Json::object();
  for (const Flag& flag : flag_table(nullptr)) {
    const std::string value = flag.get(defaults);
    if (value != flag.get(RunConfig{})) changed[flag.name] = value;
  }
  return changed;
}

Json describe_presets(const WorkloadFlags& workload) {
  Json list = Json::array();
  for (const Preset& preset : workload.presets) {
    list.push_back({{"name", preset.name}, {"summary", preset.summary}, {"values", preset.values}});
  }
  return list;
}

// Adds the flags of such a list to the table. `options`: a function from a RunConfig, const or not, to the std::any
// that holds their Texts.
template <typename Options>
void add_described_flags(const Json& list, Options options, FlagTableBuilder& table) {
  for (const Json& entry : list) {
    const std::string name = entry.at("name");
    const std::string expects = entry.at("expects");
    const std::string help = entry.at("help");
    table.group(entry.at("group"));
    if (entry.at("is_train_dir")) {  // sets the run's folder, which is no option of the workload
      table.train_dir_path(name.c_str()).aliases = entry.at("aliases").get<std::vector<std::string>>();
      continue;
    }
    Flag& flag =
        table.custom(name.c_str(), static_cast<FlagScope>(entry.at("scope").get<int>()), expects.c_str(), help.c_str());
    flag.aliases = entry.at("aliases").get<std::vector<std::string>>();
    flag.is_bool = entry.at("is_bool");
    flag.words = entry.at("words").get<std::vector<std::string>>();
    flag.set = [name, options](std::string_view text, RunConfig& config) {
      std::any_cast<Texts&>(options(config))[name] = text;
      return true;
    };
    flag.get = [name, options](const RunConfig& config) {
      return std::any_cast<const Texts&>(options(config)).at(name);
    };
  }
}

Texts default_texts(const Json& list) {
  Texts texts;
  for (const Json& entry : list) texts[entry.at("name")] = entry.at("default");
  return texts;
}

constexpr auto kOptions = [](auto& config) -> auto& { return config.options; };
constexpr auto kTaskOptions = [](auto& config) -> auto& { return config.task.options; };

// The functions that are made here read the JSON later. That cannot fail, because described_workload has read all of it
// before.
WorkloadTask described_task(const Json& description) {
  WorkloadTask task;
  task.name = description.at("name");
  task.summary = description.at("summary");
  task.examples = description.at("examples").get<std::vector<std::string>>();
  task.workload_flags = description.at("workload_flags").get<std::vector<std::string>>();
  const Json& flags = description.at("flags");
  task.set_defaults = [texts = default_texts(flags)](RunConfig& config) { config.task.options = texts; };
  task.add_flags = [flags](FlagTableBuilder& table) { add_described_flags(flags, kTaskOptions, table); };
  task.check = [](const RunConfig&) { return Status(); };
  FlagTableBuilder tried;
  task.add_flags(tried);
  return task;
}

WorkloadFlags workload_of(const Json& description) {
  WorkloadFlags workload;
  workload.name = description.at("name");
  workload.summary = description.at("summary");
  workload.data = description.at("data");
  workload.example = description.at("example");
  const Json& flags = description.at("flags");
  workload.set_defaults = [texts = default_texts(flags),
                           changed = description.at("defaults").get<Texts>()](RunConfig& config) {
    config.options = texts;
    for (const Flag& flag : flag_table(nullptr)) {
      const auto value = changed.find(flag.name);
      if (value != changed.end()) flag.set(value->second, config);
    }
  };
  workload.add_flags = [flags](FlagTableBuilder& table) { add_described_flags(flags, kOptions, table); };
  for (const Json& entry : description.at("presets")) {
    workload.presets.push_back({.name = entry.at("name"),
                                .summary = entry.at("summary"),
                                .values = entry.at("values").get<decltype(Preset::values)>()});
  }
  workload.preset_flag = description.at("preset_flag");
  workload.presets_by_flag = description.at("presets_by_flag").get<decltype(workload.presets_by_flag)>();
  workload.check = [](const RunConfig&) { return Status(); };
  workload.data_name = [name = description.at("data_name").get<std::string>()](const RunConfig&) { return name; };
  for (const Json& entry : description.at("tasks")) workload.tasks.push_back(described_task(entry));
  FlagTableBuilder tried;
  workload.add_flags(tried);
  return workload;
}

}  // namespace

bool is_line_argument(std::string_view name) { return name == "config" || name == "plugin"; }

Result<std::string> plugin_of(const std::vector<std::string>& arguments) {
  constexpr std::string_view kFlag = "--plugin";
  std::string path;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    const bool is_one_word = word.starts_with("--plugin=");
    if (word != kFlag && !is_one_word) continue;
    if (!is_one_word && i + 1 < arguments.size() && !arguments[i + 1].starts_with("--")) {
      path = arguments[++i];
    } else {
      path = is_one_word ? word.substr(kFlag.size() + 1) : "";
    }
    if (path.empty()) {
      return Error{ErrorCode::kInvalid, "--plugin needs a value: the file of a model of your own (my_model.so)"};
    }
  }
  return path;
}

Json describe_workload(const WorkloadFlags& workload, const std::string& data_name) {
  RunConfig defaults;
  workload.set_defaults(defaults);
  Json tasks = Json::array();
  for (const WorkloadTask& task : workload.tasks) {
    RunConfig of_task = defaults;
    task.set_defaults(of_task);
    tasks.push_back({{"name", task.name},
                     {"summary", task.summary},
                     {"examples", task.examples},
                     {"workload_flags", task.workload_flags},
                     {"flags", describe_flags(flags_added_by(task), of_task)}});
  }
  return {{"name", workload.name},
          {"summary", workload.summary},
          {"data", workload.data},
          {"example", workload.example},
          {"data_name", data_name},
          {"defaults", changed_defaults(defaults)},
          {"flags", describe_flags(flags_added_by(workload), defaults)},
          {"presets", describe_presets(workload)},
          {"preset_flag", workload.preset_flag},
          {"presets_by_flag", workload.presets_by_flag},
          {"tasks", tasks}};
}

Result<WorkloadFlags> described_workload(const Json& description) {
  try {
    return workload_of(description);
  } catch (const Json::exception& e) {
    return Error{ErrorCode::kCorrupt, std::string("the description of a plugin's workload: ") + e.what()};
  }
}

}  // namespace lockstep
