#include "density/cpu/loops.h"

LG_BEGIN_ENGINE(density)

CpuEngine engine() {
  return {&random_words, &normals, &add_noise, &accumulate,  &classify,   &list_rows,
          &gather,       &split,   &weigh,     &sample_rows, &share_rows, &move_rows};
}

LG_END
