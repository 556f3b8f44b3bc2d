#include "runner/config/run_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "runner/config/flag_table.h"
#include "runner/config/workload_flags.h"
#include "runner/contract/agreement.h"
#include "runner/data/dataset.h"
#include "runner/models/sasrec/sasrec_flags.h"
#include "runner/models/workload_flags.h"
#include "tests/support/disk.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using Words = std::vector<std::string>;

Words with_dataset(const Words& words) {
  Words all{"sasrec", "--dataset", "ml-1m"};
  all.insert(all.end(), words.begin(), words.end());
  return all;
}

// `words` follow `sasrec --dataset ml-1m`.
RunConfig parse(const Words& words = {}) {
  Result<RunConfig> config = parse_run_config(with_dataset(words), all_workload_flags());
  EXPECT_TRUE(config.ok()) << config.error().message;
  return config.ok() ? std::move(config).value() : RunConfig{};
}

std::string refused_whole(const Words& words) {
  const Result<RunConfig> config = parse_run_config(words, all_workload_flags());
  EXPECT_FALSE(config.ok());
  if (config.ok()) return "";
  EXPECT_EQ(config.error().code, ErrorCode::kInvalid);
  return config.error().message;
}

std::string refused(const Words& words) { return refused_whole(with_dataset(words)); }

const FlagValue& flag(const RunConfig& config, const std::string& name) {
  const auto it = std::find_if(config.flags.begin(), config.flags.end(),
                               [&name](const FlagValue& value) { return value.name == name; });
  EXPECT_NE(it, config.flags.end()) << name;
  return *it;
}

TEST(RunConfig, has_the_reference_s_defaults) {
  const RunConfig config = parse();
  EXPECT_EQ(config.workload, "sasrec");
  EXPECT_EQ(options_of<SasrecOptions>(config).variant, SequenceVariant::kSasrec);
  EXPECT_EQ(options_of<SasrecOptions>(config).maxlen, 200);
  EXPECT_EQ(options_of<SasrecOptions>(config).hidden_units, 50);
  EXPECT_EQ(options_of<SasrecOptions>(config).num_blocks, 2);
  EXPECT_EQ(options_of<SasrecOptions>(config).num_heads, 1);
  EXPECT_EQ(config.training.train_dir, "default");
  EXPECT_EQ(config.training.num_epochs, 200);
  EXPECT_EQ(config.training.batch_size, 128);
  EXPECT_EQ(config.training.batch_scope, BatchScope::kTotal);
  EXPECT_EQ(config.training.lr, 0.001);
  EXPECT_EQ(config.training.lr_schedule, LrScheduleKind::kConstant);
  EXPECT_EQ(config.training.warmup_steps, 0);
  EXPECT_EQ(config.training.adam_beta2, 0.98);
  EXPECT_FALSE(config.training.use_amp);
  EXPECT_FALSE(config.launch.multi_gpu.has_value());
  EXPECT_FALSE(config.launch.nproc.has_value());
  EXPECT_FALSE(options_of<SasrecOptions>(config).min_count.has_value());
}

TEST(RunConfig, reads_the_guide_s_command_line) {
  const RunConfig config = parse({"--train_dir=tisasrec_dist",
                                  "--batch_size",
                                  "512",
                                  "--lr=0.002",
                                  "--num_heads",
                                  "4",
                                  "--num_blocks",
                                  "3",
                                  "--hidden_units",
                                  "100",
                                  "--maxlen",
                                  "100",
                                  "--dropout_rate",
                                  "0.2",
                                  "--num_epochs",
                                  "300",
                                  "--use_amp",
                                  "True",
                                  "--multi_gpu",
                                  "true",
                                  "--num_workers",
                                  "3",
                                  "--backend",
                                  "gloo",
                                  "--master_port",
                                  "29501"});
  EXPECT_EQ(config.training.batch_size, 512);
  EXPECT_EQ(config.training.lr, 0.002);
  EXPECT_EQ(options_of<SasrecOptions>(config).num_heads, 4);
  EXPECT_EQ(config.training.num_epochs, 300);
  EXPECT_TRUE(config.training.use_amp);
  EXPECT_EQ(config.launch.multi_gpu, true);
  EXPECT_EQ(config.launch.backend, BackendChoice::kGloo);
  EXPECT_EQ(config.launch.master_port, 29501);
}

TEST(RunConfig, takes_dashes_for_underscores_and_aliases) {
  EXPECT_EQ(parse({"--batch-size", "64"}).training.batch_size, 64);
  EXPECT_EQ(parse({"--batch-size=64"}).training.batch_size, 64);
  EXPECT_EQ(parse({"--nproc-per-node=2"}).launch.nproc, 2);
  EXPECT_EQ(parse({"--nproc_per_node", "3"}).launch.nproc, 3);
  EXPECT_EQ(flag(parse({"--nproc_per_node", "3"}), "nproc").value, "3");
  EXPECT_FALSE(parse({"--nproc", "auto"}).launch.nproc.has_value());
}

