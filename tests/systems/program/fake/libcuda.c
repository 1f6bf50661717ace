/* A driver library that pretends to have a GPU: the rules of c2c.systems.program.emulated, in C.
 *
 * The public bindings find it by LD_LIBRARY_PATH and ask for each call by cuGetProcAddress. Memory
 * is the host's, images are PTX of which parameters and `// access` comments are read, and a kernel
 * computes a digest of its name, its constants and the bytes it reads (emulated/kernels.py). */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef int R;
typedef unsigned long long Addr;
enum { OK = 0, INVALID = 1, OUT_OF_MEMORY = 2, INVALID_IMAGE = 200, NOT_FOUND = 500, NOT_READY = 600,
       ILLEGAL = 700, UNSUPPORTED_IN_CAPTURE = 900, ILLEGAL_STATE = 401, NOT_SUPPORTED = 801, GRAPH_UPDATE_FAILED = 910 };
enum { KERNEL = 0, MEMCPY = 1, MEMSET = 2, CHILD = 4, EMPTY = 5 };
enum { MAX_PARAMS = 32, MAX_RECORDS = 512, ATTRIBUTES = 32, VALUE = 64, MAP = 128 };

/* The parts of cuda.h that the bindings pass. */
typedef struct { void *func; unsigned grid[3], block[3], shared; void **params, **extra; void *kern, *ctx; } KernelParams;
typedef struct { unsigned grid[3], block[3], shared; void *stream; struct Attribute *attrs; unsigned n; } LaunchConfig;
struct Attribute { int id; char pad[4]; unsigned char value[VALUE]; };
typedef struct { unsigned char from, to, type, reserved[5]; } EdgeData;
typedef struct { size_t x, y, z, lod; int type; void *host; Addr device; void *array, *reserved; size_t pitch, height; } Side;
typedef struct { Side src, dst; size_t width, height, depth; } Copy3d;
typedef struct { Addr dst; size_t pitch; unsigned value, element; size_t width, height; } MemsetParams;

/* Images. */
typedef struct { int param, at, kind, reads, writes; size_t n; } Access; /* kind: p, m, t */
typedef struct { int number, param, at; } Traced; /* which addresses a recording kernel writes down */
typedef struct Function {
    char name[128]; int n; size_t offset[MAX_PARAMS], size[MAX_PARAMS];
    int accesses; Access access[MAX_PARAMS * 2]; int records, record_buffer; Traced record[MAX_RECORDS]; int loaded, shared_limit; struct Module *module;
} Function;
typedef struct Module { int n; Function *functions[64]; } Module;

/* Graphs. */
typedef struct Node {
    int kind; KernelParams k; void *pointers[MAX_PARAMS]; unsigned char *bytes;
    unsigned char has[ATTRIBUTES], value[ATTRIBUTES][VALUE]; Copy3d copy; MemsetParams set; struct Graph *child;
} Node;
typedef struct Graph { int n, cap, edges, edge_cap; Node **nodes; int *from, *to; EdgeData *data; } Graph;

/* ---- digest ---- */
static uint32_t table[256];
static void make_table(void) {
    for (uint32_t i = 0; i < 256; i++) { uint32_t c = i; for (int k = 0; k < 8; k++) c = c & 1 ? 0xEDB88320u ^ (c >> 1) : c >> 1; table[i] = c; }
}
static uint32_t crc(const void *data, size_t n, uint32_t start) {
    uint32_t c = ~start; const unsigned char *p = data;
    while (n--) c = table[(c ^ *p++) & 255] ^ (c >> 8);
    return ~c;
}

