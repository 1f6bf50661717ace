// Rates at which copy engine and SMs read pinned host memory, without jax: a line of JSON each.
// nvcc -O3 -gencode=arch=compute_90a,code=sm_90a probe.cu -o probe -ldl && ./probe
#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <algorithm>
#include <vector>
#define OK(x) do { auto e_ = (x); if ((int)e_) { printf("{\"error\": \"%s\", \"status\": %d}\n", #x, (int)e_); exit(1); } } while (0)
constexpr int STAGES = 8, BOX = 16384;  // bytes of a box; 128 KiB in flight an SM, as in hybrid_gemm

__device__ uint32_t shared(void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
__device__ void wait(uint64_t* bar, uint32_t phase) {
  asm volatile("{\n.reg .pred p;\nW%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra D%=;\nbra W%=;\nD%=:\n}"
               :: "r"(shared(bar)), "r"(phase) : "memory");
}
// mode 0: ld.global.v4 by all threads; 1: cp.async.bulk of whole boxes; 2: tensor boxes by the map
__global__ void __launch_bounds__(1024, 1) probe(const __grid_constant__ CUtensorMap map, const char* w,
    long boxes, int mode, int per_row, int rows, int cols, unsigned* sink) {
  extern __shared__ __align__(1024) char smem[];
  __shared__ uint64_t full[STAGES];
  if (mode == 0) {
    uint4 sum = {0, 0, 0, 0};
    for (long b = blockIdx.x; b < boxes; b += gridDim.x) {
      const uint4* p = (const uint4*)(w + b * BOX);
      uint4 v;
      asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                   : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p + threadIdx.x));
      sum.x ^= v.x; sum.y ^= v.y; sum.z ^= v.z; sum.w ^= v.w;
    }
    atomicXor(sink, sum.x ^ sum.y ^ sum.z ^ sum.w);
    return;
  }
  if (threadIdx.x) return;
  for (int s = 0; s < STAGES; s++) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(shared(full + s)));
  asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
  long n = 0; unsigned x = 0;
  auto done = [&](long i) { int s = i % STAGES; wait(full + s, (i / STAGES) & 1); x ^= *(unsigned*)(smem + s * BOX); };
  for (long b = blockIdx.x; b < boxes; b += gridDim.x, n++) {
    int s = n % STAGES;
    if (n >= STAGES) done(n - STAGES);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(shared(full + s)), "r"(BOX));
    if (mode == 1)
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
          :: "r"(shared(smem + s * BOX)), "l"(w + b * BOX), "r"(BOX), "r"(shared(full + s)) : "memory");
    else {
      int c = (int)(b % per_row) * cols, r = (int)(b / per_row) * rows;
      for (int k = 0; k < cols; k += 64)  // 128-byte swizzle: 64 columns a box
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
            :: "r"(shared(smem + s * BOX + k * rows * 2)), "l"(&map), "r"(c + k), "r"(r), "r"(shared(full + s)) : "memory");
    }
  }
  for (long i = n > STAGES ? n - STAGES : 0; i < n; i++) done(i);
  atomicXor(sink, x);
}
static float median(std::vector<float> v) { std::sort(v.begin(), v.end()); return v[v.size() / 2]; }
// Pinned memory of the runtime, or mapped pages of 4 KiB or 2 MiB that it registers.
static char* allocate(const char* pages, long bytes) {
  char* p;
  if (!strcmp(pages, "runtime")) { OK(cudaHostAlloc(&p, bytes, cudaHostAllocMapped | cudaHostAllocPortable)); return p; }
  const long huge = 2 << 20;
  p = (char*)mmap(nullptr, bytes + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) { printf("{\"error\": \"mmap\", \"status\": 1}\n"); exit(1); }
  p = (char*)(((uintptr_t)p + huge - 1) / huge * huge);
  madvise(p, bytes, strcmp(pages, "huge") ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
  memset(p, 1, bytes);
  OK(cudaHostRegister(p, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable));
  return p;
}
int main() {
  const long K = 8192, N = 16384, bytes = 2 * K * N;  // 268 MB, several times the L2
  int sms; OK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  char* dev; unsigned* sink;
  OK(cudaMalloc(&dev, bytes)); OK(cudaMalloc(&sink, 4));
  OK(cudaFuncSetAttribute(probe, cudaFuncAttributeMaxDynamicSharedMemorySize, STAGES * BOX));
  cudaEvent_t a, b; OK(cudaEventCreate(&a)); OK(cudaEventCreate(&b));
  auto timed = [&](long moved, auto run) {
    std::vector<float> t;
    for (int i = 0; i < 6; i++) { float ms; cudaEventRecord(a); run(); cudaEventRecord(b); OK(cudaEventSynchronize(b)); OK(cudaGetLastError()); cudaEventElapsedTime(&ms, a, b); if (i) t.push_back(ms); }
    return moved / median(t) / 1e6;
  };
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY);  // not linked: machines that only build lack it
  auto encode = (decltype(&cuTensorMapEncodeTiled))(driver ? dlsym(driver, "cuTensorMapEncodeTiled") : nullptr);
  if (!encode) { printf("{\"error\": \"cuTensorMapEncodeTiled\", \"status\": 1}\n"); return 1; }
  struct Shape { const char* layout; long rows, cols; int box_rows, box_cols; };
  const Shape shapes[] = {{"kn", K, N, 64, 128}, {"nk", N, K, 128, 64}, {"tiles", K * N / 64, 64, 128, 64}};
  for (const char* pages : {"runtime", "huge", "4k"}) {
    char* host = allocate(pages, bytes);
    for (long i = 0; i < bytes / 8; i++) ((uint64_t*)host)[i] = i * 0x9E3779B97F4A7C15ull;
    double ce = timed(bytes, [&] { cudaMemcpyAsync(dev, host, bytes, cudaMemcpyHostToDevice); });
    printf("{\"of\": \"copy_engine\", \"pages\": \"%s\", \"gbps\": %.2f}\n", pages, ce); fflush(stdout);
    for (int n : {sms, 64, 32, 16, 8, 4, 2, 1}) {
      if (n != sms && strcmp(pages, "runtime")) break;
      long boxes = bytes / BOX / (n < 8 ? 8 : 1);  // few SMs are slow: an eighth shows their rate
      auto row = [&](const char* of, const char* layout, int promotion, int mode, const CUtensorMap& map, int per, int br, int bc) {
        double g = timed(boxes * BOX, [&] { probe<<<n, mode ? 32 : 1024, STAGES * BOX>>>(map, host, boxes, mode, per, br, bc, sink); });
        printf("{\"of\": \"%s\", \"layout\": \"%s\", \"promotion\": %d, \"sms\": %d, \"pages\": \"%s\", \"gbps\": %.2f}\n", of, layout, promotion, n, pages, g); fflush(stdout);
      };
      CUtensorMap none; memset(&none, 0, sizeof none);
      row("load", "", 0, 0, none, 1, 1, 1);
      row("bulk", "", 0, 1, none, 1, 1, 1);
      for (const Shape& s : shapes)
        for (int promotion : {0, 3}) {  // none; 256 bytes
          if (promotion && (n != sms || strcmp(pages, "runtime"))) continue;
          CUtensorMap map; cuuint64_t size[2] = {(cuuint64_t)s.cols, (cuuint64_t)s.rows}, stride[1] = {(cuuint64_t)s.cols * 2};
          cuuint32_t box[2] = {64, (cuuint32_t)s.box_rows}, one[2] = {1, 1};
          OK(encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, host, size, stride, box, one, CU_TENSOR_MAP_INTERLEAVE_NONE,
              CU_TENSOR_MAP_SWIZZLE_128B, (CUtensorMapL2promotion)promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
          row("tensor", s.layout, promotion, 2, map, (int)(s.cols / s.box_cols), s.box_rows, s.box_cols);
        }
    }
  }
}
