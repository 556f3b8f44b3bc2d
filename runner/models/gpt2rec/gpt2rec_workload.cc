#include "runner/models/gpt2rec/gpt2rec_workload.h"

#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <numeric>
#include <set>

#include "runner/base/check.h"
#include "runner/base/file_system.h"
#include "runner/base/sha256.h"
#include "runner/data/sampler.h"
#include "runner/models/gpt2rec/data/movielens.h"
#include "runner/models/gpt2rec/gpt2rec_evaluation.h"
#include "runner/models/gpt2rec/guide_names.h"
#include "runner/models/gpt2rec/peft_adapter.h"

namespace lockstep {
namespace {

constexpr char kResultsFile[] = "test_results_standard.json";
constexpr char kPeftFolder[] = "lora";
constexpr char kBestFigure[] = "valid_ndcg@10";
constexpr char kTestFigure[] = "test_ndcg@10";
constexpr char kAdapters[] = "adapters";
constexpr double kLogFloor = 1e-10;  // the loss is -log(σ + this), as in the guide

std::vector<std::string> texts_of_users(const RatingData& ratings) {
  std::vector<std::string> texts;
  std::transform(ratings.users.begin(), ratings.users.end(), std::back_inserter(texts), user_text);
  return texts;
}

std::vector<std::string> texts_of_films(const RatingData& ratings) {
  std::vector<std::string> texts;
  std::transform(ratings.films.begin(), ratings.films.end(), std::back_inserter(texts), film_text);
  return texts;
}

at::Tensor numbers_of_texts(int64_t count, at::Device device, const std::function<int64_t(int64_t)>& number) {
  const at::Tensor numbers = at::empty({count}, at::kLong);
  for (int64_t i = 0; i < count; ++i) numbers.mutable_data_ptr<int64_t>()[i] = number(i);
  return numbers.to(device);
}

at::Tensor to_tensor(const std::vector<int64_t>& values, bool pinned) {
  return at::tensor(values, at::TensorOptions(at::kLong).pinned_memory(pinned));
}

// Returns the distinct values, ascending, and replaces each of `values` by its index in that list. Values are below
// `count`, the rows of a table that the optimizer goes through in each step: so can this, instead of sorting.
std::vector<int64_t> index_distinct(std::vector<int64_t>& values, int64_t count) {
  std::vector<int64_t> index_of(static_cast<size_t>(count), -1);
  for (const int64_t value : values) index_of[static_cast<size_t>(value)] = 0;
  std::vector<int64_t> distinct;
  for (int64_t value = 0; value < count; ++value) {
    int64_t& index = index_of[static_cast<size_t>(value)];
    if (index < 0) continue;
    index = std::ssize(distinct);
    distinct.push_back(value);
  }
  for (int64_t& value : values) value = index_of[static_cast<size_t>(value)];
  return distinct;
}

bool trains_adapters(const std::vector<RecommenderPhase>& phases) {
  return std::any_of(phases.begin(), phases.end(), [](const RecommenderPhase& phase) { return !phase.is_cached; });
}

// The phases for the training loop. A phase freezes LoRA's weights only if another phase trains them; otherwise they
// are in no group of parameters.
std::vector<TrainingPhase> training_phases(const std::vector<RecommenderPhase>& phases) {
  std::vector<TrainingPhase> list;
  for (const RecommenderPhase& phase : phases) {
    const bool is_frozen = phase.is_cached && trains_adapters(phases);
    list.push_back({.name = phase.name,
                    .num_epochs = phase.num_epochs,
                    .epochs_flag = phase.epochs_flag,
                    .lr = phase.lr,
                    .clip_grad_norm = phase.clip_grad_norm,
                    .frozen = is_frozen ? std::vector<std::string>{kAdapters} : std::vector<std::string>()});
  }
  return list;
}

// Encodes the batch's own texts, group by group: [T, W].
at::Tensor encode_groups(const TextEncoder& encoder, const DeviceBatch& batch) {
  std::vector<at::Tensor> parts;
  for (size_t group = 0;; ++group) {
    const std::string suffix = std::to_string(group);
    if (!batch.has("tokens_NT" + suffix)) return at::cat(parts);
    const at::Tensor& tokens_NT = batch["tokens_NT" + suffix];
    std::optional<TextDraws> draws;
    if (batch.is_training) {
      draws = TextDraws{.seed = batch.share.seed, .step = batch.share.step, .text_ids_N = batch["texts_N" + suffix]};
    }
    parts.push_back(encoder.encode(tokens_NT, batch["lengths_N" + suffix], draws));
  }
}

std::string digest_of(const std::vector<Rating>& ratings) {
  static_assert(sizeof(Rating) == 2 * sizeof(int32_t), "without padding");
  Sha256 digest;
  digest.update(ratings.data(), ratings.size() * sizeof(Rating));
  return digest.hex_digest();
}

}  // namespace

TextEncoderOptions text_encoder_options(const Gpt2recOptions& options) {
  return {.gpt2_folder = options.gpt2_path,
          .tokenizer_folder = options.tokenizer_path,
          .size = options.gpt2_config,
          .lora = {.rank = options.lora_rank, .alpha = options.lora_alpha, .dropout = options.lora_dropout},
          .pool = options.pool,
          .max_length = options.max_length};
}

Result<std::unique_ptr<Gpt2recWorkload>> Gpt2recWorkload::create(const RunConfig& config, const RatingData& ratings,
                                                                 std::unique_ptr<TextEncoder> encoder,
                                                                 at::Device device) {
  TRY_ASSIGN(RecommenderData data,
             RecommenderData::create(ratings, options_of<Gpt2recOptions>(config).split_ratio, config.training.seed));
  return std::unique_ptr<Gpt2recWorkload>(
      new Gpt2recWorkload(config, ratings, std::move(data), std::move(encoder), device));
}

Gpt2recWorkload::Gpt2recWorkload(const RunConfig& config, const RatingData& ratings, RecommenderData data,
                                 std::unique_ptr<TextEncoder> encoder, at::Device device)
    : info_({.name = "gpt2rec",
             .version = 1,
             .loss_terms = {{.name = "loss"}},
             .best = {.name = kBestFigure},
             .plateau = DecidingFigure{.name = kTrainLoss, .direction = Direction::kLower},
             .phases = training_phases(recommender_phases(config))}),
      options_(options_of<Gpt2recOptions>(config)),
      phases_(recommender_phases(config)),
      seed_(config.training.seed),
      device_(device),
      data_text_(ratings.path + " (" + ratings.form + ")"),
      data_notes_(ratings.notes),
      data_(std::move(data)),
      encoder_(std::move(encoder)),
      frozen_(encoder_->frozen()),
      texts_(*encoder_, texts_of_users(ratings), texts_of_films(ratings)),
      user_texts_U_(numbers_of_texts(data_.num_users(), device, [this](int64_t i) { return texts_.of_user(i); })),
      film_texts_I_(numbers_of_texts(data_.num_items(), device, [this](int64_t i) { return texts_.of_film(i); })),
      model_({.num_users = data_.num_users(),
              .num_items = data_.num_items(),
              .embed_dim = options_.embed_dim,
              .text_width = encoder_->width(),
              .use_attention = options_.use_attention,
              .dropout = options_.dropout},
             device) {
  frozen_.push_back({.name = "the ratings", .sha256 = digest_of(ratings.ratings)});
  // Adapters that no phase trains are in no checkpoint, but in each model file: a resumed run needs their values, too.
  encoder_->initialize(seed_);
}

void Gpt2recWorkload::initialize(uint64_t seed) {
  model_.initialize(seed);
  encoder_->initialize(seed);
}

std::vector<ParameterGroup> Gpt2recWorkload::groups() const {
  std::vector<ParameterGroup> groups = {
      {.name = "heads", .parameters = model_.parameters(), .weight_decay = std::nullopt}};
  if (trains_adapters(phases_)) {
    groups.push_back({.name = kAdapters,
                      .parameters = encoder_->adapters(),
                      .lr_factor = options_.gpt2_lr_factor,
                      .weight_decay = std::nullopt});
  }
  return groups;
}

Result<NamedTensors> Gpt2recWorkload::weights_of_file(NamedTensors file) const {
  return without_guide_names(std::move(file), model_, *encoder_, trains_adapters(phases_));
}

Json Gpt2recWorkload::shared_facts() const {
  return {{"number of ratings trained on", static_cast<int64_t>(data_.train().size())},
          {"number of users", data_.num_users()},
          {"number of films", data_.num_items()},
          {"number of distinct texts", texts_.size()},
          {"number of tokens", texts_.tokens()}};
}

Status Gpt2recWorkload::enter_phase(int64_t phase, const std::function<bool()>& goes_on) {
  phase_ = phase;
  at::Tensor cached_TW;
  if (phases_[static_cast<size_t>(phase)].is_cached) {
    cached_TW = encode_all(goes_on);
    if (!cached_TW.defined()) return {};  // stopped
  }
  cached_TW_ = cached_TW;
  return {};
}

double Gpt2recWorkload::flops_per_sample() const {
  const auto d = static_cast<double>(options_.embed_dim);
  const auto w = static_cast<double>(encoder_->width());
  const double films = 1.0 + static_cast<double>(options_.num_negatives);
  const double sides = 1.0 + films;  // a user and the films, assuming that none occurs twice in a batch
  const double fusion = options_.use_attention ? d * d : 0.0;
  const double first = 128.0 * d * (options_.use_attention ? 1.0 : 2.0);
  const double rest = films * (128.0 * 64.0 + 64.0);
  constexpr double kFlopsOfOne = 2.0 * 3.0;  // multiply and add, forward and twice that backward
  double texts = 0.0;
  if (!cached_TW_.defined()) {  // backward goes through GPT-2, whose own weights get no gradient: as much as forward
    const int64_t tokens = std::max<int64_t>(1, texts_.tokens() / texts_.size());
    texts = 2.0 * sides * static_cast<double>(tokens) * encoder_->gpt2().flops_per_token(tokens);
  }
  return kFlopsOfOne * (sides * (w * d + fusion + first) + rest) + texts;
}

std::string Gpt2recWorkload::memory_advice() const {
  const bool is_cached = phases_[static_cast<size_t>(phase_)].is_cached;
  std::string text;
  if (cached_TW_.defined()) {
    text = "a smaller --embed_dim (now " + std::to_string(options_.embed_dim) + ") takes less";
    if (phases_.size() == 1) text += " (--use_cache false takes more)";
  } else {  // texts are being encoded
    text = "a smaller --max_length (now " + std::to_string(options_.max_length) + " tokens) takes less";
    if (!is_cached) {
      text += std::string(", and so does ") + (phases_.size() > 1 ? "--phase2_cache" : "--use_cache true") +
              ", with which texts are encoded once and GPT-2 is not trained";
    }
  }
  return text + (device_.is_cpu() ? ", and so do fewer ranks on this machine: each holds GPT-2" : "");
}

std::vector<std::pair<std::string, std::string>> Gpt2recWorkload::describe() const {
  const auto text = [](int64_t value) { return std::to_string(value); };
  std::vector<std::pair<std::string, std::string>> lines = {
      {"variant", options_.use_attention ? "texts fused with ids" : "texts beside ids (--use_attention false)"},
      {"data set", data_text_},
      {"users", text(static_cast<int64_t>(data_.trained().users().size())) + " trained on, ids up to " +
                    text(data_.num_users() - 1)},
      {"films", text(static_cast<int64_t>(data_.train_items().size())) + " trained on, ids up to " +
                    text(data_.num_items() - 1)},
      {"ratings", text(static_cast<int64_t>(data_.train().size())) + " train, " + text(data_.valid_ratings()) +
                      " validate, " + text(data_.test_ratings()) + " test" +
                      (data_.dropped_ratings() > 0
                           ? ", " + text(data_.dropped_ratings()) + " dropped (their users have no training rating)"
                           : "")}};
  lines.insert(lines.end(), data_notes_.begin(), data_notes_.end());
  for (const auto& line : encoder_->describe()) {
    if (line.first != kAdapters || trains_adapters(phases_)) lines.push_back(line);
  }
  std::string lengths = text(texts_.size()) + " distinct, " + text(texts_.tokens()) + " tokens";
  if (texts_.cut_texts() > 0) {
    lengths += ", " + text(texts_.cut_texts()) + " of them reach --max_length " + text(options_.max_length);
  }
  lines.emplace_back("texts", lengths);
  lines.emplace_back(
      "parameters",
      text(count_elements(model_.parameters())) + " beside GPT-2" +
          (trains_adapters(phases_) ? ", " + text(count_elements(encoder_->adapters())) + " in LoRA" : ""));
  std::string trained;
  for (const RecommenderPhase& phase : phases_) {
    trained += (trained.empty() ? "" : "; ") + (phases_.size() > 1 ? phase.name + ": " : "") +
               (phase.is_cached ? "all but GPT-2; texts are encoded once" : "all, LoRA included");
  }
  lines.emplace_back("trained", trained);
  return lines;
}

Result<std::unique_ptr<BatchSource>> Gpt2recWorkload::batches(const BatchOptions& options) const {
  return Sampler::create({.seed = options.seed,
                          .num_samples = static_cast<int64_t>(data_.train().size()),
                          .global_batch = options.global_batch});
}

Result<HostBatch> Gpt2recWorkload::fetch(const BatchShare& share) const {
  const size_t b = share.samples.size();
  std::vector<int64_t> user_rows(b);
  const auto m = static_cast<size_t>(1 + options_.num_negatives);
  std::vector<int64_t> film_rows(b * m);
  for (size_t i = 0; i < b; ++i) {
    const int64_t sample = share.samples[i];
    const Rating& rating = data_.train()[static_cast<size_t>(sample)];
    user_rows[i] = rating.user;
    film_rows[i * m] = rating.item;
    for (size_t k = 1; k < m; ++k) {
      film_rows[i * m + k] =
          data_.negative(sample, static_cast<int64_t>(k) - 1, options_.negatives, share.seed, share.epoch);
    }
  }
  const std::vector<int64_t> users = index_distinct(user_rows, data_.num_users());
  const std::vector<int64_t> films = index_distinct(film_rows, data_.num_items());
  std::vector<int64_t> user_texts(users.size());
  std::vector<int64_t> film_texts(films.size());
  std::transform(users.begin(), users.end(), user_texts.begin(), [&](int64_t user) { return texts_.of_user(user); });
  std::transform(films.begin(), films.end(), film_texts.begin(), [&](int64_t film) { return texts_.of_film(film); });

  HostBatch batch{.tensors = {}, .weights = {static_cast<double>(b)}};
  const bool is_pinned = !device_.is_cpu();
  if (!phases_[static_cast<size_t>(share.phase)].is_cached) {
    std::set<int64_t> distinct(user_texts.begin(), user_texts.end());
    distinct.insert(film_texts.begin(), film_texts.end());
    const std::vector<std::vector<int64_t>> groups = texts_.groups({distinct.begin(), distinct.end()});
    std::vector<int64_t> row_of(static_cast<size_t>(texts_.size()), -1);
    int64_t row = 0;
    for (size_t group = 0; group < groups.size(); ++group) {
      for (const int64_t number : groups[group]) row_of[static_cast<size_t>(number)] = row++;
      for (NamedTensor& tensor : texts_.tensors(groups[group], std::to_string(group), is_pinned)) {
        batch.tensors.push_back(std::move(tensor));
      }
    }
    for (int64_t& text : user_texts) text = row_of[static_cast<size_t>(text)];
    for (int64_t& text : film_texts) text = row_of[static_cast<size_t>(text)];
  }
  batch.tensors.push_back({"users_U", to_tensor(users, is_pinned)});
  batch.tensors.push_back({"films_I", to_tensor(films, is_pinned)});
  batch.tensors.push_back({"user_texts_U", to_tensor(user_texts, is_pinned)});
  batch.tensors.push_back({"film_texts_I", to_tensor(film_texts, is_pinned)});
  batch.tensors.push_back({"user_rows_B", to_tensor(user_rows, is_pinned)});
  batch.tensors.push_back({"film_rows_BM", to_tensor(film_rows, is_pinned)});
  return batch;
}

std::vector<at::Tensor> Gpt2recWorkload::loss(const DeviceBatch& batch) {
  const at::Tensor texts_TW = cached_TW_.defined() ? cached_TW_ : encode_groups(*encoder_, batch);
  Dropouts dropouts;
  if (batch.is_training) {
    dropouts = Dropouts(
        options_.dropout,
        DropoutKey{
            .seed = batch.share.seed, .step = batch.share.step, .first_slot = batch.share.first_slot, .layer = 0});
  }
  const at::Tensor user_UH =
      model_.user_term(model_.users(batch["users_U"], {.vectors_TW = texts_TW, .rows_B = batch["user_texts_U"]}));
  const at::Tensor film_IH =
      model_.item_term(model_.items(batch["films_I"], {.vectors_TW = texts_TW, .rows_B = batch["film_texts_I"]}));
  const at::Tensor user_BH = at::embedding(user_UH, batch["user_rows_B"]);
  const at::Tensor film_BMH = at::embedding(film_IH, batch["film_rows_BM"])
                                  .view({user_BH.size(0), 1 + options_.num_negatives, user_BH.size(1)});
  const at::Tensor scores_BM = model_.score(user_BH.unsqueeze(1) + film_BMH, dropouts).to(at::kFloat);
  const at::Tensor rated_B1 = scores_BM.narrow(1, 0, 1);
  const at::Tensor negatives_BN = scores_BM.narrow(1, 1, options_.num_negatives);
  const at::Tensor losses_BN = -at::log(at::sigmoid(rated_B1 - negatives_BN) + kLogFloor);
  return {(negatives_BN.detach().softmax(1) * losses_BN).sum()};  // the weight of a single negative is exactly 1
}

at::Tensor Gpt2recWorkload::encode_all(const std::function<bool()>& goes_on) const {
  const torch::NoGradGuard no_grad;
  std::vector<int64_t> numbers(static_cast<size_t>(texts_.size()));
  std::iota(numbers.begin(), numbers.end(), int64_t{0});
  const at::Tensor vectors_TW =
      at::empty({texts_.size(), encoder_->width()}, at::TensorOptions(at::kFloat).device(device_));
  for (const std::vector<int64_t>& group : texts_.groups(numbers)) {
    if (!goes_on()) return {};
    const NamedTensors tensors = texts_.tensors(group, "", false);
    const at::Tensor encoded_NW = encoder_->encode(tensors[0].tensor.to(device_), tensors[1].tensor.to(device_));
    vectors_TW.index_copy_(0, tensors[2].tensor.to(device_), encoded_NW);
  }
  return vectors_TW;
}

at::Tensor Gpt2recWorkload::film_terms(const at::Tensor& texts_TW) const {
  const std::span<const int32_t> trained = data_.train_items();
  const at::Tensor known_K = at::empty({std::ssize(trained)}, at::kLong);
  std::copy(trained.begin(), trained.end(), known_K.mutable_data_ptr<int64_t>());
  return model_.item_term(model_.all_items(known_K.to(device_), {.vectors_TW = texts_TW, .rows_B = film_texts_I_}));
}

Result<std::vector<MetricSum>> Gpt2recWorkload::evaluate(const EvaluationShard& shard) {
  const torch::NoGradGuard no_grad;
  const at::Tensor texts_TW = cached_TW_.defined() ? cached_TW_ : encode_all(shard.goes_on);
  if (!texts_TW.defined()) return std::vector<MetricSum>();  // stopped
  const auto ids = [&](int64_t count) { return at::arange(count, at::TensorOptions(at::kLong).device(device_)); };
  const at::Tensor user_terms_UH =
      model_.user_term(model_.users(ids(data_.num_users()), {.vectors_TW = texts_TW, .rows_B = user_texts_U_}));
  return evaluate_rankings(model_, data_, user_terms_UH, film_terms(texts_TW), options_.valid_seen, shard);
}

EvaluationMetrics Gpt2recWorkload::figures(const std::vector<MetricSum>& totals) const {
  std::vector<MetricSum> counted;  // without those of no user, as test_* with a test share of 0
  std::copy_if(totals.begin(), totals.end(), std::back_inserter(counted),
               [](const MetricSum& total) { return total.count > 0.0; });
  return Workload::figures(counted);
}

std::vector<std::string> Gpt2recWorkload::evaluation_lines(const EvaluationReport& report) {
  const auto figure = [&](const char* name) { return metric_value(report.metrics, name); };
  std::array<char, 200> valid{};
  std::snprintf(valid.data(), valid.size(), "Epoch %lld: valid (NDCG@10: %.4f, HR@10: %.4f)",
                static_cast<long long>(report.epoch), figure("valid_ndcg@10"), figure("valid_hr@10"));
  if (!has_metric(report.metrics, kTestFigure)) return {valid.data()};
  std::array<char, 200> test{};
  std::snprintf(test.data(), test.size(), ", test (Recall@10: %.4f, Precision@10: %.4f, NDCG@10: %.4f)",
                figure("test_recall@10"), figure("test_precision@10"), figure(kTestFigure));
  return {std::string(valid.data()) + test.data()};
}

std::vector<std::string> Gpt2recWorkload::outputs(const EvaluationReport& report) {
  const double value = metric_value(report.metrics, kBestFigure);
  if (!(value > best_)) return {};
  best_ = value;
  std::vector<std::string> files;
  if (has_metric(report.metrics, kTestFigure)) files.push_back(kResultsFile);
  if (options_.save_model) files.push_back(options_.model_path);
  if (options_.save_model && trains_adapters(phases_)) {
    files.push_back(join_path(kPeftFolder, kPeftConfigFile));
    files.push_back(join_path(kPeftFolder, kPeftWeightsFile));
  }
  return files;
}

OutputContent Gpt2recWorkload::output(const std::string& name, const OutputState& state) const {
  if (name == kResultsFile) {
    Json results = {{"epoch", state.epoch}, {"step", state.step}};
    for (const auto& [figure, value] : state.metrics) {
      constexpr std::string_view kTest = "test_";
      if (figure.starts_with(kTest)) results[figure.substr(kTest.size())] = value;
    }
    return results.dump(2) + "\n";
  }
  if (name == options_.model_path) return guide_state_dict(model_, *encoder_, seed_);
  Result<PeftFiles> peft = peft_files(encoder_->adapters(), encoder_->options().lora, options_.gpt2_path);
  LOCKSTEP_CHECK(peft.ok(), "adapters are of a type that safetensors holds");
  return name == join_path(kPeftFolder, kPeftConfigFile) ? peft->config : peft->weights;
}

Json Gpt2recWorkload::progress_state() const { return Json{{"best", best_}}; }

Status Gpt2recWorkload::restore_progress(const Json& state) {
  const auto field = state.find("best");
  if (field == state.end() || !field->is_number()) {
    return Error{ErrorCode::kCorrupt,
                 "workload progress: field best is missing or no number; the checkpoint is damaged"};
  }
  best_ = field->get<double>();
  return {};
}

WorkloadOrFailure make_gpt2rec(FileSystem& fs, const RunConfig& config, at::Device device,
                               const OnDataProgress& on_progress) {
  const Gpt2recOptions& options = options_of<Gpt2recOptions>(config);
  constexpr size_t kNamesShown = 3;
  Result<RatingData> ratings = load_rating_data(
      fs, options.data_path, [&] { on_progress(0, 0); }, config.training.verbose ? SIZE_MAX : kNamesShown);
  if (!ratings.ok()) return data_failure(ratings.error().message);
  on_progress(0, 0);
  Result<std::unique_ptr<TextEncoder>> encoder = TextEncoder::make(fs, text_encoder_options(options), device);
  if (!encoder.ok()) return data_failure(encoder.error().message);
  on_progress(0, 0);
  return workload_or_failure(Gpt2recWorkload::create(config, *ratings, std::move(encoder).value(), device));
}

}  // namespace lockstep