/* ---- memory ---- */
#define SEGMENTS 65536
static struct { Addr base; size_t n; } segments[SEGMENTS];
static int n_segments;
static const size_t total = (80ull << 30) - (3ull << 16); /* in no whole segments, as GPUs have it */
static size_t used;
static int in_memory(Addr a, size_t n) {
    for (int i = 0; i < n_segments; i++) if (a >= segments[i].base && a + n <= segments[i].base + segments[i].n) return 1;
    return 0;
}
static void noise(unsigned char *p, size_t n) { /* of this process */
    if (n <= 4u << 20) for (size_t i = 0; i < n; i += 4) *(uint32_t *)(p + i) = (uint32_t)random();
}
static R alloc(Addr *out, size_t n) {
    if (!n) return INVALID;
    if (used + n > total || n_segments == SEGMENTS) return OUT_OF_MEMORY;
    unsigned char *p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return OUT_OF_MEMORY;
    noise(p, n);
    segments[n_segments].base = (Addr)p; segments[n_segments++].n = n; used += n; *out = (Addr)p; return OK;
}
static R release(Addr a) {
    for (int i = 0; i < n_segments; i++) if (segments[i].base == a) {
        munmap((void *)a, segments[i].n); used -= segments[i].n; segments[i] = segments[--n_segments]; return OK; }
    return INVALID;
}
static R f_reserve(Addr *out, size_t n, size_t align, Addr at, uint64_t flags) { /* elsewhere, if something is there */
    (void)align; (void)flags; if (n % (2u << 20) || at % (2u << 20)) return INVALID;
    int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *p = at ? mmap((void *)at, n, PROT_NONE, kind | MAP_FIXED_NOREPLACE, -1, 0) : MAP_FAILED;
    if (p == MAP_FAILED) p = mmap(0, n, PROT_NONE, kind, -1, 0);
    if (p == MAP_FAILED) return OUT_OF_MEMORY;
    *out = (Addr)p; return OK;
}
static R f_memcreate(size_t *held, size_t n, const void *prop, uint64_t flags) { (void)prop; (void)flags; *held = n; return n % (2u << 20) ? INVALID : OK; }
static R f_map(Addr at, size_t n, size_t offset, size_t held, uint64_t flags) {
    (void)flags; if (offset || held != n) return INVALID;
    if (used + n > total || n_segments == SEGMENTS) return OUT_OF_MEMORY;
    if (mprotect((void *)at, n, PROT_READ | PROT_WRITE)) return INVALID;
    noise((void *)at, n); segments[n_segments].base = at; segments[n_segments++].n = n; used += n; return OK;
}
static R f_unmap(Addr at, size_t n) { (void)n; return release(at); }

/* ---- images ---- */
static size_t parameter(const char *text, size_t *align) { /* ".param [.align a] .type [marks] name[count]" */
    char word[64]; size_t size = 0, count = 1; int seen_type = 0; *align = 0;
    for (const char *p = text; *p;) {
        while (*p == ' ' || *p == '\t' || *p == '\n') p++;
        int k = 0; while (*p && *p != ' ' && *p != '\t' && *p != '\n' && k < 63) word[k++] = *p++;
        word[k] = 0; if (!k) break;
        if (!strcmp(word, ".align")) { size_t a = strtoul(p, (char **)&p, 10); if (!seen_type) *align = a; }
        else if (word[0] == '.' && strchr("usbf", word[1]) && word[2] >= '1' && word[2] <= '9') { size = strtoul(word + 2, 0, 10) / 8; seen_type = 1; }
        else if (strchr(word, '[')) count = strtoul(strchr(word, '[') + 1, 0, 10);
    }
    if (!*align) *align = size;
    return size * count;
}
static Function *entry(const char *head, const char *begin) { /* the access comments between begin and head */
    Function *f = calloc(1, sizeof *f);
    const char *open = strchr(head, '('), *close = strchr(open, ')'), *name = head + strlen(".visible .entry ");
    while (*name == ' ') name++;
    int k = 0; while (name + k < open && name[k] != ' ' && k < 127) { f->name[k] = name[k]; k++; }
    size_t at = 0;
    for (const char *p = open + 1; p < close;) {
        const char *end = memchr(p, ',', close - p); if (!end) end = close;
        char text[256]; size_t n = (size_t)(end - p) < 255 ? (size_t)(end - p) : 255, align; memcpy(text, p, n); text[n] = 0;
        if (strstr(text, ".param")) { size_t size = parameter(text, &align); at = (at + align - 1) / align * align; f->offset[f->n] = at; f->size[f->n++] = size; at += size; }
        p = end + 1;
    }
    for (const char *p = begin; (p = strstr(p, "// access ")) && p < head; p += 10) {
        Access *a = &f->access[f->accesses]; char kind[16], mode[4];
        if (sscanf(p, "// access %d %d %15s %3s %zu", &a->param, &a->at, kind, mode, &a->n) != 5) continue;
        a->kind = kind[0]; a->reads = strchr(mode, 'r') != 0; a->writes = strchr(mode, 'w') != 0; f->accesses++;
    }
    for (const char *p = begin; (p = strstr(p, "// record ")) && p < head && f->records < MAX_RECORDS; p += 10) {
        Traced *t = &f->record[f->records];
        if (sscanf(p, "// record %d %d %d %d", &f->record_buffer, &t->number, &t->param, &t->at) == 4) f->records++;
    }
    f->shared_limit = 48 << 10;
    return f;
}
static R load(Module **out, const void *image) {
    Module *m = calloc(1, sizeof *m); const char *begin = image;
    for (const char *p = image; (p = strstr(p, ".visible .entry ")) && m->n < 64; p++) {
        Function *f = entry(p, begin); f->module = m; m->functions[m->n++] = f; begin = p;
    }
    if (!m->n) return INVALID_IMAGE;
    for (int i = m->n - 1; i > 0; i--) { int j = random() % (i + 1); Function *t = m->functions[i]; m->functions[i] = m->functions[j]; m->functions[j] = t; }
    *out = m; return OK;
}
static R find(Function **out, Module *m, const char *name) {
    for (int i = 0; i < m->n; i++) if (!strcmp(m->functions[i]->name, name)) { m->functions[i]->loaded = 1; *out = m->functions[i]; return OK; }
    return NOT_FOUND;
}

