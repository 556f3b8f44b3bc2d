// CUDA implementation: one block per run of rows and group of columns; each thread adds up every eighth row of four
// columns.
#include <ATen/ops/empty.h>

#include <cstdint>

#include "runner/kernels/column_sums.h"
#include "runner/kernels/quads.cuh"

namespace lockstep::column_sums_detail {
namespace {

constexpr int kQuadsOfBlock = 32;
constexpr int kRowsAtOnce = 8;
constexpr int64_t kRowsOfRun = 256;

template <typename T>
__global__ void sums_by_run_kernel(int64_t rows, int64_t quads, const T* __restrict__ x, float* __restrict__ sums) {
  __shared__ float4 of_rows[kRowsAtOnce][kQuadsOfBlock];
  const unsigned groups = blocks_for(quads, kQuadsOfBlock);
  const int64_t run = blockIdx.x / groups;
  const int64_t quad = static_cast<int64_t>(blockIdx.x % groups) * kQuadsOfBlock + threadIdx.x;
  const int64_t begin = run * kRowsOfRun;
  const int64_t end = min(begin + kRowsOfRun, rows);
  float4 sum{};
  if (quad < quads) {
#pragma unroll 8
    for (int64_t row = begin + threadIdx.y; row < end; row += kRowsAtOnce) {
      sum = sum + load_quad(x, row * quads + quad);
    }
  }
  of_rows[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || quad >= quads) return;
  for (int i = 1; i < kRowsAtOnce; ++i) sum = sum + of_rows[i][threadIdx.x];
  store_quad(sums, run * quads + quad, sum);
}

}  // namespace

at::Tensor sums_by_run_cuda(const at::Tensor& x_RC) {
  const int64_t rows = x_RC.size(0);
  const int64_t quads = x_RC.size(1) / 4;
  const int64_t runs = blocks_for(rows, kRowsOfRun);
  const at::Tensor sums = at::empty({runs, x_RC.size(1)}, x_RC.options().dtype(at::kFloat));
  const auto blocks = static_cast<unsigned>(runs * blocks_for(quads, kQuadsOfBlock));
  launch_for(x_RC, [&]<typename T>(cudaStream_t stream) {
    sums_by_run_kernel<<<blocks, dim3(kQuadsOfBlock, kRowsAtOnce), 0, stream>>>(rows, quads, x_RC.const_data_ptr<T>(),
                                                                                sums.mutable_data_ptr<float>());
  });
  return sums;
}

}  // namespace lockstep::column_sums_detail
