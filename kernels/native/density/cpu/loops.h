// The loops behind CpuEngine (engine.h), compiled for one instruction set.
#pragma once

#include "common/math/number.h"
#include "common/threads.h"
#include "density/cpu/engine.h"

LG_BEGIN_ENGINE(density)

void random_words(const Draw& draw, uint32_t first, int64_t count, uint32_t* words);
void normals(const Draw& draw, uint32_t first, int64_t count, float* values);
void add_noise(const Gaussians& g, const Draw& draw, float strength);
void accumulate(const Observed& observed, const Statistics& to);
void classify(const Candidates& rows, const Limits& limits, Fate* fates, int32_t* starts);
void list_rows(const Fate* fates, const int32_t* starts, int32_t count, int32_t* sources);
void gather(const Generation& next, const Column* columns, int count);
void split(const Children& children, const Draw& first, const Draw& second);
void weigh(const float* opacities, int32_t count, float minimum, const Weights& to);
void sample_rows(const Sample& sample, const Draw& draw);
void share_rows(const Shared& shared, const Column* columns, int count);
void move_rows(const Moves& moves, const Column* columns, int count);

// Calls body(chunk, begin, end) for each chunk of `count` rows, on all threads.
template <class Body>
LG_INLINE void each_chunk(int64_t count, const Body& body) {
  for_parts(static_cast<int>(chunks_of(count)), [&](int chunk) {
    const int64_t begin = int64_t{chunk} * kChunk;
    body(chunk, begin, begin + kChunk < count ? begin + kChunk : count);
  });
}

LG_END
