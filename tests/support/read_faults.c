// Preloaded by a test: the n-th read of a file with "/docs-" in its path fails with EIO.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static long fail_at = 0, calls = 0;

void fault_arm(long number) { fail_at = number, calls = 0; }
long fault_calls(void) { return calls; }

static int fails(int descriptor) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (fail_at == 0 || length <= 0) return 0;
  path[length] = 0;
  return strstr(path, "/docs-") != NULL && ++calls == fail_at;
}

#define READ(name, offset_type)                                                     \
  ssize_t name(int descriptor, void* bytes, size_t size, offset_type offset) {      \
    static ssize_t (*real)(int, void*, size_t, offset_type);                        \
    if (real == NULL) real = (ssize_t(*)(int, void*, size_t, offset_type))dlsym(RTLD_NEXT, #name); \
    if (fails(descriptor)) return errno = EIO, -1;                                  \
    return real(descriptor, bytes, size, offset);                                   \
  }

READ(pread, off_t)
READ(pread64, off64_t)
