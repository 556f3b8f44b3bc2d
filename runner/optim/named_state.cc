#include "runner/optim/named_state.h"

#include <torch/types.h>

#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace lockstep {

namespace {

std::string describe(const at::Tensor& tensor) {
  std::ostringstream out;
  out << tensor.scalar_type() << tensor.sizes();
  return out.str();
}

}  // namespace

Status copy_named(const NamedTensors& source, const NamedTensors& target, std::string_view what) {
  const std::string context = std::string(what) + ": ";
  std::map<std::string_view, at::Tensor> by_name;
  for (const NamedTensor& entry : source)
    if (!by_name.emplace(entry.name, entry.tensor).second)
      return Error{ErrorCode::kInvalid, context + "tensor '" + entry.name + "' is there twice"};

  std::vector<at::Tensor> sources;
  for (const NamedTensor& wanted : target) {
    const auto found = by_name.find(wanted.name);
    if (found == by_name.end())
      return Error{ErrorCode::kInvalid,
                   context + "tensor '" + wanted.name + "' is missing; the state is of another model"};
    const at::Tensor& tensor = found->second;
    if (tensor.sizes() != wanted.tensor.sizes() || tensor.scalar_type() != wanted.tensor.scalar_type())
      return Error{ErrorCode::kInvalid, context + "tensor '" + wanted.name + "' is " + describe(tensor) +
                                            ", expected " + describe(wanted.tensor)};
    sources.push_back(tensor);
    by_name.erase(found);
  }
  if (!by_name.empty())
    return Error{ErrorCode::kInvalid, context + "tensor '" + std::string(by_name.begin()->first) +
                                          "' is unknown; the state is of another model"};

  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < target.size(); ++i) {
    at::Tensor destination = target[i].tensor;
    destination.copy_(sources[i]);
  }
  return {};
}

}  // namespace lockstep
