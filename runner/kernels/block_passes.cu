// CUDA implementations of the passes over a block's tokens. Sums over tokens are taken by runs of tokens and then added
// in the order of the runs, without atomics, so that they are the same each time. Lengths of runs and numbers of
// unrolled iterations were chosen by measurements on an H200 with rows of 768 values.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "runner/kernels/block_passes.h"
#include "runner/kernels/column_sums.h"
#include "runner/kernels/quads.cuh"

namespace lockstep::block_passes_detail {
namespace {

constexpr int kWarp = 32;
constexpr int kWarpsOfBlock = 4;
constexpr int kThreadsMax = 256;
constexpr int kTokensOfRun = 24;           // of one sample, for the sums of a norm's gradients
constexpr int kTokensOfHeadRun = 8;        // of any samples, for those of the heads' norms
constexpr int kHeadBlocksOfProcessor = 6;  // at least, so that enough loads are under way
constexpr int kTokensOfSwigluRun = 128;
constexpr int kTokensAtOnce = 8;

// Sums x over each group of kLanes adjacent lanes; every lane gets the result.
template <int kLanes>
__device__ float sum_over_lanes(float x) {
  for (int step = kLanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffU, x, step);
  return x;
}

__device__ float inverse_rms(float squares, int64_t width) {
  return rsqrtf(squares / static_cast<float>(width) + kNormEps);
}

// ---- the norm of x, or of x + gate · change ----

template <typename T>
struct Norm {
  int64_t tokens;  // of a sample
  int64_t width;
  const float* x;  // in the backward pass: the sum
  const T* change;
  const float* weight;
  const T* gate;  // of the first sample
  const T* scale;
  int64_t gate_stride;  // between samples
  int64_t scale_stride;
};

template <typename T>
__device__ float4 factor_of(const Norm<T>& norm, int64_t sample, int64_t quad) {
  const float4 scale = load_quad(norm.scale + sample * norm.scale_stride, quad);
  return load_quad(norm.weight, quad) * (scale + float4{1.0F, 1.0F, 1.0F, 1.0F});
}

// One warp per token, which keeps the values to be normed in shared memory.
template <typename T, bool kHasChange>
__global__ void norm_forward_kernel(Norm<T> norm, int64_t all_tokens, const T* __restrict__ shift, int64_t shift_stride,
                                    float* __restrict__ sum, T* __restrict__ out) {
  extern __shared__ float4 rows[];
  const int64_t token = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (token >= all_tokens) return;
  const int64_t sample = token / norm.tokens;
  const int64_t at = token * norm.width;
  const int64_t quads = norm.width / 4;
  float4* const row = rows + threadIdx.y * quads;
  float squares = 0.0F;
#pragma unroll 2
  for (int64_t quad = threadIdx.x; quad < quads; quad += kWarp) {
    float4 x = load_quad(norm.x + at, quad);
    if constexpr (kHasChange) {
      x = x + load_quad(norm.gate + sample * norm.gate_stride, quad) * load_quad(norm.change + at, quad);
      store_quad(sum + at, quad, x);
    }
    row[quad] = x;
    squares += total(x * x);
  }
  const float inverse = inverse_rms(sum_over_lanes<kWarp>(squares), norm.width);
#pragma unroll 2
  for (int64_t quad = threadIdx.x; quad < quads; quad += kWarp) {
    store_quad(out + at, quad,
               row[quad] * inverse * factor_of(norm, sample, quad) + load_quad(shift + sample * shift_stride, quad));
  }
}

// One block per run of tokens of a sample. First each warp computes what some tokens need of all their values; then
// each thread goes through the run's tokens with its own columns.
template <typename T, bool kHasChange>
__global__ void __launch_bounds__(kThreadsMax)
    norm_backward_kernel(Norm<T> norm, const T* __restrict__ grad, const float* __restrict__ grad_sum,
                         float* __restrict__ grad_x, T* __restrict__ grad_change, float* __restrict__ sums) {
  __shared__ float inverse_of[kTokensOfRun];
  __shared__ float along_of[kTokensOfRun];
  const unsigned runs = blocks_for(norm.tokens, kTokensOfRun);  // of each sample
  const int64_t sample = blockIdx.x / runs;
  const int64_t first = static_cast<int64_t>(blockIdx.x % runs) * kTokensOfRun;
  const int count = static_cast<int>(min(static_cast<int64_t>(kTokensOfRun), norm.tokens - first));
  const int64_t begin = (sample * norm.tokens + first) * norm.width;
  const int64_t quads = norm.width / 4;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int token = static_cast<int>(threadIdx.x) / kWarp; token < count;
       token += static_cast<int>(blockDim.x) / kWarp) {
    const int64_t at = begin + token * norm.width;
    float squares = 0.0F;
    float dot = 0.0F;
#pragma unroll 6
    for (int64_t quad = lane; quad < quads; quad += kWarp) {
      const float4 x = load_quad(norm.x + at, quad);
      squares += total(x * x);
      dot += total(load_quad(grad + at, quad) * factor_of(norm, sample, quad) * x);
    }
    const float inverse = inverse_rms(sum_over_lanes<kWarp>(squares), norm.width);
    dot = sum_over_lanes<kWarp>(dot);
    if (lane == 0) {
      inverse_of[token] = inverse;
      // The normed value does not depend on the length of x, so the gradient has no component along x: subtract it.
      along_of[token] = dot * inverse * inverse / static_cast<float>(norm.width);
    }
  }
  __syncthreads();
  for (int64_t quad = threadIdx.x; quad < quads; quad += blockDim.x) {
    const float4 factor = factor_of(norm, sample, quad);
    float4 gate{};
    if constexpr (kHasChange) gate = load_quad(norm.gate + sample * norm.gate_stride, quad);
    float4 shift_sum{};
    float4 factor_sum{};
    float4 gate_sum{};
#pragma unroll 6
    for (int token = 0; token < count; ++token) {
      const int64_t at = begin + token * norm.width;
      const float4 x = load_quad(norm.x + at, quad);
      const float4 g = load_quad(grad + at, quad);
      float4 input_gradient = (g * factor - x * along_of[token]) * inverse_of[token];
      if (grad_sum != nullptr) input_gradient = input_gradient + load_quad(grad_sum + at, quad);
      store_quad(grad_x + at, quad, input_gradient);
      shift_sum = shift_sum + g;
      factor_sum = factor_sum + g * x * inverse_of[token];
      if constexpr (kHasChange) {
        gate_sum = gate_sum + input_gradient * load_quad(norm.change + at, quad);
        store_quad(grad_change + at, quad, input_gradient * gate);
      }
    }
    // [shift, factor, gate][sample][run][width]
    const int64_t row = blockIdx.x * norm.width;
    const int64_t kind = gridDim.x * norm.width;
    store_quad(sums + row, quad, shift_sum);
    store_quad(sums + kind + row, quad, factor_sum);
    if constexpr (kHasChange) store_quad(sums + 2 * kind + row, quad, gate_sum);
  }
}

// Adds up the runs' sums. One block per sample, one thread per quad. weight_sums: [B, D], still to be added up.
template <typename T>
__global__ void norm_sums_kernel(Norm<T> norm, int64_t runs, const float* __restrict__ sums, T* __restrict__ grad_shift,
                                 T* __restrict__ grad_scale, T* __restrict__ grad_gate,
                                 float* __restrict__ weight_sums) {
  const int64_t sample = blockIdx.x;
  const int64_t kind = gridDim.x * runs * norm.width;
  const int64_t out = sample * norm.width;
  for (int64_t quad = threadIdx.x; quad < norm.width / 4; quad += blockDim.x) {
    float4 shift_sum{};
    float4 factor_sum{};
    float4 gate_sum{};
#pragma unroll 4
    for (int64_t run = 0; run < runs; ++run) {
      const float* const row = sums + (sample * runs + run) * norm.width;
      shift_sum = shift_sum + load_quad(row, quad);
      factor_sum = factor_sum + load_quad(row + kind, quad);
      if (grad_gate != nullptr) gate_sum = gate_sum + load_quad(row + 2 * kind, quad);
    }
    const float4 scale = load_quad(norm.scale + sample * norm.scale_stride, quad);
    store_quad(grad_shift + out, quad, shift_sum);
    store_quad(grad_scale + out, quad, factor_sum * load_quad(norm.weight, quad));
    if (grad_gate != nullptr) store_quad(grad_gate + out, quad, gate_sum);
    store_quad(weight_sums + out, quad, factor_sum * (scale + float4{1.0F, 1.0F, 1.0F, 1.0F}));
  }
}

// ---- SwiGLU ----

__device__ float sigmoid(float x) { return 1.0F / (1.0F + __expf(-x)); }

template <typename T>
struct Swiglu {
  int64_t tokens;
  int64_t width;      // of the result
  const T* x;         // gates, then values
  const float* bias;  // of x, or nullptr
};

// kCount adjacent columns of gates and values, with their bias.
template <typename T, int kCount>
struct GateAndValue {
  float gate[kCount];
  float value[kCount];

