/* status.c - status texts and the thread's last error. SPDX-License-Identifier: Apache-2.0 */
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char last_error[8192]; /* of a path, which has at most 4095 bytes on Linux, and of the reason */

const char *ifs_status_text(ifs_status status) {
    switch (status) {
#define CASE(name, code, text)                                                                                         \
    case code:                                                                                                         \
        return text;
        IFS_STATUS_MAP(CASE)
#undef CASE
    default:
        return "unknown status";
    }
}

const char *ifs_last_error(void) { return last_error; }

ifs_status ifs__fail(ifs_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(last_error, sizeof last_error, format, args);
    va_end(args);
    return status;
}
