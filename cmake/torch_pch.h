// What the rooms with torch include of it, precompiled once (cmake/LibTorch.cmake). Tensors, factories, autograd
// functions: two thirds of the time and size of <torch/torch.h>, whose modules and optimizers we do not use. The rooms
// name what they use all the same: `make lint ALL=1` reads them without this.
#pragma once

#include <torch/csrc/autograd/custom_function.h>
#include <torch/cuda.h>
#include <torch/types.h>