  __device__ GateAndValue(const Swiglu<T>& input, const GateAndValue& bias, int64_t token, int64_t column) {
    const T* const row = input.x + token * 2 * input.width + column;
    const auto gates = *reinterpret_cast<const Pack<T, kCount>*>(row);
    const auto values = *reinterpret_cast<const Pack<T, kCount>*>(row + input.width);
    for (int i = 0; i < kCount; ++i) {
      gate[i] = static_cast<float>(gates.values[i]) + bias.gate[i];
      value[i] = static_cast<float>(values.values[i]) + bias.value[i];
    }
  }
  // The bias; zeros if there is none, or to begin a sum.
  __device__ GateAndValue(const float* bias, int64_t width, int64_t column) {
    for (int i = 0; i < kCount; ++i) {
      gate[i] = bias == nullptr ? 0.0F : bias[column + i];
      value[i] = bias == nullptr ? 0.0F : bias[width + column + i];
    }
  }
};

// One block per run of tokens and group of columns; each thread takes every eighth token with its own columns.
template <typename T, int kCount>
__global__ void swiglu_forward_kernel(Swiglu<T> input, T* __restrict__ out) {
  const unsigned groups = blocks_for(input.width, kWarp * kCount);
  const int64_t column = (static_cast<int64_t>(blockIdx.x % groups) * kWarp + threadIdx.x) * kCount;
  if (column >= input.width) return;
  const GateAndValue<T, kCount> bias(input.bias, input.width, column);
  const int64_t begin = static_cast<int64_t>(blockIdx.x / groups) * kTokensOfSwigluRun;
  const int64_t end = min(begin + kTokensOfSwigluRun, input.tokens);
#pragma unroll 4
  for (int64_t token = begin + threadIdx.y; token < end; token += kTokensAtOnce) {
    const GateAndValue<T, kCount> x(input, bias, token, column);
    Pack<T, kCount> result;
    for (int i = 0; i < kCount; ++i) result.values[i] = static_cast<T>(x.gate[i] * sigmoid(x.gate[i]) * x.value[i]);
    *reinterpret_cast<Pack<T, kCount>*>(out + token * input.width + column) = result;
  }
}

// sums: of the gradient of x over each run, [runs, 2 F]; nullptr if there is no bias.
template <typename T, int kCount>
__global__ void swiglu_backward_kernel(Swiglu<T> input, const T* __restrict__ grad, T* __restrict__ grad_x,
                                       float* __restrict__ sums) {
  __shared__ float row_sums[kTokensAtOnce][2 * kCount][kWarp];
  const int lane = static_cast<int>(threadIdx.x);
  const int row = static_cast<int>(threadIdx.y);
  const unsigned groups = blocks_for(input.width, kWarp * kCount);
  const int64_t run = blockIdx.x / groups;
  const int64_t column = (static_cast<int64_t>(blockIdx.x % groups) * kWarp + lane) * kCount;
  const bool is_mine = column < input.width;
  GateAndValue<T, kCount> sum(nullptr, input.width, column);
  if (is_mine) {
    const GateAndValue<T, kCount> bias(input.bias, input.width, column);
    const int64_t begin = run * kTokensOfSwigluRun;
    const int64_t end = min(begin + kTokensOfSwigluRun, input.tokens);
#pragma unroll 4
    for (int64_t token = begin + row; token < end; token += kTokensAtOnce) {
      const GateAndValue<T, kCount> x(input, bias, token, column);
      const auto grad_out = *reinterpret_cast<const Pack<T, kCount>*>(grad + token * input.width + column);
      Pack<T, kCount> grad_gate;
      Pack<T, kCount> grad_value;
      for (int i = 0; i < kCount; ++i) {
        const float s = sigmoid(x.gate[i]);
        const float grad_times_sigmoid = static_cast<float>(grad_out.values[i]) * s;
        const float gate = grad_times_sigmoid * x.value[i] * (1.0F + x.gate[i] * (1.0F - s));
        const float value = grad_times_sigmoid * x.gate[i];
        grad_gate.values[i] = static_cast<T>(gate);
        grad_value.values[i] = static_cast<T>(value);
        sum.gate[i] += gate;
        sum.value[i] += value;
      }
      T* const grad_row = grad_x + token * 2 * input.width + column;
      *reinterpret_cast<Pack<T, kCount>*>(grad_row) = grad_gate;
      *reinterpret_cast<Pack<T, kCount>*>(grad_row + input.width) = grad_value;
    }
  }
  if (sums == nullptr) return;
  for (int i = 0; i < kCount; ++i) {
    row_sums[row][i][lane] = sum.gate[i];
    row_sums[row][kCount + i][lane] = sum.value[i];
  }
  __syncthreads();
  if (row >= 2 * kCount || !is_mine) return;  // one row of threads for each of the columns
  float total_of_run = 0.0F;
  for (int i = 0; i < kTokensAtOnce; ++i) total_of_run += row_sums[i][row][lane];
  sums[run * 2 * input.width + (row < kCount ? 0 : input.width) + column + row % kCount] = total_of_run;
}

// ---- heads: normed, and pairs of elements rotated ----

struct Rotation {
  float4 cos;
  float4 sin;
};

// Both pairs of a quad, by their angles or back.
__device__ float4 rotate(float4 x, const Rotation& rotation) {
  return {x.x * rotation.cos.x - x.y * rotation.sin.x, x.y * rotation.cos.x + x.x * rotation.sin.x,
          x.z * rotation.cos.z - x.w * rotation.sin.z, x.w * rotation.cos.z + x.z * rotation.sin.z};
}
__device__ float4 rotate_back(float4 x, const Rotation& rotation) {
  return {x.x * rotation.cos.x + x.y * rotation.sin.x, x.y * rotation.cos.x - x.x * rotation.sin.x,
          x.z * rotation.cos.z + x.w * rotation.sin.z, x.w * rotation.cos.z - x.z * rotation.sin.z};
}

struct HeadTables {
  const float* q_norm;
  const float* k_norm;
  const float* cos;
  const float* sin;
};

struct HeadSizes {
  int64_t all_tokens;
  int64_t tokens;  // of a sample
  int heads;
  int width;
};

// One warp per token; kLanes lanes per head, each with one quad of it or, in the last lanes, none.
template <typename T, int kLanes>
__global__ void heads_forward_kernel(HeadSizes sizes, HeadTables tables, const T* __restrict__ qkv, T* __restrict__ q,
                                     T* __restrict__ k) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (token >= sizes.all_tokens) return;
  const int quad = static_cast<int>(threadIdx.x) % kLanes;
  const bool has_quad = quad * 4 < sizes.width;
  const int64_t row = token % sizes.tokens * sizes.width;
  Rotation rotation{};
  float4 q_norm{};
  float4 k_norm{};
  if (has_quad) {
    rotation = {load_quad(tables.cos + row, quad), load_quad(tables.sin + row, quad)};
    q_norm = load_quad(tables.q_norm, quad);
    k_norm = load_quad(tables.k_norm, quad);
  }
  const int64_t token_width = static_cast<int64_t>(sizes.heads) * sizes.width;
#pragma unroll 1
  for (int head = 0; head < 2 * sizes.heads; head += kWarp / kLanes) {
    const int mine = head + static_cast<int>(threadIdx.x) / kLanes;
    const bool is_query = mine < sizes.heads;
    const bool is_mine = has_quad && mine < 2 * sizes.heads;
    const float4 x = is_mine ? load_quad(qkv + token * 3 * token_width + mine * sizes.width, quad) : float4{};
    const float inverse = inverse_rms(sum_over_lanes<kLanes>(total(x * x)), sizes.width);
    if (!is_mine) continue;
    T* const out = is_query ? q : k - token_width;
    store_quad(out + token * token_width + mine * sizes.width, quad,
               rotate(x * inverse * (is_query ? q_norm : k_norm), rotation));
  }
}

