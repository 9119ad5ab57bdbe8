#include "training/cpu/image_tile.h"

LG_BEGIN_ENGINE(training)

namespace {

// The size of a line of `count` numbers, padded by at least a pack.
std::size_t padded(int64_t count) { return static_cast<std::size_t>((count + 2 * kLanes - 1) / kLanes * kLanes); }

// The weighted sum of 11 numbers: `at(k)` gives number k; number 5 is the middle.
template <class At>
LG_INLINE Pack window_sum(const At& at) {
  Pack sum = Pack(window_weight(0)) * at(kRadius);
  for (int d = 1; d <= kRadius; ++d) sum = fma(Pack(window_weight(d)), at(kRadius - d) + at(kRadius + d), sum);
  return sum;
}

// Sets to[i], for i < count and up to a pack beyond, to the window sum over from[i + k * step].
void filter_line(const float* from, int64_t step, int64_t count, float* to) {
  for (int64_t i = 0; i < count; i += kLanes) {
    window_sum([&](int k) { return load_unaligned(from + i + k * step); }).store(to + i);
  }
}

// The rows of a window; missing rows are zeros.
struct Rows {
  const float* row[kTaps];

  LG_INLINE Pack window(std::size_t at) const {
    return window_sum([&](int k) { return Pack::load(row[k] + at); });
  }
};

}  // namespace

TileLoss::Widths::Widths(int channels, int64_t columns)
    : halo(int64_t{kRadius} * channels),
      own(padded(columns)),
      map(padded(columns + 2 * halo)),
      input(padded(columns + 4 * halo)) {}

std::size_t TileLoss::floats(int channels, int64_t columns) {
  const Widths w(channels, columns);
  const std::size_t of_lines = kMoments * w.input + kDerivatives * w.map + 2 * w.map + kMoments * w.map;
  return of_lines + kTaps * (kMoments * w.map + kDerivatives * w.own);
}

TileLoss::TileLoss(const ImageLoss& loss, int64_t columns, float* scratch)
    : loss_(loss), widths_(loss.channels, columns) {
  const auto take = [&](std::size_t count) {
    scratch += count;
    return scratch - count;
  };
  for (float*& line : input_) line = take(widths_.input);
  for (float*& line : map_) line = take(widths_.map);
  values_ = take(widths_.map);
  weights_ = take(widths_.map);
  zeros_ = take(kMoments * widths_.map);
  moments_ = take(kTaps * kMoments * widths_.map);
  derivatives_ = take(kTaps * kDerivatives * widths_.own);
  memset(zeros_, 0, kMoments * widths_.map * sizeof(float));
}

bool TileLoss::in_map(int row) const {
  const int edge = loss_.valid ? kRadius : 0;
  return row >= edge && row < loss_.height - edge;
}

// Loads the weights of columns [begin, end) of a row; columns less than `edge` from the image's sides, or outside, get
// 0.
void TileLoss::load_weights(int row, int64_t begin, int64_t end, int64_t edge, float* to) const {
  const int64_t first = int64_t{tile_.view} * loss_.height * loss_.width + int64_t{row} * loss_.width;
  const int64_t low = edge < begin ? begin : edge, high = columns() - edge < end ? columns() - edge : end;
  memset(to, 0, (end - begin) * sizeof(float));
  for (int64_t column = low; column < high;) {
    const int64_t pixel = column / loss_.channels, next = (pixel + 1) * loss_.channels;
    const float weight = weight_at(loss_.mask, first + pixel);
    for (; column < next && column < high; ++column) to[column - begin] = weight;
  }
}

void TileLoss::load_row(int row) {
  const int64_t begin = tile_.begin - 2 * widths_.halo, end = tile_.end + 2 * widths_.halo;
  const int64_t low = begin < 0 ? 0 : begin, high = end < columns() ? end : columns();
  for (float* line : input_) {
    memset(line, 0, (low - begin) * sizeof(float));
    memset(line + (high - begin), 0, (widths_.input - (high - begin)) * sizeof(float));
  }
  each_pack(high - low, [&](int64_t i, int lanes) {
    const int64_t from = place(row) + low + i, to = low - begin + i;
    const Pack x = load_lanes(loss_.image + from, lanes), y = load_plane(loss_.target, from, lanes);
    const Pack difference = x - y;
    const Pack values[kMoments] = {x, difference, fma(x, x, y * y), difference * difference};
    for (int m = 0; m < kMoments; ++m) store_lanes(values[m], input_[m] + to, lanes);
  });
}