TEST(RunConfig, takes_booleans_in_every_spelling) {
  for (const Words& words : {Words{"--use_amp"}, Words{"--use_amp=true"}, Words{"--use_amp", "true"},
                             Words{"--use_amp", "True"}, Words{"--use-amp=1"}, Words{"--no_use_amp=false"},
                             Words{"--use_amp=false", "--use_amp"}, Words{"--use_amp", "--lr", "1"}}) {
    EXPECT_TRUE(parse(words).training.use_amp) << words[0];
  }
  for (const Words& words : {Words{"--no_full_ranking"}, Words{"--no-full-ranking"}, Words{"--full_ranking=false"},
                             Words{"--full_ranking", "False"}, Words{"--full_ranking", "--no_full_ranking"}}) {
    EXPECT_FALSE(options_of<SasrecOptions>(parse(words)).full_ranking) << words[0];
  }
}

TEST(RunConfig, keeps_flags_whose_own_name_begins_with_no) {
  EXPECT_TRUE(options_of<SasrecOptions>(parse({"--no_time"})).tisasrec.no_time);
  EXPECT_FALSE(options_of<SasrecOptions>(parse({"--no_no_mhc"})).tisasrec.no_mhc);
  EXPECT_THAT(refused({"--no_lr"}), HasSubstr("unknown flag --no_lr"));
}

TEST(RunConfig, takes_the_last_of_a_flag_given_twice) {
  EXPECT_EQ(parse({"--seed", "1", "--seed=2", "--seed", "3"}).training.seed, 3U);
}

TEST(RunConfig, takes_negative_numbers_as_values) {
  EXPECT_THAT(refused({"--lr", "-1"}), AllOf(HasSubstr("--lr"), HasSubstr("\"-1\""), HasSubstr("from 0")));
  EXPECT_THAT(refused({"--lr", "-.5"}), HasSubstr("\"-.5\""));
  EXPECT_THAT(refused({"--batch_size=-4"}), AllOf(HasSubstr("--batch_size"), HasSubstr("\"-4\"")));
}

TEST(RunConfig, takes_the_workload_anywhere) {
  // torch.distributed.launch puts its own flag first.
  const Result<RunConfig> config =
      parse_run_config({"--local-rank=1", "--use_amp", "sasrec", "--dataset", "x"}, all_workload_flags());
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->launch.local_rank, 1);
  EXPECT_TRUE(config->training.use_amp);
}

TEST(RunConfig, refuses_an_unknown_flag_and_offers_the_nearest) {
  EXPECT_THAT(refused({"--batchsize", "4"}), AllOf(HasSubstr("--batchsize"), HasSubstr("did you mean --batch_size?")));
  EXPECT_THAT(refused({"--learning_rate_of_all_things=4"}), Not(HasSubstr("did you mean")));
  EXPECT_THAT(refused({"-lr", "4"}), AllOf(HasSubstr("\"-lr\""), HasSubstr("did you mean --lr?")));
  EXPECT_THAT(refused({"stray"}), HasSubstr("\"stray\""));
}

TEST(RunConfig, refuses_an_unknown_or_missing_workload) {
  EXPECT_THAT(refused_whole({"sasrek", "--dataset", "x"}),
              AllOf(HasSubstr("\"sasrek\""), HasSubstr("did you mean \"sasrec\"?")));
  EXPECT_THAT(refused_whole({"bert", "--dataset", "x"}), AllOf(HasSubstr("\"bert\""), HasSubstr("known: sasrec")));
  EXPECT_THAT(refused_whole({}), HasSubstr("no workload"));
  EXPECT_THAT(refused_whole({"--dataset", "x"}), HasSubstr("no workload"));
}

TEST(RunConfig, refuses_a_missing_data_set) {
  EXPECT_THAT(refused_whole({"sasrec"}), HasSubstr("--dataset is required"));
  EXPECT_THAT(refused_whole({"sasrec", "--dataset="}), HasSubstr("--dataset"));
  EXPECT_THAT(refused_whole({"sasrec", "--dataset"}), HasSubstr("--dataset needs a value"));
  EXPECT_THAT(refused_whole({"sasrec", "--dataset", "--lr", "1"}), AllOf(HasSubstr("--dataset"), HasSubstr("--lr")));
}

struct BadValue {
  const char* name;
  Words words;
  Words says;
};
class BadValues : public ::testing::TestWithParam<BadValue> {};

TEST_P(BadValues, are_refused_naming_flag_found_and_expected) {
  const std::string message = refused(GetParam().words);
  for (const std::string& part : GetParam().says) EXPECT_THAT(message, HasSubstr(part));
}

