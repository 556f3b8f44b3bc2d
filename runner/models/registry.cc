#include "runner/models/registry.h"

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

const std::vector<PluginWorkload>& own_workloads() {
  static const std::vector<PluginWorkload> all = {
      {.flags = sasrec_flags(), .make = make_sasrec, .run_task = recommend},
      {.flags = gpt2rec_flags(), .make = make_gpt2rec, .run_task = recommend_films},
      {.flags = protein_flags(), .make = make_protein, .run_task = run_protein_task},
      {.flags = jit_flags(), .make = make_jit, .run_task = sample_jit}};
  return all;
}

}  // namespace lockstep
