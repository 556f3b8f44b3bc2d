#include "runner/models/sasrec/tisasrec_model.h"

#include <torch/types.h>

#include <cmath>
#include <string>
#include <tuple>
#include <utility>

#include "runner/models/sasrec/time_attention.h"

namespace lockstep {
namespace {

constexpr const char* kTimeKeys = "time_matrix_K_emb.weight";
constexpr const char* kTimeValues = "time_matrix_V_emb.weight";

}  // namespace

std::string cut_time_table(NamedTensors& file, int64_t time_span) {
  const auto find = [&](const char* name) -> at::Tensor* {
    for (NamedTensor& entry : file) {
      if (entry.name == name && entry.tensor.dim() == 2) return &entry.tensor;
    }
    return nullptr;
  };
  at::Tensor* const keys = find(kTimeKeys);
  at::Tensor* const values = find(kTimeValues);
  if (keys == nullptr || values == nullptr) return {};
  const int64_t rows = time_span + 1;
  for (const auto& [table, other, name] :
       {std::tuple(keys, values, kTimeKeys), std::tuple(values, keys, kTimeValues)}) {
    const int64_t found = table->size(0);
    if (found <= rows || other->size(0) != rows) continue;
    *table = table->narrow(0, 0, rows).contiguous();
    return std::string(name) + ": the first " + std::to_string(rows) + " of " + std::to_string(found) + " rows";
  }
  return {};
}

TisasrecModel::TisasrecModel(const SasrecOptions& options, int64_t num_items, at::Device device)
    : SequenceModel(options, num_items, device) {
  const TisasrecOptions& tisasrec = options.tisasrec;
  const int64_t d = options.hidden_units;
  abs_pos_K_emb_ = trained({options.maxlen, d}, device);
  abs_pos_V_emb_ = trained({options.maxlen, d}, device);
  if (!tisasrec.no_time) {
    time_matrix_K_emb_ = trained({tisasrec.time_span + 1, d}, device);
    time_matrix_V_emb_ = trained({tisasrec.time_span + 1, d}, device);
  }
  const HyperConnectionOptions connection{.copies = tisasrec.mhc_expansion_rate,
                                          .sinkhorn_iterations = tisasrec.mhc_sinkhorn_iter,
                                          .full_precision = tisasrec.mhc_no_amp};
  const auto linear = [&] { return trained_linear(d, d, device); };
  for (int64_t i = 0; i < options.num_blocks; ++i) {
    Block block{.attention_norm = make_norm(d, device),
                .query = linear(),
                .key = linear(),
                .value = linear(),
                .attention_connection = std::nullopt,
                .forward_norm = make_norm(d, device),
                .forward = make_feed_forward(d, device),
                .forward_connection = std::nullopt};
    if (!tisasrec.no_mhc) {
      block.attention_connection.emplace(connection, d, device);
      block.forward_connection.emplace(connection, d, device);
    }
    blocks_.push_back(std::move(block));
  }
  add("item_emb.weight", item_emb_);
  add("abs_pos_K_emb.weight", abs_pos_K_emb_);
  add("abs_pos_V_emb.weight", abs_pos_V_emb_);
  if (!tisasrec.no_time) {
    add(kTimeKeys, time_matrix_K_emb_);
    add(kTimeValues, time_matrix_V_emb_);
  }
  add_blocks(blocks_, [this](const std::string& name, const Block& block) {
    for (const auto& [layer, weights] :
         {std::pair("Q_w", &block.query), std::pair("K_w", &block.key), std::pair("V_w", &block.value)}) {
      add_linear(parameters_, name + "." + layer, *weights);
    }
  });
  add_list("connections", blocks_, [this](const std::string& name, const Block& block) {
    if (block.attention_connection) block.attention_connection->add_parameters(parameters_, name + ".attention");
    if (block.forward_connection) block.forward_connection->add_parameters(parameters_, name + ".forward");
  });
  add_layer_norm(parameters_, "last_layernorm", last_norm_);
}

at::Tensor TisasrecModel::initial_value(const std::string& name, at::IntArrayRef sizes,
                                        const InitialValues& values) const {
  if (sizes.size() >= 2) return values.xavier_uniform(sizes);
  if (name.find("layernorm") != std::string::npos) {
    return name.ends_with(".weight") ? at::ones(sizes) : at::zeros(sizes);
  }
  if (name.find(".alpha_") != std::string::npos) return at::full(sizes, options_.tisasrec.mhc_init_gate);
  if (name.find(".bias_") != std::string::npos) return at::zeros(sizes);
  return values.uniform(sizes, 1.0 / std::sqrt(static_cast<double>(options_.hidden_units)));
}

at::Tensor TisasrecModel::embedding_penalty() const {
  at::Tensor penalty = item_emb_.norm() + abs_pos_K_emb_.norm() + abs_pos_V_emb_.norm();
  if (!options_.tisasrec.no_time) penalty = penalty + time_matrix_K_emb_.norm() + time_matrix_V_emb_.norm();
  return penalty;
}

TisasrecModel::Tables TisasrecModel::drop_out_tables(const at::Tensor& times_BT, int64_t samples,
                                                     Dropouts& dropouts) const {
  const auto of_samples = [&](const at::Tensor& table_TD) {
    return dropouts(table_TD.unsqueeze(0).expand({samples, -1, -1}));
  };
  Tables tables{.abs_K = of_samples(abs_pos_K_emb_), .abs_V = of_samples(abs_pos_V_emb_)};
  if (options_.tisasrec.no_time) return tables;
  tables.relations_BTT = time_relations(times_BT, options_.tisasrec.time_span);
  const auto of_times = [&](const at::Tensor& table_RD) {
    if (options_.tisasrec.time_dropout == TimeDropout::kTable) return dropouts.of_table(table_RD);
    return dropouts(at::embedding(table_RD, tables.relations_BTT));
  };
  tables.time_K = of_times(time_matrix_K_emb_);
  tables.time_V = of_times(time_matrix_V_emb_);
  return tables;
}

at::Tensor TisasrecModel::encode_embedded(const at::Tensor& items_BT, const at::Tensor& items_BTD,
                                          const at::Tensor& times_BT, Dropouts& dropouts) const {
  const at::Tensor used_BT1 = items_BT.ne(kPadding).unsqueeze(-1).to(items_BTD.scalar_type());
  at::Tensor x_BTD = dropouts(items_BTD * std::sqrt(static_cast<double>(options_.hidden_units))) * used_BT1;
  const Tables tables = drop_out_tables(times_BT, items_BT.size(0), dropouts);
  for (const Block& block : blocks_) {
    const at::Tensor query_BTD = block.attention_norm(x_BTD);
    x_BTD = residual(block.attention_connection, query_BTD, attend(block, query_BTD, x_BTD, tables, dropouts));
    x_BTD = block.forward_norm(x_BTD);
    x_BTD = residual(block.forward_connection, x_BTD, feed_forward(block.forward, x_BTD, dropouts)) * used_BT1;
  }
  return last_norm_(x_BTD);
}

// Causal attention without a mask for padded keys: positions also attend to the padding on the left. The outputs of
// padded queries are set to zero at the end of the block.
at::Tensor TisasrecModel::attend(const Block& block, const at::Tensor& query_BTD, const at::Tensor& memory_BTD,
                                 const Tables& tables, Dropouts& dropouts) const {
  const int64_t b = query_BTD.size(0);
  const int64_t t = options_.maxlen;
  const int64_t d = options_.hidden_units;
  const int64_t h = options_.num_heads;
  const auto split_heads = [&](const at::Tensor& x_BTD) { return x_BTD.view({b, t, h, d / h}).transpose(1, 2); };
  const bool pairwise = options_.tisasrec.time_dropout == TimeDropout::kPairwise;

  const at::Tensor query_BHTE = split_heads(block.query(query_BTD));
  const at::Tensor key_BHTE = split_heads(block.key(memory_BTD) + tables.abs_K);
  const at::Tensor value_BHTE = split_heads(block.value(memory_BTD) + tables.abs_V);
  at::Tensor scores_BHTT = at::matmul(query_BHTE, key_BHTE.transpose(2, 3));
  if (!options_.tisasrec.no_time) {
    scores_BHTT = scores_BHTT + (pairwise ? pairwise_time_scores(query_BHTE, tables.time_K)
                                          : bucketed_time_scores(query_BHTE, tables.time_K, tables.relations_BTT));
  }
  const double scale = 1.0 / std::sqrt(static_cast<double>(d / h));
  const at::Tensor attention_BHTT = dropouts(at::softmax(scores_BHTT * scale + causal_mask_TT_, -1));
  at::Tensor out_BHTE = at::matmul(attention_BHTT, value_BHTE);
  if (!options_.tisasrec.no_time) {
    out_BHTE = out_BHTE + (pairwise ? pairwise_time_values(attention_BHTT, tables.time_V)
                                    : bucketed_time_values(attention_BHTT, tables.time_V, tables.relations_BTT));
  }
  return out_BHTE.transpose(1, 2).reshape({b, t, d});
}

}  // namespace lockstep
