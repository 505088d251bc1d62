/*
 * custom_ops_grid_sample.c - infersdk::GridSample3D on the host. SPDX-License-Identifier: Apache-2.0
 *
 * ONNX's GridSample over volumes (opset 20): a grid of x, y, z from -1 to 1 says where each output voxel is sampled.
 */
#include "custom_ops_grid_sample.h"
#include "internal.h"

#include <math.h>
#include <string.h>

enum { MODE, PADDING, ALIGN }; /* the attributes in the order of infersdk/custom_ops/packaged/grid_sample.py */
enum { ZEROS, BORDER, REFLECTION };

#define VOXELS 4096 /* of an item of work */

typedef struct volume {
    const ifs_op_call *call;
    int64_t channels, size[3], out_voxels; /* size: depth, height, width */
    int padding;
    bool linear, align;
} volume;

/* From -1 to 1 to voxels: the centres of the outermost ones (align), or their edges. */
static float to_voxel(float x, int64_t size, bool align) {
    return align ? (x + 1) / 2 * (float)(size - 1) : ((x + 1) * (float)size - 1) / 2;
}

static float reflect(float x, float low, float high) {
    float range = high - low;
    if (range <= 0)
        return low;
    float past = fmodf(fabsf(x - low), 2 * range);
    return low + (past > range ? 2 * range - past : past);
}

/* A coordinate after the padding; that of zeros is left as it is, and what lies outside counts as 0. */
static float padded(const volume *v, float x, int64_t size) {
    float last = (float)(size - 1);
    if (v->padding == REFLECTION)
        x = v->align ? reflect(x, 0, last) : reflect(x, -0.5f, last + 0.5f);
    if (v->padding != ZEROS)
        x = x < 0 ? 0 : x > last ? last : x;
    return x;
}

static float voxel(const volume *v, const float *x, int64_t d, int64_t h, int64_t w) {
    bool inside = d >= 0 && d < v->size[0] && h >= 0 && h < v->size[1] && w >= 0 && w < v->size[2];
    return inside ? x[(d * v->size[1] + h) * v->size[2] + w] : 0;
}

static float sample(const volume *v, const float *x, const float at[3]) {
    if (!v->linear)
        return voxel(v, x, (int64_t)nearbyintf(at[0]), (int64_t)nearbyintf(at[1]), (int64_t)nearbyintf(at[2]));
    float low[3] = {floorf(at[0]), floorf(at[1]), floorf(at[2])}, sum = 0;
    for (int corner = 0; corner < 8; corner++) {
        float weight = 1;
        int64_t place[3];
        for (int axis = 0; axis < 3; axis++) {
            int step = corner >> (2 - axis) & 1;
            float part = at[axis] - low[axis];
            weight *= step ? part : 1 - part;
            place[axis] = (int64_t)low[axis] + step;
        }
        if (weight != 0)
            sum += weight * voxel(v, x, place[0], place[1], place[2]);
    }
    return sum;
}

static void sample_part(void *arg, size_t item) {
    const volume *v = arg;
    int64_t parts = (v->out_voxels + VOXELS - 1) / VOXELS, image = (int64_t)item / parts;
    int64_t start = (int64_t)item % parts * VOXELS, stop = start + VOXELS;
    int64_t plane = v->size[0] * v->size[1] * v->size[2];
    const float *x = (const float *)v->call->inputs[0].data + image * v->channels * plane;
    const float *grid = (const float *)v->call->inputs[1].data + image * v->out_voxels * 3;
    float *y = (float *)v->call->outputs[0].data + image * v->channels * v->out_voxels;
    for (int64_t i = start; i < stop && i < v->out_voxels; i++) {
        float at[3];
        bool somewhere = true;
        for (int axis = 0; axis < 3; axis++) {
            at[axis] = padded(v, to_voxel(grid[3 * i + 2 - axis], v->size[axis], v->align), v->size[axis]);
            somewhere &= at[axis] > -2 && at[axis] < (float)v->size[axis] + 1; /* also false for NaN */
        }
        for (int64_t c = 0; c < v->channels; c++)
            y[c * v->out_voxels + i] = somewhere ? sample(v, x + c * plane, at) : 0;
    }
}

static int padding_of(const char *name) {
    return strcmp(name, "zeros") == 0        ? ZEROS
           : strcmp(name, "border") == 0     ? BORDER
           : strcmp(name, "reflection") == 0 ? REFLECTION
                                             : -1;
}

int32_t ifs_grid_sample_3d(const ifs_op_call *call) {
    const int64_t *in = call->inputs[0].dims, *grid = call->inputs[1].dims;
    const char *mode = call->attributes[MODE].s, *padding = call->attributes[PADDING].s;
    volume v = {call,
                in[1],
                {in[2], in[3], in[4]},
                grid[1] * grid[2] * grid[3],
                padding_of(padding),
                strcmp(mode, "linear") == 0,
                call->attributes[ALIGN].i != 0};
    if (!v.linear && strcmp(mode, "nearest") != 0)
        return IFS_OP_FAIL(call, "mode is %s; it is linear or nearest", mode);
    if (v.padding < 0)
        return IFS_OP_FAIL(call, "padding_mode is %s; it is zeros, border or reflection", padding);
    int64_t parts = (v.out_voxels + VOXELS - 1) / VOXELS;
    if (in[2] && in[3] && in[4])
        call->parallel_for(call, sample_part, &v, (size_t)(in[0] * parts));
    else
        memset(call->outputs[0].data, 0, (size_t)ifs_op_count(&call->outputs[0]) * sizeof(float));
    return 0;
}
