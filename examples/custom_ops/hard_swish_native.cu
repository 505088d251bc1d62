/* hard_swish_native.cu - the kernel of hard_swish_native.py on a GPU. SPDX-License-Identifier: Apache-2.0 */
extern "C" __global__ void hard_swish(const T *x, T *y, long long count, float alpha) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < count) {
        float v = (float)x[i];
        y[i] = (T)(v * fminf(fmaxf(alpha * v + 0.5f, 0.f), 1.f));
    }
}
