// Training on the CPU: the interface that each instruction set implements.
#pragma once

#include "common/isa.h"
#include "common/pool.h"
#include "common/stage_clock.h"
#include "training/params.h"

namespace lumigrad::training {

// Scratch memory: grows to what the largest call needed and is reused; one call at a time.
struct Workspace {
  Buffer numbers, sums, scratch;
  double milliseconds[kMaxStages] = {};  // Times of the last call, which has one stage only.
};

// Each call sets Workspace::milliseconds.
struct CpuEngine {
  // Steps all groups; `sums` are kAdamSums for each.
  void (*adam)(const AdamGroup* groups, int count, const AdamSettings& settings, double* sums, Workspace& workspace);
  // `values` are kLossValues for each view.
  void (*image_loss)(const ImageLoss& loss, double* values, Workspace& workspace);
  void (*mean)(const Mean& values, double* to, Workspace& workspace);
  // The number of rows that are not 0, to `to`; `rows` has 1 for each of them and 0 for the others, unless it is null.
  void (*count_touched)(const int32_t* touched, int64_t count, uint8_t* rows, double* to, Workspace& workspace);
  // `values` are kPlaneValues for each view.
  void (*plane_loss)(const PlaneLoss* views, int count, double* values, Workspace& workspace);
  void (*expose)(const Exposure& view);
  // Also the gradient of the matrix.
  void (*expose_backward)(const Exposure& view, float* matrix, Workspace& workspace);
  // Adds the same matrix to those of all views, so that their mean is the identity.
  void (*center_exposures)(float* matrices, int64_t views);
  // Normals [height, width, 3] in the world, towards the camera; 0 at the border.
  void (*surface_normals)(const Surface& surface, float* to);
  // The gradient of the depths, which may be added to what is there, given that of the normals; and kSurfaceSums,
  // unless null.
  void (*surface_backward)(const Surface& surface, const float* gradient, float* to, bool adds, double* sums,
                           Workspace& workspace);
  void (*normal_loss)(const NormalLoss& loss, double* to, Workspace& workspace);
};

CpuEngine cpu_engine(Isa isa);

}  // namespace lumigrad::training
