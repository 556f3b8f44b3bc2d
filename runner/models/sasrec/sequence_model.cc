#include "runner/models/sasrec/sequence_model.h"

#include <optional>

#include "runner/models/sasrec/sasrec_model.h"
#include "runner/models/sasrec/tisasrec_model.h"

namespace lockstep {

std::unique_ptr<SequenceModel> make_sequence_model(const SasrecOptions& options, int64_t num_items, at::Device device) {
  if (options.variant == SequenceVariant::kSasrec) {
    return std::make_unique<SasrecModel>(SasrecShape{.num_items = num_items,
                                                     .maxlen = options.maxlen,
                                                     .hidden_units = options.hidden_units,
                                                     .num_blocks = options.num_blocks,
                                                     .num_heads = options.num_heads,
                                                     .dropout_rate = options.dropout_rate,
                                                     .form = options.form()},
                                         device);
  }
  const TisasrecOptions& t = options.tisasrec;
  TisasrecShape shape{.num_items = num_items,
                      .maxlen = options.maxlen,
                      .hidden_units = options.hidden_units,
                      .num_blocks = options.num_blocks,
                      .num_heads = options.num_heads,
                      .dropout_rate = options.dropout_rate,
                      .time_span = std::nullopt,
                      .time_dropout = t.time_dropout,
                      .hyper_connections = std::nullopt};
  if (!t.no_time) shape.time_span = t.time_span;
  if (!t.no_mhc) {
    shape.hyper_connections = HyperConnectionOptions{.copies = t.mhc_expansion_rate,
                                                     .initial_gate = t.mhc_init_gate,
                                                     .sinkhorn_iterations = t.mhc_sinkhorn_iter,
                                                     .full_precision = t.mhc_no_amp};
  }
  return std::make_unique<TisasrecModel>(shape, device);
}

}  // namespace lockstep
