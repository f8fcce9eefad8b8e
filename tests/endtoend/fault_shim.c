/* LD_PRELOAD: makes the Nth call of one kind fail or kill the process, in kvcc's own programs only.
 * KVCC_FAULT=CALL:N:WHAT, CALL one of open write close fsync rename link mkdir (those that write), N from 1, WHAT an
 * errno or "kill"; KVCC_FAULT_COUNT=FILE: lines "CALL N" are appended for what a run would have met. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int ours(void) {
  static int known = -1;
  if (known < 0) known = strncmp(program_invocation_short_name, "kvcc", 4) == 0;
  return known;
}

/* Whether this call is the one to fail; sets errno. */
static int fails(const char* call, atomic_int* count) {
  if (!ours()) return 0;
  const int n = ++*count;
  const char* log = getenv("KVCC_FAULT_COUNT");
  if (log != NULL) {
    char line[64];
    const int length = snprintf(line, sizeof line, "%s %d\n", call, n);
    const int file = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND, 0666);
    syscall(SYS_write, file, line, (size_t)length);
    syscall(SYS_close, file);
  }
  const char* fault = getenv("KVCC_FAULT");
  if (fault == NULL || strncmp(fault, call, strlen(call)) != 0 || fault[strlen(call)] != ':') return 0;
  char* end;
  if (strtol(fault + strlen(call) + 1, &end, 10) != n) return 0;
  if (strcmp(end, ":kill") == 0) raise(SIGKILL);
  errno = atoi(end + 1);
  return 1;
}

static int writes(int file) { /* a regular file that was opened to be written */
  struct stat info;
  const int flags = fcntl(file, F_GETFL);
  return flags >= 0 && (flags & O_ACCMODE) != O_RDONLY && fstat(file, &info) == 0 && S_ISREG(info.st_mode);
}

#define NEXT(name)               \
  static __typeof__(&name) next; \
  if (next == NULL) next = (__typeof__(next))dlsym(RTLD_NEXT, #name)
#define COUNTED(call)      \
  static atomic_int count; \
  if (fails(call, &count)) return -1

#define OPEN(NAME)                                                                         \
  int NAME(const char* path, int flags, ...) {                                             \
    NEXT(NAME);                                                                            \
    va_list list;                                                                          \
    va_start(list, flags);                                                                 \
    const int mode = va_arg(list, int);                                                    \
    va_end(list);                                                                          \
    const int writing = (flags & O_ACCMODE) != O_RDONLY && strncmp(path, "/dev/", 5) != 0; \
    return writing && fails("open", &opens) ? -1 : next(path, flags, mode);                \
  }
static atomic_int opens;
OPEN(open)
OPEN(open64)

ssize_t write(int file, const void* data, size_t size) {
  NEXT(write);
  if (writes(file)) {
    COUNTED("write");
  }
  return next(file, data, size);
}
int close(int file) {
  NEXT(close);
  if (writes(file)) {
    static atomic_int count;
    if (fails("close", &count)) {
      const int code = errno;
      next(file); /* the descriptor is gone all the same */
      errno = code;
      return -1;
    }
  }
  return next(file);
}
int fsync(int file) {
  NEXT(fsync);
  COUNTED("fsync");
  return next(file);
}
int rename(const char* from, const char* to) {
  NEXT(rename);
  COUNTED("rename");
  return next(from, to);
}
int link(const char* from, const char* to) {
  NEXT(link);
  COUNTED("link");
  return next(from, to);
}
int mkdir(const char* path, mode_t mode) {
  NEXT(mkdir);
  COUNTED("mkdir");
  return next(path, mode);
}
