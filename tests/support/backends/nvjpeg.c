// Stands in for nvJPEG on the emulated device, whose memory is the host's. A file is FF D8, what the encoder was told as
// five int, and the pixels. Mistakes of a caller are refused as status 2, and use of a state by two threads as 8.
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef MAJOR
#define MAJOR 13
#endif

enum { SUCCESS, NOT_INITIALIZED, INVALID, FAILED = 6, INTERNAL = 8, MOST = 1 << 20 };

typedef struct {
  const unsigned char* channel[4];
  size_t pitch[4];
} Image;

typedef struct {
  int kind;
} Handle;

typedef struct {
  int kind, quality, sampling;
  void* stream;
} Parameters;

typedef struct {
  int kind;
  void* stream;
  unsigned char* file;
  size_t length;
  atomic_flag used;
} State;

static atomic_int created[3], destroyed[3], encoded, encoding, most_encoding, holding;
static atomic_int failures;
static char failing[64];
static const char* held_by;

// Makes the next `count` calls of a function fail.
void stand_in_fail(const char* function, int count) {
  strncpy(failing, function, sizeof(failing) - 1);
  failures = count;
}
// Encoders wait while this is set, or the file of LUMIGRAD_TEST_NVJPEG_HELD_BY exists.
void stand_in_hold(int hold) { holding = hold; }
// 0: handles, 1: states, 2: parameters; -1: the most images that were encoded at the same time; -2: images.
int stand_in_created(int kind) { return kind == -1 ? most_encoding : kind == -2 ? encoded : created[kind]; }
int stand_in_alive(int kind) { return created[kind] - destroyed[kind]; }

__attribute__((constructor)) static void begin(void) {
  const char* named = getenv("LUMIGRAD_TEST_NVJPEG_FAILS");
  if (named != NULL) stand_in_fail(named, MOST);
  held_by = getenv("LUMIGRAD_TEST_NVJPEG_HELD_BY");
}

static int fails(const char* function) {
  return failures > 0 && strcmp(function, failing) == 0 && atomic_fetch_sub(&failures, 1) > 0;
}

static int is_held(void) { return holding || (held_by != NULL && access(held_by, F_OK) == 0); }

static int make(void** object, int kind, size_t bytes) {
  int* made = calloc(1, bytes);
  *made = kind;
  *object = made;
  ++created[kind];
  return SUCCESS;
}

static int destroy(void* object, int kind) {
  if (object == NULL || *(int*)object != kind) return INVALID;
  *(int*)object = -1;
  free(object);
  ++destroyed[kind];
  return SUCCESS;
}

int nvjpegGetProperty(int property, int* value) {
  if (fails(__func__)) return FAILED;
  *value = property == 0 ? MAJOR : 0;
  return SUCCESS;
}

int nvjpegCreateSimple(void** handle) { return fails(__func__) ? FAILED : make(handle, 0, sizeof(Handle)); }
int nvjpegDestroy(void* handle) { return destroy(handle, 0); }

int nvjpegEncoderStateCreate(Handle* handle, void** state, void* stream) {
  if (handle == NULL || handle->kind != 0 || stream == NULL) return INVALID;
  if (fails(__func__)) return FAILED;
  make(state, 1, sizeof(State));
  ((State*)*state)->stream = stream;
  return SUCCESS;
}

int nvjpegEncoderStateDestroy(State* state) {
  free(state->file);
  return destroy(state, 1);
}

int nvjpegEncoderParamsCreate(Handle* handle, void** parameters, void* stream) {
  if (handle == NULL || handle->kind != 0 || stream == NULL) return INVALID;
  if (fails(__func__)) return FAILED;
  make(parameters, 2, sizeof(Parameters));
  ((Parameters*)*parameters)->stream = stream;
  return SUCCESS;
}

int nvjpegEncoderParamsDestroy(void* parameters) { return destroy(parameters, 2); }

int nvjpegEncoderParamsSetQuality(Parameters* parameters, int quality, void* stream) {
  if (parameters->kind != 2 || quality < 1 || quality > 100 || stream != parameters->stream) return INVALID;
  parameters->quality = quality;
  return fails(__func__) ? FAILED : SUCCESS;
}

int nvjpegEncoderParamsSetSamplingFactors(Parameters* parameters, int sampling, void* stream) {
  if (parameters->kind != 2 || sampling < 0 || sampling > 6 || stream != parameters->stream) return INVALID;
  parameters->sampling = sampling;
  return fails(__func__) ? FAILED : SUCCESS;
}

// Reads the pixels at once, since the hardware engines of nvJPEG do not wait for the stream.
int nvjpegEncodeImage(Handle* handle, State* state, Parameters* parameters, const Image* source, int format, int width,
                      int height, void* stream) {
  if (handle->kind != 0 || state->kind != 1 || parameters->kind != 2 || parameters->quality == 0) return INVALID;
  if (stream == NULL || stream != state->stream || stream != parameters->stream) return INVALID;
  if (format != 5 || width < 1 || height < 1 || source->pitch[0] != 3 * (size_t)width) return INVALID;
  if (source->channel[0] == NULL || source->channel[1] != NULL || source->pitch[1] != 0) return INVALID;
  if (atomic_flag_test_and_set(&state->used)) return INTERNAL;
  const int together = ++encoding;
  int most = most_encoding;
  while (together > most && !atomic_compare_exchange_weak(&most_encoding, &most, together));
  for (int i = 0; is_held() && i < 100000; ++i) usleep(1000);
  const int32_t told[5] = {width, height, parameters->quality, parameters->sampling, format};
  const size_t bytes = source->pitch[0] * height;
  state->length = 2 + sizeof(told) + bytes;
  state->file = realloc(state->file, state->length);
  memcpy(state->file, "\xFF\xD8", 2);
  memcpy(state->file + 2, told, sizeof(told));
  memcpy(state->file + 2 + sizeof(told), source->channel[0], bytes);
  --encoding;
  atomic_flag_clear(&state->used);
  return fails(__func__) ? FAILED : SUCCESS;
}

int nvjpegEncodeRetrieveBitstream(Handle* handle, State* state, unsigned char* data, size_t* length, void* stream) {
  if (handle->kind != 0 || state->kind != 1 || state->file == NULL || stream != state->stream) return INVALID;
  if (fails(__func__)) return FAILED;
  if (data != NULL) {
    if (*length < state->length) return INVALID;
    memcpy(data, state->file, state->length);
    ++encoded;
  }
  *length = state->length;
  return SUCCESS;
}
