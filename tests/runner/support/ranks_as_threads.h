// Several ranks as threads of one process, each with its own Gloo group over a shared store in memory.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <latch>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "runner/dist/process_group.h"
#include "runner/dist/store_handle.h"

namespace lockstep {

inline Assignment assigned(int rank, int world_size, uint64_t generation = 1) {
  return {.generation = generation,
          .rank = rank,
          .local_rank = rank,
          .world_size = world_size,
          .local_world_size = world_size,
          .address = ""};
}

inline void on_ranks(int world_size, const std::function<void(ProcessGroup&)>& body,
                     at::Device device = at::Device(at::kCPU), uint64_t generation = 1) {
  // c10d's flight recorder is one per process and not safe for several groups in several threads.
  setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);
  const StoreHandle store(c10::make_intrusive<c10d::HashStore>());
  std::latch formed(world_size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      auto group = ProcessGroup::form(store, {.assignment = assigned(rank, world_size, generation),
                                              .device = device,
                                              .timeout = std::chrono::seconds(30),
                                              .network_interface = ""});
      formed.arrive_and_wait();  // nobody leaves while others still connect
      ASSERT_TRUE(group.ok()) << group.error().message;
      body(**group);
    });
  }
  for (std::thread& t : threads) t.join();
}

}  // namespace lockstep