/* ---- libraries of kernels, which register themselves when they are opened ---- */
typedef struct { const char *name; const void *symbol; } Symbol;
static struct { const char *path; const char *image; const Symbol *symbols; Module *module; } libraries[64];
static int n_libraries;
void fake_register(const char *path, const char *image, const Symbol *symbols) {
    libraries[n_libraries].path = path; libraries[n_libraries].image = image; libraries[n_libraries++].symbols = symbols;
}
Function *fake_function(const char *path, const char *name) { /* what a library launches by itself */
    for (int i = 0; i < n_libraries; i++) if (!strcmp(libraries[i].path, path)) {
        Function *f; Module *m;
        if (!libraries[i].module) { if (load(&m, libraries[i].image)) continue; libraries[i].module = m; }
        if (!find(&f, libraries[i].module, name)) return f;
    }
    return 0;
}
R cudaGetFuncBySymbol(Function **out, const void *symbol) {
    for (int i = 0; i < n_libraries; i++) for (const Symbol *s = libraries[i].symbols; s && s->name; s++)
        if (s->symbol == symbol) return (*out = fake_function(libraries[i].path, s->name)) ? OK : NOT_FOUND;
    return NOT_FOUND;
}

/* ---- kernels ---- */
static R seal_ok(const unsigned char *map) { uint32_t s = crc(map, MAP - 4, 0x54D4); return !memcmp(&s, map + MAP - 4, 4); }
static R run_kernel(const Node *node) {
    Function *f = node->k.func; uint32_t d = crc(f->name, strlen(f->name), 0), words[7]; Addr place[MAX_PARAMS * 2];
    memcpy(words, node->k.grid, 12); memcpy(words + 3, node->k.block, 12); words[6] = node->k.shared; d = crc(words, 28, d);
    for (uint32_t i = 0; i < ATTRIBUTES; i++) if (node->has[i]) d = crc(node->value[i], VALUE, crc(&i, 4, d));
    for (int i = 0; i < f->accesses; i++) {
        const Access *a = &f->access[i]; unsigned char *at = (unsigned char *)node->pointers[a->param] + a->at; memcpy(&place[i], at, 8);
        if (a->kind == 'm' && !seal_ok(at)) return INVALID;
        if (a->kind == 't') { if (!in_memory(place[i], 8)) return ILLEGAL; memcpy(&place[i], (void *)place[i], 8); }
    }
    for (int i = 0; i < f->n; i++) {
        if (f->records && i == f->record_buffer) continue; /* recording changes nothing that is computed */
        unsigned char *copy = malloc(f->size[i]); memcpy(copy, node->pointers[i], f->size[i]);
        for (int k = 0; k < f->accesses; k++) if (f->access[k].param == i) memset(copy + f->access[k].at, 0, f->access[k].kind == 'm' ? MAP : 8);
        d = crc(copy, f->size[i], d); free(copy);
    }
    for (int i = 0; i < f->accesses; i++) if (f->access[i].n && !in_memory(place[i], f->access[i].n)) return ILLEGAL;
    for (int i = 0; i < f->accesses; i++) if (f->access[i].reads && f->access[i].n) d = crc((void *)place[i], f->access[i].n, d);
    for (uint32_t i = 0; i < (uint32_t)f->accesses; i++) if (f->access[i].writes && f->access[i].n) {
        uint32_t seed = crc(&i, 4, d); unsigned char *out = (unsigned char *)place[i];
        for (size_t j = 0; 4 * j < f->access[i].n; j++) { uint32_t w = seed + (uint32_t)j * 0x9E3779B1u; size_t n = f->access[i].n - 4 * j; memcpy(out + 4 * j, &w, n < 4 ? n : 4); }
    }
    for (int i = 0; i < f->records; i++) for (int k = 0; k < f->accesses; k++) {
        const Traced *t = &f->record[i]; if (f->access[k].param != t->param || f->access[k].at != t->at || !f->access[k].n) continue;
        Addr buffer; memcpy(&buffer, node->pointers[f->record_buffer], 8); Addr *row = (Addr *)(buffer + 16 * (Addr)t->number);
        if (!in_memory((Addr)row, 16)) return ILLEGAL;
        if (place[k] < row[0]) row[0] = place[k];
        if (place[k] + f->access[k].n > row[1]) row[1] = place[k] + f->access[k].n;
    }
    return OK;
}
static R run_copy(const Copy3d *c) {
    if (!in_memory(c->src.device, c->width) || !in_memory(c->dst.device, c->width)) return ILLEGAL;
    memmove((void *)c->dst.device, (void *)c->src.device, c->width); return OK;
}
static R run_set(const MemsetParams *s) {
    if (!in_memory(s->dst, s->width * s->element)) return ILLEGAL;
    for (size_t i = 0; i < s->width; i++) memcpy((char *)s->dst + i * s->element, &s->value, s->element);
    return OK;
}
static R run_graph(const Graph *g);
static R run_node(const Node *n) {
    switch (n->kind) { case KERNEL: return run_kernel(n); case MEMCPY: return run_copy(&n->copy); case MEMSET: return run_set(&n->set); case CHILD: return run_graph(n->child); default: return OK; }
}
static R run_graph(const Graph *g) { /* in some order that the edges allow */
    int *waits = calloc(g->n + 1, sizeof(int)), *ready = calloc(g->n + 1, sizeof(int)), count = 0, done = 0; R r = OK;
    for (int i = 0; i < g->edges; i++) waits[g->to[i]]++;
    for (int i = 0; i < g->n; i++) if (!waits[i]) ready[count++] = i;
    while (count && !r) {
        int pick = random() % count, k = ready[pick]; ready[pick] = ready[--count]; r = run_node(g->nodes[k]); done++;
        for (int i = 0; i < g->edges; i++) if (g->from[i] == k && !--waits[g->to[i]]) ready[count++] = g->to[i];
    }
    free(waits); free(ready); return r ? r : done == g->n ? OK : INVALID;
}