INSTANTIATE_TEST_SUITE_P(
    RunConfig, BadValues,
    ::testing::Values(
        BadValue{"preset", {"--preset", "papers"}, {"--preset", "\"papers\"", "paper or guide"}},
        BadValue{"word_for_integer", {"--batch_size", "many"}, {"--batch_size", "\"many\"", "an integer from 1"}},
        BadValue{"real_for_integer", {"--maxlen", "1.5"}, {"--maxlen", "\"1.5\"", "an integer"}},
        BadValue{"trailing_letters", {"--maxlen", "20x"}, {"--maxlen", "\"20x\""}},
        BadValue{"zero_batch", {"--batch_size", "0"}, {"--batch_size", "\"0\"", "from 1"}},
        BadValue{"overflow", {"--max_steps", "99999999999999999999"}, {"--max_steps"}},
        BadValue{"negative_seed", {"--seed", "-1"}, {"--seed", "of at least 0"}},
        BadValue{"word_for_real", {"--lr", "fast"}, {"--lr", "\"fast\"", "a number"}},
        BadValue{"not_a_number", {"--lr", "nan"}, {"--lr", "\"nan\""}},
        BadValue{"infinite", {"--lr", "inf"}, {"--lr", "\"inf\""}},
        BadValue{"dropout_of_one", {"--dropout_rate", "1"}, {"--dropout_rate", "below 1"}},
        BadValue{"word_for_boolean", {"--use_amp", "maybe"}, {"--use_amp", "\"maybe\"", "true or false"}},
        BadValue{"word_for_negated", {"--no_use_amp", "maybe"}, {"--no_use_amp", "\"maybe\""}},
        BadValue{"choice", {"--lr_scaling", "cubic"}, {"--lr_scaling", "\"cubic\"", "none, linear, sqrt or batch"}},
        BadValue{"precision", {"--precision", "int8"}, {"--precision", "fp32, tf32, bf16 or fp16"}},
        BadValue{"port", {"--master_port", "70000"}, {"--master_port", "65535"}},
        BadValue{"nproc_zero", {"--nproc", "0"}, {"--nproc", "from 1", "auto"}},
        BadValue{"coordinator_without_port", {"--coordinator", "host"}, {"--coordinator", "HOST:PORT"}},
        BadValue{"no_value", {"--lr"}, {"--lr", "needs a value", "the end"}},
        BadValue{"unknown_variant", {"--variant", "bert"}, {"\"bert\"", "expected sasrec or tisasrec"}},
        BadValue{"form_of_sasrec", {"--variant", "tisasrec", "--norm_first"}, {"--norm_first", "--variant tisasrec"}},
        BadValue{"two_forms", {"--norm_first", "--original"}, {"--norm_first", "--original", "contradict"}},
        BadValue{"heads", {"--num_heads", "3"}, {"--hidden_units 50", "--num_heads 3"}},
        BadValue{"one_rank_and_two", {"--multi_gpu", "false", "--nproc", "2"}, {"--multi_gpu", "--nproc"}},
        BadValue{"node_beyond", {"--nnodes", "2", "--node_rank", "2"}, {"--node_rank 2", "--nnodes 2"}},
        BadValue{"two_starts", {"--resume", "a", "--state_dict_path", "b"}, {"--resume", "--state_dict_path"}},
        BadValue{"line_break", {"--dataset", "a\nb"}, {"--dataset"}},
        BadValue{"empty_train_dir", {"--train_dir="}, {"--train_dir"}},
        BadValue{"empty_before_another_flag", {"--data_dir", "", "--lr", "0.01"}, {"--data_dir", "an empty one"}}),
    [](const auto& info) { return info.param.name; });

TEST(RunConfig, knows_the_three_forms) {
  EXPECT_EQ(options_of<SasrecOptions>(parse()).form(), SasrecForm::kPostNorm);
  EXPECT_EQ(options_of<SasrecOptions>(parse({"--norm_first"})).form(), SasrecForm::kPreNorm);
  EXPECT_EQ(options_of<SasrecOptions>(parse({"--original"})).form(), SasrecForm::kOriginal);
  EXPECT_EQ(options_of<SasrecOptions>(parse({"--norm_first", "--original=false"})).form(), SasrecForm::kPreNorm);
  EXPECT_EQ(options_of<SasrecOptions>(parse({"--no_norm_first", "--original"})).form(), SasrecForm::kOriginal);
}

TEST(RunConfig, takes_decay_flags_without_a_schedule_as_exponential) {
  const RunConfig config = parse({"--lr_decay_rate", "0.95"});
  EXPECT_EQ(config.training.lr_schedule, LrScheduleKind::kExponential);
  EXPECT_EQ(flag(config, "lr_schedule").value, "exponential");
  EXPECT_THAT(config.notes, Contains(HasSubstr("--lr_schedule exponential")));
  EXPECT_EQ(parse({"--lr_decay_rate", "0.95", "--lr_schedule", "constant"}).training.lr_schedule,
            LrScheduleKind::kConstant);
}