void TileLoss::add_moments(int row) {
  load_row(row);
  const int64_t count = tile_.end - tile_.begin + 2 * widths_.halo;
  for (int m = 0; m < kMoments; ++m) {
    filter_line(input_[m], loss_.channels, count, moments_of(row) + m * widths_.map);
  }
}

void TileLoss::add_derivatives(int row) {
  const int64_t begin = tile_.begin - widths_.halo, end = tile_.end + widths_.halo, own = tile_.end - tile_.begin;
  load_weights(row, begin, end, loss_.valid ? widths_.halo : 0, weights_);
  Rows rows;
  for (int k = 0; k < kTaps; ++k) {
    const int from = row + k - kRadius;
    rows.row[k] = from >= 0 && from < loss_.height ? moments_of(from) : zeros_;
  }
  const Pack factor(factors_.dssim);
  for (int64_t i = 0; i < end - begin; i += kLanes) {
    const std::size_t stride = widths_.map;
    const Moments<Pack> m = {rows.window(i), rows.window(stride + i), rows.window(2 * stride + i),
                             rows.window(3 * stride + i)};
    const Dissimilarity<Pack> d = dissimilarity(m, [](const Pack& a) { return Pack(1.0f) / a; });
    const Pack weight = Pack::load(weights_ + i), scale = weight * factor;
    (d.value * weight).store(values_ + i);
    (d.by_mean * scale).store(map_[0] + i);
    (d.by_squares * scale).store(map_[1] + i);
    (d.by_error * scale).store(map_[2] + i);
  }
  for (int d = 0; d < kDerivatives; ++d) {
    filter_line(map_[d], loss_.channels, own, derivatives_of(row) + d * widths_.own);
  }
  if (row < tile_.row_begin || row >= tile_.row_end) return;
  each_pack(own, [&](int64_t i, int lanes) { dssim_.add(load_lanes(values_ + widths_.halo + i, lanes)); });
}

void TileLoss::store_gradient(int row) {
  Rows rows;
  for (int k = 0; k < kTaps; ++k) {
    const int from = row + k - kRadius;
    rows.row[k] = in_map(from) ? derivatives_of(from) : zeros_;
  }
  if (loss_.mask.data != nullptr) load_weights(row, tile_.begin, tile_.end, 0, weights_);
  const Pack zero(0.0f), l1(factors_.l1), l2(2.0f * factors_.l2);
  each_pack(tile_.end - tile_.begin, [&](int64_t i, int lanes) {
    const int64_t at = place(row) + tile_.begin + i;
    const Pack x = load_lanes(loss_.image + at, lanes), y = load_plane(loss_.target, at, lanes);
    const Pack weight = loss_.mask.data == nullptr ? Pack(1.0f) : load_lanes(weights_ + i, lanes);
    const Pack difference = x - y, weighted = difference * weight;
    l1_.add(abs(weighted));
    l2_.add(weighted * difference);
    const Pack slope = select(difference > zero, l1, select(difference < zero, -l1, zero));
    Pack gradient = fma(l2, weighted, slope * weight);
    if (loss_.dssim != 0.0f) {
      const std::size_t stride = widths_.own;
      const Pack around = fma(x, rows.window(stride + i), rows.window(i));
      gradient = gradient + fma(difference, rows.window(2 * stride + i), around);
    }
    store_lanes(gradient, loss_.gradient + at, lanes);
  });
}

TileSums TileLoss::run(const Tile& tile, const Factors& factors) {
  tile_ = tile;
  factors_ = factors;
  l1_ = l2_ = dssim_ = LaneSums();
  const bool windows = loss_.dssim != 0.0f;
  const int ahead = windows ? 2 * kRadius : 0;
  // Each row of the image completes a row of the map, which completes a row of the gradient.
  for (int row = tile.row_begin - ahead; row < tile.row_end + ahead; ++row) {
    if (windows && row >= 0 && row < loss_.height) add_moments(row);
    if (windows && in_map(row - kRadius) && row - kRadius >= tile.row_begin - kRadius) add_derivatives(row - kRadius);
    if (row - ahead >= tile.row_begin) store_gradient(row - ahead);
  }
  return {l1_.total(), l2_.total(), dssim_.total()};
}

LG_END