// The gradient of queries, keys or values, [B, A, N, E] in any order of samples, heads and tokens.
template <typename T>
struct HeadGrad {
  const T* data;
  int64_t sample_stride;
  int64_t head_stride;
  int64_t token_stride;
};

// As in the forward pass; each block takes a run of tokens and writes the sums of their norms' gradients, [2, E].
template <typename T, int kLanes>
__global__ void __launch_bounds__(kWarp* kWarpsOfBlock, kHeadBlocksOfProcessor)
    heads_backward_kernel(HeadSizes sizes, HeadTables tables, const T* __restrict__ qkv, HeadGrad<T> grad_q,
                          HeadGrad<T> grad_k, HeadGrad<T> grad_v, T* __restrict__ grad_qkv,
                          float* __restrict__ norm_sums) {
  constexpr int kHeadsOfWarp = kWarp / kLanes;
  constexpr int kRows = kWarpsOfBlock * kHeadsOfWarp;
  __shared__ float4 row_sums[2][kRows][kLanes];
  const int quad = static_cast<int>(threadIdx.x) % kLanes;
  const int among_heads = static_cast<int>(threadIdx.x) / kLanes;
  const bool has_quad = quad * 4 < sizes.width;
  const float4 q_norm = has_quad ? load_quad(tables.q_norm, quad) : float4{};
  const float4 k_norm = has_quad ? load_quad(tables.k_norm, quad) : float4{};
  float4 q_norm_sum{};
  float4 k_norm_sum{};
  const int64_t token_width = static_cast<int64_t>(sizes.heads) * sizes.width;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kTokensOfHeadRun;
  const int64_t end = min(begin + kTokensOfHeadRun, sizes.all_tokens);
  for (int64_t token = begin + threadIdx.y; token < end; token += blockDim.y) {
    const int64_t sample = token / sizes.tokens;
    const int64_t in_sample = token % sizes.tokens;
    Rotation rotation{};
    if (has_quad) {
      rotation = {load_quad(tables.cos + in_sample * sizes.width, quad),
                  load_quad(tables.sin + in_sample * sizes.width, quad)};
    }
    const auto row_of = [&](const HeadGrad<T>& grad, int head) {
      return grad.data + sample * grad.sample_stride + head * grad.head_stride + in_sample * grad.token_stride;
    };
    // The gradient of x, for that of x normed and rotated.
    const auto input_gradient = [&](float4 x, float4 grad, float4 norm, float4& norm_sum) {
      const float4 normed_gradient = rotate_back(grad, rotation);  // the gradient of the normed values
      const float inverse = inverse_rms(sum_over_lanes<kLanes>(total(x * x)), sizes.width);
      const float dot = sum_over_lanes<kLanes>(total(normed_gradient * norm * x));
      const float along_x = dot * inverse * inverse / static_cast<float>(sizes.width);
      norm_sum = norm_sum + normed_gradient * x * inverse;
      return (normed_gradient * norm - x * along_x) * inverse;
    };
#pragma unroll 1
    for (int first = 0; first < sizes.heads; first += kHeadsOfWarp) {
      const int head = first + among_heads;
      const bool is_mine = has_quad && head < sizes.heads;
      const int64_t place = token * 3 * token_width + head * sizes.width;
      float4 q{};
      float4 k{};
      float4 q_gradient{};
      float4 k_gradient{};
      float4 v_gradient{};
      if (is_mine) {  // all loads at once
        q = load_quad(qkv + place, quad);
        k = load_quad(qkv + place + token_width, quad);
        q_gradient = load_quad(row_of(grad_q, head), quad);
        k_gradient = load_quad(row_of(grad_k, head), quad);
        v_gradient = load_quad(row_of(grad_v, head), quad);
      }
      q_gradient = input_gradient(q, q_gradient, q_norm, q_norm_sum);
      k_gradient = input_gradient(k, k_gradient, k_norm, k_norm_sum);
      if (!is_mine) continue;
      store_quad(grad_qkv + place, quad, q_gradient);
      store_quad(grad_qkv + place + token_width, quad, k_gradient);
      store_quad(grad_qkv + place + 2 * token_width, quad, v_gradient);
    }
  }
  const int row = static_cast<int>(threadIdx.y) * kHeadsOfWarp + among_heads;
  row_sums[0][row][quad] = q_norm_sum;
  row_sums[1][row][quad] = k_norm_sum;
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.y) * kWarp + static_cast<int>(threadIdx.x);
  if (thread >= 2 * kLanes || thread % kLanes * 4 >= sizes.width) return;
  float4 sum{};
  for (int i = 0; i < kRows; ++i) sum = sum + row_sums[thread / kLanes][i][thread % kLanes];
  store_quad(norm_sums + (static_cast<int64_t>(blockIdx.x) * 2 + thread / kLanes) * sizes.width, thread % kLanes, sum);
}