TEST(Preset, that_another_flag_chooses_is_noted) {
  const auto notes = [](const std::vector<std::string>& flags) {
    std::vector<std::string> arguments = {"protein", "--pdb_path", "generated"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return parse_run_config(arguments, all_workload_flags())->notes;
  };
  EXPECT_THAT(notes({"--cache_dir", "cache"}), Contains("--variant mdm: because --cache_dir was given"));
  EXPECT_THAT(notes({"--cache_dir", "cache", "--variant", "mdm"}), IsEmpty());
  EXPECT_THAT(notes({"--cache_dir", "cache", "--variant", "mpnn"}), IsEmpty());
}

TEST(Preset, of_the_guide_is_its_script_without_flags) {
  const RunConfig config = parse({"--preset", "guide"});
  EXPECT_EQ(config.preset, "guide");
  EXPECT_EQ(options_of<SasrecOptions>(config).variant, SequenceVariant::kTisasrec);
  EXPECT_EQ(options_of<SasrecOptions>(config).num_heads, 2);
  EXPECT_EQ(options_of<SasrecOptions>(config).num_blocks, 2);
  EXPECT_EQ(options_of<SasrecOptions>(config).hidden_units, 50);
  EXPECT_EQ(options_of<SasrecOptions>(config).maxlen, 200);
  EXPECT_EQ(options_of<SasrecOptions>(config).l2_emb, 0.0);
  EXPECT_EQ(options_of<SasrecOptions>(config).tisasrec.time_span, 100);
  EXPECT_EQ(options_of<SasrecOptions>(config).tisasrec.time_unit, TimeUnit::kHour);
  EXPECT_TRUE(options_of<SasrecOptions>(config).tisasrec.no_mhc);
  EXPECT_EQ(config.training.num_epochs, 1000);
  EXPECT_EQ(config.training.batch_size, 128);
  EXPECT_EQ(config.training.lr_schedule, LrScheduleKind::kExponential);
  EXPECT_EQ(config.training.warmup_steps, 100);
  EXPECT_EQ(config.training.lr_decay_steps, 1000);
  EXPECT_EQ(config.training.lr_decay_rate, 0.95);
  EXPECT_TRUE(config.training.use_amp);
  EXPECT_THAT(config.notes, IsEmpty());
}

TEST(Preset, of_the_paper_is_the_default_and_sets_nothing) {
  EXPECT_EQ(flag(parse(), "preset").value, "paper");
  EXPECT_EQ(args_txt(parse({"--preset=paper"})), args_txt(parse()));
  EXPECT_EQ(parse({"--preset=paper"}).config_hash(), parse().config_hash());
  EXPECT_FALSE(parse({"--preset=paper"}).training.use_amp);
}

TEST(Preset, gives_way_to_a_flag_wherever_it_stands) {
  for (const Words& words :
       {Words{"--preset", "guide", "--num_heads", "1", "--no_use_amp", "--lr_schedule=constant"},
        Words{"--num_heads=1", "--use_amp=false", "--lr_schedule", "constant", "--preset=guide"}}) {
    const RunConfig config = parse(words);
    EXPECT_EQ(options_of<SasrecOptions>(config).num_heads, 1);
    EXPECT_FALSE(config.training.use_amp);
    EXPECT_EQ(config.training.lr_schedule, LrScheduleKind::kConstant);
    EXPECT_EQ(config.training.num_epochs, 1000);
  }
  EXPECT_EQ(parse({"--preset", "guide", "--preset", "paper"}).training.num_epochs, 200);
}

TEST(Preset, is_seen_in_args_txt_the_hash_and_what_was_given) {
  const RunConfig config = parse({"--preset", "guide"});
  EXPECT_THAT(args_txt(config), AllOf(HasSubstr("\npreset,guide\n"), HasSubstr("\nvariant,tisasrec\n"),
                                      HasSubstr("\nlr_schedule,exponential\n"), HasSubstr("\nuse_amp,true\n")));
  EXPECT_NE(config.config_hash(), parse().config_hash());
  EXPECT_EQ(flag(config, "preset").source, FlagSource::kUser);
  EXPECT_EQ(flag(config, "num_epochs").source, FlagSource::kPreset);
  EXPECT_EQ(flag(config, "maxlen").source, FlagSource::kDefault);
}

TEST(Preset, does_not_remark_on_what_nobody_asked_for) {
  EXPECT_THAT(parse({"--preset", "guide", "--variant", "sasrec"}).notes, IsEmpty());
  EXPECT_THAT(parse({"--preset", "guide", "--variant", "sasrec", "--time_span", "100"}).notes,
              ElementsAre("--time_span: without effect, it needs --variant tisasrec"));
}

TEST(Preset, may_stand_before_the_workload) {
  const Result<RunConfig> config =
      parse_run_config({"--preset", "guide", "sasrec", "--dataset", "x"}, all_workload_flags());
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->preset, "guide");
}

