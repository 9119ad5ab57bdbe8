// Runs the small kernels; the functions neither wait nor check anything.
#pragma once

#include <cstddef>

#include "common/cuda/launch.h"

namespace lumigrad::checks {

void sum(const float* values, int count, float* total);
void scan(const int* values, int* sums);
void compact(const int* values, int count, int* kept, unsigned* kept_count);
void warp_operations(int* out);
void votes(int* out);
void atomics(int* ints, unsigned long long* wide, float* real, double* precise);
void race(int* out);
void missed_barrier();
void two_barriers();
void missed_shuffle(int* out);
void absent_lane(int* out);
void foreign_mask();
void out_of_range(int* out, int index);
void dynamic(int* out, int index);
void undefined(float* out, bool write);
void large_frame(int* out);
void shape(unsigned grid, unsigned block, std::size_t shared);

// checks/streams.cu: work on streams that is correct if `right`, and otherwise has a fault.
int copy_twice_from_one_place(bool right);
int read_count(bool right);
int free_during_copy(bool right);
int read_from_other_stream(bool right);
int give_back_to_other_stream(bool right);
int pass_local_array(bool right);
// Inverse, inverse square root and 2^-x of `count` values, at most 128, one result array after another.
void approximate(const float* values, int count, float* out);

}  // namespace lumigrad::checks
