// lockstep-worker: one rank of a training run. Started by `lockstep run`, or by torchrun, Slurm, MPI, a pod, or alone.
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "runner/loop/worker.h"

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // `lockstep-worker … | head` must not end a run in mid-step
  char host_name[256] = "";
  gethostname(host_name, sizeof host_name - 1);
  const int code = lockstep::run_worker(
      {.arguments = {argv + 1, argv + argc}, .environment = lockstep::read_environment(), .host_name = host_name});
  // Everything durable is durable; the static destructors of libtorch would only cost time.
  std::fflush(nullptr);
  _exit(code);
}
