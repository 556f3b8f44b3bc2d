#include "runner/dist/rendezvous.h"

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "runner/base/clock.h"
#include "runner/contract/agreement.h"
#include "runner/dist/fault.h"
#include "runner/dist/store_handle.h"

namespace lockstep {
namespace {

constexpr const char* kHereCount = "here";
constexpr const char* kAllHere = "all-here";
std::string here_key(int rank) { return "here/" + std::to_string(rank); }
std::string terms_key(int rank) { return "terms/" + std::to_string(rank); }

std::vector<uint8_t> bytes(const std::string& text) { return {text.begin(), text.end()}; }
std::string text(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

std::string missing_ranks(c10d::Store& store, int world_size) {
  std::string names;
  for (int r = 0; r < world_size; ++r) {
    if (!store.check({here_key(r)})) names += (names.empty() ? "" : ", ") + std::to_string(r);
  }
  return names;
}

Error store_fault(const std::string& doing, const std::exception& e) {
  return Error{ErrorCode::kRetry, doing + ": " + classify_fault(e).message};
}

// Rank 0 may serve the store, so it must not exit before its peers have read why they are refused. It waits for at most
// kPatience, because a peer may have died.
void wait_until_all_have_read(c10d::Store& keys, const Assignment& mine, const std::string& topic) {
  constexpr std::chrono::seconds kPatience{5};
  const std::string all_read = "all-read/" + topic;
  if (keys.add("read/" + topic, 1) == mine.world_size) keys.set(all_read, bytes("1"));
  if (mine.rank != 0) return;
  try {
    keys.wait({all_read}, kPatience);
  } catch (const std::exception&) {  // a peer that never reads has died; its own log says why
  }
}

}  // namespace

Result<StoreHandle> open_tcp_store(const World& world, std::chrono::milliseconds timeout) {
  const std::string where = world.master_addr + ":" + std::to_string(world.master_port);
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(world.master_port);
  options.isServer = world.assignment.rank == 0 && !world.store_is_served_by_launcher;
  options.waitWorkers = false;  // meet() waits, and can say who is missing
  options.timeout = timeout;
  try {
    auto tcp = c10::make_intrusive<c10d::TCPStore>(world.master_addr, options);
    if (!world.store_is_served_by_launcher) return StoreHandle(tcp);
    // The launcher's store outlives restarts; the prefix keeps keys of an earlier attempt from being read.
    const std::string prefix = "lockstep/attempt-" + std::to_string(world.assignment.generation);
    return StoreHandle(c10::make_intrusive<c10d::PrefixStore>(prefix, tcp));
  } catch (const std::exception& e) {
    const std::string why = classify_fault(e).message;
    if (options.isServer && why.find("EADDRINUSE") != std::string::npos) {
      return Error{ErrorCode::kInvalid, "port " + std::to_string(world.master_port) +
                                            " is taken: rank 0 cannot serve the store there; choose another with "
                                            "--master_port N or the variable MASTER_PORT (the same on all ranks)"};
    }
    return Error{ErrorCode::kRetry, "rank 0's store at " + where + " (MASTER_ADDR:MASTER_PORT) did not answer within " +
                                        seconds_text(timeout) + ": " + why};
  }
}

StoreHandle make_local_store() { return StoreHandle(c10::make_intrusive<c10d::HashStore>()); }

Status meet(const StoreHandle& store, const Assignment& mine, std::chrono::milliseconds timeout) {
  c10d::Store& keys = *store.get();
  try {
    // Each rank's own key serves only to name missing ranks in an error. Waiting for all of these keys would put
    // world_size keys into each rank's request; a counter needs only one.
    keys.set(here_key(mine.rank), bytes("1"));
    if (keys.add(kHereCount, 1) == mine.world_size) keys.set(kAllHere, bytes("1"));
    keys.wait({kAllHere}, timeout);
    return {};
  } catch (const std::exception& e) {
    if (classify_fault(e).code != ExitCode::kTimeout) return store_fault("waiting for the other ranks", e);
  }
  try {
    const std::string missing = missing_ranks(keys, mine.world_size);
    return Error{ErrorCode::kRetry, "these ranks did not join within " + seconds_text(timeout) + ": " + missing +
                                        " (of " + std::to_string(mine.world_size) +
                                        "); see their logs, or wait longer with --rendezvous_timeout_seconds"};
  } catch (const std::exception& e) {
    return store_fault("waiting for the other ranks", e);
  }
}

Status agree(const StoreHandle& store, const Assignment& mine, const std::string& terms) {
  c10d::Store& keys = *store.get();
  try {
    keys.set(terms_key(mine.rank), bytes(terms));
    const std::string first = text(keys.get(terms_key(0)));
    // Every rank reads all terms, so that all ranks return the same error.
    for (int r = 1; r < mine.world_size; ++r) {
      const std::string why = disagreement(first, "rank 0", text(keys.get(terms_key(r))), "rank " + std::to_string(r));
      if (why.empty()) continue;
      wait_until_all_have_read(keys, mine, "terms");
      return Error{ErrorCode::kInvalid, why};
    }
    return {};
  } catch (const std::exception& e) {
    return store_fault("comparing the terms of all ranks", e);
  }
}

Result<std::string> broadcast_from_rank_zero(const StoreHandle& store, const Assignment& mine, const std::string& topic,
                                             const std::string& document) {
  c10d::Store& keys = *store.get();
  try {
    if (mine.rank == 0) keys.set(topic, bytes(document));
    std::string received = mine.rank == 0 ? document : text(keys.get(topic));
    wait_until_all_have_read(keys, mine, topic);
    return received;
  } catch (const std::exception& e) {
    return store_fault("waiting for rank 0's document \"" + topic + "\"", e);
  }
}

}  // namespace lockstep
