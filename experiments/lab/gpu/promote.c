// LD_PRELOAD shim: L2 promotion of the TMA descriptors that jax's Mosaic GPU runtime makes (it asks for none).
//   nvcc -O3 -shared -cudart=none -Xcompiler=-fPIC promote.c -o promote.so -ldl
//   LD_PRELOAD=./promote.so L2_PROMOTION=3 python ...      0 none, 1 64 B, 2 128 B, 3 256 B
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
typedef CUresult (*Encode)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                           const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                           CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* base, const cuuint64_t* sizes,
                                const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t* steps, CUtensorMapInterleave inter,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  const char* wanted = getenv("L2_PROMOTION");
  if (wanted) promotion = (CUtensorMapL2promotion)atoi(wanted);
  if (getenv("L2_PROMOTION_SHOW"))
    fprintf(stderr, "tensor map: rank %u box %u x %u swizzle %d promotion %d\n", rank, box[0], rank > 1 ? box[1] : 1, (int)swizzle, (int)promotion);
  static Encode real;
  if (!real) { void* lib = dlopen("libcuda.so.1", RTLD_LAZY); real = lib ? (Encode)dlsym(lib, "cuTensorMapEncodeTiled") : 0; }
  return real ? real(map, type, rank, base, sizes, strides, box, steps, inter, swizzle, promotion, fill) : CUDA_ERROR_NOT_FOUND;
}
