#include "runner/layers/dropouts.h"

#include <ATen/ATen.h>

#include "runner/base/check.h"

namespace lockstep {

at::Tensor Dropouts::operator()(const at::Tensor& x) {
  if (!key_) return x;
  const at::Tensor out = rows_ ? philox_dropout(x, rate_, *key_, *rows_) : philox_dropout(x, rate_, *key_);
  ++key_->layer;
  return out;
}

at::Tensor Dropouts::of_relu(const at::Tensor& x) {
  if (!key_) return at::relu(x);
  LOCKSTEP_CHECK(!rows_, "its mask goes by samples, not by DropoutRows");
  const at::Tensor out = philox_dropout_of_relu(x, rate_, *key_);
  ++key_->layer;
  return out;
}

at::Tensor Dropouts::of_table(const at::Tensor& x) {
  if (!key_) return x;
  DropoutKey first_sample = *key_;
  first_sample.first_slot = 0;
  const at::Tensor out = philox_dropout(x.unsqueeze(0), rate_, first_sample).squeeze(0);
  ++key_->layer;
  return out;
}

}  // namespace lockstep
