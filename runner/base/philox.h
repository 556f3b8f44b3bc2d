// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (SC'11).
//
// Role: every random draw of a training run (order, negatives, dropout, noise) is a pure function of
// (seed, purpose, step or epoch, global sample, element). Nothing depends on the rank, the world size or the thread,
// and no generator state is saved. Constants and vectors as in the paper's Random123 (kat_vectors).
// Threads: pure. Header-only; compiles as CUDA device code too.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define LOCKSTEP_HOST_DEVICE __host__ __device__
#else
#define LOCKSTEP_HOST_DEVICE
#endif

namespace lockstep {

struct Philox4 {
  uint32_t x[4];
};

// One block of four 32-bit words.
LOCKSTEP_HOST_DEVICE inline Philox4 philox4x32_10(Philox4 counter, uint32_t key0, uint32_t key1) {
  constexpr uint32_t kMul0 = 0xD2511F53U;
  constexpr uint32_t kMul1 = 0xCD9E8D57U;
  constexpr uint32_t kWeyl0 = 0x9E3779B9U;
  constexpr uint32_t kWeyl1 = 0xBB67AE85U;
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(kMul0) * counter.x[0];
    const uint64_t p1 = static_cast<uint64_t>(kMul1) * counter.x[2];
    counter = Philox4{{static_cast<uint32_t>(p1 >> 32) ^ counter.x[1] ^ key0, static_cast<uint32_t>(p1),
                       static_cast<uint32_t>(p0 >> 32) ^ counter.x[3] ^ key1, static_cast<uint32_t>(p0)}};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return counter;
}

// What a number is drawn for; part of the counter, so that two purposes never use the same numbers.
// Values are part of the reproducibility contract: never renumber, only append.
enum class RandomPurpose : uint32_t {
  kOrder = 1,           // permutation of an epoch
  kInit = 2,            // initial parameters
  kNegatives = 3,       // training negatives
  kEvalNegatives = 4,   // the fixed candidates of an evaluation
  kReplacement = 5,     // a random sample in place of an unusable one
  kSynthetic = 6,       // generated data sets
  kBackboneNoise = 7,   // noise on the coordinates of a protein
  kDecodingOrder = 8,   // order in which a protein's residues are decoded
  kDesign = 9,          // amino acids of a designed sequence
  kClusterMember = 10,  // which member of a cluster of similar samples an epoch uses
  kHiddenChain = 11,    // the chain whose amino acids are to be predicted
  kMaskedTokens = 12,   // which tokens of a sample are masked
  kSplit = 13,          // which samples are in the validation split
  kDiffusion = 14,      // time, flip and dropped class of a training image
  kImageNoise = 15,     // noise that is mixed into a training image, or that sampling starts from
  kDropout = 0x100,     // + index of the dropout layer in the model
};

// Stream of one (seed, purpose, step, sample); `element` indexes inside it.
//   step:   optimizer step or epoch, depending on the purpose
//   sample: global sample (user, or slot of the global batch)
struct PhiloxStream {
  uint64_t seed;
  uint32_t purpose;
  uint32_t step;
  uint32_t sample;

  // Elements 4*block .. 4*block+3.
  LOCKSTEP_HOST_DEVICE Philox4 block(uint32_t block_index) const {
    return philox4x32_10(Philox4{{block_index, sample, step, purpose}}, static_cast<uint32_t>(seed),
                         static_cast<uint32_t>(seed >> 32));
  }
  // One 32-bit word. It computes a whole block of four, so loops should use block().
  LOCKSTEP_HOST_DEVICE uint32_t word(uint64_t element) const {
    return block(static_cast<uint32_t>(element >> 2)).x[element & 3];
  }
  // Uniform in [0, n), n > 0, by multiply-shift (bias below n / 2^32).
  LOCKSTEP_HOST_DEVICE uint32_t below(uint64_t element, uint32_t n) const {
    return static_cast<uint32_t>((static_cast<uint64_t>(word(element)) * n) >> 32);
  }
};

}  // namespace lockstep
