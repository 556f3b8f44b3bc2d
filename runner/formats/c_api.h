/* What the Python package calls of checkpoints (python/lockstep/_checkpoint.py, by ctypes): the write protocol and the
 * choice of the newest one, as lockstep-worker has them (formats/checkpoint_write.h, formats/checkpoint_dir.h). No
 * torch, no Python.
 *
 * Each function takes one JSON object and returns another one, which the caller frees with lockstep_free(). An answer
 * with the field `error`, a text, is an error. Requests are the package's own: a field that is missing is the package's
 * mistake. All have: `folder`; `environment`, an object of the variables LOCKSTEP_*; `generation`, of the group;
 * `config`, an object: a checkpoint with another one is of another program. Threads: any; one caller at a time per
 * folder. */
#pragma once

#include <stdint.h> /* NOLINT: a header of C */

#ifdef __cplusplus
extern "C" {
#endif

/* The newest complete checkpoint of this program, verified: {"path", "state": its state.json, "passed_over": [{"path",
 * "reason"}]}; `path` is empty where there is none. With `resume` Never in the environment those of earlier jobs are
 * moved aside first. Error, too: every checkpoint is of another program, or damaged. */
char* lockstep_find_checkpoint(const char* request);

/* Makes the folder, and tries whether checkpoints can be written there: {}. */
char* lockstep_prepare_checkpoints(const char* request);

/* Writes one: {"path", "warning"}. Besides: `step`, `lineage`, `world_size`, `keep` (the newest ones that stay),
 * `python` (an object, kept in state.json), `tensors`: [{"file", "name", "dtype" (as safetensors has it), "shape",
 * "address", "bytes"}], in memory that the caller does not change until the function returns. */
char* lockstep_write_checkpoint(const char* request);

/* How many reads, writes and fsyncs of these functions have ended in this process: a number that stands still while one
 * of them runs is a volume that hangs. */
uint64_t lockstep_file_operations(void);

#ifdef __cplusplus
}
#endif
