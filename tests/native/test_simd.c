/* test_simd.c - prints the best SIMD variant of this processor. SPDX-License-Identifier: Apache-2.0 */
#include "infersdk.h"

#include <stdio.h>

int main(void) {
    puts(ifs_simd_name(ifs_simd_best()));
    return 0;
}
