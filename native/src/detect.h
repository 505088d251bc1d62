/*
 * detect.h - the checks that the detection decoders of the host and the device share.
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

/* That the geometry can map boxes back to the image and, for a head with grids, that these have as many cells as the
 * head has anchors. */
ifs_status ifs__check_detect_geometry(const ifs_detect_params *params, const ifs_geometry *geometry);

#ifdef __cplusplus
}
#endif
#endif
