/*
 * detect.h - what the detectors of the host and of the device share: the checks of what they are given.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef IFS_DETECT_H
#define IFS_DETECT_H

#include "internal.h"

#ifdef __cplusplus
extern "C" {
#endif

ifs_status ifs__check_detect_params(const ifs_detect_params *params);

/* Whether a detector can map boxes back by the geometry, and, with grids, whether these have the anchors of the head.
 */
ifs_status ifs__check_detect_geometry(const ifs_detect_params *params, const ifs_geometry *geometry);

#ifdef __cplusplus
}
#endif
#endif