/* ---- graphs ---- */
static Graph *new_graph(void) { return calloc(1, sizeof(Graph)); }
static Node *add_node(Graph *g, int kind) {
    if (g->n == g->cap) { g->cap = g->cap ? 2 * g->cap : 64; g->nodes = realloc(g->nodes, g->cap * sizeof *g->nodes); }
    Node *n = calloc(1, sizeof *n); n->kind = kind; g->nodes[g->n++] = n; return n;
}
static int position(const Graph *g, const Node *n) { for (int i = g->n - 1; i >= 0; i--) if (g->nodes[i] == n) return i; return -1; }
static R add_edge(Graph *g, int from, int to, const EdgeData *data) {
    if (from < 0 || to < 0) return INVALID;
    if (g->edges == g->edge_cap) {
        g->edge_cap = g->edge_cap ? 2 * g->edge_cap : 64; g->from = realloc(g->from, g->edge_cap * sizeof(int));
        g->to = realloc(g->to, g->edge_cap * sizeof(int)); g->data = realloc(g->data, g->edge_cap * sizeof(EdgeData));
    }
    g->from[g->edges] = from; g->to[g->edges] = to; memset(&g->data[g->edges], 0, sizeof(EdgeData)); if (data) g->data[g->edges] = *data; g->edges++; return OK;
}
static R fill_kernel(Node *n, const KernelParams *p) {
    Function *f = p->func; size_t at = 0, whole = 0;
    if (!f->loaded) return NOT_FOUND;
    if ((int)p->shared > f->shared_limit) return INVALID;
    for (int i = 0; i < f->n; i++) whole += f->size[i];
    n->k = *p; n->bytes = malloc(whole + 1);
    for (int i = 0; i < f->n; i++) { n->pointers[i] = n->bytes + at; memcpy(n->pointers[i], p->params[i], f->size[i]); at += f->size[i]; }
    n->k.params = n->pointers; return OK;
}