// ---- launches ----

// Calls use(std::integral_constant<int, …>) with the largest power of two, up to 4, that divides the width.
template <typename Use>
void with_pack(int64_t width, const Use& use) {
  if (width % 4 == 0) {
    use(std::integral_constant<int, 4>());
  } else if (width % 2 == 0) {
    use(std::integral_constant<int, 2>());
  } else {
    use(std::integral_constant<int, 1>());
  }
}

// … with the number of lanes that hold a head, one quad each.
template <typename Use>
void with_lanes(int64_t width, const Use& use) {
  if (width <= 32) {
    use(std::integral_constant<int, 8>());
  } else if (width <= 64) {
    use(std::integral_constant<int, 16>());
  } else {
    use(std::integral_constant<int, 32>());
  }
}

template <typename T>
Norm<T> norm_of(const NormTensors& n) {
  const bool has_change = n.change_BND.defined();
  return {.tokens = n.x_BND.size(1),
          .width = n.x_BND.size(2),
          .x = n.x_BND.const_data_ptr<float>(),
          .change = has_change ? n.change_BND.const_data_ptr<T>() : nullptr,
          .weight = n.weight_D.const_data_ptr<float>(),
          .gate = has_change ? n.gate_BD.const_data_ptr<T>() : nullptr,
          .scale = n.scale_BD.const_data_ptr<T>(),
          .gate_stride = has_change ? n.gate_BD.stride(0) : 0,
          .scale_stride = n.scale_BD.stride(0)};
}

