#include "runner/models/sasrec/sequence_model.h"

#include "runner/models/sasrec/sasrec_model.h"
#include "runner/models/sasrec/tisasrec_model.h"

namespace lockstep {

std::unique_ptr<SequenceModel> make_sequence_model(const SasrecOptions& options, int64_t num_items, at::Device device) {
  if (options.variant == SequenceVariant::kSasrec) {
    return std::make_unique<SasrecModel>(options, num_items, device);
  }
  return std::make_unique<TisasrecModel>(options, num_items, device);
}

}  // namespace lockstep