/* ---- one stream and its capture ---- */
static Graph *capture; static Node *waits_for[4096]; static EdgeData wait_data[4096]; static int n_waits;
static R submit(Node *made) { /* run it, or put it behind what the capture waits for */
    if (!capture) { R r = run_node(made); free(made->bytes); free(made); return r; }
    Node *n = add_node(capture, made->kind); *n = *made; if (n->kind == KERNEL) n->k.params = n->pointers;
    for (int i = 0; i < n_waits; i++) if (add_edge(capture, position(capture, waits_for[i]), capture->n - 1, &wait_data[i])) return INVALID;
    waits_for[0] = n; memset(wait_data, 0, sizeof wait_data[0]); n_waits = 1; free(made); return OK;
}

/* ---- the calls ---- */
static R f_ok(void) { return OK; }
static R f_version(int *v) { *v = 13000; return OK; }
static R f_count(int *n) { *n = 1; return OK; }
static R f_device(int *d, int n) { *d = n; return n ? INVALID : OK; }
static R f_name(char *out, int n, int d) { (void)d; snprintf(out, n, "fake"); return OK; }
static R f_total(size_t *n, int d) { (void)d; *n = total; return OK; }
static R f_retain(void **c, int d) { (void)d; *c = (void *)1; return OK; }
static R f_context(void **c, void *params, unsigned flags, int d) { static Addr contexts = 1; (void)params; (void)flags; (void)d; *c = (void *)++contexts; return OK; }
static R f_range(int *last, int *first) { *last = 0; *first = -5; return OK; }
static R f_event(void **e, unsigned f) { (void)f; *e = calloc(1, 1); return OK; }
static R f_forget(void *e) { free(e); return OK; }
static R f_info(size_t *f, size_t *t) { *f = total - used; *t = total; return OK; }
static R f_htod(Addr a, const void *p, size_t n) { if (!in_memory(a, n)) return ILLEGAL; memcpy((void *)a, p, n); return OK; }
static R f_dtoh(void *p, Addr a, size_t n) { if (!in_memory(a, n)) return ILLEGAL; memcpy(p, (void *)a, n); return OK; }
static R f_replace(unsigned char *map, void *a) { Addr v = (Addr)a; memcpy(map, &v, 8); uint32_t s = crc(map, MAP - 4, 0x54D4); memcpy(map + MAP - 4, &s, 4); return OK; }
static R f_fcount(unsigned *n, Module *m) { *n = m->n; return OK; }
static R f_enum(Function **out, unsigned n, Module *m) { for (unsigned i = 0; i < n && (int)i < m->n; i++) out[i] = m->functions[i]; return OK; }
static R f_fname(const char **n, Function *f) { *n = f->name; return OK; }
static R f_fmodule(Module **m, Function *f) { *m = f->module; return OK; }
static R f_pinfo(Function *f, size_t i, size_t *o, size_t *s) { if ((int)i >= f->n) return INVALID; *o = f->offset[i]; if (s) *s = f->size[i]; return OK; }
static R f_isloaded(int *s, Function *f) { *s = f->loaded; return OK; }
static R f_load(Function *f) { f->loaded = 1; return OK; }
static R f_fget(int *v, int a, Function *f) { if (a != 8) return INVALID; *v = f->shared_limit; return OK; }
static R f_fset(Function *f, int a, int v) { if (a != 8 || v > 227 << 10) return INVALID; f->shared_limit = v; return OK; }
static R f_launch(const LaunchConfig *c, Function *f, void **params, void **extra) {
    Node *n = calloc(1, sizeof *n); KernelParams p = {0}; (void)extra;
    p.func = f; memcpy(p.grid, c->grid, 12); memcpy(p.block, c->block, 12); p.shared = c->shared; p.params = params;
    R r = fill_kernel(n, &p); if (r) return r;
    for (unsigned i = 0; i < c->n; i++) { n->has[c->attrs[i].id] = 1; memcpy(n->value[c->attrs[i].id], c->attrs[i].value, VALUE); }
    return submit(n);
}
static R f_dtod(Addr d, Addr s, size_t n, void *stream) { (void)stream; Node *m = calloc(1, sizeof *m); m->kind = MEMCPY; m->copy.src.type = m->copy.dst.type = 2; m->copy.src.device = s; m->copy.dst.device = d; m->copy.width = n; m->copy.height = m->copy.depth = 1; return submit(m); }
static R set(Addr d, unsigned v, unsigned element, size_t n) { Node *m = calloc(1, sizeof *m); m->kind = MEMSET; m->set = (MemsetParams){d, 0, v, element, n, 1}; return submit(m); }
static R f_set8(Addr d, unsigned char v, size_t n, void *s) { (void)s; return set(d, v, 1, n); }
static R f_set16(Addr d, unsigned short v, size_t n, void *s) { (void)s; return set(d, v, 2, n); }
static R f_set32(Addr d, unsigned v, size_t n, void *s) { (void)s; return set(d, v, 4, n); }
static R f_stream(void **s, unsigned f) { (void)f; *s = (void *)2; return OK; }
static R f_streamp(void **s, unsigned f, int priority) { (void)priority; return f_stream(s, f); }
static R f_peer(Addr d, void *dc, Addr s, void *sc, size_t n, void *stream) { (void)dc; (void)sc; return f_dtod(d, s, n, stream); }
static R f_sync(void *s) { (void)s; return capture ? UNSUPPORTED_IN_CAPTURE : OK; }
static R f_begin(void *s, int mode) { (void)s; if (capture || mode != 2) return ILLEGAL_STATE; capture = new_graph(); n_waits = 0; return OK; }
static R f_end(void *s, Graph **g) { (void)s; if (!capture) return ILLEGAL_STATE; *g = capture; capture = 0; return OK; }
static R f_cinfo(void *s, int *status, uint64_t *id, Graph **g, Node ***deps, EdgeData **data, size_t *n) {
    (void)s; *status = capture ? 1 : 0; if (id) *id = 1; if (g) *g = capture; if (deps) *deps = waits_for; if (data) *data = wait_data; if (n) *n = capture ? (size_t)n_waits : 0; return OK;
}
static R f_update(void *s, Node **deps, const EdgeData *data, size_t n, unsigned flags) {
    (void)s; if (!capture || flags != 1 || n > 4096) return INVALID; n_waits = (int)n;
    for (size_t i = 0; i < n; i++) { waits_for[i] = deps[i]; memset(&wait_data[i], 0, sizeof(EdgeData)); if (data) wait_data[i] = data[i]; }
    return OK;
}
static R f_nodes(Graph *g, Node **out, size_t *n) { if (out) for (size_t i = 0; i < *n && (int)i < g->n; i++) out[i] = g->nodes[i]; *n = g->n; return OK; }
static R f_edges(Graph *g, Node **a, Node **b, EdgeData *d, size_t *n) {
    if (a) for (size_t i = 0; i < *n && (int)i < g->edges; i++) { a[i] = g->nodes[g->from[i]]; b[i] = g->nodes[g->to[i]]; if (d) d[i] = g->data[i]; }
    *n = g->edges; return OK;
}
static R f_type(Node *n, int *t) { *t = n->kind; return OK; }
static R f_kget(Node *n, KernelParams *p) { *p = n->k; return OK; }
static R f_aget(Node *n, int id, unsigned char *v) { if (id < 0 || id >= ATTRIBUTES) return INVALID; memcpy(v, n->value[id], VALUE); return OK; }
static R f_aset(Node *n, int id, const unsigned char *v) { if (id < 0 || id >= ATTRIBUTES) return INVALID; n->has[id] = 1; memcpy(n->value[id], v, VALUE); return OK; }
static R f_cget(Node *n, Copy3d *c) { *c = n->copy; return OK; }
static R f_sget(Node *n, MemsetParams *s) { *s = n->set; return OK; }
static R f_child(Node *n, Graph **g) { *g = n->child; return OK; }
static R f_create(Graph **g, unsigned f) { (void)f; *g = new_graph(); return OK; }
static R deps_of(Graph *g, Node **d, size_t n) { for (size_t i = 0; i < n; i++) if (add_edge(g, position(g, d[i]), g->n - 1, 0)) return INVALID; return OK; }
static R f_addk(Node **out, Graph *g, Node **d, size_t nd, const KernelParams *p) { Node *n = add_node(g, KERNEL); R r = fill_kernel(n, p); if (r) { g->n--; return r; } *out = n; return deps_of(g, d, nd); }
static R f_addc(Node **out, Graph *g, Node **d, size_t nd, const Copy3d *c, void *x) { (void)x; Node *n = add_node(g, MEMCPY); n->copy = *c; *out = n; return deps_of(g, d, nd); }
static R f_adds(Node **out, Graph *g, Node **d, size_t nd, const MemsetParams *s, void *x) { (void)x; Node *n = add_node(g, MEMSET); n->set = *s; *out = n; return deps_of(g, d, nd); }
static R f_addg(Node **out, Graph *g, Node **d, size_t nd, Graph *c) { Node *n = add_node(g, CHILD); n->child = c; *out = n; return deps_of(g, d, nd); }
static R f_adde(Node **out, Graph *g, Node **d, size_t nd) { *out = add_node(g, EMPTY); return deps_of(g, d, nd); }
static R f_depend(Graph *g, Node **a, Node **b, const EdgeData *d, size_t n) { for (size_t i = 0; i < n; i++) if (add_edge(g, position(g, a[i]), position(g, b[i]), d ? &d[i] : 0)) return INVALID; return OK; }
static R f_instantiate(Graph **e, Graph *g, unsigned long long f) { (void)f; Graph *made = new_graph(); *made = *g; *e = made; return OK; }
static R f_eupdate(Graph *e, Graph *g, void *info) { /* the same kinds and edges, or nothing */
    (void)info; if (e->n != g->n || e->edges != g->edges) return GRAPH_UPDATE_FAILED;
    for (int i = 0; i < g->n; i++) if (e->nodes[i]->kind != g->nodes[i]->kind) return GRAPH_UPDATE_FAILED;
    for (int i = 0; i < g->edges; i++) if (e->from[i] != g->from[i] || e->to[i] != g->to[i]) return GRAPH_UPDATE_FAILED;
    *e = *g; return OK;
}
static R f_launchg(Graph *e, void *s) { (void)s; return run_graph(e); }
static R f_error(R r, const char **text) { static char out[32]; snprintf(out, sizeof out, "fake error %d", r); *text = out; return OK; }