template <typename T>
Swiglu<T> swiglu_of(const at::Tensor& x_BNF, const at::Tensor& bias_F) {
  return {.tokens = x_BNF.size(0) * x_BNF.size(1),
          .width = x_BNF.size(2) / 2,
          .x = x_BNF.const_data_ptr<T>(),
          .bias = bias_F.defined() ? bias_F.const_data_ptr<float>() : nullptr};
}

HeadSizes sizes_of(const at::Tensor& qkv_BNF, int64_t head_width) {
  return {.all_tokens = qkv_BNF.size(0) * qkv_BNF.size(1),
          .tokens = qkv_BNF.size(1),
          .heads = static_cast<int>(qkv_BNF.size(2) / (3 * head_width)),
          .width = static_cast<int>(head_width)};
}

HeadTables tables_of(const HeadTensors& heads) {
  return {.q_norm = heads.q_norm_E.const_data_ptr<float>(),
          .k_norm = heads.k_norm_E.const_data_ptr<float>(),
          .cos = heads.rotation.cos_NE.const_data_ptr<float>(),
          .sin = heads.rotation.sin_NE.const_data_ptr<float>()};
}

template <typename T>
HeadGrad<T> grad_of(const at::Tensor& grad_BANE) {
  return {grad_BANE.const_data_ptr<T>(), grad_BANE.stride(0), grad_BANE.stride(1), grad_BANE.stride(2)};
}

}  // namespace