TEST(Preset, is_told_with_all_its_values_in_help_that_fits_a_terminal) {
  const std::string help = run_help("sasrec", all_workload_flags());
  EXPECT_THAT(help, AllOf(HasSubstr("--preset"), HasSubstr("\n  paper  "), HasSubstr("\n  guide  "),
                          HasSubstr("--lr_decay_rate 0.95"), HasSubstr("--num_epochs 1000")));
  const std::string presets = help.substr(help.find("Presets ("));
  for (size_t begin = 0, end = 0; (end = presets.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string line = presets.substr(begin, end - begin);
    EXPECT_TRUE(line.size() <= 80 || !line.starts_with("  ")) << line;
  }
  EXPECT_THAT(run_help("", all_workload_flags()), Not(HasSubstr("Presets")));
}

TEST(Preset, sets_only_what_its_workload_takes) {
  for (const WorkloadFlags& workload : all_workload_flags()) {
    for (const Preset& preset : workload.presets) {
      Words words{workload.name, "--" + workload.demo.data_flag, workload.demo.generated};
      if (workload.preset_flag != "preset") words.push_back("--" + workload.preset_flag + "=" + preset.name);
      for (const auto& [name, value] : preset.values) words.push_back("--" + name + "=" + value);
      const Result<RunConfig> spelt_out = parse_run_config(words, all_workload_flags());
      ASSERT_TRUE(spelt_out.ok()) << spelt_out.error().message;
      for (const auto& [name, value] : preset.values) EXPECT_EQ(flag(*spelt_out, name).value, value);
    }
  }
}

TEST(StateDictPath, of_the_guide_s_form_says_how_many_epochs_its_weights_were_trained_for) {
  const auto epochs = [](const std::string& path) {
    return parse({"--state_dict_path", path}).training.weights_epochs;
  };
  EXPECT_EQ(epochs("SASRec.epoch=200.lr=0.001.layer=2.head=1.hidden=50.maxlen=200.pth"), 200);
  EXPECT_EQ(epochs("ml-1m_default/TiSASRec.epoch=40.lr=0.001.layer=2.head=2.hidden=50.maxlen=200.pth"), 40);
  EXPECT_EQ(epochs("/data/epoch=9.old/model.epoch=0.pth"), 0);
  EXPECT_EQ(epochs("model.epoch=7"), 7);
  EXPECT_EQ(epochs("model.pth"), 0);
  EXPECT_EQ(epochs("epoch=5/model.pth"), 0);
  EXPECT_EQ(parse().training.weights_epochs, 0);
}

TEST(StateDictPath, with_a_broken_epoch_is_refused_naming_it) {
  for (const char* broken : {"", "-1", "2O0", "+3", "99999999999999999999", "1000000001", "3-step=7"}) {
    const std::string path = "out/SASRec.epoch=" + std::string(broken) + ".pth";
    EXPECT_THAT(refused({"--state_dict_path", path}),
                AllOf(HasSubstr("--state_dict_path " + path), HasSubstr("found \"" + std::string(broken) + "\""),
                      HasSubstr("rename the file")));
  }
}

TEST(RunConfig, knows_whether_the_precision_was_given) {
  EXPECT_FALSE(parse({"--use_amp"}).training.precision_given);
  const RunConfig config = parse({"--use_amp", "--precision", "fp32"});
  EXPECT_TRUE(config.training.precision_given);
  EXPECT_THAT(config.notes, Contains(HasSubstr("--use_amp: overridden by --precision")));
}

TEST(RunConfig, takes_several_moving_averages_and_refuses_a_list_with_a_mistake) {
  EXPECT_THAT(parse().training.ema_decays, IsEmpty());
  EXPECT_THAT(parse({"--ema_decay", "0"}).training.ema_decays, IsEmpty());
  EXPECT_THAT(parse({"--ema_decay", "0.9999,0.9996"}).training.ema_decays, ElementsAre(0.9999, 0.9996));
  for (const char* const text : {"", "0.9,", ",0.9", "0.9,1", "0.9,0.9", "0.9,0", "much"}) {
    EXPECT_THAT(refused({"--ema_decay", text}), HasSubstr("--ema_decay")) << text;
  }
}

TEST(RunConfig, notes_flags_without_effect) {
  EXPECT_THAT(parse().notes, IsEmpty());
  EXPECT_THAT(parse({"--time_span", "256"}).notes,
              ElementsAre("--time_span: without effect, it needs --variant tisasrec"));
}

TEST(RunConfig, lists_every_flag_sorted_with_what_was_given) {
  const RunConfig config = parse({"--lr", "2e-3"});
  EXPECT_TRUE(std::is_sorted(config.flags.begin(), config.flags.end(),
                             [](const FlagValue& a, const FlagValue& b) { return a.name < b.name; }));
  EXPECT_EQ(flag(config, "lr").source, FlagSource::kUser);
  EXPECT_EQ(flag(config, "lr").value, "0.002");
  EXPECT_EQ(flag(config, "maxlen").source, FlagSource::kDefault);
  EXPECT_EQ(flag(config, "maxlen").value, "200");
}

TEST(RunConfig, writes_args_txt_as_name_comma_value) {
  const std::string text = args_txt(parse({"--lr", "0.002"}));
  EXPECT_THAT(text, AllOf(HasSubstr("\nlr,0.002\n"), HasSubstr("\nuse_amp,false\n"), HasSubstr("dataset,ml-1m\n")));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), static_cast<std::ptrdiff_t>(parse().flags.size()));
}

