// A CUPTI of its own: keeps to the headers' structures, counts passes and kernels (a call of
// fake_kernel each), evaluates to 1, 2, 3, ... of the first kernel, to 11, 12, 13, ... of the second.
#include <cstddef>
#include <cstdint>
#include <cstring>

#define EXPORT extern "C" __attribute__((visibility("default")))
#define CHECK(type, last) \
  if (p->structSize != offsetof(type, last) + sizeof(p->last) || p->pPriv) return 1

static int passes = 1, refusal = 0, done = 0, running = 0, enabled = 0;
static size_t room = 0, kernels = 0;
static char lacking[128], scheduled[64][128];
static int count = 0, host_object, profiler_object;

EXPORT void fake(int wanted, int refused, const char* absent) {
  passes = wanted, refusal = refused, done = 0, running = 0, enabled = 0, count = 0;
  room = kernels = 0;
  std::strncpy(lacking, absent, sizeof lacking - 1);
}
EXPORT int fake_enabled() { return enabled; }
EXPORT void fake_kernel() { kernels += running; }

struct Initialize { size_t structSize; void* pPriv; };
EXPORT int cuptiProfilerInitialize(Initialize* p) { CHECK(Initialize, pPriv); return 0; }

struct Chip { size_t structSize; void* pPriv; size_t deviceIndex; const char* pChipName; };
EXPORT int cuptiDeviceGetChipName(Chip* p) {
  CHECK(Chip, pChipName);
  p->pChipName = "GH100";
  return p->deviceIndex == 3 ? 0 : 2;
}

struct Availability { size_t structSize; void* pPriv; void* ctx; size_t size; uint8_t* image; };
EXPORT int cuptiProfilerGetCounterAvailability(Availability* p) {
  CHECK(Availability, image);
  if (!p->image) p->size = 5;
  else std::memset(p->image, 7, p->size);
  return 0;
}

struct Host { size_t structSize; void* pPriv; int kind; const char* chip; const uint8_t* image; void* host; };
EXPORT int cuptiProfilerHostInitialize(Host* p) {
  CHECK(Host, host);
  if (std::strcmp(p->chip, "GH100") || !p->image || p->image[4] != 7) return 2;
  p->host = &host_object;
  return 0;
}
struct Close { size_t structSize; void* pPriv; void* host; };
EXPORT int cuptiProfilerHostDeinitialize(Close* p) { CHECK(Close, host); return p->host != &host_object; }

struct Add { size_t structSize; void* pPriv; void* host; const char** names; size_t count; };
EXPORT int cuptiProfilerHostConfigAddMetrics(Add* p) {
  CHECK(Add, count);
  if (!std::strcmp(p->names[0], lacking)) return 16;
  for (size_t i = 0; i < p->count; ++i) std::strncpy(scheduled[count++], p->names[i], 127);
  return 0;
}
struct ConfigSize { size_t structSize; void* pPriv; void* host; size_t size; };
EXPORT int cuptiProfilerHostGetConfigImageSize(ConfigSize* p) {
  CHECK(ConfigSize, size);
  p->size = 11;
  return 0;
}
struct Config { size_t structSize; void* pPriv; void* host; size_t size; uint8_t* image; };
EXPORT int cuptiProfilerHostGetConfigImage(Config* p) {
  CHECK(Config, image);
  std::memset(p->image, 9, p->size);
  return p->size != 11;
}

struct Enable { size_t structSize; void* pPriv; void* ctx; void* profiler; };
EXPORT int cuptiRangeProfilerEnable(Enable* p) {
  CHECK(Enable, profiler);
  if (refusal) return refusal;
  p->profiler = &profiler_object;
  ++enabled;
  return 0;
}
struct One { size_t structSize; void* pPriv; void* profiler; };
EXPORT int cuptiRangeProfilerDisable(One* p) { CHECK(One, profiler); --enabled; return 0; }
EXPORT int cuptiRangeProfilerStart(One* p) {
  CHECK(One, profiler);
  kernels = 0;
  return running++;
}

struct DataSize {
  size_t structSize; void* pPriv; void* profiler; const char** names; size_t count, ranges;
  uint32_t nodes; size_t size;
};
EXPORT int cuptiRangeProfilerGetCounterDataSize(DataSize* p) {
  CHECK(DataSize, size);
  if (!p->ranges || p->nodes < p->ranges) return 1;
  room = p->ranges;
  p->size = 10 * p->count;
  return 0;
}
struct Blank { size_t structSize; void* pPriv; void* profiler; size_t size; uint8_t* image; };
EXPORT int cuptiRangeProfilerCounterDataImageInitialize(Blank* p) {
  CHECK(Blank, image);
  std::memset(p->image, 1, p->size);
  return 0;
}
static uint8_t* data;
struct Set {
  size_t structSize; void* pPriv; void* profiler; size_t configSize; const uint8_t* config;
  size_t size; uint8_t* image; int range, replay; size_t ranges; uint16_t levels, least;
  size_t pass; uint16_t target;
};
EXPORT int cuptiRangeProfilerSetConfig(Set* p) {
  CHECK(Set, target);
  if (p->config[10] != 9 || p->configSize != 11 || p->image[0] != 1) return 1;
  if (p->range != 1 || p->replay != 3 || p->ranges != room || p->levels != 1 || p->least != 1) return 1;
  data = p->image;
  return 0;
}
struct Stop { size_t structSize; void* pPriv; void* profiler; size_t pass, level; uint8_t all; };
EXPORT int cuptiRangeProfilerStop(Stop* p) {
  CHECK(Stop, all);
  p->all = ++done == passes;
  return --running;
}
struct Decode { size_t structSize; void* pPriv; void* profiler; size_t dropped; };
EXPORT int cuptiRangeProfilerDecodeData(Decode* p) {
  CHECK(Decode, dropped);
  data[0] = 42;
  p->dropped = kernels > room ? kernels - room : 0;
  return done != passes;
}
struct Info { size_t structSize; void* pPriv; const uint8_t* image; size_t size, ranges; };
EXPORT int cuptiRangeProfilerGetCounterDataInfo(Info* p) {
  CHECK(Info, ranges);
  p->ranges = kernels;
  return p->image[0] != 42;
}

struct Evaluate {
  size_t structSize; void* pPriv; void* host; const uint8_t* image; size_t size, range;
  const char** names; size_t count; double* values;
};
EXPORT int cuptiProfilerHostEvaluateToGpuValues(Evaluate* p) {
  CHECK(Evaluate, values);
  if (p->image[0] != 42 || p->range >= kernels || p->count != size_t(count)) return 1;
  for (size_t i = 0; i < p->count; ++i) {
    if (std::strcmp(p->names[i], scheduled[i])) return 1;
    p->values[i] = 1.0 + i + 10.0 * p->range;
  }
  return 0;
}
