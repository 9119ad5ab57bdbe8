/* Preloaded into a process: its fsync does not return while the file of DISK_HELD exists, and no file whose name ends in
   .ply is opened, and no part of a file read, while that of READS_HELD exists; the file READS_HELD.begun says that one was
   to be. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static void wait_while(const char *held) {
  while (held && !access(held, F_OK)) usleep(5000);
}

int fsync(int file) {
  wait_while(getenv("DISK_HELD"));
  return (int)syscall(SYS_fsync, file);
}

static void wait_to_read(void) {
  const char *held = getenv("READS_HELD");
  if (!held || access(held, F_OK)) return;
  char begun[4096];
  snprintf(begun, sizeof begun, "%s.begun", held);
  close((int)syscall(SYS_openat, AT_FDCWD, begun, O_CREAT | O_WRONLY, 0600));
  wait_while(held);
}

static ssize_t read_held(int file, const struct iovec *parts, int count, off_t offset) {
  wait_to_read();
  return syscall(SYS_preadv, file, parts, count, (long)offset, 0L);
}

ssize_t preadv(int file, const struct iovec *parts, int count, off_t offset) {
  return read_held(file, parts, count, offset);
}
ssize_t preadv64(int file, const struct iovec *parts, int count, off_t offset) {
  return read_held(file, parts, count, offset);
}
ssize_t preadv2(int file, const struct iovec *parts, int count, off_t offset, int flags) {
  (void)flags;
  return read_held(file, parts, count, offset);
}
ssize_t preadv64v2(int file, const struct iovec *parts, int count, off_t offset, int flags) {
  (void)flags;
  return read_held(file, parts, count, offset);
}

static int open_held(const char *path, int flags, mode_t mode) {
  const char *end = strrchr(path, '.');
  if (end && !strcmp(end, ".ply")) wait_to_read();
  return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

#define OPEN(name)                           \
  int name(const char *path, int flags, ...) { \
    va_list rest;                            \
    va_start(rest, flags);                   \
    mode_t mode = va_arg(rest, mode_t);      \
    va_end(rest);                            \
    return open_held(path, flags, mode);     \
  }

OPEN(open)
OPEN(open64)