void norm_forward_cuda(const NormTensors& n, const at::Tensor& shift_BD, const at::Tensor& sum_BND,
                       const at::Tensor& normed_BND) {
  launch_for(normed_BND, [&]<typename T>(cudaStream_t stream) {
    const Norm<T> norm = norm_of<T>(n);
    const int64_t all_tokens = n.x_BND.size(0) * norm.tokens;
    const dim3 threads(kWarp, kWarpsOfBlock);
    const unsigned blocks = blocks_for(all_tokens, kWarpsOfBlock);
    const size_t shared = static_cast<size_t>(kWarpsOfBlock * norm.width) * sizeof(float);
    const T* const shift = shift_BD.const_data_ptr<T>();
    T* const out = normed_BND.mutable_data_ptr<T>();
    if (sum_BND.defined()) {
      norm_forward_kernel<T, true><<<blocks, threads, shared, stream>>>(norm, all_tokens, shift, shift_BD.stride(0),
                                                                        sum_BND.mutable_data_ptr<float>(), out);
    } else {
      norm_forward_kernel<T, false>
          <<<blocks, threads, shared, stream>>>(norm, all_tokens, shift, shift_BD.stride(0), nullptr, out);
    }
  });
}

NormGrads norm_backward_cuda(const NormTensors& n, const at::Tensor& grad_BND, const at::Tensor& grad_sum_BND) {
  const at::Tensor& x = n.x_BND;
  const bool has_change = n.change_BND.defined();
  const int64_t runs = blocks_for(x.size(1), kTokensOfRun);
  // For samples without tokens no kernel is launched.
  const auto per_sample = [&](const at::TensorOptions& options) {
    return x.numel() == 0 ? at::zeros({x.size(0), x.size(2)}, options) : at::empty({x.size(0), x.size(2)}, options);
  };
  const auto like_scale = [&] { return per_sample(n.scale_BD.options()); };
  NormGrads grads{.x_BND = at::empty_like(x),
                  .gate_BD = has_change ? like_scale() : at::Tensor(),
                  .change_BND = has_change ? at::empty_like(n.change_BND) : at::Tensor(),
                  .weight_D = at::Tensor(),
                  .shift_BD = like_scale(),
                  .scale_BD = like_scale()};
  const at::Tensor sums = at::empty({has_change ? 3 : 2, x.size(0), runs, x.size(2)}, x.options());
  const at::Tensor weight_sums_BD = per_sample(x.options());
  launch_for(grad_BND, [&]<typename T>(cudaStream_t stream) {
    const Norm<T> norm = norm_of<T>(n);
    const int64_t samples = x.size(0);
    const auto threads =
        static_cast<unsigned>(std::min<int64_t>(kThreadsMax, (norm.width / 4 + kWarp - 1) / kWarp * kWarp));
    const auto blocks = static_cast<unsigned>(samples * runs);
    const T* const grad = grad_BND.const_data_ptr<T>();
    const float* const grad_sum = grad_sum_BND.defined() ? grad_sum_BND.const_data_ptr<float>() : nullptr;
    auto* const grad_x = grads.x_BND.mutable_data_ptr<float>();
    auto* const run_sums = sums.mutable_data_ptr<float>();
    if (has_change) {
      norm_backward_kernel<T, true><<<blocks, threads, 0, stream>>>(norm, grad, grad_sum, grad_x,
                                                                    grads.change_BND.mutable_data_ptr<T>(), run_sums);
    } else {
      norm_backward_kernel<T, false><<<blocks, threads, 0, stream>>>(norm, grad, grad_sum, grad_x, nullptr, run_sums);
    }
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    norm_sums_kernel<T><<<static_cast<unsigned>(samples), threads, 0, stream>>>(
        norm, runs, run_sums, grads.shift_BD.mutable_data_ptr<T>(), grads.scale_BD.mutable_data_ptr<T>(),
        has_change ? grads.gate_BD.mutable_data_ptr<T>() : nullptr, weight_sums_BD.mutable_data_ptr<float>());
  });
  grads.weight_D = column_sums(weight_sums_BD);
  return grads;
}

