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
  double milliseconds[kMaxStages] = {};  // Times of the last call, which has only one stage.
};

// Each call sets Workspace::milliseconds.
struct CpuEngine {
  // Steps all groups; `sums` receives kAdamSums for each.
  void (*adam)(const AdamGroup* groups, int count, const AdamSettings& settings, double* sums, Workspace& workspace);
  // `values` receives kLossValues for each view.
  void (*image_loss)(const ImageLoss& loss, double* values, Workspace& workspace);
  void (*mean)(const Mean& values, double* to, Workspace& workspace);
  // Writes the number of rows that are not 0 to `to`; `rows`, unless null, receives 1 for these rows and 0 for the
  // others.
  void (*count_touched)(const int32_t* touched, int64_t count, uint8_t* rows, double* to, Workspace& workspace);
  // `values` receives kPlaneValues for each view.
  void (*plane_loss)(const PlaneLoss* views, int count, double* values, Workspace& workspace);
  void (*expose)(const Exposure& view);
  // Also writes the gradient of the matrix.
  void (*expose_backward)(const Exposure& view, float* matrix, Workspace& workspace);
  // Adds one matrix to the matrices of all views, so that their mean is the identity.
  void (*center_exposures)(float* matrices, int64_t views);
  // Writes normals [height, width, 3], world frame, towards the camera; 0 at the border.
  void (*surface_normals)(const Surface& surface, float* to);
  // Writes the gradient of the depths, given the normals' gradient, or adds it to `to` if `adds`; and kSurfaceSums to
  // `sums`, unless null.
  void (*surface_backward)(const Surface& surface, const float* gradient, float* to, bool adds, double* sums,
                           Workspace& workspace);
  void (*normal_loss)(const NormalLoss& loss, double* to, Workspace& workspace);
};

CpuEngine cpu_engine(Isa isa);

}  // namespace lumigrad::training
