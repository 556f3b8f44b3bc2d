#include "runner/models/protein/design/mpnn_sampling.h"

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "runner/base/check.h"

namespace lockstep {
namespace {

// One decoder layer during sampling. Shapes: D = hidden_dim, K neighbours, P = B · L places of all backbones.
struct GrowingLayer {
  const MpnnDecoderLayer* layer;
  // The parts of the messages' first layer, which are added up:
  at::Tensor edges_PKD;       // from each edge, including the bias
  at::Tensor amino_acids_AD;  // from each possible amino acid of a neighbour
  // From a neighbour, with rows [N, 2, L]. Rows [n, 0] hold sequence n's places that are already decoded (0 before),
  // rows [n, 1] all its places as the encoder returned them.
  at::Tensor table_RD;
};

// Limits ATen and MKL to one thread while the object exists.
class OneThread {
 public:
  OneThread() : before_(at::get_num_threads()) { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

class Decoder {
 public:
  Decoder(const MpnnModel& model, const MpnnEncoding& encoding, const at::Tensor& order_NL)
      : model_(model), nodes_PD_(encoding.nodes_BLD.flatten(0, 1)), mask_P_(encoding.mask_BL.flatten()) {
    const int64_t backbones = encoding.mask_BL.size(0);
    const int64_t sequences = order_NL.size(0);
    const int64_t length = order_NL.size(1);
    const int64_t n = sequences / backbones;
    const int64_t k = encoding.graph.neighbours_BLK.size(2);
    const at::Tensor present_PK = encoding.graph.present_BLK.flatten(0, 1);
    if (!present_PK.all().item<bool>()) present_PK_ = present_PK.to(at::kFloat);
    const at::Tensor neighbours_NLK = per_sequence(encoding.graph.neighbours_BLK, n);
    const at::Tensor ranks_NL = at::argsort(order_NL, /*dim=*/int64_t{1}, /*descending=*/false);
    const at::Tensor is_before_NLK =
        ranks_NL.gather(1, neighbours_NLK.flatten(1)).view({sequences, length, k}).lt(ranks_NL.unsqueeze(2));
    const at::Tensor first_rows_N = at::arange(sequences, order_NL.options()).mul_(2 * length);
    const at::Tensor rows_NLK =
        at::where(is_before_NLK, neighbours_NLK, neighbours_NLK + length) + first_rows_N.view({sequences, 1, 1});
    // Sorted by step, so that each step's rows are contiguous.
    rows_LNK_ = rows_NLK.gather(1, order_NL.unsqueeze(2).expand({sequences, length, k})).transpose(0, 1).contiguous();
    own_rows_LN_ = (order_NL + first_rows_N.unsqueeze(1)).t().contiguous();
    const at::Tensor first_places_B = at::arange(backbones, order_NL.options()).mul_(length);
    places_LN_ = (order_NL + per_sequence(first_places_B, n).unsqueeze(1)).t().contiguous();
    for (const MpnnDecoderLayer& layer : model.decoder_layers()) {
      const MpnnMessage& message = layer.to_nodes;
      const at::Tensor encoded_BLD = at::linear(encoding.nodes_BLD, message_columns(message, 3));
      at::Tensor table_N2LD = at::zeros({sequences, 2, length, encoded_BLD.size(2)}, encoded_BLD.options());
      table_N2LD.select(1, 1).copy_(per_sequence(encoded_BLD, n));
      layers_.push_back(
          {.layer = &layer,
           .edges_PKD = at::linear(encoding.edges_BLKD.flatten(0, 1), message_columns(message, 1), message.first.bias),
           .amino_acids_AD = at::linear(model.amino_acid_table(), message_columns(message, 2)),
           .table_RD = table_N2LD.flatten(0, 2)});
    }
  }

  // For each sequence, which of the P places is decoded in step `step`.
  [[nodiscard]] at::Tensor places_at(int64_t step) const { return places_LN_[step]; }

  // The logits at these places: [N, A].
  [[nodiscard]] at::Tensor logits_at(int64_t step) const {
    const at::Tensor places_N = places_LN_[step];
    const at::Tensor own_rows_N = own_rows_LN_[step];
    const at::Tensor rows_NK = rows_LNK_[step];
    const int64_t n = rows_NK.size(0);
    const int64_t k = rows_NK.size(1);
    const int64_t d = nodes_PD_.size(1);
    const at::Tensor mask_N1 = mask_P_.index_select(0, places_N).unsqueeze(1);
    at::Tensor node_ND = nodes_PD_.index_select(0, places_N);
    for (const GrowingLayer& growing : layers_) {
      const MpnnMessage& message = growing.layer->to_nodes;
      at::Tensor inner_NKD = growing.edges_PKD.index_select(0, places_N);
      inner_NKD.add_(growing.table_RD.index_select(0, rows_NK.flatten()).view({n, k, d}));
      inner_NKD.add_(at::linear(node_ND, message_columns(message, 0)).unsqueeze(1));
      at::gelu_(inner_NKD);
      at::Tensor second_NKD =
          at::addmm(message.second.bias, inner_NKD.view({-1, d}), message.second.weight.t()).view({n, k, d});
      at::gelu_(second_NKD);
      growing.table_RD.index_copy_(0, own_rows_N, at::linear(node_ND, message_columns(message, 3)));
      node_ND = updated(*growing.layer, node_ND, sum_over_neighbours(message, second_NKD, places_N)).mul_(mask_N1);
    }
    return at::linear(node_ND, model_.output().weight, model_.output().bias);
  }

  // Makes the amino acids that were chosen in step `step` visible to later steps.
  void show(int64_t step, const at::Tensor& amino_acids_N) const {
    const at::Tensor own_rows_N = own_rows_LN_[step];
    for (const GrowingLayer& growing : layers_) {
      growing.table_RD.index_add_(0, own_rows_N, growing.amino_acids_AD.index_select(0, amino_acids_N));
    }
  }

 private:
  [[nodiscard]] at::Tensor sum_over_neighbours(const MpnnMessage& message, const at::Tensor& inner_NKD,
                                               const at::Tensor& places_N) const {
    if (!present_PK_.defined()) {
      const auto k = static_cast<double>(inner_NKD.size(1));
      return at::addmm(message.third.bias, inner_NKD.sum(1), message.third.weight.t(), k / kMpnnMessageScale,
                       1.0 / kMpnnMessageScale);
    }
    const at::Tensor weights_NK1 = present_PK_.index_select(0, places_N).unsqueeze(2);
    const at::Tensor sum_ND = (inner_NKD * weights_NK1).sum(1);
    return (at::linear(sum_ND, message.third.weight) + weights_NK1.sum(1) * message.third.bias) / kMpnnMessageScale;
  }

  [[nodiscard]] static at::Tensor updated(const MpnnDecoderLayer& layer, const at::Tensor& node_ND,
                                          const at::Tensor& message_ND) {
    const at::Tensor normed_ND = layer.norm1(node_ND + message_ND);
    at::Tensor dense_ND = layer.dense_in(normed_ND);
    at::gelu_(dense_ND);
    return layer.norm2(normed_ND + layer.dense_out(dense_ND));
  }

  const MpnnModel& model_;
  at::Tensor nodes_PD_;
  at::Tensor mask_P_;
  at::Tensor present_PK_;  // undefined: all neighbours are present
  // For each step:
  at::Tensor places_LN_;    // the place that is decoded, of the P
  at::Tensor own_rows_LN_;  // that place's row in the layers' tables
  at::Tensor rows_LNK_;     // its neighbours' rows in the layers' tables
  std::vector<GrowingLayer> layers_;
};

// The first amino acid at which the cumulative probability exceeds the uniform number.
at::Tensor draw(const at::Tensor& logits_NA, const at::Tensor& uniforms_N) {
  const at::Tensor cumulative_NA = at::softmax(logits_NA, -1, at::kFloat).to(at::kDouble).cumsum(-1);
  const at::Tensor threshold_N1 = uniforms_N.unsqueeze(1) * cumulative_NA.narrow(1, kNumAminoAcids - 1, 1);
  return cumulative_NA.le(threshold_N1).sum(1).clamp_max(kNumAminoAcids - 1);
}

}  // namespace

at::Tensor order_with_ties(const at::Tensor& order_NL, const std::vector<std::vector<int64_t>>& tied) {
  if (tied.empty()) return order_NL;
  std::unordered_map<int64_t, const std::vector<int64_t>*> group_of;
  for (const auto& group : tied) {
    for (const int64_t place : group) group_of[place] = &group;
  }
  const at::Tensor order = order_NL.to(at::kCPU).contiguous();
  at::Tensor out = at::empty_like(order);
  const int64_t length = order.size(1);
  for (int64_t n = 0; n < order.size(0); ++n) {
    const int64_t* const in = order.const_data_ptr<int64_t>() + n * length;
    int64_t* next = out.mutable_data_ptr<int64_t>() + n * length;
    std::vector<bool> is_done(static_cast<size_t>(length));
    for (int64_t i = 0; i < length; ++i) {
      if (is_done[static_cast<size_t>(in[i])]) continue;
      const auto found = group_of.find(in[i]);
      const std::vector<int64_t> places = found == group_of.end() ? std::vector<int64_t>{in[i]} : *found->second;
      for (const int64_t place : places) {
        *next++ = place;
        is_done[static_cast<size_t>(place)] = true;
      }
    }
  }
  return out.to(order_NL.device());
}

at::Tensor design(const MpnnModel& model, const MpnnEncoding& encoding, const at::Tensor& S_BL,
                  const DesignOptions& options, const at::Tensor& order_NL, const at::Tensor& uniforms_NL) {
  const at::NoGradGuard no_grad;
  const int64_t backbones = S_BL.size(0);
  LOCKSTEP_CHECK(encoding.mask_BL.size(0) == backbones && order_NL.size(0) % backbones == 0,
                 "each backbone has equally many sequences");
  LOCKSTEP_CHECK(options.tied.empty() || (backbones == 1 && order_NL.eq(order_NL[0]).all().item<bool>()),
                 "tied places need a single backbone and the same order for all sequences");
  const int64_t n = order_NL.size(0) / backbones;
  const int64_t length = order_NL.size(1);
  std::unordered_map<int64_t, size_t> group_of;
  for (size_t g = 0; g < options.tied.size(); ++g) {
    for (const int64_t place : options.tied[g]) group_of[place] = g;
  }
  at::Tensor bias_BLA = at::zeros({backbones, length, kNumAminoAcids}, encoding.nodes_BLD.options());
  if (options.bias_BLA.defined()) bias_BLA.add_(options.bias_BLA);
  bias_BLA.div_(options.temperature);
  if (options.omitted_BLA.defined()) {
    bias_BLA.masked_fill_(options.omitted_BLA, -std::numeric_limits<double>::infinity());
  }
  const at::Tensor bias_PA = bias_BLA.flatten(0, 1);
  const auto by_step = [&](const at::Tensor& values_NL) { return values_NL.gather(1, order_NL).t().contiguous(); };
  const at::Tensor own_LN = by_step(per_sequence(S_BL, n));
  const at::Tensor keeps_LN = by_step(per_sequence(options.designed_BL.le(0), n));
  const at::Tensor uniforms_LN = by_step(uniforms_NL);
  // Each place needs only a few small products, for which starting and joining threads would take longer than the work.
  const OneThread one_thread;
  const Decoder decoder(model, encoding, order_NL);
  std::vector<at::Tensor> chosen;  // per step: amino_acids_N

  for (int64_t step = 0; step < length;) {
    size_t together = 1;
    const std::vector<int64_t>* group = nullptr;
    if (!group_of.empty()) {
      const auto found = group_of.find(order_NL[0][step].item<int64_t>());
      if (found != group_of.end()) group = &options.tied[found->second];
      if (group != nullptr) together = group->size();
    }
    at::Tensor logits_NA;
    for (size_t i = 0; i < together; ++i) {
      at::Tensor part_NA = decoder.logits_at(step + static_cast<int64_t>(i));
      if (group != nullptr) {
        part_NA = part_NA / static_cast<double>(together);
        if (options.tied_weights_L.defined()) part_NA = part_NA * options.tied_weights_L[(*group)[i]];
      }
      logits_NA = i == 0 ? part_NA : logits_NA + part_NA;
    }
    const int64_t last = step + static_cast<int64_t>(together) - 1;
    const at::Tensor drawn_N =
        draw(logits_NA / options.temperature + bias_PA.index_select(0, decoder.places_at(last)), uniforms_LN[last]);
    const at::Tensor chosen_N = at::where(keeps_LN[last], own_LN[last], drawn_N);
    for (; step <= last; ++step) {
      decoder.show(step, chosen_N);
      chosen.push_back(chosen_N);
    }
  }
  return at::empty_like(order_NL).scatter_(1, order_NL, at::stack(chosen, 1));
}

at::Tensor mean_negative_log_prob(const at::Tensor& log_probs_NLA, const at::Tensor& S_NL,
                                  const at::Tensor& weights_NL) {
  const at::Tensor loss_NL = log_probs_NLA.gather(2, S_NL.unsqueeze(2)).squeeze(2).neg().to(at::kDouble);
  return (loss_NL * weights_NL).sum(1) / weights_NL.to(at::kDouble).sum(1);
}

}  // namespace lockstep
