/* Preloaded into CPython 3.10 to 3.13: counts how often the process takes the GIL, and the processor time of its
   threads while they have it.

   A thread takes and drops the GIL under the GIL's own mutex. When it unlocks the mutex, `locked` says which of the two
   it has just done, and no other thread can change the sums. They are in a file of GIL_METER_FOLDER named as the
   process, where a reader also turns the meter on and off. */
#define Py_BUILD_CORE 1
#include <Python.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#if PY_VERSION_HEX < 0x030A0000 || PY_VERSION_HEX >= 0x030E0000 || defined(Py_GIL_DISABLED) || defined(PYPY_VERSION)
#error "this interpreter's GIL is not known"
#endif
/* Programs other than Python have no such symbol. */
#pragma weak _PyRuntime

/* gil_meter.py reads it. */
typedef struct {
  int64_t is_on, takes, held_ns;
  /* What one reading of the clock costs: each hold contains one, each take and drop together cost two. */
  int64_t reading_ns;
} Sums;

static Sums* sums;
static int (*unlock)(pthread_mutex_t*);
static __thread int has_gil;
static __thread int64_t began;

static int64_t processor_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static struct _gil_runtime_state* the_gil(void) {
#if PY_VERSION_HEX < 0x030C0000
  return &_PyRuntime.ceval.gil;
#else
  PyInterpreterState* first = _PyRuntime.interpreters.main;
  return first ? first->ceval.gil : NULL;
#endif
}

static int64_t reading_ns(void) {
  const int count = 2000;
  int64_t start = processor_ns();
  for (int i = 1; i < count; ++i) processor_ns();
  return (processor_ns() - start) / count;
}

static void open_sums(void) {
  char path[4096];
  int length = snprintf(path, sizeof path, "%s/%d", getenv("GIL_METER_FOLDER"), (int)getpid());
  int file = length < (int)sizeof path ? open(path, O_CREAT | O_RDWR | O_TRUNC | O_CLOEXEC, 0600) : -1;
  void* mapped = MAP_FAILED;
  if (file >= 0 && !ftruncate(file, sizeof(Sums)))
    mapped = mmap(NULL, sizeof(Sums), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (file >= 0) close(file);
  sums = mapped == MAP_FAILED ? NULL : mapped;
  if (sums) sums->reading_ns = reading_ns();
}

/* A thread's clock begins anew in a forked process. */
static void forked(void) {
  open_sums();
  has_gil = 0;
}

__attribute__((constructor)) static void begin(void) {
  if (!&_PyRuntime || !getenv("GIL_METER_FOLDER")) return;
  open_sums();
  pthread_atfork(NULL, NULL, forked);
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) {
  if (!unlock) unlock = dlsym(RTLD_NEXT, "pthread_mutex_unlock");
  struct _gil_runtime_state* gil = sums ? the_gil() : NULL;
  if (!gil || mutex != &gil->mutex) return unlock(mutex);
  int is_locked = *(volatile int*)&gil->locked == 1;
  if (is_locked && !has_gil && sums->is_on) {
    has_gil = 1;
    int failed = unlock(mutex);
    began = processor_ns();
    return failed;
  }
  if (!is_locked && has_gil) {
    has_gil = 0;
    sums->held_ns += processor_ns() - began;
    ++sums->takes;
  }
  return unlock(mutex);
}