static R f_get(const char *name, void **out, int version, uint64_t flags, int *status);
#define C(name, f) {name, (void *)f}
static const struct { const char *name; void *f; } calls[] = {
    C("cuInit", f_ok), C("cuDriverGetVersion", f_version), C("cuDeviceGetCount", f_count), C("cuDeviceGet", f_device),
    C("cuDeviceGetName", f_name), C("cuDeviceTotalMem", f_total), C("cuDevicePrimaryCtxRetain", f_retain), C("cuCtxSetCurrent", f_ok),
    C("cuMemGetInfo", f_info), C("cuMemAlloc", alloc), C("cuMemFree", release),
    C("cuMemAddressReserve", f_reserve), C("cuMemCreate", f_memcreate), C("cuMemMap", f_map), C("cuMemSetAccess", f_ok), C("cuMemRelease", f_ok), C("cuMemUnmap", f_unmap),
    C("cuMemcpyHtoD", f_htod), C("cuMemcpyDtoH", f_dtoh),
    C("cuTensorMapReplaceAddress", f_replace), C("cuModuleLoadData", load), C("cuModuleGetFunction", find),
    C("cuModuleGetFunctionCount", f_fcount), C("cuModuleEnumerateFunctions", f_enum), C("cuFuncGetName", f_fname),
    C("cuFuncGetModule", f_fmodule), C("cuFuncGetParamInfo", f_pinfo), C("cuFuncIsLoaded", f_isloaded), C("cuFuncLoad", f_load),
    C("cuFuncGetAttribute", f_fget), C("cuFuncSetAttribute", f_fset), C("cuLaunchKernelEx", f_launch), C("cuMemcpyDtoDAsync", f_dtod),
    C("cuMemsetD8Async", f_set8), C("cuMemsetD16Async", f_set16), C("cuMemsetD32Async", f_set32), C("cuStreamCreate", f_stream),
    C("cuStreamCreateWithPriority", f_streamp), C("cuCtxGetStreamPriorityRange", f_range), C("cuCtxCreate", f_context), C("cuCtxCreate_v4", f_context),
    C("cuEventCreate", f_event), C("cuEventRecord", f_ok), C("cuStreamWaitEvent", f_ok), C("cuEventDestroy", f_forget), C("cuMemcpyPeerAsync", f_peer),
    C("cuStreamSynchronize", f_sync), C("cuStreamBeginCapture", f_begin), C("cuStreamEndCapture", f_end), C("cuStreamGetCaptureInfo", f_cinfo),
    C("cuStreamUpdateCaptureDependencies", f_update), C("cuGraphGetNodes", f_nodes), C("cuGraphGetEdges", f_edges), C("cuGraphNodeGetType", f_type),
    C("cuGraphKernelNodeGetParams", f_kget), C("cuGraphKernelNodeGetAttribute", f_aget), C("cuGraphKernelNodeSetAttribute", f_aset),
    C("cuGraphMemcpyNodeGetParams", f_cget), C("cuGraphMemsetNodeGetParams", f_sget), C("cuGraphChildGraphNodeGetGraph", f_child),
    C("cuGraphCreate", f_create), C("cuGraphAddKernelNode", f_addk), C("cuGraphAddMemcpyNode", f_addc), C("cuGraphAddMemsetNode", f_adds),
    C("cuGraphAddChildGraphNode", f_addg), C("cuGraphAddEmptyNode", f_adde), C("cuGraphAddDependencies", f_depend),
    C("cuGraphInstantiateWithFlags", f_instantiate), C("cuGraphInstantiate", f_instantiate), C("cuGraphExecUpdate", f_eupdate), C("cuGraphUpload", f_ok), C("cuGraphLaunch", f_launchg),
    C("cuGraphDestroy", f_ok), C("cuGraphExecDestroy", f_ok), C("cuGetErrorName", f_error), C("cuGetErrorString", f_error), C("cuGetProcAddress", f_get),
    {0, 0}};
static R f_get(const char *name, void **out, int version, uint64_t flags, int *status) {
    (void)version; (void)flags; *out = 0; if (status) *status = 1;
    for (int i = 0; calls[i].name; i++) if (!strcmp(calls[i].name, name)) { *out = calls[i].f; if (status) *status = 0; return OK; }
    return OK;
}
R cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status) { return f_get(name, out, version, flags, status); }
R cuGetProcAddress(const char *name, void **out, int version, uint64_t flags) { return f_get(name, out, version, flags, 0); }
__attribute__((constructor)) static void begin(void) {
    struct timespec t; clock_gettime(CLOCK_REALTIME, &t); srandom((unsigned)(t.tv_nsec ^ (t.tv_sec << 8) ^ getpid())); make_table();
}
