#include "runner/models/registry.h"

#include <functional>

#include "runner/models/gpt2rec/gpt2rec_flags.h"
#include "runner/models/gpt2rec/gpt2rec_workload.h"
#include "runner/models/gpt2rec/recommend_films.h"
#include "runner/models/jit/jit_flags.h"
#include "runner/models/jit/jit_workload.h"
#include "runner/models/jit/sample_task.h"
#include "runner/models/protein/design/mpnn_tasks.h"
#include "runner/models/protein/mpnn_workload.h"
#include "runner/models/protein/protein_flags.h"
#include "runner/models/sasrec/recommend.h"
#include "runner/models/sasrec/sasrec_flags.h"
#include "runner/models/sasrec/sasrec_workload.h"

namespace lockstep {

std::vector<PluginWorkload> own_workloads(FileSystem& fs) {
  const auto with_files = [&fs](auto make) { return std::bind_front(make, std::ref(fs)); };
  return {{.flags = sasrec_flags(), .make = with_files(make_sasrec), .run_task = recommend},
          {.flags = gpt2rec_flags(), .make = with_files(make_gpt2rec), .run_task = recommend_films},
          {.flags = protein_flags(), .make = with_files(make_protein), .run_task = run_protein_task},
          {.flags = jit_flags(), .make = with_files(make_jit), .run_task = sample_jit}};
}

}  // namespace lockstep