TEST(RunConfig, shows_every_flag_with_range_and_default_in_help) {
  const std::string help = run_help("sasrec", all_workload_flags());
  for (const FlagValue& value : parse().flags) EXPECT_THAT(help, HasSubstr("--" + value.name)) << value.name;
  EXPECT_THAT(
      help, AllOf(HasSubstr("--nproc_per_node"), HasSubstr("from 1 to 65535"), HasSubstr("0.98"), HasSubstr("--config"),
                  HasSubstr("Usage: lockstep run sasrec [flags]\n"), HasSubstr("-h, --help"), HasSubstr("Exit codes:"),
                  HasSubstr("an integer of at least 0"), HasSubstr("metrics.jsonl and TensorBoard")));
  EXPECT_THAT(run_help("", all_workload_flags()), HasSubstr("Usage: lockstep run WORKLOAD [flags]\n"));
  EXPECT_THAT(run_help("", all_workload_flags()),
              AllOf(HasSubstr("\nWorkloads"), HasSubstr("  sasrec  "), HasSubstr("--lr, --learning_rate "),
                    Not(HasSubstr("--maxlen"))));
  EXPECT_TRUE(wants_help({"sasrec", "--help"}));
  EXPECT_TRUE(wants_help({"-h"}));
  EXPECT_FALSE(wants_help({"sasrec", "--lr", "1"}));
}

TEST(ConfigHash, ignores_what_changes_no_maths) {
  const std::string hash = parse().config_hash();
  EXPECT_EQ(hash.size(), 64U);
  for (const Words& words :
       {Words{"--num_epochs", "3"}, Words{"--log_every", "7"}, Words{"--train_dir", "/x"}, Words{"--data_dir", "/y"},
        Words{"--nproc", "4"}, Words{"--backend", "gloo"}, Words{"--device", "cpu"}, Words{"--checkpoint_every", "9"},
        Words{"--eval_negatives", "50"}, Words{"--eval_every", "5"}, Words{"--threads", "2"}, Words{"--keep_last", "9"},
        Words{"--time_span", "9"}, Words{"--grad_accum_steps", "2"}, Words{"--dataset", "/data/ml-1m/ratings.dat"},
        Words{"--lr", "1.0e-3"}}) {
    EXPECT_EQ(parse(words).config_hash(), hash) << words[0];
  }
}

TEST(ConfigHash, changes_with_everything_that_changes_the_maths) {
  const std::string hash = parse().config_hash();
  for (const Words& words :
       {Words{"--lr", "0.1"}, Words{"--seed", "1"}, Words{"--batch_size", "64"}, Words{"--maxlen", "50"},
        Words{"--norm_first"}, Words{"--original"}, Words{"--dropout_rate", "0.5"}, Words{"--dataset", "ml-100k"},
        Words{"--min_count", "0"}, Words{"--precision", "bf16"}, Words{"--use_amp"}, Words{"--lr_schedule", "cosine"},
        Words{"--weight_decay", "0.1"}, Words{"--clip_grad_norm", "1"}, Words{"--ema_decay", "0.9"},
        Words{"--optimizer", "adamw"}, Words{"--lr_scaling", "sqrt"}, Words{"--batch_scope", "per_device"},
        Words{"--l2_emb", "0.1"}}) {
    EXPECT_NE(parse(words).config_hash(), hash) << words[0];
  }
}

TEST(ConfigHash, counts_evaluations_in_when_they_steer_the_learning_rate) {
  const Words plateau{"--lr_schedule", "plateau"};
  EXPECT_NE(parse(plateau).config_hash(), parse({"--lr_schedule", "plateau", "--eval_every", "5"}).config_hash());
}

TEST(ConfigHash, counts_accumulation_in_when_it_makes_the_batch) {
  EXPECT_NE(parse({"--batch_scope", "per_device"}).config_hash(),
            parse({"--batch_scope", "per_device", "--grad_accum_steps", "2"}).config_hash());
}

