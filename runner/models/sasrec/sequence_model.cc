#include "runner/models/sasrec/sequence_model.h"

#include <torch/types.h>

#include <limits>

#include "runner/base/check.h"
#include "runner/models/sasrec/sasrec_model.h"
#include "runner/models/sasrec/tisasrec_model.h"

namespace lockstep {

SequenceModel::SequenceModel(const SasrecOptions& options, int64_t num_items, at::Device device)
    : options_(options),
      item_emb_(trained({num_items + 1, options.hidden_units}, device)),
      last_norm_(make_norm(options.hidden_units, device)),
      causal_mask_TT_(at::full({options.maxlen, options.maxlen}, -std::numeric_limits<double>::infinity(),
                               at::TensorOptions(at::kFloat).device(device))
                          .triu(1)) {
  LOCKSTEP_CHECK(options.hidden_units % options.num_heads == 0, "num_heads must divide hidden_units");
}

void SequenceModel::initialize(uint64_t seed) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto& [name, tensor] = parameters_[i];
    tensor.copy_(initial_value(name, tensor.sizes(), InitialValues(seed, i)));
  }
  item_emb_[kPadding].zero_();
}

at::Tensor SequenceModel::encode(const at::Tensor& items_BT, const at::Tensor& times_BT) const {
  Dropouts off;
  return encode_embedded(items_BT, at::embedding(item_emb_, items_BT, kPadding), times_BT, off);
}

at::Tensor SequenceModel::train_logits(const at::Tensor& ids_3BT, const at::Tensor& times_BT,
                                       const DropoutKey& key) const {
  Dropouts dropouts(options_.dropout_rate, key);
  return pair_logits(item_emb_, ids_3BT, [&](const at::Tensor& items_BTD) {
    return encode_embedded(ids_3BT[0], items_BTD, times_BT, dropouts);
  });
}

std::unique_ptr<SequenceModel> make_sequence_model(const SasrecOptions& options, int64_t num_items, at::Device device) {
  if (options.variant == SequenceVariant::kSasrec) {
    return std::make_unique<SasrecModel>(options, num_items, device);
  }
  return std::make_unique<TisasrecModel>(options, num_items, device);
}

}  // namespace lockstep