void swiglu_forward_cuda(const at::Tensor& x_BNF, const at::Tensor& bias_F, const at::Tensor& out_BNF) {
  launch_for(out_BNF, [&]<typename T>(cudaStream_t stream) {
    const Swiglu<T> input = swiglu_of<T>(x_BNF, bias_F);
    with_pack(input.width, [&]<int kCount>(std::integral_constant<int, kCount>) {
      const auto blocks =
          static_cast<unsigned>(blocks_for(input.tokens, kTokensOfSwigluRun) * blocks_for(input.width, kWarp * kCount));
      swiglu_forward_kernel<T, kCount>
          <<<blocks, dim3(kWarp, kTokensAtOnce), 0, stream>>>(input, out_BNF.mutable_data_ptr<T>());
    });
  });
}

at::Tensor swiglu_backward_cuda(const at::Tensor& grad_BNF, const at::Tensor& x_BNF, const at::Tensor& bias_F,
                                const at::Tensor& grad_x_BNF) {
  const int64_t runs = blocks_for(x_BNF.size(0) * x_BNF.size(1), kTokensOfSwigluRun);
  const at::Tensor sums = bias_F.defined() ? at::empty({runs, x_BNF.size(2)}, bias_F.options()) : at::Tensor();
  launch_for(grad_BNF, [&]<typename T>(cudaStream_t stream) {
    const Swiglu<T> input = swiglu_of<T>(x_BNF, bias_F);
    with_pack(input.width, [&]<int kCount>(std::integral_constant<int, kCount>) {
      const auto blocks = static_cast<unsigned>(runs * blocks_for(input.width, kWarp * kCount));
      swiglu_backward_kernel<T, kCount><<<blocks, dim3(kWarp, kTokensAtOnce), 0, stream>>>(
          input, grad_BNF.const_data_ptr<T>(), grad_x_BNF.mutable_data_ptr<T>(),
          sums.defined() ? sums.mutable_data_ptr<float>() : nullptr);
    });
  });
  return sums.defined() ? column_sums(sums) : sums;
}