TEST(DifferingFlags, names_flag_and_both_values) {
  const Json ours = parse({"--lr", "0.001"}).shared_flags();
  const Json theirs = parse({"--lr", "0.002", "--log_every", "5", "--status_port", "1", "--nproc", "2"}).shared_flags();
  EXPECT_THAT(
      differing_flags(ours, "rank 0", theirs, "rank 1"),
      ElementsAre("--log_every is 10 in rank 0 and 5 in rank 1", "--lr is 0.001 in rank 0 and 0.002 in rank 1"));
  EXPECT_THAT(differing_flags(ours, "a", ours, "b"), IsEmpty());
  EXPECT_THAT(differing_flags(Json{{"x", "1"}}, "a", Json{{"y", 2}}, "b"),
              ElementsAre("--x is 1 in a and unknown in b", "--y is unknown in a and 2 in b"));
  EXPECT_THAT(differing_flags(Json(), "a", Json::array(), "b"), IsEmpty());
}

TEST(Disagreement, names_the_first_difference_and_what_to_do) {
  const auto why = [](const std::string& ours, const std::string& theirs) {
    return disagreement(ours, "rank 0", theirs, "rank 1");
  };
  EXPECT_EQ(
      why(R"({"lr":"0.1","seed":"1"})", R"({"lr":"0.2","seed":"2"})"),
      "--lr is 0.1 in rank 0 and 0.2 in rank 1; start all ranks with the same flags, data and version of lockstep");
  EXPECT_EQ(
      why(R"({"number of samples":5})", R"({"number of samples":6})"),
      "the number of samples is 5 in rank 0 and 6 in rank 1; start all ranks with the same flags, data and version "
      "of lockstep");
  EXPECT_EQ(why(R"({"a":"1","b":"2"})", R"({"b":"2","a":"1"})"), "");
  EXPECT_EQ(why("", R"({"lr":"0.2"})"), "");
  EXPECT_EQ(why(R"({"lr":"0.2"})", ""), "");
  EXPECT_THAT(why("{}", "nonsense"), HasSubstr("the terms of rank 1"));
}

TEST(SettledRun, has_the_data_set_that_auto_stands_for_as_if_it_had_been_given) {
  const TemporaryFolder folder;
  folder.write("ml-100k.inter", "user_id:token\titem_id:token\n1\t1\n");
  const Words given{"sasrec", "--dataset", "auto", "--lr", "0.5", "--data_dir", folder.path()};
  const Result<RunConfig> config = parse_run_config(given, all_workload_flags());
  ASSERT_TRUE(config.ok()) << config.error().message;
  const Result<SettledRun> run = settled_run(disk(), *config, given, all_workload_flags());
  ASSERT_TRUE(run.ok()) << run.error().message;
  EXPECT_EQ(options_of<SasrecOptions>(run->config).dataset, folder.path() + "/ml-100k.inter");
  EXPECT_EQ(run->arguments.back(), "--dataset=" + folder.path() + "/ml-100k.inter");
  EXPECT_EQ(run->config.config_hash(),
            parse_run_config({"sasrec", "--dataset=ml-100k", "--lr=0.5"}, all_workload_flags())->config_hash());
  EXPECT_EQ(output_folder(run->config, "", ""), "ml-100k_default");
}

TEST(SettledRun, is_the_run_as_it_was_given_where_nothing_is_to_settle) {
  const Words given = with_dataset({});
  const Result<SettledRun> run = settled_run(disk(), parse(), given, all_workload_flags());
  ASSERT_TRUE(run.ok()) << run.error().message;
  EXPECT_EQ(run->arguments, given);
  EXPECT_EQ(run->remark, "");
}

TEST(SettledRun, passes_on_that_there_are_several_data_sets) {
  const TemporaryFolder folder;
  for (const char* name : {"a.inter", "b.inter"}) {
    folder.write(name, "user_id:token\titem_id:token\n1\t1\n");
  }
  const Words given{"sasrec", "--dataset", "auto", "--data_dir", folder.path()};
  const Result<SettledRun> run =
      settled_run(disk(), *parse_run_config(given, all_workload_flags()), given, all_workload_flags());
  ASSERT_FALSE(run.ok());
  EXPECT_EQ(run.error().code, ErrorCode::kConflict);
}

TEST(OutputFolder, is_named_after_dataset_and_train_dir) {
  EXPECT_EQ(output_folder(parse(), "", ""), "ml-1m_default");
  EXPECT_EQ(output_folder(parse({"--dataset", "data/ml-100k.inter", "--train_dir", "demo"}), "", ""), "ml-100k_demo");
  EXPECT_EQ(output_folder(parse({"--train_dir", "out/run1/"}), "", ""), "out/run1");
  EXPECT_EQ(output_folder(parse(), "/checkpoints/", "job7"), "/checkpoints/job7");
  EXPECT_EQ(output_folder(parse(), "/checkpoints/", ""), "/checkpoints");
}

