#include "runner/models/workload_flags.h"

#include "runner/models/gpt2rec/gpt2rec_flags.h"
#include "runner/models/jit/jit_flags.h"
#include "runner/models/protein/protein_flags.h"
#include "runner/models/sasrec/sasrec_flags.h"

namespace lockstep {

const WorkloadList& all_workload_flags() {
  static const WorkloadList all = {sasrec_flags(), gpt2rec_flags(), protein_flags(), jit_flags()};
  return all;
}

}  // namespace lockstep