void heads_forward_cuda(const HeadTensors& heads, const at::Tensor& q_BNAE, const at::Tensor& k_BNAE) {
  const at::Tensor& qkv = heads.qkv_BNF;
  launch_for(qkv, [&]<typename T>(cudaStream_t stream) {
    with_lanes(q_BNAE.size(3), [&]<int kLanes>(std::integral_constant<int, kLanes>) {
      const HeadSizes sizes = sizes_of(qkv, q_BNAE.size(3));
      heads_forward_kernel<T, kLanes>
          <<<blocks_for(sizes.all_tokens, kWarpsOfBlock), dim3(kWarp, kWarpsOfBlock), 0, stream>>>(
              sizes, tables_of(heads), qkv.const_data_ptr<T>(), q_BNAE.mutable_data_ptr<T>(),
              k_BNAE.mutable_data_ptr<T>());
    });
  });
}

at::Tensor heads_backward_cuda(const HeadTensors& heads, const std::array<at::Tensor, 3>& grads_BANE,
                               const at::Tensor& grad_qkv_BNF) {
  const at::Tensor& qkv = heads.qkv_BNF;
  const int64_t width = heads.q_norm_E.size(0);
  const HeadSizes sizes = sizes_of(qkv, width);
  const unsigned blocks = blocks_for(sizes.all_tokens, kTokensOfHeadRun);
  const at::Tensor norm_sums = at::empty({blocks, 2, width}, heads.q_norm_E.options());
  launch_for(qkv, [&]<typename T>(cudaStream_t stream) {
    with_lanes(width, [&]<int kLanes>(std::integral_constant<int, kLanes>) {
      heads_backward_kernel<T, kLanes><<<blocks, dim3(kWarp, kWarpsOfBlock), 0, stream>>>(
          sizes, tables_of(heads), qkv.const_data_ptr<T>(), grad_of<T>(grads_BANE[0]), grad_of<T>(grads_BANE[1]),
          grad_of<T>(grads_BANE[2]), grad_qkv_BNF.mutable_data_ptr<T>(), norm_sums.mutable_data_ptr<float>());
    });
  });
  return column_sums(norm_sums.flatten(1)).view({2, width});
}

}  // namespace lockstep::block_passes_detail