TEST(OutputFolder, is_the_given_one_in_an_image_and_the_volume_s_in_a_pod) {
  for (const WorkloadFlags& workload : all_workload_flags()) {
    for (const Flag& flag : flag_table(&workload)) {
      if (!flag.is_train_dir) continue;
      const Words words = {workload.name, "--" + workload.demo.data_flag, workload.demo.generated, "--" + flag.name};
      Words with_path = words;
      with_path.emplace_back("/data/out/");
      const Result<RunConfig> config = parse_run_config(with_path, all_workload_flags());
      ASSERT_TRUE(config.ok()) << config.error().message;
      EXPECT_EQ(config->train_dir_flag, flag.name);
      EXPECT_EQ(output_folder(*config, "/checkpoints", ""), "/data/out") << flag.name;
      EXPECT_EQ(output_folder(*config, "/checkpoints", "job7"), "/checkpoints/job7") << flag.name;
    }
  }
  EXPECT_EQ(output_folder(parse({"--train_dir", "demo"}), "/checkpoints", ""), "ml-1m_demo");
  EXPECT_EQ(parse().train_dir_flag, "");
}

TEST(DatasetName, is_the_stem_or_the_folder) {
  EXPECT_EQ(dataset_name("ml-1m"), "ml-1m");
  EXPECT_EQ(dataset_name("ml-1.5"), "ml-1.5");
  EXPECT_EQ(dataset_name("/data/ml-100k.inter"), "ml-100k");
  EXPECT_EQ(dataset_name("ml-100k.txt"), "ml-100k");
  EXPECT_EQ(dataset_name("/data/ml-1m/ratings.dat"), "ml-1m");
  EXPECT_EQ(dataset_name("/data/ml-1m/"), "ml-1m");
  EXPECT_EQ(dataset_name("ratings.dat"), "ratings");
  EXPECT_EQ(dataset_name("/ratings.dat"), "ratings");
}

class ConfigFile : public ::testing::Test {
 protected:
  std::string write(const std::string& text) { return temporary_.write("flags.yaml", text); }
  TemporaryFolder temporary_;
  const std::string& folder_ = temporary_.path();
};

TEST_F(ConfigFile, gives_flags_and_the_command_line_wins) {
  const std::string path = write("dataset: ml-100k\nlr: 0.5\nbatch-size: 32\nno_full_ranking: true\nuse_amp: yes\n");
  const Result<RunConfig> config = parse_run_config({"sasrec", "--config", path, "--lr", "0.25"}, all_workload_flags());
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(options_of<SasrecOptions>(*config).dataset, "ml-100k");
  EXPECT_EQ(config->training.lr, 0.25);
  EXPECT_EQ(config->training.batch_size, 32);
  EXPECT_FALSE(options_of<SasrecOptions>(*config).full_ranking);
  EXPECT_TRUE(config->training.use_amp);
  EXPECT_EQ(flag(*config, "batch_size").source, FlagSource::kUser);
}

TEST_F(ConfigFile, may_name_a_preset_and_flags_beside_it) {
  const std::string path = write("preset: guide\nnum_heads: 1\n");
  EXPECT_EQ(parse({"--config", path}).training.num_epochs, 1000);
  EXPECT_EQ(options_of<SasrecOptions>(parse({"--config", path})).num_heads, 1);
  EXPECT_EQ(parse({"--config", path, "--preset", "paper"}).training.num_epochs, 200);
}

TEST_F(ConfigFile, gives_the_same_hash_as_the_same_flags_on_the_command_line) {
  const std::string path = write("lr: 0.5\n");
  EXPECT_EQ(parse({"--config", path}).config_hash(), parse({"--lr", "0.5"}).config_hash());
}

TEST_F(ConfigFile, is_refused_with_file_and_line) {
  const auto message = [this](const std::string& text) { return refused({"--config", write(text)}); };
  EXPECT_THAT(message("lr: 1\nbatchsize: 3\n"), AllOf(HasSubstr("flags.yaml:2"), HasSubstr("batch_size?")));
  EXPECT_THAT(message("lr: fast\n"), AllOf(HasSubstr("--lr"), HasSubstr("\"fast\""), HasSubstr("flags.yaml:1")));
  EXPECT_THAT(message("seed: 1\nseed: 2\n"), HasSubstr("flags.yaml:2"));
  EXPECT_THAT(message("nproc: 1\nnproc_per_node: 2\n"), AllOf(HasSubstr("twice"), HasSubstr("flags.yaml:2")));
  EXPECT_THAT(message("config: other.yaml\n"), HasSubstr("cannot name another"));
  EXPECT_THAT(message("lr: [1]\n"), HasSubstr("flags.yaml:1"));
}

TEST_F(ConfigFile, that_is_missing_is_named) {
  const Result<RunConfig> config =
      parse_run_config({"sasrec", "--config", folder_ + "/none.yaml"}, all_workload_flags());
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(config.error().message, HasSubstr("none.yaml"));
}

}  // namespace
}  // namespace lockstep
