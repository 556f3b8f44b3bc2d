// For bench_recovery.py, which preloads it: a volume that takes long to write a checkpoint, for as long as the file named
// in HOLD_FSYNC exists.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int fsync(int fd) {
  static int (*real)(int);
  if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
  const char* hold = getenv("HOLD_FSYNC");
  char link[64];
  char path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  path[length > 0 ? length : 0] = '\0';
  while (hold && strstr(path, "model.safetensors") && access(hold, F_OK) == 0) usleep(10000);
  return real(fd);
}
