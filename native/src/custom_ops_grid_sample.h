/* custom_ops_grid_sample.h - infersdk::GridSample3D. SPDX-License-Identifier: Apache-2.0 */
#ifndef IFS_CUSTOM_OPS_GRID_SAMPLE_H
#define IFS_CUSTOM_OPS_GRID_SAMPLE_H

#include "infersdk_custom_op.h"

/* [cdef] */

/* x [n, c, depth, height, width] and grid [n, d, h, w, 3] of float32 to y [n, c, d, h, w], as ONNX's GridSample does.
 */
int32_t ifs_grid_sample_3d(const ifs_op_call *call);

/* [/cdef] */

#endif
